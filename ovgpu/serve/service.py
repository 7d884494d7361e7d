"""Class Service: the inferences of all interfaces, from requests to responses."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.serve.classification import MAX_CLASSES
from ovgpu.serve.errors import ServeError, Status, invalid, public
from ovgpu.serve.inference import infer, named_outputs, numbered_inputs, wanted_outputs
from ovgpu.serve.models import Models, Version
from ovgpu.serve.protocol import CONTROL_ID, InferenceRequest, InferenceResponse, NamedTensor, Placement, SequenceStep
from ovgpu.serve.sequences import OpenSequences
from ovgpu.serve.shared_memory import SharedMemory
from ovgpu.types import Type

log = logging.getLogger(__name__)


class Service:
    """Models and the sequences of clients, and the inferences that use them.

    With ``keep_going``, models that cannot be loaded do not keep the server from being ready. All methods are called on
    the thread of one event loop.
    """

    def __init__(
        self, models: Models, sequences: OpenSequences, keep_going: bool = False, *, memory: SharedMemory
    ) -> None:
        self.models, self.sequences, self._keep_going, self.memory = models, sequences, keep_going, memory
        self.draining = False  # True when the server is about to stop, and still accepts inferences
        self.stopping = asyncio.Event()
        self.loaded = False  # True after the models of the repository have been loaded once
        self.started = time.time()

    @property
    def accepting(self) -> bool:
        """True if inferences are accepted, for models that are loaded."""
        return self.loaded and not self.stopping.is_set()

    @property
    def ready(self) -> bool:
        """True if inferences are accepted for all models, and the server is not about to stop."""
        return self.accepting and not self.draining and (self._keep_going or not self.models.missing())

    async def infer(self, request: InferenceRequest, interface: str, method: str) -> InferenceResponse:
        """Run an inference. ``interface`` and ``method`` say how the client called it, for statistics.

        If the task is cancelled, or the deadline passes, an inference that has not begun is not computed.
        """
        started = time.perf_counter()
        if not self.accepting:
            doing = "stopping" if self.stopping.is_set() else "loading its models"
            raise ServeError(Status.UNAVAILABLE, f"the server is {doing}", 1)
        if request.placed:
            with self.memory.holding(request.placed):
                inputs = [*request.inputs, *await self.memory.read(request.placed)]
                return await self.infer(replace(request, inputs=inputs, placed=[]), interface, method)
        version, step = self._version(request)
        version.check_tensors()
        try:
            with version.admitted():
                response = await self._infer(version, step, request)
        except BaseException as error:
            status = Status.CANCELLED if isinstance(error, asyncio.CancelledError) else public(error).status
            version.statistics.add_request(interface, method, status, time.perf_counter() - started)
            raise
        version.statistics.add_request(interface, method, Status.OK, time.perf_counter() - started)
        return response

    def _version(self, request: InferenceRequest) -> tuple[Version, SequenceStep | None]:
        """Return the version that runs an inference, and the step of a sequence that it is, or None.

        If the sequence is not here, this is the current version, and the sequence may turn out to be on another one.
        """
        current = self.models.current.get(request.model)
        step = request.sequence(current.engine.input_indices if current else ())
        version = self.sequences.version_of(request.model, step) if step is not None else None
        continues = step is not None and not step.start and current is not None and current.engine.stateful
        return version or self.models.find(request.model, "" if continues else request.version), step

    async def _infer(self, version: Version, step: SequenceStep | None, request: InferenceRequest) -> InferenceResponse:
        left = None if request.deadline is None else request.deadline - time.monotonic()
        parameters: dict[str, Any] = {}
        try:
            async with nullcontext() if left is None else asyncio.timeout(left):
                if left is not None and left <= 0:
                    raise TimeoutError
                if not version.engine.stateful:
                    outputs = await infer(version.engine, self._inputs(version, request, None))
                elif step is None:
                    self._inputs(version, request, None)
                    raise invalid(f"model '{request.model}' has states: an inference needs a sequence_id")
                else:
                    step = self.sequences.identified(request.model, step)
                    parameters = {"sequence_id": step.id, "sequence_start": step.start, "sequence_end": step.end}
                    prepare = partial(self._inputs, request=request, step=step)
                    result = await self.sequences.infer(version, request.model, step, prepare)
                    outputs, version = result.outputs, result.version
                    if step.number is not None and result.saved_steps is not None:
                        parameters["sequence_saved"] = result.saved_steps
        except TimeoutError:
            raise ServeError(Status.DEADLINE_EXCEEDED, "the deadline of the inference has passed") from None
        wanted = wanted_outputs(version.engine, request)
        if any(output.classes for _, output in wanted):
            named = await asyncio.to_thread(named_outputs, version.engine, wanted, outputs)
        else:
            named = named_outputs(version.engine, wanted, outputs)
        for i, (_, output) in enumerate(wanted):
            if output.placement is not None:
                named[i] = await self._placed(version, named[i], output.placement)
        if log.isEnabledFor(logging.DEBUG):
            shapes = [{tensor.name: tensor.array.shape for tensor in tensors} for tensors in (request.inputs, named)]
            log.debug("inference of model '%s', version %s: %s to %s", request.model, version.number, *shapes)
        if version.engine.stateful and step is not None and step.strict:
            named.append(NamedTensor(CONTROL_ID, Type.u64, np.array([step.id], np.uint64)))
        return InferenceResponse(request.model, version.number, request.id, named, parameters)

    async def _placed(self, version: Version, output: NamedTensor, place: Placement) -> NamedTensor:
        """Write an output to shared memory. If that fails, the output of a step, which has run, is in the response."""
        try:
            return await self.memory.write(output, place)
        except ServeError as error:
            if not version.engine.stateful:
                raise
            log.warning("output '%s' of model '%s' is in its response: %s", output.name, version.name, error)
            return output

    def _inputs(self, version: Version, request: InferenceRequest, step: SequenceStep | None) -> dict[int, Any]:
        """Return the inputs of a request by index. Raise ServeError for inputs or outputs that the version lacks."""
        if step is not None and request.version not in ("", version.number):
            raise invalid(f"sequence {step.id!r} began on version {version.number}, not {request.version}")
        for index, output in wanted_outputs(version.engine, request):
            if step is not None and output.classes > MAX_CLASSES:  # checked before the step runs
                raise invalid(f"output '{output.name}' has up to {MAX_CLASSES} classes")
            if output.placement is not None:
                self.memory.check_output(version.engine.outputs[index], output.placement)
        return numbered_inputs(version.engine, request, step is not None and step.strict)

    # ---- start and stop

    async def start(self) -> None:
        """Load the models, and open the sequences that were saved.

        Raises: Error if the store of sequences cannot be reached, or no model can be loaded.
        """
        await self.sequences.open()
        await self.models.refresh(settled=False)
        if self.models.failures and not self.models.current and not self._keep_going:
            reasons = "; ".join(f"'{name}': {reason}" for name, reason in self.models.failures.items())
            raise Error(f"no model could be loaded (--keep-going serves nevertheless): {reasons}")
        await self.sequences.restore()
        self.loaded = True

    async def stop(self, grace: float) -> int:
        """Refuse new inferences, wait up to ``grace`` seconds for running ones, and save and end the sequences.

        Return the number of sequences that could not be saved.
        """
        self.stopping.set()
        deadline = time.monotonic() + grace
        while any(version.in_flight for version in self.models.versions()) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        return await self.sequences.close()
