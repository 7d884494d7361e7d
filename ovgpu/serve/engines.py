"""Engines: a compiled model and the way in which inferences of many clients reach it.

Models whose rows are independent run in batches (`ovgpu.batching`). Others run one inference at a time for each of
several requests; with states, each sequence has a request of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from ovgpu.api.core import Core
from ovgpu.batching import BatchedSequence, BatchFullError, DynamicBatcher, SequenceBatcher
from ovgpu.batching.gathering import BatchRun, Observer
from ovgpu.errors import DeviceError, Error
from ovgpu.serve.tensors import datatype
from ovgpu.tensor import Tensor
from ovgpu.types import Type

log = logging.getLogger(__name__)

Inputs = Mapping[int, Any]
"""Values of inputs by number."""

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class EngineOptions:
    """Options of engines; see ``ovgpu serve --help``."""

    device: str = "AUTO"
    properties: Mapping[str, Any] = field(default_factory=dict)
    batching: bool = True
    max_batch_size: int = 32
    max_sequences: int = 64
    max_wait_ms: float = 2.0
    requests: int = 1  # per device


@dataclass(frozen=True)
class Port:
    """Input or output of a model. ``shape`` has -1 for extents that are dynamic, and None for a dynamic rank."""

    name: str
    names: frozenset[str]
    kind: Type
    shape: tuple[int, ...] | None
    datatype: str  # the element type in the protocol


def ports(found: Any, batch_axes: tuple[int | None, ...] | None = None) -> tuple[Port, ...]:
    """Return the ports of a compiled model. Of ``batch_axes``, by port, the extents are 1: a step has one row.

    Raises: Error for an element type that the protocol lacks.
    """
    ported = []
    for number, port in enumerate(found):
        names = frozenset(port.get_names())
        name = min(names, default=port.get_node().get_friendly_name())
        shape = None
        if not port.get_partial_shape().rank.is_dynamic:
            extents = [d.get_length() if d.is_static else -1 for d in port.get_partial_shape()]
            axis = batch_axes[number] if batch_axes else None
            if axis is not None:
                extents[axis] = 1
            shape = tuple(extents)
        kind: Type = getattr(Type, port.get_element_type().get_type_name())
        ported.append(Port(name, names | {name}, kind, shape, datatype(f"'{name}'", kind)))
    return tuple(ported)


class EngineSequence(ABC):
    """Sequence of an engine. Its steps are submitted one after the other."""

    @abstractmethod
    def submit(self, inputs: Inputs) -> Future[Any]:
        """Submit a step, and return the future of the outputs, a list of arrays."""

    @abstractmethod
    def read(self) -> State:
        """Return a copy of the state by variable. May wait for an inference."""

    @abstractmethod
    def write(self, state: State) -> None:
        """Set the state. May wait for an inference."""

    @abstractmethod
    def close(self) -> None:
        """End the sequence."""


class Engine(ABC):
    """A compiled model for many clients. Its methods do not wait for inferences, except `warm_up` and `close`."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    stateful = False
    description: str
    max_batch_size = 1
    optional_inputs = frozenset[int]()
    batch_axes: tuple[int | None, ...] | None = None
    """The batch axis of each input, None for one that all rows share; None without batches."""
    output_batch_axes: tuple[int, ...] = ()

    def submit(self, inputs: Inputs) -> Future[Any]:
        """Submit an inference of a model without states; see `EngineSequence.submit`."""
        raise NotImplementedError

    def open(self) -> EngineSequence:
        """Open a sequence of a model with states. Raise BatchFullError if too many are open."""
        raise NotImplementedError

    def together(self) -> AbstractContextManager[Any]:
        """Return a context in which inferences or steps are submitted that run in one batch, as far as they fit. Do not
        wait for their results in it."""
        return nullcontext()

    @property
    def slots(self) -> tuple[int, int]:
        """The number of sequences, and of batch slots that hold them."""
        return 0, 0

    @abstractmethod
    def memory(self) -> dict[str, int]:
        """Return the bytes that this process has on each device that is a card."""

    @abstractmethod
    def warm_up(self) -> None:
        """Run the inferences that clients may request first, as far as shapes are known."""

    @abstractmethod
    def close(self) -> None:
        """End the inferences that were submitted, and free the model."""

    def zeros(self, rows: int = 1) -> dict[int, Any]:
        """Return zeros for all inputs, with 1 for dynamic extents, and ``rows`` rows. Raise Error for strings."""
        found = {}
        for number, port in enumerate(self.inputs):
            if port.shape is None or port.kind is Type.string:
                raise Error(f"input '{port.name}' has no usual value")
            shape = [1 if extent < 0 else extent for extent in port.shape]
            axis = self.batch_axis(number)
            if axis is not None:
                shape[axis] = rows
            found[number] = np.zeros(shape, port.kind.storage)
        return found

    def batch_axis(self, number: int) -> int | None:
        """Return the axis of an input on which an inference may have several rows, None if there is none."""
        return None


class DynamicEngine(Engine):
    """Engine of a model without states, whose inferences share batches."""

    def __init__(self, model: Any, options: EngineOptions, observer: Observer) -> None:
        self._batcher = DynamicBatcher(
            model,
            options.max_batch_size,
            options.device,
            options.properties,
            max_wait_ms=options.max_wait_ms,
            requests=options.requests,
            observer=observer,
            decode_strings=None,
        )
        compiled = self._batcher.compiled_model
        self.inputs, self.outputs = ports(compiled.inputs), ports(compiled.outputs)
        self.batch_axes, self.output_batch_axes = self._batcher.batch_axes, self._batcher.output_batch_axes
        self.max_batch_size = options.max_batch_size
        self.description = f"batches of up to {options.max_batch_size} rows on {_devices(compiled)}"

    def submit(self, inputs: Inputs) -> Future[Any]:
        return self._batcher.submit(inputs)

    def together(self) -> AbstractContextManager[Any]:
        return self._batcher.together()

    def batch_axis(self, number: int) -> int | None:
        return self._batcher.batch_axes[number]

    def memory(self) -> dict[str, int]:
        return _memory(self._batcher.compiled_model)

    def warm_up(self) -> None:
        for rows in self._batcher.batch_sizes:
            self._batcher.infer(self.zeros(rows))

    def close(self) -> None:
        self._batcher.close()


class SequenceEngine(Engine):
    """Engine of a model with states, whose sequences have slots of a batch."""

    stateful = True

    def __init__(self, model: Any, options: EngineOptions, observer: Observer) -> None:
        self._batcher = SequenceBatcher(
            model,
            options.max_sequences,
            options.device,
            options.properties,
            max_wait_ms=options.max_wait_ms,
            observer=observer,
            decode_strings=None,
        )
        compiled = self._batcher.compiled_model
        self.batch_axes, self.output_batch_axes = self._batcher.batch_axes, self._batcher.output_batch_axes
        self.inputs = ports(compiled.inputs, self.batch_axes)
        self.outputs = ports(compiled.outputs, self.output_batch_axes)
        self.max_batch_size = options.max_sequences
        self.optional_inputs = self._batcher.optional_inputs
        self.description = f"up to {options.max_sequences} sequences in a batch on {_devices(compiled)}"

    def open(self) -> EngineSequence:
        return SlotSequence(self._batcher.open())

    def together(self) -> AbstractContextManager[Any]:
        return self._batcher.together()

    @property
    def slots(self) -> tuple[int, int]:
        return len(self._batcher), self._batcher.batch_size

    def memory(self) -> dict[str, int]:
        return _memory(self._batcher.compiled_model)

    def warm_up(self) -> None:
        count, zeros = 1, self.zeros()
        while True:
            sequences = [self._batcher.open() for _ in range(count)]
            try:
                for step in [sequence.submit(zeros) for sequence in sequences]:
                    step.result()
            finally:
                for sequence in sequences:
                    sequence.close()
            if count == self._batcher.max_sequences:
                return
            count = min(2 * count, self._batcher.max_sequences)

    def close(self) -> None:
        self._batcher.close()


class SlotSequence(EngineSequence):
    """Sequence in a slot of a batch."""

    def __init__(self, sequence: BatchedSequence) -> None:
        self._sequence = sequence

    def submit(self, inputs: Inputs) -> Future[Any]:
        return self._sequence.submit(inputs)

    def read(self) -> State:
        return self._sequence.state

    def write(self, state: State) -> None:
        self._sequence.state = state

    def close(self) -> None:
        self._sequence.close()


class RequestEngine(Engine):
    """Engine that runs one inference at a time for each of its requests, so many per device, or of its sequences.

    ``compiled`` is a `CompiledModel`, or has the same methods.
    """

    def __init__(self, compiled: Any, options: EngineOptions, observer: Observer) -> None:
        self._compiled, self._observer = compiled, observer
        self._most = options.max_sequences
        self._requests = options.requests * len(compiled.get_property("EXECUTION_DEVICES"))
        self.inputs, self.outputs = ports(compiled.inputs), ports(compiled.outputs)
        self._idle = SimpleQueue[Any]()
        request = compiled.create_infer_request()
        self.stateful = bool(request.query_state())
        if not self.stateful:
            for found in (request, *(compiled.create_infer_request() for _ in range(self._requests - 1))):
                self._idle.put(found)
        self._pool = ThreadPoolExecutor(self._requests, "ovgpu-requests")
        self._open = 0
        self.description = (
            f"a request for each of up to {options.max_sequences} sequences"
            if self.stateful
            else f"requests: {self._requests}"
        ) + f" on {_devices(compiled)}"

    def submit(self, inputs: Inputs) -> Future[Any]:
        return self.run(self._infer_idle, inputs)

    def run(self, infer: Callable[[Inputs, float], Any], inputs: Inputs) -> Future[Any]:
        """Submit a call of a function with the inputs and this time. Inputs are dropped if it is cancelled."""
        kept, submitted = [inputs], time.perf_counter()
        future = self._pool.submit(lambda: infer(kept[0], submitted))
        future.add_done_callback(lambda _: kept.clear())
        return future

    def _infer_idle(self, inputs: Inputs, submitted: float) -> Any:
        request = self._idle.get()
        try:
            return self.infer(request, inputs, submitted)
        finally:
            self._idle.put(request)

    def infer(self, request: Any, inputs: Inputs, submitted: float) -> Any:
        """Run an inference with a request, and report it."""
        started = time.perf_counter()
        outputs = request.infer(inputs, decode_strings=None)
        outputs.to_tuple()  # large results are downloaded when they are read
        self._observer(BatchRun(1, 1, (started - submitted,), time.perf_counter() - started))
        return outputs

    def open(self) -> EngineSequence:
        if self._open >= self._most:
            raise BatchFullError(f"all {self._most} sequences are open")
        self._open += 1
        return RequestSequence(self, self._compiled.create_infer_request())

    def closed(self) -> None:
        """Count a sequence that has ended."""
        self._open -= 1

    @property
    def slots(self) -> tuple[int, int]:
        return self._open, self._open

    def memory(self) -> dict[str, int]:
        return _memory(self._compiled)

    def warm_up(self) -> None:
        if self.stateful:
            sequence = self.open()
            try:
                sequence.submit(self.zeros()).result()
            finally:
                sequence.close()
        else:
            for step in [self.submit(self.zeros()) for _ in range(self._requests)]:
                step.result()

    def close(self) -> None:
        self._pool.shutdown()


class RequestSequence(EngineSequence):
    """Sequence with a request of its own."""

    def __init__(self, engine: RequestEngine, request: Any) -> None:
        self._engine, self._request = engine, request
        self._running = threading.Lock()  # a step may still run when its client has given up
        self._closed = False

    def submit(self, inputs: Inputs) -> Future[Any]:
        return self._engine.run(self._infer, inputs)

    def _infer(self, inputs: Inputs, submitted: float) -> Any:
        with self._running:
            return self._engine.infer(self._request, inputs, submitted)

    def read(self) -> State:
        with self._running:
            return {variable.name: variable.state for variable in self._request.query_state()}

    def write(self, state: State) -> None:
        with self._running:
            for variable in self._request.query_state():
                if variable.name not in state:
                    raise Error(f"the state has no value of variable '{variable.name}'")
                variable.state = state[variable.name]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._engine.closed()


def _devices(compiled: Any) -> str:
    return ", ".join(compiled.get_property("EXECUTION_DEVICES"))


def _memory(compiled: Any) -> dict[str, int]:
    return {
        device: compiled.memory_held(device) for device in compiled.get_property("EXECUTION_DEVICES") if device != "CPU"
    }


def open_engine(path: Path, options: EngineOptions, observer: Observer) -> Engine:
    """Read and compile a model, and return its engine. Models that have no batch are logged with the reason."""
    return engine_of(Core().read_model(path), str(path), options, observer)


def engine_of(model: Any, name: str, options: EngineOptions, observer: Observer) -> Engine:
    """Compile a model, and return its engine. A model that has no batch is logged by its name, with the reason."""
    stateful = any(node.get_type_name() == "ReadValue" for node in model.get_ops())
    if options.batching:
        try:
            return (SequenceEngine if stateful else DynamicEngine)(model, options, observer)
        except DeviceError:
            raise
        except Error as error:
            log.info("%s runs without batches: %s", name, error)
    return RequestEngine(Core().compile_model(model, options.device, options.properties), options, observer)
