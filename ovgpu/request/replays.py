"""Inferences that are run again as they are: by the graph of the last one like them.

An inference depends on where its tensors and states lie, and on nothing else, if no shape and no value is computed on
the host. Comparing those places takes a few microseconds; finding the binding for them, and all that it needs, takes
ten times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.request.deferred import ResultTensor
from ovgpu.request.inputs import InputSlot
from ovgpu.request.outputs import OutputSlot
from ovgpu.request.pinned import HostDevicePair, StagedTensor
from ovgpu.runtime.executor import Executor
from ovgpu.runtime.state import Snapshot, Value, Variable, Variables

CACHED_REPLAYS = 4  # per request: the states of two are in the other buffers

Place = tuple[Any, Any, int, Any, Any]
"""Location of a tensor: its slot, the request's own array or None, and address, shape and strides of another one."""
Change = tuple[Variable, Array, int, Value]
"""A variable, its value before an inference and the number of its buffer, and what it is after it."""


class Replay:
    """An inference that succeeded, of which only states and the contents of tensors may change."""

    def __init__(self, executor: Executor, places: Sequence[Place], results: Sequence[tuple[ResultTensor, Array]],
                 transition: Transition | None) -> None:
        assert executor.bound is not None
        self.executor = executor
        self._key, binding = executor.bound
        self._binding = ref(binding)  # which holds memory, and goes when the executor drops it
        self._places, self._results, self._transition = places, results, transition

    @staticmethod
    def of(executor: Executor, pairs: Sequence[HostDevicePair], inputs: Sequence[InputSlot],
           outputs: Sequence[OutputSlot], results: Sequence[Array],
           transition: Transition | None = None) -> Replay | None:
        """The inference just run; None if it depends on more than `matches` compares, or is not captured yet."""
        if not executor.fixed or not executor.captured:
            return None
        places = [_place(slot) for slot in (*inputs, *outputs)]
        if None in places:
            return None
        for slot, pair in zip(inputs, pairs):
            if pair.device is getattr(slot, "_received", None):
                return None  # a copy
        if any(result is not slot._array for slot, result in zip(outputs, results)):
            return None
        large = [(slot._tensor, result) for slot, result in zip(outputs, results)
                 if isinstance(slot._tensor, ResultTensor) and slot.host() is None]
        return Replay(executor, places, large, transition)  # type: ignore[arg-type]

    def matches(self) -> bool:
        """Return whether the next inference is the same: the tensors and states lie where they did."""
        for slot, own, address, shape, strides in self._places:
            tensor = slot._tensor
            if tensor is None or slot._lent is not None:
                return False
            array = tensor._buffer
            if own is not None:
                if array is not own:
                    return False
            elif (isinstance(array, np.ndarray) or array.data.ptr != address or array.shape != shape
                  or array.strides != strides):
                return False
        if self._transition is not None and not self._transition.match():
            return False
        return self.executor.holds(self._key, self._binding())

    def run(self) -> None:
        """Enqueues the inference."""
        with np.errstate(all="ignore"):
            binding = self._binding()
            assert binding is not None  # it was there when it matched
            self.executor.replay(self.executor.program.segments[0].steps, binding)

    def publish(self) -> None:
        """Has the outputs' tensors show the results, once the inference has succeeded."""
        for tensor, result in self._results:
            tensor.expect(result)

    @property
    def after(self) -> Snapshot | None:
        """The variables' values after the inference; None if it leaves them as they are."""
        return None if self._transition is None else self._transition.after


class Transition:
    """The values of a request's variables before an inference, and ``after`` it."""

    def __init__(self, variables: Variables, changes: Sequence[Change], after: Snapshot) -> None:
        self._variables, self._changes, self.after = variables, changes, after

    @staticmethod
    def of(variables: Variables, read: dict[str, Array], assigned: dict[str, Array],
           after: Snapshot) -> Transition | None:
        """The transition of the inference just run, which has ``read`` and ``assigned`` values, from `Variables.now` to
        ``after``; None if another inference like it might find the values elsewhere."""
        changes = []
        for (name, variable), now, then in zip(variables.all.items(), variables.now.values, after.values):
            if name not in read or variable.info.axis or then.array is not variable.buffers[then.buffer].last or (
                    name in assigned and assigned[name] is not then.array):
                return None
            changes.append((variable, read[name], now.buffer, then))
        return Transition(variables, changes, after)

    def match(self) -> bool:
        """Return whether the variables are now as they were before the inference."""
        for (variable, before, buffer, then), now in zip(self._changes, self._variables.now.values):
            if (now.array is not before or now.buffer != buffer
                    or variable.buffers[then.buffer].last is not then.array):
                return False
        return True


def _place(slot: Any) -> Place | None:
    """Where the slot's tensor lies; None for one that is copied from or to where it lies."""
    tensor = slot._tensor
    if tensor is None or slot._lent is not None:
        return None
    large = isinstance(tensor, ResultTensor)  # which is downloaded when it is read
    if tensor is slot.own and isinstance(tensor, StagedTensor) and (tensor.pinned or large):
        return slot, tensor._buffer, 0, None, None
    array = tensor._array
    if not tensor.remote or not array.flags.c_contiguous or not array.size or slot.port.element_type.is_dynamic():
        return None
    return slot, None, array.data.ptr, array.shape, array.strides
