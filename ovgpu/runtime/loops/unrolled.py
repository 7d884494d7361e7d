"""Unrolled iterations of a control step, bound before they run. A slice is a view, a concatenated result is written
directly to its part of the output, a back edge passes arrays on, and the caller gets the calls of all iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ovgpu.lowering.program import Step
from ovgpu.ops.base.op import Array
from ovgpu.ops.infrastructure.control_flow import InputMap, OutputMap, no_value
from ovgpu.runtime.backend import Call
from ovgpu.types import Type

if TYPE_CHECKING:
    from ovgpu.runtime.binding import Binding
    from ovgpu.runtime.executor import Executor


class Calls(list[Call]):
    """Calls of iterations, run by `child`. ``parts`` lists (first call, steps, binding) of each iteration."""

    def __init__(self, child: Executor) -> None:
        super().__init__()
        self.child = child
        self.keep_alive: object = None  # an object that must live as long as the calls
        self.parts: list[tuple[int, Sequence[Step], Binding]] = []

    def add(self, binding: Binding) -> None:
        self.parts.append((len(self), self.child.program.segments[0].steps, binding))
        self.extend(binding.flat)

    def add_all(self, calls: Calls) -> None:
        self.parts += [(len(self) + start, steps, binding) for start, steps, binding in calls.parts]
        self.extend(calls)


def failing_step(steps: Sequence[Step], calls: Sequence[Sequence[Call]], call_index: int) -> Step:
    """Return the step of the call at ``call_index``, also inside bodies. ``calls`` has the calls of each step."""
    for step, step_calls in zip(steps, calls):
        if call_index < len(step_calls):
            for start, inner, binding in reversed(step_calls.parts if isinstance(step_calls, Calls) else []):
                if start <= call_index < start + len(binding.flat):
                    return failing_step(inner, binding.calls, call_index - start)
            return step
        call_index -= len(step_calls)
    return steps[-1]


@dataclass(frozen=True)
class Maps:
    """Port maps of a body, its back edges (result, parameter), and the parameter that gets the iteration's index."""

    inputs: Sequence[InputMap]
    outputs: Sequence[OutputMap]
    back: Sequence[tuple[int, int]] = ()
    counter: int | None = None


class Iterations:
    """Binder of the iterations of one control step. Values of back edges lie in spare buffers, keyed (result, k)."""

    def __init__(self, child: Executor, maps: Maps) -> None:
        self.child, self.maps = child, maps
        self.backend = child.backend
        self.back = dict(maps.back)
        self.spare: dict[tuple[int, int], Array] = child.spare
        self.buffer_of_parameter: dict[int, tuple[int, int] | None] = {}  # parameter -> spare buffer of its value
        self.buffer_of_result: dict[int, tuple[int, int]] = {}  # result -> spare buffer that this iteration writes
        self.results: list[Array] = []  # results of the last iteration bound

    def calls(
        self, inputs: Sequence[Array | None], outputs: Sequence[Array], n: int, limit: float = inf
    ) -> Calls | None:
        """Return the calls of ``n`` iterations, or None if there are more than ``limit``."""
        calls = Calls(self.child)
        for binding in self._bindings(inputs, outputs, n):
            if max(1, len(binding.flat)) * n > limit:
                return None
            calls.add(binding)
        calls += self._final_copies(inputs, outputs, n)
        return calls

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array], n: int) -> None:
        """Bind each iteration just before it runs, so that memory does not grow with ``n``."""
        steps = self.child.program.segments[0].steps
        for binding in self._bindings(inputs, outputs, n):
            self.child.run_flat(steps, binding)
        for call in self._final_copies(inputs, outputs, n):
            call()

    def _bindings(self, inputs: Sequence[Array | None], outputs: Sequence[Array], n: float) -> Iterator[Binding]:
        program = self.child.program
        carried: dict[int, Array] = {}
        binding = None
        self.results, self.buffer_of_parameter = [], {}
        i = 0
        while i < n:
            given: list[Any] = [None] * len(program.inputs)
            hosts: list[Any] | None = None
            for m in self.maps.inputs:
                given[m.parameter] = (
                    carried[m.parameter] if m.parameter in carried else self._external_input(inputs[m.port], m, i)
                )
            if self.maps.counter is not None:
                value = program.values[program.inputs[self.maps.counter]]
                iteration = np.full([1] * len(value.view.shape), i, value.type.storage)
                given[self.maps.counter] = self._counter_array(iteration)
                hosts = [iteration if p == self.maps.counter else x for p, x in enumerate(given)]
            self.buffer_of_result = {}
            binding = self.child.bind(given, _IterationMemory(self, outputs, i, n), binding, hosts)
            self.results = [self.child.arrays[v] for v in program.results]
            carried = {parameter: self.results[result] for result, parameter in self.maps.back}
            self.buffer_of_parameter = {
                parameter: self._buffer_of(program.results[result]) for result, parameter in self.maps.back
            }
            yield binding
            i += 1

    def _external_input(self, array: Array | None, m: InputMap, i: int) -> Array | None:
        """Return the array that a parameter without a carried value reads in iteration ``i``."""
        return part_of(array, m, i)

    def _counter_array(self, iteration: Any) -> Array | None:
        """Return the iteration's index as an array for the body."""
        return self.backend.constant(iteration)

    def _buffer_of(self, value: int) -> tuple[int, int] | None:
        """Return the spare buffer of a result: the one it was written to, or that of the parameter it is a view of."""
        values = self.child.program.values
        root = values[values[value].root]
        if root.memory == "input":
            return self.buffer_of_parameter.get(root.source)
        return self.buffer_of_result.get(root.source) if root.memory == "output" else None

    def _final_copies(self, inputs: Sequence[Array | None], outputs: Sequence[Array], n: int) -> list[Call]:
        """Return the calls that copy final values to the outputs that they were not written to directly."""
        calls: list[Call] = []
        initial = {m.parameter: inputs[m.port] for m in self.maps.inputs if m.axis is None}
        for m in self.maps.outputs:
            if m.axis is None:
                if not n and self.back.get(m.result) not in initial:
                    raise no_value(m)
                value = self.results[m.result] if n else initial[self.back[m.result]]
                if value is not outputs[m.port]:
                    calls += self.backend.copy(value, outputs[m.port])
            else:
                calls += self._complete_concatenation(m, outputs, n)
        return calls

    def _complete_concatenation(self, m: OutputMap, outputs: Sequence[Array], n: int) -> Sequence[Call]:
        """Return the calls that fill a concatenated output. The body writes the first output of a result itself; the
        other outputs of that result are copies of the first."""
        first = next(o for o in self.maps.outputs if o.result == m.result and o.axis is not None)
        if first is m:
            return ()
        if (first.axis, first.stride) == (m.axis, m.stride):
            return self.backend.copy(outputs[first.port], outputs[m.port])
        parts = ((part_of(outputs[first.port], first, i, n), part_of(outputs[m.port], m, i, n)) for i in range(n))
        return [call for source, target in parts for call in self.backend.copy(source, target)]

    def memory(
        self, outputs: Sequence[Array], result: int, shape: tuple[int, ...], element_type: Type, i: int, n: float
    ) -> Array:
        """Return the array for a result of iteration ``i``: part of an output, an output or a spare buffer."""
        for m in self.maps.outputs:
            if m.result == result and m.axis is not None:
                return part_of(outputs[m.port], m, i, int(n))
        if i == n - 1:
            for m in self.maps.outputs:
                if m.result == result:
                    return outputs[m.port]
        return self._spare(result, shape, element_type)

    def _spare(self, result: int, shape: tuple[int, ...], element_type: Type) -> Array:
        """Return a spare buffer whose value this iteration does not read."""
        used = set(self.buffer_of_parameter.values())
        key = self.buffer_of_result[result] = next((result, k) for k in count() if (result, k) not in used)
        spare = self.spare.get(key)
        if spare is None or spare.shape != shape:
            block = self.backend.allocate(prod(shape) * element_type.storage.itemsize)
            spare = self.spare[key] = self.backend.dense(block, shape, element_type)
        return spare


@dataclass(frozen=True)
class _IterationMemory:
    """Implementation of `binding.MemoryProvider` for one iteration of a loop."""

    loop: Iterations
    outputs: Sequence[Array]
    i: int
    n: float

    def output(self, result: int, shape: tuple[int, ...], element_type: Type) -> Array:
        return self.loop.memory(self.outputs, result, shape, element_type, self.i, self.n)

    def variable(
        self, name: str, shape: tuple[int, ...], element_type: Type, strides: tuple[int, ...], append: bool
    ) -> Array:
        raise AssertionError("a body has no variables")

    def host(self, index: int) -> None:
        return None


def part_of(array: Any, m: InputMap | OutputMap, i: int, n: int = 0) -> Array:
    """Return the part of iteration ``i`` as a view; the whole array if it is not sliced. An output has ``n`` parts."""
    if m.axis is None:
        return array
    axis = m.axis % array.ndim
    if isinstance(m, OutputMap):
        part = array.shape[axis] // n
        begin = (n - 1 - i if m.stride < 0 else i) * part
    else:
        part = m.part_size
        begin = m.begin(array.shape[axis], i)
    return array[(slice(None),) * axis + (slice(begin, begin + part),)]
