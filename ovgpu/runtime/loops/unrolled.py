"""Iterations of a control step bound ahead: a slice is a view, a concatenated result is written in its place, a back
edge hands over arrays, and the calls of all iterations stand in the caller's list.
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
    """The calls of iterations, run by `child`; ``parts`` says where those of each begin, and what they belong to."""

    def __init__(self, child: Executor) -> None:
        super().__init__()
        self.child = child
        self.holds: object = None  # what has to live as long as the calls
        self.parts: list[tuple[int, Sequence[Step], Binding]] = []

    def add(self, binding: Binding) -> None:
        self.parts.append((len(self), self.child.program.segments[0].steps, binding))
        self.extend(binding.flat)

    def add_all(self, calls: Calls) -> None:
        self.parts += [(len(self) + start, steps, binding) for start, steps, binding in calls.parts]
        self.extend(calls)


def failing_step(steps: Sequence[Step], calls: Sequence[Sequence[Call]], number: int) -> Step:
    """The step, in bodies as well, that call ``number`` belongs to; ``calls`` are those of each step."""
    for step, its in zip(steps, calls):
        if number < len(its):
            for start, inner, binding in reversed(its.parts if isinstance(its, Calls) else []):
                if start <= number < start + len(binding.flat):
                    return failing_step(inner, binding.calls, number - start)
            return step
        number -= len(its)
    return steps[-1]


@dataclass(frozen=True)
class Maps:
    """What enters and leaves a body: its port maps, its back edges (result, parameter), and the parameter that gets
    the iteration number."""

    inputs: Sequence[InputMap]
    outputs: Sequence[OutputMap]
    back: Sequence[tuple[int, int]] = ()
    counter: int | None = None


class Iterations:
    """Binds the iterations of one control step."""

    def __init__(self, child: Executor, maps: Maps) -> None:
        self.child, self.maps = child, maps
        self.backend = child.backend
        self.back = dict(maps.back)
        self.spare: dict[tuple[int, int], Array] = child.spare
        self.held: dict[int, tuple[int, int] | None] = {}  # parameter -> the spare that its value is in
        self.written: dict[int, tuple[int, int]] = {}  # result -> the spare that this iteration writes it to
        self.results: list[Array] = []  # of the last iteration bound

    def calls(self, inputs: Sequence[Array | None], outputs: Sequence[Array], n: int,
              limit: float = inf) -> Calls | None:
        """The calls of ``n`` iterations; None if they are more than ``limit``."""
        found = Calls(self.child)
        for binding in self._bindings(inputs, outputs, n):
            if max(1, len(binding.flat)) * n > limit:
                return None
            found.add(binding)
        found += self._last(inputs, outputs, n)
        return found

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array], n: int) -> None:
        """Binds each iteration when it runs: more of them take no more memory."""
        steps = self.child.program.segments[0].steps
        for binding in self._bindings(inputs, outputs, n):
            self.child.run_flat(steps, binding)
        for call in self._last(inputs, outputs, n):
            call()

    def _bindings(self, inputs: Sequence[Array | None], outputs: Sequence[Array], n: float) -> Iterator[Binding]:
        program = self.child.program
        carried: dict[int, Array] = {}
        binding = None
        self.results, self.held = [], {}
        i = 0
        while i < n:
            given: list[Any] = [None] * len(program.inputs)
            for m in self.maps.inputs:
                given[m.parameter] = (carried[m.parameter] if m.parameter in carried
                                      else self._incoming(inputs[m.port], m, i))
            if self.maps.counter is not None:
                value = program.values[program.inputs[self.maps.counter]]
                number = np.full([1] * len(value.view.shape), i, value.type.storage)
                given[self.maps.counter] = self._number(number)
                self.child.hosts = [number if p == self.maps.counter else x for p, x in enumerate(given)]
            self.written = {}
            binding = self.child.bind(given, _Places(self, outputs, i, n), binding)
            self.results = [self.child.arrays[v] for v in program.results]
            carried = {parameter: self.results[result] for result, parameter in self.maps.back}
            self.held = {parameter: self._holder(program.results[result]) for result, parameter in self.maps.back}
            yield binding
            i += 1

    def _incoming(self, array: Array | None, m: InputMap, i: int) -> Array | None:
        """What a parameter that nothing is carried to reads in iteration ``i``."""
        return part_of(array, m, i)

    def _number(self, number: Any) -> Array | None:
        """The iteration number, as the body takes it."""
        return self.backend.constant(number)

    def _holder(self, value: int) -> tuple[int, int] | None:
        """The spare that a result is in: the one it was written to, or that of a parameter it is a view of."""
        values = self.child.program.values
        root = values[values[value].root]
        if root.memory == "input":
            return self.held.get(root.source)
        return self.written.get(root.source) if root.memory == "output" else None

    def _last(self, inputs: Sequence[Array | None], outputs: Sequence[Array], n: int) -> list[Call]:
        """Copies of last values that are not in their place, because they are something else's as well."""
        found: list[Call] = []
        initial = {m.parameter: inputs[m.port] for m in self.maps.inputs if m.axis is None}
        for m in self.maps.outputs:
            if m.axis is None:
                if not n and self.back.get(m.result) not in initial:
                    raise no_value(m)
                value = self.results[m.result] if n else initial[self.back[m.result]]
                if value is not outputs[m.port]:
                    found += self.backend.copy(value, outputs[m.port])
            else:
                found += self._collected(m, outputs, n)
        return found

    def _collected(self, m: OutputMap, outputs: Sequence[Array], n: int) -> Sequence[Call]:
        """What it takes to complete a concatenation: nothing, or copies of another one of the same results."""
        first = next(o for o in self.maps.outputs if o.result == m.result and o.axis is not None)
        if first is m:
            return ()
        if (first.axis, first.stride) == (m.axis, m.stride):
            return self.backend.copy(outputs[first.port], outputs[m.port])
        parts = ((part_of(outputs[first.port], first, i, n), part_of(outputs[m.port], m, i, n)) for i in range(n))
        return [call for source, target in parts for call in self.backend.copy(source, target)]

    def memory(self, outputs: Sequence[Array], number: int, shape: tuple[int, ...], kind: Type, i: int,
               n: float) -> Array:
        """Where result ``number`` of iteration ``i`` goes: its part of an output, an output, or a spare buffer."""
        for m in self.maps.outputs:
            if m.result == number and m.axis is not None:
                return part_of(outputs[m.port], m, i, int(n))
        if i == n - 1:
            for m in self.maps.outputs:
                if m.result == number:
                    return outputs[m.port]
        return self._spare(number, shape, kind)

    def _spare(self, number: int, shape: tuple[int, ...], kind: Type) -> Array:
        """A buffer that holds no value which this iteration reads."""
        used = set(self.held.values())
        key = self.written[number] = next((number, k) for k in count() if (number, k) not in used)
        spare = self.spare.get(key)
        if spare is None or spare.shape != shape:
            block = self.backend.allocate(prod(shape) * kind.storage.itemsize)
            spare = self.spare[key] = self.backend.dense(block, shape, kind)
        return spare


@dataclass(frozen=True)
class _Places:
    """`binding.Memory` for one iteration."""

    loop: Iterations
    outputs: Sequence[Array]
    i: int
    n: float

    def output(self, number: int, shape: tuple[int, ...], kind: Type) -> Array:
        return self.loop.memory(self.outputs, number, shape, kind, self.i, self.n)

    def variable(self, name: str, shape: tuple[int, ...], kind: Type, strides: tuple[int, ...], append: bool) -> Array:
        raise AssertionError("a body has no variables")

    def host(self, number: int) -> None:
        return None


def part_of(array: Any, m: InputMap | OutputMap, i: int, n: int = 0) -> Array:
    """The part of iteration ``i``: a view. For outputs the axis has exactly ``n`` parts."""
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
