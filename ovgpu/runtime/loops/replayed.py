"""Long loops on a device that replays recordings: iterations that are bound once serve as all of them.

Buffers of back edges alternate, so that after a few iterations one begins as an earlier one did: those between them
are a cycle, recorded once and run again and again, several of them at a time while that many are left. Parts of
sliced inputs and of concatenated outputs lie at fixed addresses; the device moves them by an iteration number in its
memory. So neither the number of iterations nor the tensors that are sliced are part of what was captured.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import TYPE_CHECKING, Any

from ovgpu.lowering.program import Step
from ovgpu.ops.base.op import Array
from ovgpu.ops.infrastructure.control_flow import InputMap, OutputMap
from ovgpu.runtime.backend import Call, Counts, Eager, counts
from ovgpu.runtime.loops.unrolled import Calls, Iterations, Maps, part_of
from ovgpu.types import Type

if TYPE_CHECKING:
    from ovgpu.runtime.executor import Executor

CACHED_CYCLES = 8  # per loop: bound cycles, and trip counts that are unrolled before others are not
CHUNK = 128  # calls: the device takes longer for so many than the host for one launch
LONGEST = 12  # iterations before one begins as an earlier one did; where values rotate, it takes more than two


@dataclass
class Known:
    """What an executor has done of one loop: the trip counts that it has unrolled, and the cycles that are bound,
    by the arrays that they are bound to."""

    unrolled: set[int] = field(default_factory=set)
    cycles: OrderedDict[Any, Repeated | None] = field(default_factory=OrderedDict)


@dataclass
class Cycle:
    """A recording of a few iterations of one loop; ``calls`` has the one entry for its step."""

    calls: list[Calls]
    runs: int = 0
    graph: Any = None
    reason: str = ""
    number: int = 0

    @property
    def flat(self) -> list[Call]:
        return self.calls[0]


class Repeat(Eager):
    """``Repeat(run, cycle, times)``: one launch each time, once the cycle is captured."""

    def counts(self) -> Counts:
        cycle, times = self.args
        once = counts(cycle.flat, bool(cycle.graph))
        return Counts(times * once.launches, times * once.kernels)


def calls(executor: Executor, step: Step, maps: Maps, inputs: Sequence[Array | None], outputs: Sequence[Array],
          n: int) -> Calls | None:
    """The calls of ``n`` iterations as far as they repeat; None if they cannot."""
    known = executor.loops.setdefault(id(step), Known())
    key = tuple([id(inputs[m.port]) if m.axis is None else _part_shape(inputs[m.port], m) for m in maps.inputs])
    if key not in known.cycles:
        known.cycles[key] = _bound(executor, step, maps, inputs)
        if len(known.cycles) > CACHED_CYCLES:
            known.cycles.popitem(last=False)
    known.cycles.move_to_end(key)
    loop = known.cycles[key]
    return None if loop is None else loop.calls(inputs, outputs, n)


def _bound(executor: Executor, step: Step, maps: Maps, inputs: Sequence[Array | None]) -> Repeated | None:
    build = step.bodies[0].dense
    program = None if build is None else build()
    if program is None or maps.counter in program.host_parameters:
        return None
    loop = Repeated(executor.child((id(step), 0, "dense"), program), maps, step)
    return loop if loop.bind(inputs) else None


class Repeated(Iterations):
    """Iterations bound to given arrays, all but those that are sliced or concatenated."""

    def __init__(self, child: Executor, maps: Maps, step: Step) -> None:
        super().__init__(child, maps)
        self.step = step
        self.sliced = [m for m in maps.inputs if m.axis is not None]
        self.joined = [m for m in maps.outputs if m.axis is not None]
        self.slicing = self.backend.slicing(len(self.sliced), len(self.joined))
        self.parts: dict[int, Array] = {}  # parameter -> where its part of a sliced input lies
        self.kept: list[Any] = []  # the arrays bound, whose identity they are found by
        self.bound: list[tuple[Calls, list[Array]]] = []  # calls and results of the iterations before the cycle, and
        self.first = 0  # from this one on of those in it
        self.cycles: list[tuple[Cycle, int]] = []  # with the number of iterations in each; the longest one first
        self.number: Array | None = None

    def bind(self, inputs: Sequence[Array | None]) -> bool:
        """Binds the iterations; False if they cannot repeat."""
        if self.slicing is None or not self._counts():
            return False
        self.kept = [inputs[m.port] for m in self.maps.inputs if m.axis is None]
        begins: dict[Any, int] = {(): 0}  # where carried values lie when an iteration begins -> its number
        for number, binding in enumerate(self._bindings(inputs, (), inf)):
            if number > LONGEST:
                return False
            body = Calls(self.child)
            body.add(binding)
            body += self.slicing.advance(self._moved(self.results))
            self.bound.append((body, self.results))
            begin = tuple(sorted(self.held.items()))
            if begin in begins:
                self.first = begins[begin]
                break
            begins[begin] = number + 1
        bodies = [body for body, _ in self.bound[self.first :]]
        several = max(1, CHUNK // max(1, sum(map(len, bodies))))
        while several:
            together = Calls(self.child)
            for body in bodies * several:
                together.add_all(body)
            self.cycles.append((Cycle([together]), len(bodies) * several))
            several = several // 4 or int(several > 1)
        return True

    def calls(self, inputs: Sequence[Array | None], outputs: Sequence[Array], n: int,
              limit: float = inf) -> Calls | None:
        assert self.slicing is not None
        found = Calls(self.child)
        found.holds = self
        if n:
            wholes = [(inputs[m.port], m) for m in self.sliced] + [(outputs[m.port], m) for m in self.joined]
            two = [[part_of(x, m, min(i, n - 1), n) for x, m in wholes] for i in range(2)]
            begin = self.slicing.begin(n, two[0], two[1], self._moved(self.bound[0][1]))
            if begin is None:
                return None
            found += begin
        lead = min(n, self.first)
        for k in range(lead):
            found.add_all(self.bound[k][0])
        rest = n - lead
        for cycle, length in self.cycles:
            times, rest = divmod(rest, length)
            if times:
                found.append(Repeat(self._run, cycle, times))
        for k in range(rest):
            found.add_all(self.bound[self.first + k][0])
        if n:
            self.results = self.bound[self._like(n - 1)][1]
        found += self._last(inputs, outputs, n)
        return found

    def _run(self, cycle: Cycle, times: int) -> None:
        for _ in range(times):
            self.child.cancellation.check()
            self.child.replay([self.step], cycle)

    def _like(self, i: int) -> int:
        """Which of the iterations bound stands for iteration ``i``."""
        return i if i < self.first else self.first + (i - self.first) % (len(self.bound) - self.first)

    def _moved(self, results: Sequence[Array]) -> list[Array]:
        return [*self.parts.values(), *(results[m.result] for m in self.joined)]

    def _incoming(self, array: Array | None, m: InputMap, i: int) -> Array | None:
        if m.axis is None or array is None:
            return array
        if m.parameter not in self.parts:
            shape, kind = _part_shape(array, m), Type.of(array.dtype)
            block = self.backend.allocate(prod(shape) * kind.storage.itemsize)
            self.parts[m.parameter] = self.backend.dense(block, shape, kind)
        return self.parts[m.parameter]

    def _counts(self) -> bool:
        """Whether the device can give the body the iteration number, should it ask for it."""
        program, counter = self.child.program, self.maps.counter
        if counter is not None and program.inputs[counter] in program.segments[0].users:
            value = program.values[program.inputs[counter]]
            assert self.slicing is not None
            self.number = self.slicing.number(value.type, (1,) * len(value.view.shape))
            return self.number is not None
        return True

    def _number(self, number: Any) -> Array | None:
        return self.number

    def memory(self, outputs: Sequence[Array], number: int, shape: tuple[int, ...], kind: Type, i: int,
               n: float) -> Array:
        return self._spare(number, shape, kind)

    def _collected(self, m: OutputMap, outputs: Sequence[Array], n: int) -> Sequence[Call]:
        return ()


def _part_shape(array: Any, m: InputMap) -> tuple[int, ...]:
    assert m.axis is not None
    axis = m.axis % array.ndim
    return (*array.shape[:axis], m.part_size, *array.shape[axis + 1 :])
