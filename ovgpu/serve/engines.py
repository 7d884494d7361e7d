"""Engines: compiled models that run the inferences of many clients.

Models whose rows are independent run in batches (`ovgpu.batching`). Other models run without batches, by several
requests that run one inference at a time each. If they have states, each sequence has a request of its own.
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
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from ovgpu.api.core import Core
from ovgpu.batching import BatchedSequence, BatchFullError, DynamicBatcher, SequenceBatcher
from ovgpu.batching.gathering import BatchRun, Observer
from ovgpu.batching.model import beams_input
from ovgpu.errors import DeviceError, Error
from ovgpu.serve.tensors import datatype
from ovgpu.tensor import Tensor
from ovgpu.types import Type

log = logging.getLogger(__name__)

QUICK_SECONDS = 0.0005  # of a step that may run on the thread of the event loop, and keep it from other work

Inputs = Mapping[int, Any]
"""Values of inputs by index."""

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class EngineOptions:
    """Options of engines; see ``ovgpu serve --help``.

    The last three are for `ovgpu.serve.openai.opening`: a task of its `TASKS`, and fields of a
    `ovgpu.genai.SchedulerConfig` and of a pipeline's ``Config`` for it.
    """

    device: str = "AUTO"
    properties: Mapping[str, Any] = field(default_factory=dict)
    batching: bool = True
    max_batch_size: int = 32
    max_sequences: int = 64
    max_wait_ms: float = 2.0
    requests: int = 1  # per device
    task: str = ""
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    pipeline: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Port:
    """Input or output of a model. ``shape`` has -1 for extents that are dynamic, and None for a dynamic rank."""

    name: str
    names: frozenset[str]
    dtype: Type
    shape: tuple[int, ...] | None
    datatype: str  # the name of the element type in the protocol


def ports(compiled_ports: Any, batch_axes: tuple[int | None, ...] | None = None) -> tuple[Port, ...]:
    """Return the inputs or outputs of a compiled model. For a model with states, ``batch_axes`` has the batch axis of
    each port, on which the extent is 1, since a step has one row.

    Raises: Error for an element type that the protocol lacks.
    """
    described = []
    for i, port in enumerate(compiled_ports):
        names = frozenset(port.get_names())
        name = min(names, default=port.get_node().get_friendly_name())
        shape = None
        if not port.get_partial_shape().rank.is_dynamic:
            extents = [d.get_length() if d.is_static else -1 for d in port.get_partial_shape()]
            axis = batch_axes[i] if batch_axes else None
            if axis is not None:
                extents[axis] = 1
            shape = tuple(extents)
        dtype: Type = getattr(Type, port.get_element_type().get_type_name())
        described.append(Port(name, names | {name}, dtype, shape, datatype(f"'{name}'", dtype)))
    return tuple(described)


class EngineSequence(ABC):
    """Handle of a sequence of an engine. The next step is submitted after the last one has ended."""

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
    task = ""
    """The task of an engine that has no inferences, but takes texts: see `ovgpu.serve.openai.opening`."""
    description: str
    max_batch_size = 1
    max_sequences = 0
    max_wait_ms = 0.0
    parallel = 1  # batches that can run at a time, on all devices
    optional_inputs = frozenset[int]()
    batch_axes: tuple[int | None, ...] | None = None
    """The batch axis of each input, None for one that all rows share; None without batches."""
    output_batch_axes: tuple[int, ...] = ()

    @property
    def has_rows(self) -> bool:
        """True if the first axis of all inputs and outputs is the batch axis, on which inferences have several rows."""
        return not self.stateful and {*(self.batch_axes or (None,)), *self.output_batch_axes} == {0}

    @cached_property
    def input_indices(self) -> dict[str, int]:
        """Indices of the inputs by all their names."""
        return {name: i for i, port in reversed([*enumerate(self.inputs)]) for name in port.names}

    def submit(self, inputs: Inputs) -> Future[Any]:
        """Submit an inference of a model without states; see `EngineSequence.submit`."""
        raise NotImplementedError

    def open(self) -> EngineSequence:
        """Open a sequence of a model with states. Raise BatchFullError if too many are open."""
        raise NotImplementedError

    def together(self) -> AbstractContextManager[Any]:
        """Return a context for submitting inferences or steps. They run in one batch, as far as they fit, when the
        context ends. Do not wait for their results in it."""
        return nullcontext()

    @property
    def slots(self) -> tuple[int, int]:
        """The number of open sequences, and the number of slots of the batch."""
        return 0, 0

    @property
    @abstractmethod
    def waiting(self) -> int:
        """The number of inferences or steps that were submitted, and do not run yet."""

    def note(self, seconds: float) -> str:
        """Return what the status page tells of the last ``seconds``, beside the numbers of all engines."""
        return ""

    @property
    def capacity(self) -> int:
        """The number of inferences or steps, of one row each, that can run at a time."""
        return self.parallel * self.max_batch_size

    @abstractmethod
    def memory(self) -> dict[str, int]:
        """Return the bytes that this process holds on each card, by device name."""

    @abstractmethod
    def warm_up(self) -> None:
        """Run inferences of the usual sizes with zeros, as far as shapes are known."""

    @abstractmethod
    def close(self) -> None:
        """Wait for the inferences that were submitted, and free the model."""

    def zeros(self, rows: int = 1) -> dict[int, Any]:
        """Return zeros for all inputs, with 1 for dynamic extents, and ``rows`` rows. Raise Error for strings."""
        values = {}
        for i, port in enumerate(self.inputs):
            if port.shape is None or port.dtype is Type.string:
                raise Error(f"input '{port.name}' has no usual value")
            shape = [1 if extent < 0 else extent for extent in port.shape]
            axis = self.batch_axis(i)
            if axis is not None:
                shape[axis] = rows
            values[i] = np.zeros(shape, port.dtype.storage)
        return values

    def batch_axis(self, input_index: int) -> int | None:
        """Return the axis of an input on which an inference may have several rows, or None if there is none."""
        return None


class DynamicEngine(Engine):
    """Engine of a model without states. Inferences share batches."""

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
        self.max_batch_size, self.max_wait_ms = options.max_batch_size, options.max_wait_ms
        self.parallel = options.requests * len(compiled.get_property("EXECUTION_DEVICES"))
        self.description = f"batches of up to {options.max_batch_size} rows on {devices_of(compiled)}"

    def submit(self, inputs: Inputs) -> Future[Any]:
        return self._batcher.submit(inputs)

    def together(self) -> AbstractContextManager[Any]:
        return self._batcher.together()

    def batch_axis(self, input_index: int) -> int | None:
        return self._batcher.batch_axes[input_index]

    @property
    def waiting(self) -> int:
        return self._batcher.waiting

    def memory(self) -> dict[str, int]:
        return memory_of(self._batcher.compiled_model)

    def warm_up(self) -> None:
        for rows in self._batcher.batch_sizes:
            self._batcher.infer(self.zeros(rows))

    def close(self) -> None:
        self._batcher.close()


class SequenceEngine(Engine):
    """Engine of a model with states. Sequences have slots of a batch."""

    stateful = True

    def __init__(self, model: Any, options: EngineOptions, observer: Observer) -> None:
        self._pace = Pace(observer)
        self._batcher = SequenceBatcher(
            model,
            options.max_sequences,
            options.device,
            options.properties,
            max_wait_ms=options.max_wait_ms,
            observer=self._pace,
            decode_strings=None,
        )
        compiled = self._batcher.compiled_model
        self.batch_axes, self.output_batch_axes = self._batcher.batch_axes, self._batcher.output_batch_axes
        self.inputs = ports(compiled.inputs, self.batch_axes)
        self.outputs = ports(compiled.outputs, self.output_batch_axes)
        self.max_batch_size = self.max_sequences = options.max_sequences
        self.max_wait_ms = options.max_wait_ms
        self.parallel = min(len(compiled.get_property("EXECUTION_DEVICES")), options.max_sequences)
        self.optional_inputs = self._batcher.optional_inputs
        self.description = f"up to {options.max_sequences} sequences in a batch on {devices_of(compiled)}"

    def open(self) -> EngineSequence:
        return SlotSequence(self._batcher.open(), self._pace)

    def together(self) -> AbstractContextManager[Any]:
        return self._batcher.together()

    @property
    def slots(self) -> tuple[int, int]:
        return len(self._batcher), self._batcher.batch_size

    @property
    def waiting(self) -> int:
        return self._batcher.waiting

    @property
    def capacity(self) -> int:
        return self.max_sequences

    def memory(self) -> dict[str, int]:
        return memory_of(self._batcher.compiled_model)

    def warm_up(self) -> None:
        count, zeros = 1, self.zeros()
        while True:  # for each number of slots, which are powers of two
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


class Pace:
    """Observer of batches that keeps the seconds of the last one, and the ``shapes`` of the inputs of a step in it."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.seconds = 0.0
        self.shapes: list[tuple[int, ...]] | None = None

    def __call__(self, run: BatchRun) -> None:
        self.seconds = run.computed
        self._observer(run)


class SlotSequence(EngineSequence):
    """Handle of a sequence in a slot of a batch."""

    def __init__(self, sequence: BatchedSequence, pace: Pace) -> None:
        self._sequence, self._pace = sequence, pace

    def submit(self, inputs: Inputs) -> Future[Any]:
        """Submit a step. It runs at once, on this thread, if the sequence is the only one, and the step is expected to
        take no longer than handing it to the thread of the batches: the last one was quick, and had the same shapes.
        """
        pace, shapes = self._pace, [np.shape(value) for value in inputs.values()]
        if pace.seconds < QUICK_SECONDS and shapes == pace.shapes:
            future = Future[Any]()
            try:
                outputs = self._sequence.try_infer(inputs)
            except Exception as error:
                future.set_exception(error)
                return future
            if outputs is not None:
                future.set_result(outputs)
                return future
        pace.shapes = shapes
        return self._sequence.submit(inputs)

    def read(self) -> State:
        return self._sequence.state

    def write(self, state: State) -> None:
        self._sequence.state = state

    def close(self) -> None:
        self._sequence.close()


class RequestEngine(Engine):
    """Engine without batches.

    A model without states has ``options.requests`` requests per device, which run one inference at a time each. A model
    with states has a request for each sequence. ``compiled`` is a `CompiledModel`, or has the same methods. ``beams``
    is the index of an input for the beams of a decoder. Without its value, a step of one row continues its own state.
    """

    def __init__(self, compiled: Any, options: EngineOptions, observer: Observer, beams: int | None = None) -> None:
        self._compiled, self._observer = compiled, observer
        self.parallel = options.requests * len(compiled.get_property("EXECUTION_DEVICES"))
        self.inputs, self.outputs = ports(compiled.inputs), ports(compiled.outputs)
        self._defaults = {} if beams is None else {beams: np.zeros(1, self.inputs[beams].dtype.storage)}
        self.optional_inputs = frozenset(self._defaults)
        self._idle = SimpleQueue[Any]()
        request = compiled.create_infer_request()
        self.stateful = bool(request.query_state())
        self.max_sequences = options.max_sequences if self.stateful else 0
        if not self.stateful:
            self._idle.put(request)
            for _ in range(self.parallel - 1):
                self._idle.put(compiled.create_infer_request())
        self._pool = ThreadPoolExecutor(self.parallel, "ovgpu-requests")
        self._submitted = set[Future[Any]]()  # that have not ended
        self._open = 0
        self.description = (
            f"a request for each of up to {options.max_sequences} sequences"
            if self.stateful
            else f"requests: {self.parallel}"
        ) + f" on {devices_of(compiled)}"

    def submit(self, inputs: Inputs) -> Future[Any]:
        return self.run(self._infer_idle, inputs)

    def run(self, infer: Callable[[Inputs, float], Any], inputs: Inputs) -> Future[Any]:
        """Submit the call ``infer(inputs, time of submission)``. If it is cancelled, the inputs are freed at once."""
        kept, submitted = [inputs], time.perf_counter()
        future = self._pool.submit(lambda: infer(kept[0], submitted))
        self._submitted.add(future)
        future.add_done_callback(lambda _: kept.clear())
        future.add_done_callback(self._submitted.discard)
        return future

    def _infer_idle(self, inputs: Inputs, submitted: float) -> Any:
        request = self._idle.get()
        try:
            return self.infer(request, inputs, submitted)
        finally:
            self._idle.put(request)

    def infer(self, request: Any, inputs: Inputs, submitted: float) -> Any:
        """Run an inference with a request, and report it to the observer."""
        started = time.perf_counter()
        outputs = request.infer({**self._defaults, **inputs}, decode_strings=None)
        outputs.to_tuple()  # large results are downloaded when they are read
        self._observer(BatchRun(1, 1, (started - submitted,), time.perf_counter() - started))
        return outputs

    def open(self) -> EngineSequence:
        if self._open >= self.max_sequences:
            raise BatchFullError(f"all {self.max_sequences} sequences are open")
        self._open += 1
        return RequestSequence(self, self._compiled.create_infer_request())

    def closed(self) -> None:
        """Count a sequence as ended."""
        self._open -= 1

    @property
    def slots(self) -> tuple[int, int]:
        return self._open, self._open

    @property
    def waiting(self) -> int:
        return sum(not future.running() and not future.done() for future in list(self._submitted))

    def memory(self) -> dict[str, int]:
        return memory_of(self._compiled)

    def warm_up(self) -> None:
        if self.stateful:
            sequence = self.open()
            try:
                sequence.submit(self.zeros()).result()
            finally:
                sequence.close()
        else:
            for step in [self.submit(self.zeros()) for _ in range(self.parallel)]:
                step.result()

    def close(self) -> None:
        self._pool.shutdown()


class RequestSequence(EngineSequence):
    """Handle of a sequence with a request of its own."""

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


def devices_of(compiled: Any) -> str:
    """Return the names of the devices of a compiled model."""
    return ", ".join(compiled.get_property("EXECUTION_DEVICES"))


def memory_of(compiled: Any) -> dict[str, int]:
    """Return the bytes that this process holds on each card of a compiled model."""
    return {
        device: compiled.memory_held(device) for device in compiled.get_property("EXECUTION_DEVICES") if device != "CPU"
    }


def open_engine(path: Path, options: EngineOptions, observer: Observer) -> Engine:
    """Read and compile a model, and return its engine; see `engine_of`."""
    return engine_of(Core().read_model(path), str(path), options, observer)


def engine_of(model: Any, name: str, options: EngineOptions, observer: Observer) -> Engine:
    """Compile a model, and return its engine. If it cannot run in batches, log the reason with ``name``."""
    stateful = any(node.get_type_name() == "ReadValue" for node in model.get_ops())
    if options.batching:
        try:
            return (SequenceEngine if stateful else DynamicEngine)(model, options, observer)
        except DeviceError:
            raise
        except Error as error:
            log.info("%s runs without batches: %s", name, error)
    compiled = Core().compile_model(model, options.device, options.properties)
    return RequestEngine(compiled, options, observer, beams_input(model))
