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

from ovgpu.deferred import ResultTensor
from ovgpu.inputs import InputSlot
from ovgpu.mirror import MirroredTensor, Pair
from ovgpu.ops._op import Array
from ovgpu.outputs import OutputSlot
from ovgpu.runtime.executor import Executor
from ovgpu.runtime.state import Variable

KEPT = 4  # per request: the states of two are in the other buffers

Place = tuple[Any, Any, int, Any, Any]
"""Location of a tensor: its slot, the request's own array or None, and address, shape and strides of another one."""
State = tuple[Variable, int, Array, Array]
"""A variable, its parity and value before an inference, and the value after it."""


class Replay:
    """An inference that succeeded, of which only states and the contents of tensors may change."""

    def __init__(self, executor: Executor, places: Sequence[Place], states: Sequence[State],
                 results: Sequence[tuple[ResultTensor, Array]]) -> None:
        assert executor.bound is not None
        self.executor = executor
        self._key, binding = executor.bound
        self._binding = ref(binding)  # which holds memory, and goes when the executor drops it
        self._places, self._states, self._results = places, states, results

    @staticmethod
    def of(executor: Executor, pairs: Sequence[Pair], inputs: Sequence[InputSlot], outputs: Sequence[OutputSlot],
           results: Sequence[Array], variables: dict[str, Variable], parities: Sequence[int],
           states: dict[str, Array]) -> Replay | None:
        """The inference just run; None if it depends on more than `matches` compares, or is not captured yet.
        ``parities`` and ``states`` are those before it."""
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
        found, assigned = [], executor.assigned()
        for (name, variable), parity in zip(variables.items(), parities):
            before, after = states.get(name), variable.placed
            if before is None or after is None or variable.info.axis or (
                    name in assigned and assigned[name] is not after):
                return None
            found.append((variable, parity, before, after))
        large = [(slot._tensor, result) for slot, result in zip(outputs, results)
                 if isinstance(slot._tensor, ResultTensor) and slot.host() is None]
        return Replay(executor, places, found, large)  # type: ignore[arg-type]

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
        for variable, parity, before, after in self._states:
            if variable.parity != parity or not variable.alternates(before, after):
                return False
        return self.executor.holds(self._key, self._binding())

    def run(self) -> None:
        """Enqueues the inference."""
        with np.errstate(all="ignore"):
            binding = self._binding()
            assert binding is not None  # it was there when it matched
            self.executor.replay(self.executor.program.segments[0].steps, binding)

    def commit(self) -> None:
        """Makes the new results and states current, once the inference has succeeded."""
        for tensor, result in self._results:
            tensor.expect(result)
        for variable, _, _, after in self._states:
            variable.alternate(after)


def _place(slot: Any) -> Place | None:
    """Where the slot's tensor lies; None for one that is copied from or to where it lies."""
    tensor = slot._tensor
    if tensor is None or slot._lent is not None:
        return None
    large = isinstance(tensor, ResultTensor)  # which is downloaded when it is read
    if tensor is slot.own and isinstance(tensor, MirroredTensor) and (tensor.pinned or large):
        return slot, tensor._buffer, 0, None, None
    array = tensor._array
    if not tensor.remote or not array.flags.c_contiguous or not array.size or slot.port.element_type.is_dynamic():
        return None
    return slot, None, array.data.ptr, array.shape, array.strides
