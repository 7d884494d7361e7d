"""Replays: inferences that launch the CUDA graph of an earlier inference unchanged.

If no shape and no value is computed on the host, an inference depends only on the locations of its tensors and states.
Comparing the locations takes a few microseconds; finding their binding and preparing the run takes ten times as long.
A `Session` owns the replays of its model's program; its `DecodeSteps` own the replay of decode steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import ref

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.request.batched_tensor import BatchedTensor
from ovgpu.request.downloads import ResultTensor
from ovgpu.request.inputs import RequestInput
from ovgpu.request.large_uploads import is_large
from ovgpu.request.outputs import RequestOutput
from ovgpu.request.pinned import HostDevicePair, StagedTensor
from ovgpu.runtime.binding import Binding
from ovgpu.runtime.executor import Executor
from ovgpu.runtime.state import Snapshot, Variable, Variables, VariableValue

CACHED_REPLAYS = 4  # per request; states alternate between two buffers, so one kind of inference needs two

Change = tuple[Variable, Array, int, VariableValue]
"""A variable, its value before an inference, the index of that value's buffer, and the value after the inference."""


class OwnMemory(NamedTuple):
    """Location of a tensor of the request's own: the array in pinned memory."""

    io: RequestInput | RequestOutput
    array: Array

    def is_current(self) -> bool:
        """Return whether the input or output has the tensor there."""
        tensor = self.io._tensor
        return tensor is not None and self.io.shared_array is None and tensor._buffer is self.array


class LargeOwnMemory(NamedTuple):
    """Location of a large input's own tensor, which is uploaded before the graph."""

    input: RequestInput
    array: Array

    def is_current(self) -> bool:
        """Return whether the input has the tensor there."""
        return OwnMemory(self.input, self.array).is_current()

    def copy(self) -> None:
        """Begin to upload the tensor."""
        self.input.stage_own(None)


class DeviceMemory(NamedTuple):
    """Location of a tensor, or of an array that the caller shares, in device memory."""

    io: RequestInput | RequestOutput
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def is_current(self) -> bool:
        """Return whether the input or output has a tensor or array there."""
        tensor, array = self.io._tensor, self.io.shared_array
        if array is None and tensor is not None:
            array = tensor._buffer
        if array is None or isinstance(array, np.ndarray):
            return False
        return (array.data.ptr, array.shape, array.strides) == (self.address, self.shape, self.strides)


class StagedCopy(NamedTuple):
    """Location of the pinned copy of an array that the caller shares, or of a tensor that it has bound."""

    input: RequestInput
    host: Array

    def is_current(self) -> bool:
        """Return whether the copy of the input's array is made there."""
        source = self.input.staged_source() if self.input.shared_host is self.host else None
        return source is not None and source.shape == self.host.shape and source.dtype == self.host.dtype

    def copy(self) -> None:
        """Make the copy, as each inference does."""
        source = self.input.staged_source()
        assert source is not None
        if not (self.input.has_copy and self.input.keeps_copy):
            self.input.stage(source)
        self.input.has_copy = True


Location = OwnMemory | LargeOwnMemory | DeviceMemory | StagedCopy


class Replay:
    """Inference that succeeded and can be run again if only states and the contents of tensors have changed."""

    def __init__(
        self,
        executor: Executor,
        locations: Sequence[Location],
        results: Sequence[tuple[ResultTensor, Array]],
        transition: Transition | None,
    ) -> None:
        assert executor.bound is not None
        self.executor = executor
        self._key, binding = executor.bound
        self.binding = ref(binding)  # weak, because the binding holds memory until the executor drops it
        self._locations, self._results, self.transition = locations, results, transition
        self._copies = [location for location in locations if isinstance(location, (StagedCopy, LargeOwnMemory))]
        self.may_be_direct = not results  # large results stay on the device

    @staticmethod
    def of(
        executor: Executor,
        pairs: Sequence[HostDevicePair],
        inputs: Sequence[RequestInput],
        outputs: Sequence[RequestOutput],
        results: Sequence[Array],
        transition: Transition | None = None,
    ) -> Replay | None:
        """Return the replay of the last inference; None if it is not captured, or depends on more than locations."""
        if not executor.depends_on_addresses_only or not executor.captured:
            return None
        locations = [*map(_input_location, inputs), *map(_location, outputs)]
        if None in locations:
            return None
        for input_, pair in zip(inputs, pairs):
            if pair.device is getattr(input_, "_last_copy", None):
                return None  # the device array is a copy of the input
        if any(result is not output._array for output, result in zip(outputs, results)):
            return None
        large = [
            (output._tensor, result)
            for output, result in zip(outputs, results)
            if isinstance(output._tensor, ResultTensor) and output.host() is None
        ]
        return Replay(executor, locations, large, transition)  # type: ignore[arg-type]

    def matches(self) -> bool:
        """Return whether the replay is valid for the next inference: tensors and states are at the same locations."""
        return (
            all([location.is_current() for location in self._locations])
            and (self.transition is None or self.transition.match())
            and self.executor.holds(self._key, self.binding())
        )

    def run(self) -> bool:
        """Run the inference: enqueue its graphs, and run its parts on the host. Return True."""
        for copied in self._copies:
            copied.copy()
        with np.errstate(all="ignore"):
            binding = self.binding()
            assert binding is not None  # it was alive when `matches` returned True
            self.executor.run_recording(self.executor.program.segments[0].steps, binding)
        return True

    def enqueue(self) -> bool:
        """Enqueue the inference. Return False, and enqueue nothing, unless it is one graph: the host runs its parts."""
        for copied in self._copies:
            copied.copy()
        binding = self.binding()
        return binding is not None and self.executor.backend.launch_whole(binding)

    def hold(self) -> Binding | None:
        """Return the binding of the graph, marked as the last one used; None if the executor has dropped it."""
        binding = self.binding()
        return binding if self.executor.holds(self._key, binding) else None

    def publish(self) -> None:
        """Set the results of the output tensors, after the inference has succeeded."""
        for tensor, result in self._results:
            tensor.set_result(result)

    @property
    def after(self) -> Snapshot | None:
        """The variables' values after the inference, or None if it does not change them."""
        return None if self.transition is None else self.transition.after


class Transition:
    """Change of a request's variables by an inference: their values before it, and ``after`` it."""

    def __init__(self, variables: Variables, changes: Sequence[Change], after: Snapshot) -> None:
        self._variables, self._changes, self.after = variables, changes, after

    @staticmethod
    def of(
        variables: Variables, read: dict[str, Array], assigned: dict[str, Array], after: Snapshot
    ) -> Transition | None:
        """Return the transition of the last inference, from `Variables.now` to ``after``.

        ``read`` and ``assigned`` are the values that the inference read and assigned. Return None if a replay could
        find the values at other locations.
        """
        changes = []
        for (name, variable), now, then in zip(variables.all.items(), variables.now.values, after.values):
            if (
                name not in read
                or variable.info.axis
                or then.array is not variable.buffers[then.buffer].last
                or (name in assigned and assigned[name] is not then.array)
            ):
                return None
            changes.append((variable, read[name], now.buffer, then))
        return Transition(variables, changes, after)

    def match(self) -> bool:
        """Return whether the variables' values are now at the locations that they had before the inference."""
        for (variable, before, buffer, then), now in zip(self._changes, self._variables.now.values):
            if now.array is not before or now.buffer != buffer or variable.buffers[then.buffer].last is not then.array:
                return False
        return True


def _input_location(input_: RequestInput) -> Location | None:
    if input_.shared_host is not None and input_.staged_source() is not None:
        return StagedCopy(input_, input_.shared_host)
    return _location(input_)


def _location(io: RequestInput | RequestOutput) -> Location | None:
    """Return the location of a tensor that inferences read or write in place; None for any other tensor."""
    tensor = io._tensor
    if io.shared_array is not None:
        return None if isinstance(io.shared_array, np.ndarray) else _on_device(io, io.shared_array)
    if tensor is None:
        return None
    large = isinstance(tensor, ResultTensor)  # downloaded when it is read
    if tensor is io.own and isinstance(tensor, StagedTensor) and (tensor.pinned or large):
        if isinstance(io, RequestInput) and is_large(tensor._buffer):
            return LargeOwnMemory(io, tensor._buffer)
        return OwnMemory(io, tensor._buffer)
    if not tensor.remote or isinstance(tensor, BatchedTensor):
        return None
    return _on_device(io, tensor._array)


def _on_device(io: RequestInput | RequestOutput, array: Array) -> Location | None:
    if not array.flags.c_contiguous or not array.size or io.port.element_type.is_dynamic():
        return None
    return DeviceMemory(io, array.data.ptr, array.shape, array.strides)
