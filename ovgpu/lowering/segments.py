"""Finalizing a program: buffers, symbols, dependencies and the shape function of each segment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from ovgpu.lowering.program import Buffer, Geometry, Program, Segment, Step, Value
from ovgpu.lowering.shape_function import compile_shape_function
from ovgpu.symbolic import Atom, Check, Int, Sym, atoms
from ovgpu.types import Type


def finalize(
    program: Program,
    checks: Sequence[Check],
    source: Callable[[Segment, Atom], tuple[str, Any, int]],
    computed_in: Mapping[int, int],
) -> None:
    """Fill in the segments of a program whose steps are complete.

    ``source`` is `Builder._source`; ``computed_in`` maps a value to the index of the segment that computes it.
    """
    values = program.values
    made_in: dict[int, int] = {}  # value -> index of the segment that makes its array
    last_segment = _last_segments(program)
    for segment_index, segment in enumerate(program.segments):
        following = program.segments[segment_index + 1 : segment_index + 2]
        for i in [
            *_used_values(program, segment_index),
            *(i for other in following for i in other.fetches),
        ]:  # views that the next shape function reads
            for v in (i, values[i].root):
                if v not in made_in and (values[v].memory == "buffer" or v != values[v].root):
                    made_in[v] = segment_index
                    segment.values.append(v)
        segment.values.sort()
        caller_roots = sorted(
            {
                values[i].root
                for i in _used_values(program, segment_index)
                if values[values[i].root].memory in ("output", "variable")
                and made_in.setdefault(values[i].root, segment_index) == segment_index
            }
        )
        _collect_buffers(program, segment, segment_index, made_in, last_segment)
        _collect_symbols(program, segment, caller_roots)
        _collect_dependencies(program, segment, segment_index, made_in)
        segment.dynamic_sizes = [
            (i, segment.index[b.nbytes.index]) for i, b in enumerate(segment.buffers) if isinstance(b.nbytes, Sym)
        ]
        read = {h.host_node for step in segment.steps for h in step.host.values()}
        segment.read_host_nodes = sorted(i for i in read if i >= 0)
        segment.position_of = {b.root: i for i, b in enumerate(segment.buffers)}
        segment.caller_roots = {i: _compile_geometry(values[i], segment) for i in caller_roots}
        segment.geometries = [_array_recipe(values[i], segment) for i in segment.values]
        for step in segment.steps:
            step.types = tuple(values[i].type for i in step.outputs)
    by_segment: list[list[Check]] = [[] for _ in program.segments]
    available = cache(partial(_first_segment_knowing, program, source, computed_in))
    for check in checks:
        first = max((available(a) for x in (check.a, check.b) for a in atoms(x)), default=0)
        if first < len(by_segment):
            by_segment[first].append(check)
    on_host = {i: len(values) + index for index, i in enumerate(program.inputs)}
    for segment, its_checks in zip(program.segments, by_segment):
        compile_shape_function(segment, its_checks, partial(source, segment), on_host)


def _value_ids(step: Step) -> Iterable[int]:
    return (i for i in (*step.inputs, *step.outputs, *step.workspace) if i >= 0)


def _used_values(program: Program, segment_index: int) -> list[int]:
    """Return the values that a segment's steps use and, for the last segment, those that the caller uses."""
    used = dict.fromkeys(i for step in program.segments[segment_index].steps for i in _value_ids(step))
    if segment_index == len(program.segments) - 1:
        deferred = program.deferred.inputs if program.deferred is not None else []
        used.update(dict.fromkeys([*program.results, *program.assigns.values(), *deferred]))
    return list(used)


def _last_segments(program: Program) -> dict[int, int]:
    """Return a map from a root to the last segment that uses it or a view of it, or reads it back."""
    last: dict[int, int] = {}
    for segment_index, segment in enumerate(program.segments):
        for i in [*_used_values(program, segment_index), *segment.fetches]:
            last[program.values[i].root] = segment_index
    return last


def _collect_buffers(
    program: Program, segment: Segment, segment_index: int, made_in: dict[int, int], last_segment: dict[int, int]
) -> None:
    """Add the segment's buffers: the live ranges of the roots in its arena, and the buffers reused in place."""
    values = program.values
    ends: dict[int, tuple[int, int]] = {}
    for position, step in enumerate(segment.steps):
        for i in _value_ids(step):
            root = values[i].root
            first, _ = ends.get(root, (position, position))
            ends[root] = (first, position)
    after = len(segment.steps)  # end of the live ranges that outlast the segment's steps
    for i in _used_values(program, segment_index) if segment_index == len(program.segments) - 1 else ():
        if values[i].root in ends and i in {
            *program.results,
            *program.assigns.values(),
            *(program.deferred.inputs if program.deferred else ()),
        }:
            ends[values[i].root] = (ends[values[i].root][0], after)
    own = sorted(
        (r for r in ends if values[r].memory == "buffer" and made_in[r] == segment_index), key=lambda r: ends[r][0]
    )
    for root in own:
        first, last = ends[root]
        last = after if last_segment[root] > segment_index else last
        segment.buffers.append(Buffer(root, _nbytes(values[root]), first, last))
    position_of = {b.root: i for i, b in enumerate(segment.buffers)}
    for position, step in enumerate(segment.steps):
        _share_in_place(values, segment, step, position, position_of)


def _share_in_place(
    values: Sequence[Value], segment: Segment, step: Step, position: int, position_of: dict[int, int]
) -> None:
    """Let the step's output take over the buffer of an input that ends at this step, if the op works in place."""
    if step.kind != "bound" or step.node is None:
        return
    out = values[step.outputs[0]]
    output_buffer = position_of.get(out.root)
    if (
        output_buffer is None
        or segment.buffers[output_buffer].first != position
        or not (out.view.is_dense or (len(out.view.shape) > 1 and out.view.is_channels_last))
    ):
        return
    specs = [None if s is None else s.spec for s in step.node.sources]
    for i in step.op.inplace(specs, [p.spec for p in step.node.ports]):
        if step.inputs[i] < 0:
            continue
        x = values[step.inputs[i]]
        input_buffer = position_of.get(x.root)
        if input_buffer is None or segment.buffers[input_buffer].last != position or x.root == out.root:
            continue
        same_memory = [values[j] for j in step.inputs if j >= 0 and values[j].root == x.root]
        if (
            (
                segment.buffers[input_buffer].nbytes is not segment.buffers[output_buffer].nbytes
                and segment.buffers[input_buffer].nbytes != segment.buffers[output_buffer].nbytes
            )
            or x.view != out.view
            or any(y.view != x.view for y in same_memory)
        ):
            continue
        owner = input_buffer
        while segment.buffers[owner].shares >= 0:
            owner = segment.buffers[owner].shares
        segment.buffers[output_buffer].shares = owner
        segment.buffers[owner].last = max(segment.buffers[owner].last, segment.buffers[output_buffer].last)
        return


def _nbytes(value: Value) -> Int:
    return value.view.size * value.type.storage.itemsize


def _collect_symbols(program: Program, segment: Segment, caller_roots: Sequence[int]) -> None:
    for i in [*segment.values, *caller_roots]:
        for expression in _view_ints(program.values[i]):
            segment.add_symbol(expression)
    for step in segment.steps:
        for expression in _host_ints(step):
            segment.add_symbol(expression)
        if step.kind == "upload":  # the shape of an upload is part of a binding's key
            for expression in program.values[step.outputs[0]].view.shape:
                segment.add_symbol(expression)
    for buffer in segment.buffers:
        segment.add_symbol(buffer.nbytes)


def _array_recipe(value: Value, segment: Segment) -> tuple[Geometry, int, int, Type]:
    """Return how to make a value's array: (geometry, root, position of the root's buffer in the arena, element type).
    The position is -1 if the root is not in this segment's arena."""
    buffer = segment.position_of.get(value.root, -1) if value.memory == "buffer" else -1
    return _compile_geometry(value, segment), value.root, buffer, value.type


def _compile_geometry(value: Value, segment: Segment) -> Geometry:
    """Return a function from symbol values to the value's geometry, as generated code: it runs at every new shape."""
    size = value.type.storage.itemsize

    def code(expression: Int, factor: int) -> str:
        if not isinstance(expression, Sym):
            return str(expression * factor)
        return f"S[{segment.index[expression.index]}]" + (f" * {factor}" if factor != 1 else "")

    def tuple_code(expressions: Sequence[Int], factor: int) -> str:
        codes = [code(expression, factor) for expression in expressions]
        return f"({', '.join(codes)}{',' if len(codes) == 1 else ''})"

    view = value.view
    if not any(isinstance(expression, Sym) for expression in _view_ints(value)):
        known = tuple(view.shape), tuple([stride * size for stride in view.strides]), view.offset * size
        return lambda symbol_values: known
    text = f"({tuple_code(view.shape, 1)}, {tuple_code(view.strides, size)}, {code(view.offset, size)})"
    return eval(f"lambda S: {text}")  # type: ignore[no-any-return]


def _view_ints(value: Value) -> tuple[Int, ...]:
    return (*value.view.shape, *value.view.strides, value.view.offset)


def _host_ints(step: Step) -> Iterable[Int]:
    return (expression for given in step.host.values() for expression in given.ints or ())


def _collect_dependencies(program: Program, segment: Segment, segment_index: int, made_in: dict[int, int]) -> None:
    """Record which arrays and steps depend on each symbol, and on each array from outside the segment."""
    values = program.values
    position_of = {v: i for i, v in enumerate(segment.values)}
    steps_of: dict[int, list[int]] = {}
    for position, step in enumerate(segment.steps):
        for i in dict.fromkeys(_value_ids(step)) if step.kind != "eager" else ():  # eager steps are not bound to arrays
            steps_of.setdefault(i, []).append(position)
        for expression in _host_ints(step):
            if isinstance(expression, Sym):
                _append_new(segment.step_deps, segment.index[expression.index], position)
    for i, position in position_of.items():
        for expression in _view_ints(values[i]):
            if isinstance(expression, Sym):
                symbol = segment.index[expression.index]
                _append_new(segment.value_deps, symbol, position)
                for step_position in steps_of.get(i, ()):
                    _append_new(segment.step_deps, symbol, step_position)
    outside: dict[int, tuple[list[int], list[int]]] = {}
    for i in sorted({*steps_of, *segment.values}):
        value = values[i]
        if i in position_of:
            if value.memory == "buffer" and made_in.get(value.root) == segment_index:
                continue
            target = outside.setdefault(value.root, ([], []))  # a view of memory from outside
            target[0].append(position_of[i])
        else:
            target = outside.setdefault(i, ([], []))
        target[1].extend(steps_of.get(i, ()))
    segment.external_users = {k: (v, sorted(set(s))) for k, (v, s) in outside.items() if values[k].memory != "constant"}


def _append_new(dependents: dict[int, list[int]], key: int, item: int) -> None:
    items = dependents.setdefault(key, [])
    if not items or items[-1] != item:
        items.append(item)


def _first_segment_knowing(
    program: Program,
    source: Callable[[Segment, Atom], tuple[str, Any, int]],
    computed_in: Mapping[int, int],
    atom: Atom,
) -> int:
    """Return the index of the first segment whose shape function can compute an atom."""
    if atom.op not in ("unknown", "item"):
        return 0
    kind, value, _ = source(program.segments[0], atom)
    if kind == "host":  # computed from parameters alone
        return 0
    return computed_in[value] + 1 if value in computed_in else 0
