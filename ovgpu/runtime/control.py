"""TensorIterator, Loop and If inside a program.

Where the number of iterations is known from shapes and the lane, and the body's shapes do not change, iterations
are bound ahead: a slice is a view, a concatenated result is written in its place, a back edge hands over arrays,
and the calls of all iterations stand in the caller's list. Otherwise the body is run iteration by iteration by
the op's own `evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ovgpu.model import Model, Node
from ovgpu.ops._op import Array, Op
from ovgpu.ops._view import dense_strides, equal
from ovgpu.ops.control_flow import If, InputMap, Loop, OutputMap, TensorIterator, no_value
from ovgpu.runtime.backend import Call, Eager, Fresh
from ovgpu.runtime.program import Body, Program, Step
from ovgpu.symbolic import Int, Spec, Sym, Table, dims_of
from ovgpu.types import PartialShape, Type

if TYPE_CHECKING:
    from ovgpu.runtime.executor import Binding, Executor

TRIPS = -1  # the key, among a step's host inputs, of the number of iterations
UNROLLED = 2000  # calls; a loop with more is bound iteration by iteration as it runs

Build = Callable[[Model, Sequence[Spec], Table, Any], Program]


@dataclass(frozen=True)
class Layouts:
    """How the body of an unrolled loop finds its inputs and results in memory.

    ``inputs`` and ``outputs`` give strides by number, None for one known only when it runs; absent is dense.
    ``first`` lists the results that are written to memory of their own before others are considered. With ``keeps``
    other results may stay in the memory of a parameter: nothing overwrites that before they are used.
    """

    inputs: dict[int, tuple[int | None, ...]] = field(default_factory=dict)
    outputs: dict[int, tuple[int | None, ...]] = field(default_factory=dict)
    first: tuple[int, ...] = ()
    keeps: bool = False
    is_body: bool = False

    def order(self, count: int) -> Iterable[int]:
        return [*self.first, *(i for i in range(count) if i not in self.first)]

    def may_alias(self, number: int, memory: str, source: Any) -> bool:
        """Whether a result may be left in memory that is not its own: nothing overwrites it while it is needed."""
        if not self.is_body or number in self.first:
            return False
        return memory == "constant" or (memory == "output" and source in self.first) or (
            memory == "input" and self.keeps)


def bodies_of(op: Op) -> tuple[Model, ...]:
    """The body models of a control flow op."""
    if isinstance(op, (TensorIterator, Loop)):
        return (op.body,)
    return (op.then_body, op.else_body) if isinstance(op, If) else ()


def trips(node: Node) -> Int | None:
    """The number of iterations, if the lane knows it."""
    op = node.op
    if not isinstance(op, (TensorIterator, Loop)):
        return None
    return op.trips([None if s is None else s.spec for s in node.inputs])


def static_bodies(node: Node, build: Build) -> tuple[Body, ...] | None:
    """Programs of the bodies if all iterations can be bound ahead, else None."""
    op = node.op
    specs = [None if s is None else s.spec for s in node.inputs]
    if any(p.spec.shape is None for p in node.outputs) or any(s is not None and s.shape is None for s in specs):
        return None
    if isinstance(op, If):
        bodies = [_static_body(model, maps, specs, Layouts(is_body=True), (), None, build)
                  for model, maps in ((op.then_body, op.then_inputs), (op.else_body, op.else_inputs))]
        if any(b is None for b in bodies):
            return None
        return tuple(b for b in bodies if b is not None)
    assert isinstance(op, (TensorIterator, Loop))
    if op.trips(specs) is None:
        return None
    layouts = Layouts(
        inputs={m.parameter: _strides(specs[m.port].shape) for m in op.inputs if m.axis is not None},  # type: ignore[union-attr]
        outputs={m.result: _strides(node.outputs[m.port].spec.shape) for m in op.outputs if m.axis is not None},
        first=tuple(dict.fromkeys(m.result for m in op.outputs if m.axis is not None)),
        keeps=True,
        is_body=True,
    )
    counter = getattr(op, "current_iteration", None)
    back = [(b.result, b.parameter) for b in op.back_edges]
    while True:
        body = _static_body(op.body, op.inputs, specs, layouts, back, counter, build)
        if body is None or body.program is None:
            return None
        inputs = _carried_strides(body.program, layouts, back)
        if inputs == layouts.inputs:
            return (body,)
        layouts = replace(layouts, inputs=inputs)


def _carried_strides(program: Program, layouts: Layouts, back: Sequence[tuple[int, int]]
                     ) -> dict[int, tuple[int | None, ...]]:
    """`Layouts.inputs` where parameters that back edges lead to may also lie as the results do that they carry."""
    inputs = dict(layouts.inputs)
    for result, parameter in back:
        view = program.values[program.results[result]].view
        dense = _strides(view.shape)
        now = [d if equal(extent, 1) else s for d, s, extent in zip(dense, view.strides, view.shape)]
        first = inputs.get(parameter, dense)
        both = tuple(a if a is not None and equal(a, b) else None for a, b in zip(first, now))
        if both != dense:
            inputs[parameter] = both
    return inputs


def _static_body(model: Model, maps: Sequence[InputMap], specs: Sequence[Spec | None], layouts: Layouts,
                 back: Sequence[tuple[int, int]], counter: int | None, build: Build) -> Body | None:
    table = Table()
    symbols: dict[int, Int] = {}
    given: list[Spec] = []
    entering = {m.parameter: m for m in maps}
    for number, parameter in enumerate(model.parameters):
        if number in entering:
            m = entering[number]
            spec = specs[m.port]
            assert spec is not None and spec.shape is not None
            sliced = -1 if m.axis is None else m.axis % len(spec.shape)
            shape = [m.part_size if axis == sliced else _twin(table, symbols, d, number, axis)
                     for axis, d in enumerate(spec.shape)]
            given.append(Spec(spec.type, tuple(shape)))
        else:  # the iteration number
            op: Any = parameter.op
            given.append(Spec(op.element_type, dims_of(op.shape, table, number)))
    if any(s.shape is None for s in given) or model.states:
        return None
    program = build(model, given, table, layouts)
    if len(program.segments) != 1 or program.rest is not None or any(s.kind == "eager" for s in program.steps):
        return None
    if program.host_parameters - {counter}:
        return None
    for result, target in back:
        new, old = program.values[program.results[result]], given[target]
        if new.view.shape != old.shape or new.type != old.type:
            return None
    return Body(model, program)


def _twin(table: Table, symbols: dict[int, Int], dim: Int, number: int, axis: int) -> Int:
    """The body's symbol for an extent of the caller: equal extents stay equal."""
    if not isinstance(dim, Sym):
        return dim
    if dim.index not in symbols:
        symbols[dim.index] = table.atom("dim", number, axis, lo=dim.lo, hi=dim.hi)
    return symbols[dim.index]


def _strides(shape: tuple[Int, ...] | None) -> tuple[int | None, ...]:
    return tuple(None if isinstance(s, Sym) else s for s in dense_strides(shape or ()))


# ---- iterations bound ahead

def bind(executor: Executor, step: Step, inputs: Sequence[Array | None], outputs: Sequence[Array],
         count: Any) -> Sequence[Call]:
    """The calls of a control step whose bodies are static."""
    op = step.op
    if isinstance(op, If):
        taken = bool(np.asarray(inputs[0]).reshape(-1)[0])
        branch = _Iterations(executor, step, 0 if taken else 1,
                             op.then_inputs if taken else op.else_inputs,
                             op.then_outputs if taken else op.else_outputs, (), None)
        return branch.calls(inputs, outputs, 1)
    assert isinstance(op, (TensorIterator, Loop))
    loop = _Iterations(executor, step, 0, op.inputs, op.outputs,
                       [(b.result, b.parameter) for b in op.back_edges], getattr(op, "current_iteration", None))
    n = int(count.reshape(-1)[0])
    steps = len(loop.child.program.steps)
    if n * max(1, steps) > UNROLLED:
        return [Eager(loop.run, list(inputs), list(outputs), n)]
    return loop.calls(inputs, outputs, n)


class Calls(list[Call]):
    """The calls of all iterations; ``parts`` says where those of each begin, and what they belong to."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[tuple[int, Sequence[Step], Binding]] = []


def culprit(steps: Sequence[Step], calls: Sequence[Sequence[Call]], number: int) -> Step:
    """The step, in bodies as well, that call ``number`` belongs to; ``calls`` are those of each step."""
    for step, its in zip(steps, calls):
        if number < len(its):
            for start, inner, binding in reversed(its.parts if isinstance(its, Calls) else []):
                if start <= number < start + len(binding.flat):
                    return culprit(inner, binding.calls, number - start)
            return step
        number -= len(its)
    return steps[-1]


class _Iterations:
    """Binds the iterations of one control step."""

    def __init__(self, executor: Executor, step: Step, branch: int, inputs: Sequence[InputMap],
                 outputs: Sequence[OutputMap], back: Sequence[tuple[int, int]], counter: int | None) -> None:
        program = step.bodies[branch].program
        assert program is not None
        self.child = executor.child((id(step), branch), program)
        self.backend = executor.backend
        self.inputs, self.outputs, self.back, self.counter = inputs, outputs, back, counter
        self.spare: dict[tuple[int, int], Array] = self.child.spare
        self.used: set[tuple[int, int] | None] = set()  # spares that this iteration reads
        self.written: dict[int, tuple[int, int]] = {}  # result -> the spare that this iteration writes it to

    def calls(self, inputs: Sequence[Array | None], outputs: Sequence[Array], n: int) -> list[Call]:
        found = Calls()
        for binding in self._bindings(inputs, outputs, n):
            found.parts.append((len(found), self.child.program.segments[0].steps, binding))
            found += binding.flat
        found += self._last(inputs, outputs, n)
        return found

    def run(self, inputs: Sequence[Array | None], outputs: Sequence[Array], n: int) -> None:
        segment = self.child.program.segments[0]
        for binding in self._bindings(inputs, outputs, n):
            self.child.run_flat(segment, binding)
        for call in self._last(inputs, outputs, n):
            call()

    def _bindings(self, inputs: Sequence[Array | None], outputs: Sequence[Array], n: int) -> Iterable[Binding]:
        program = self.child.program
        carried: dict[int, Array] = {}
        held: dict[int, tuple[int, int] | None] = {}  # parameter -> the spare that its value is in
        binding = None
        self.results: list[Array] = []
        for i in range(n):
            given: list[Any] = [None] * len(program.inputs)
            for m in self.inputs:
                given[m.parameter] = carried[m.parameter] if m.parameter in carried else _slice(inputs[m.port], m, i)
            if self.counter is not None:
                value = program.values[program.inputs[self.counter]]
                shape = tuple(1 for _ in value.view.shape)
                given[self.counter] = self.backend.constant(np.full(shape, i, value.type.storage))
            self.used, self.written = set(held.values()), {}
            binding = self.child.bind(given, _Places(self, outputs, i, n), binding)
            self.results = [self.child.arrays[v] for v in program.results]
            carried = {parameter: self.results[result] for result, parameter in self.back}
            held = {parameter: self._holder(program.results[result], held) for result, parameter in self.back}
            yield binding

    def _holder(self, value: int, held: dict[int, tuple[int, int] | None]) -> tuple[int, int] | None:
        """The spare that a result is in: the one it was written to, or that of a parameter it is a view of."""
        values = self.child.program.values
        root = values[values[value].root]
        if root.memory == "input":
            return held.get(root.source)
        return self.written.get(root.source) if root.memory == "output" else None

    def _last(self, inputs: Sequence[Array | None], outputs: Sequence[Array], n: int) -> list[Call]:
        """Copies of last values that are not in their place, because they are something else's as well."""
        found: list[Call] = []
        initial = {m.parameter: inputs[m.port] for m in self.inputs if m.axis is None}
        for m in self.outputs:
            if m.axis is None:
                if not n and dict(self.back).get(m.result) not in initial:
                    raise no_value(m)
                value = self.results[m.result] if n else initial[dict(self.back)[m.result]]
                if value is not outputs[m.port]:
                    found += self.backend.copy(value, outputs[m.port])
            elif _twice(self.outputs, m):
                found += self.backend.copy(outputs[next(o.port for o in self.outputs if o.result == m.result)],
                                           outputs[m.port])
        return found

    def memory(self, outputs: Sequence[Array], number: int, shape: tuple[int, ...], kind: Type, i: int,
               n: int) -> Array:
        """Where result ``number`` of iteration ``i`` goes: its part of an output, an output, or a spare buffer that
        holds no value which this iteration reads."""
        for m in self.outputs:
            if m.result == number and m.axis is not None:
                return _slice(outputs[m.port], m, i, n)
        if i == n - 1:
            for m in self.outputs:
                if m.result == number:
                    return outputs[m.port]
        key = self.written[number] = next((number, k) for k in count() if (number, k) not in self.used)
        spare = self.spare.get(key)
        if spare is None or spare.shape != shape:
            block = self.backend.allocate(prod(shape) * kind.storage.itemsize)
            spare = self.spare[key] = self.backend.dense(block, shape, kind)
        return spare


@dataclass(frozen=True)
class _Places:
    """`executor.Memory` for one iteration."""

    loop: _Iterations
    outputs: Sequence[Array]
    i: int
    n: int

    def output(self, number: int, shape: tuple[int, ...], kind: Type) -> Array:
        return self.loop.memory(self.outputs, number, shape, kind, self.i, self.n)

    def variable(self, name: str, shape: tuple[int, ...], kind: Type) -> Array:
        raise AssertionError("a body has no variables")

    def host(self, number: int) -> None:
        return None


def _twice(maps: Sequence[OutputMap], m: OutputMap) -> bool:
    return next(o for o in maps if o.result == m.result and o.axis is not None) is not m


def _slice(array: Any, m: InputMap | OutputMap, i: int, n: int = 0) -> Array:
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


# ---- iterations run one by one

def run(executor: Executor, step: Step, inputs: Sequence[Array | None]) -> Sequence[Array]:
    """The results of a control step whose shapes or iterations only running tells."""
    bodies = {id(body.model): number for number, body in enumerate(step.bodies)}

    def run_body(model: Model, arrays: Sequence[Array]) -> Sequence[Array]:
        programs = executor.body_programs.setdefault(id(model), {})
        program = program_for(model, arrays, programs)
        child = executor.child((id(step), bodies[id(model)], id(program)), program)
        contiguous = executor.backend.xp.ascontiguousarray  # slices are not always
        dense = [x if x.flags.c_contiguous else contiguous(x) for x in arrays]
        return child.run(dense, {}, Fresh(executor.backend))

    return step.op.evaluate(executor.backend.xp.running(run_body), *inputs)


def program_for(model: Model, inputs: Sequence[Array], programs: dict[tuple[Any, ...], Program], *,
                uploads: bool = False, downloads: bool = False) -> Program:
    """The program of a model for arrays of these ranks and types; dynamic in every extent that was."""
    from ovgpu.runtime.build import build

    key = tuple((x.ndim, x.dtype) for x in inputs)
    program = programs.get(key)
    if program is None:
        table = Table()
        specs = []
        for number, (parameter, x) in enumerate(zip(model.parameters, inputs)):
            op: Any = parameter.op
            shape = PartialShape.dynamic(x.ndim)
            kind = Type.of(x.dtype) if op.element_type.is_dynamic() else op.element_type
            specs.append(Spec(kind, dims_of(shape, table, number)))
        # of a copy: inference writes to the ports, and other requests may be building from the same model
        program = programs[key] = build(model.clone(), specs, table, uploads=uploads, downloads=downloads)
    return program
