"""Long loops on a device that captures graphs: a few iterations are bound, and repeated for all the others.

Buffers of back edges alternate, so that after a few iterations one begins with the same buffers as an earlier one. The
iterations between them are a cycle. It is captured once, and one launch runs several cycles while enough are left.
Parts of sliced inputs and of concatenated outputs lie at fixed addresses; the device copies them, indexed by the
iteration's index in its memory. So captured graphs depend neither on the trip count nor on the sliced tensors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ovgpu.lowering.program import Step
from ovgpu.ops.base.op import Array
from ovgpu.ops.infrastructure.control_flow import InputMap, OutputMap
from ovgpu.runtime.backend import Call, Counts, HostCall, counts
from ovgpu.runtime.loops.unrolled import Calls, Iterations, Maps, part_of
from ovgpu.types import Type

if TYPE_CHECKING:
    from ovgpu.runtime.executor import Executor

CACHED_CYCLES = 8  # per loop: bound cycles, and also the number of trip counts that are unrolled
CHUNK_CALLS = 128  # the device takes longer to run this many calls than the host takes for one launch
MAX_CYCLE_ITERATIONS = 12  # iterations bound until one repeats; loops that rotate values need more than two


@dataclass
class LoopCache:
    """Cache of one loop of an executor: the trip counts unrolled so far, and the bound cycles by their input arrays."""

    unrolled: set[int] = field(default_factory=set)
    cycles: OrderedDict[Any, CachedCycle] = field(default_factory=OrderedDict)


class CachedCycle(NamedTuple):
    """Bound iterations, or None for inputs whose iterations cannot be repeated. The cache key contains the ids of
    ``inputs``, which are held so that no other array gets one of them."""

    inputs: list[Array | None]
    iterations: ReplayedIterations | None


@dataclass
class Cycle:
    """Recording of a few iterations of one loop; ``calls`` has a single entry, for the loop's step."""

    calls: list[Calls]
    runs: int = 0
    graph: Any = None
    reason: str = ""
    number: int = 0

    @property
    def flat(self) -> list[Call]:
        return self.calls[0]


class Repeat(HostCall):
    """Host call ``Repeat(run, cycle, times)``: one launch per repetition, once the cycle is captured."""

    def counts(self) -> Counts:
        cycle, times = self.args
        per_run = counts(cycle.flat, bool(cycle.graph))
        return Counts(times * per_run.launches, times * per_run.kernels)


def calls(
    executor: Executor, step: Step, maps: Maps, inputs: Sequence[Array | None], outputs: Sequence[Array], n: int
) -> Calls | None:
    """Return the calls of ``n`` iterations that repeat a bound cycle, or None if the loop cannot be repeated."""
    cache = executor.loops.setdefault(id(step), LoopCache())
    key = tuple([id(inputs[m.port]) if m.axis is None else _part_shape(inputs[m.port], m) for m in maps.inputs])
    if key not in cache.cycles:
        bound = [inputs[m.port] for m in maps.inputs if m.axis is None]
        cache.cycles[key] = CachedCycle(bound, _bind_cycle(executor, step, maps, inputs))
        if len(cache.cycles) > CACHED_CYCLES:
            cache.cycles.popitem(last=False)
    cache.cycles.move_to_end(key)
    loop = cache.cycles[key].iterations
    return None if loop is None else loop.calls(inputs, outputs, n)


def _bind_cycle(
    executor: Executor, step: Step, maps: Maps, inputs: Sequence[Array | None]
) -> ReplayedIterations | None:
    build = step.bodies[0].dense
    program = None if build is None else build()
    if program is None or maps.counter in program.host_parameters:
        return None
    loop = ReplayedIterations(executor.child((id(step), 0, "dense"), program), maps, step)
    return loop if loop.bind(inputs) else None


class ReplayedIterations(Iterations):
    """Iterations bound to the input arrays, except to sliced and concatenated ones, which may change."""

    def __init__(self, child: Executor, maps: Maps, step: Step) -> None:
        super().__init__(child, maps)
        self.step = step
        self.sliced = [m for m in maps.inputs if m.axis is not None]
        self.concatenated = [m for m in maps.outputs if m.axis is not None]
        self.slicing = self.backend.slicing(len(self.sliced), len(self.concatenated))
        self.parts: dict[int, Array] = {}  # parameter -> array at a fixed address for its part of a sliced input
        self.bound: list[tuple[Calls, list[Array]]] = []  # (calls, results) of the iterations before and in the cycle
        self.first = 0  # index in `bound` of the cycle's first iteration
        self.cycles: list[tuple[Cycle, int]] = []  # (recording, number of iterations), the longest one first
        self.device_iteration: Array | None = None  # the iteration's index in device memory

    def bind(self, inputs: Sequence[Array | None]) -> bool:
        """Bind iterations until one repeats. Return whether the loop can be repeated."""
        if self.slicing is None or not self._supports_counter():
            return False
        starts: dict[Any, int] = {(): 0}  # buffers of carried values as an iteration begins -> its index
        for iteration, binding in enumerate(self._bindings(inputs, (), inf)):
            if iteration > MAX_CYCLE_ITERATIONS:
                return False
            body = Calls(self.child)
            body.add(binding)
            body += self.slicing.advance(self._part_arrays(self.results))
            self.bound.append((body, self.results))
            begin = tuple(sorted(self.buffer_of_parameter.items()))
            if begin in starts:
                self.first = starts[begin]
                break
            starts[begin] = iteration + 1
        bodies = [body for body, _ in self.bound[self.first :]]
        repetitions = max(1, CHUNK_CALLS // max(1, sum(map(len, bodies))))
        while repetitions:  # chunks of fewer and fewer repetitions, so that any trip count takes few launches
            chunk = Calls(self.child)
            for body in bodies * repetitions:
                chunk.add_all(body)
            self.cycles.append((Cycle([chunk]), len(bodies) * repetitions))
            repetitions = repetitions // 4 or int(repetitions > 1)
        return True

    def calls(
        self, inputs: Sequence[Array | None], outputs: Sequence[Array], n: int, limit: float = inf
    ) -> Calls | None:
        assert self.slicing is not None
        calls = Calls(self.child)
        calls.keep_alive = self
        if n:
            wholes = [(inputs[m.port], m) for m in self.sliced] + [(outputs[m.port], m) for m in self.concatenated]
            first_two = [[part_of(x, m, min(i, n - 1), n) for x, m in wholes] for i in range(2)]
            begin = self.slicing.begin(n, first_two[0], first_two[1], self._part_arrays(self.bound[0][1]))
            if begin is None:
                return None
            calls += begin
        lead = min(n, self.first)
        for k in range(lead):
            calls.add_all(self.bound[k][0])
        rest = n - lead
        for cycle, length in self.cycles:
            times, rest = divmod(rest, length)
            if times:
                calls.append(Repeat(self._run, cycle, times))
        for k in range(rest):
            calls.add_all(self.bound[self.first + k][0])
        if n:
            self.results = self.bound[self._equivalent(n - 1)][1]
        calls += self._final_copies(inputs, outputs, n)
        return calls

    def _run(self, cycle: Cycle, times: int) -> None:
        for _ in range(times):
            self.child.cancellation.check()
            self.child.run_recording([self.step], cycle)

    def _equivalent(self, i: int) -> int:
        """Return the index of the bound iteration that stands for iteration ``i``."""
        return i if i < self.first else self.first + (i - self.first) % (len(self.bound) - self.first)

    def _part_arrays(self, results: Sequence[Array]) -> list[Array]:
        return [*self.parts.values(), *(results[m.result] for m in self.concatenated)]

    def _external_input(self, array: Array | None, m: InputMap, i: int) -> Array | None:
        if m.axis is None or array is None:
            return array
        if m.parameter not in self.parts:
            shape, element_type = _part_shape(array, m), Type.of(array.dtype)
            block = self.backend.allocate(prod(shape) * element_type.storage.itemsize)
            self.parts[m.parameter] = self.backend.dense(block, shape, element_type)
        return self.parts[m.parameter]

    def _supports_counter(self) -> bool:
        """Return whether the body does not use the iteration's index, or the device can provide it."""
        program, counter = self.child.program, self.maps.counter
        if counter is not None and program.inputs[counter] in program.segments[0].external_users:
            value = program.values[program.inputs[counter]]
            assert self.slicing is not None
            self.device_iteration = self.slicing.number(value.type, (1,) * len(value.view.shape))
            return self.device_iteration is not None
        return True

    def _counter_array(self, iteration: Any) -> Array | None:
        return self.device_iteration

    def memory(
        self, outputs: Sequence[Array], result: int, shape: tuple[int, ...], element_type: Type, i: int, n: float
    ) -> Array:
        return self._spare(result, shape, element_type)

    def _complete_concatenation(self, m: OutputMap, outputs: Sequence[Array], n: int) -> Sequence[Call]:
        return ()


def _part_shape(array: Any, m: InputMap) -> tuple[int, ...]:
    assert m.axis is not None
    axis = m.axis % array.ndim
    return (*array.shape[:axis], m.part_size, *array.shape[axis + 1 :])
