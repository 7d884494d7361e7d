"""Static bodies of TensorIterator, Loop and If: programs whose iterations can be bound before they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ovgpu.lowering.program import Body, Program
from ovgpu.model import Model, Node
from ovgpu.ops.base.op import Op
from ovgpu.ops.base.view import dense_strides, equal
from ovgpu.ops.infrastructure.control_flow import If, InputMap, Loop, TensorIterator
from ovgpu.spec import Spec, dims_of
from ovgpu.symbolic import Int, Sym, Table, bounds

TRIP_COUNT_KEY = -1  # key of the trip count in `Step.host`, beside the indices of inputs

Build = Callable[[Model, Sequence[Spec], Table, Any], Program]


@dataclass(frozen=True)
class Layouts:
    """Memory layouts of the inputs and results of a body.

    ``inputs`` and ``outputs`` map an index to strides in elements; None stands for a stride known only at run time,
    and a missing index means dense. ``first`` lists the results that get memory of their own before the others.
    With ``may_alias_inputs``, the others may stay in an input's memory: it is not overwritten while they are needed.
    """

    inputs: dict[int, tuple[Int | None, ...]] = field(default_factory=dict)
    outputs: dict[int, tuple[int | None, ...]] = field(default_factory=dict)
    first: tuple[int, ...] = ()
    may_alias_inputs: bool = False
    is_body: bool = False
    counter: tuple[int, int] | None = None  # (parameter that gets the iteration's index, maximum trip count)

    def order(self, count: int) -> Iterable[int]:
        """Return the indices of ``count`` results, those in ``first`` at the beginning."""
        return [*self.first, *(i for i in range(count) if i not in self.first)]

    def may_alias(self, result: int, memory: str, source: Any) -> bool:
        """Return whether a result may stay in memory of this kind and source, and needs none of its own."""
        if not self.is_body or result in self.first:
            return False
        return (
            memory == "constant"
            or (memory == "output" and source in self.first)
            or (memory == "input" and self.may_alias_inputs)
        )


def bodies_of(op: Op) -> tuple[Model, ...]:
    """Return the body models of a control flow op; empty for another op."""
    if isinstance(op, (TensorIterator, Loop)):
        return (op.body,)
    return (op.then_body, op.else_body) if isinstance(op, If) else ()


def trips(node: Node) -> Int | None:
    """Return the trip count if the shape function knows it, else None."""
    op = node.op
    if not isinstance(op, (TensorIterator, Loop)):
        return None
    return op.trips([None if s is None else s.spec for s in node.sources])


def static_bodies(node: Node, build: Build) -> tuple[Body, ...] | None:
    """Return the bodies with their programs if all iterations can be bound ahead, else None.

    ``build`` is `ovgpu.lowering.build.build`.
    """
    op = node.op
    specs = [None if s is None else s.spec for s in node.sources]
    if any(p.spec.shape is None for p in node.ports) or any(s is not None and s.shape is None for s in specs):
        return None
    if isinstance(op, If):
        bodies = [
            _static_body(model, maps, specs, Layouts(is_body=True), (), None, build)
            for model, maps in ((op.then_body, op.then_inputs), (op.else_body, op.else_inputs))
        ]
        if any(b is None for b in bodies):
            return None
        return tuple(b for b in bodies if b is not None)
    assert isinstance(op, (TensorIterator, Loop))
    trip_count = op.trips(specs)
    if trip_count is None:
        return None
    max_trip_count, counter = bounds(trip_count)[1], getattr(op, "current_iteration", None)
    counter_and_trips = (counter, max_trip_count) if counter is not None and max_trip_count else None
    back = [(b.result, b.parameter) for b in op.back_edges]
    concatenated = tuple(dict.fromkeys(m.result for m in op.outputs if m.axis is not None))

    def body_of(model: Model, layouts: Layouts) -> Body | None:
        while True:  # other strides of carried values may change the strides of results, until all fit
            body = _static_body(model, op.inputs, specs, layouts, back, counter, build)
            if body is None or body.program is None:
                return None
            inputs = _carried_strides(body.program, layouts, back)
            if inputs == layouts.inputs:
                return body
            layouts = replace(layouts, inputs=inputs)

    @cache
    def dense() -> Program | None:
        # Build from a copy: shape inference writes to the ports.
        body = body_of(op.body.clone(), Layouts(first=concatenated, is_body=True, counter=counter_and_trips))
        return None if body is None else body.program

    body = body_of(
        op.body,
        Layouts(
            inputs={m.parameter: _strides(specs[m.port].shape) for m in op.inputs if m.axis is not None},  # type: ignore[union-attr]
            outputs={
                m.result: _strides(node.ports[m.port].spec.shape) for m in reversed(op.outputs) if m.axis is not None
            },  # a result of several outputs is written to the first one
            first=concatenated,
            may_alias_inputs=True,
            is_body=True,
            counter=counter_and_trips,
        ),
    )
    return None if body is None else (replace(body, dense=dense),)


def _carried_strides(
    program: Program, layouts: Layouts, back: Sequence[tuple[int, int]]
) -> dict[int, tuple[int | None, ...]]:
    """Return `Layouts.inputs` such that a parameter of a back edge fits its initial value and the carried result.

    Strides that differ between the two become None.
    """
    inputs = dict(layouts.inputs)
    for result, parameter in back:
        view = program.values[program.results[result]].view
        dense = _strides(view.shape)
        result_strides = [d if equal(extent, 1) else s for d, s, extent in zip(dense, view.strides, view.shape)]
        first = inputs.get(parameter, dense)
        merged = tuple(a if a is not None and equal(a, b) else None for a, b in zip(first, result_strides))
        if merged != dense:
            inputs[parameter] = merged
    return inputs


def _static_body(
    model: Model,
    maps: Sequence[InputMap],
    specs: Sequence[Spec | None],
    layouts: Layouts,
    back: Sequence[tuple[int, int]],
    counter: int | None,
    build: Build,
) -> Body | None:
    table = Table()
    symbols: dict[int, Int] = {}
    parameter_specs: list[Spec] = []
    map_of = {m.parameter: m for m in maps}
    for index, parameter in enumerate(model.parameters):
        if index in map_of:
            m = map_of[index]
            spec = specs[m.port]
            assert spec is not None and spec.shape is not None
            sliced = -1 if m.axis is None else m.axis % len(spec.shape)
            shape = [
                m.part_size if axis == sliced else _body_symbol(table, symbols, d, index, axis)
                for axis, d in enumerate(spec.shape)
            ]
            parameter_specs.append(Spec(spec.type, tuple(shape)))
        else:  # the parameter that gets the iteration's index
            op: Any = parameter.op
            parameter_specs.append(Spec(op.element_type, dims_of(op.shape, table, index)))
    if any(s.shape is None for s in parameter_specs) or model.states:
        return None
    program = build(model, parameter_specs, table, layouts)
    if len(program.segments) != 1 or program.deferred is not None or any(s.kind == "eager" for s in program.steps):
        return None
    if program.host_parameters - {counter}:
        return None
    for result, target in back:
        new, old = program.values[program.results[result]], parameter_specs[target]
        if new.view.shape != old.shape or new.type != old.type:
            return None
    return Body(model, program)


def _body_symbol(table: Table, symbols: dict[int, Int], dim: Int, parameter: int, axis: int) -> Int:
    """Return the body's symbol for an extent of the caller. Equal extents get the same symbol."""
    if not isinstance(dim, Sym):
        return dim
    if dim.index not in symbols:
        symbols[dim.index] = table.atom("dim", parameter, axis, lo=dim.lo, hi=dim.hi)
    return symbols[dim.index]


def _strides(shape: tuple[Int, ...] | None) -> tuple[int | None, ...]:
    return tuple(None if isinstance(s, Sym) else s for s in dense_strides(shape or ()))
