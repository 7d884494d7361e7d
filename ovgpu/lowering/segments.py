"""Completing a program: what each segment owns, depends on and keeps alive, and its shape function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from ovgpu.lowering.program import Buffer, Geometry, Program, Segment, Step, Value
from ovgpu.lowering.shape_function import compile_shape_function
from ovgpu.symbolic import Atom, Check, Int, Sym, atoms
from ovgpu.types import Type


def finalize(program: Program, checks: Sequence[Check], source: Callable[[Segment, Atom], tuple[str, Any, int]],
           born: Mapping[int, int]) -> None:
    """Fill in the segments of a program whose steps are complete; ``born`` says in which one a value is computed."""
    values = program.values
    made: dict[int, int] = {}  # value -> number of the segment that makes its array
    last_segment = _last_segments(program)
    for number, segment in enumerate(program.segments):
        following = program.segments[number + 1:number + 2]
        for i in [*_used(program, number), *(i for other in following for i in other.fetches)]:  # views of what is made
            for v in (i, values[i].root):
                if v not in made and (values[v].memory == "buffer" or v != values[v].root):
                    made[v] = number
                    segment.values.append(v)
        segment.values.sort()
        given = sorted({values[i].root for i in _used(program, number)
                                if values[values[i].root].memory in ("output", "variable")
                                and made.setdefault(values[i].root, number) == number})
        _buffers(program, segment, number, made, last_segment)
        _slots(program, segment, given)
        _dependencies(program, segment, number, made)
        segment.sized = [(i, segment.index[b.nbytes.index]) for i, b in enumerate(segment.buffers)
                         if isinstance(b.nbytes, Sym)]
        read = {h.host_node for step in segment.steps for h in step.host.values()}
        segment.read_host_nodes = sorted(number for number in read if number >= 0)
        segment.position_of = {b.root: i for i, b in enumerate(segment.buffers)}
        segment.given = {i: _geometry(values[i], segment) for i in given}
        segment.geometries = [_located(values[i], segment) for i in segment.values]
        for step in segment.steps:
            step.types = tuple(values[i].type for i in step.outputs)
    by_segment: list[list[Check]] = [[] for _ in program.segments]
    available = cache(partial(_available, program, source, born))
    for check in checks:
        known = max((available(a) for x in (check.a, check.b) for a in atoms(x)), default=0)
        if known < len(by_segment):
            by_segment[known].append(check)
    on_host = {i: len(values) + number for number, i in enumerate(program.inputs)}
    for segment, its_checks in zip(program.segments, by_segment):
        compile_shape_function(segment, its_checks, partial(source, segment), on_host)


def _ids(step: Step) -> Iterable[int]:
    return (i for i in (*step.inputs, *step.outputs, *step.workspace) if i >= 0)


def _used(program: Program, number: int) -> list[int]:
    """Values that a segment's steps, or the caller after the last one, look at."""
    found = dict.fromkeys(i for step in program.segments[number].steps for i in _ids(step))
    if number == len(program.segments) - 1:
        rest = program.rest.inputs if program.rest is not None else []
        found.update(dict.fromkeys([*program.results, *program.assigns.values(), *rest]))
    return list(found)


def _last_segments(program: Program) -> dict[int, int]:
    """Root -> the last segment in which it, or a view of it, is used or read back."""
    last: dict[int, int] = {}
    for number, segment in enumerate(program.segments):
        for i in [*_used(program, number), *segment.fetches]:
            last[program.values[i].root] = number
    return last


def _buffers(program: Program, segment: Segment, number: int, made: dict[int, int],
             last_segment: dict[int, int]) -> None:
    """Lifetimes of the roots in this segment's arena, and which of them take over another's memory in place."""
    values = program.values
    ends: dict[int, tuple[int, int]] = {}
    for position, step in enumerate(segment.steps):
        for i in _ids(step):
            root = values[i].root
            first, _ = ends.get(root, (position, position))
            ends[root] = (first, position)
    after = len(segment.steps)
    for i in _used(program, number) if number == len(program.segments) - 1 else ():
        if values[i].root in ends and i in {*program.results, *program.assigns.values(),
                                            *(program.rest.inputs if program.rest else ())}:
            ends[values[i].root] = (ends[values[i].root][0], after)
    own = sorted((r for r in ends if values[r].memory == "buffer" and made[r] == number), key=lambda r: ends[r][0])
    for root in own:
        first, last = ends[root]
        last = after if last_segment[root] > number else last
        segment.buffers.append(Buffer(root, _nbytes(values[root]), first, last))
    position_of = {b.root: i for i, b in enumerate(segment.buffers)}
    for position, step in enumerate(segment.steps):
        _share(values, segment, step, position, position_of)


def _share(values: Sequence[Value], segment: Segment, step: Step, position: int, position_of: dict[int, int]) -> None:
    if step.kind != "bound" or step.node is None:
        return
    out = values[step.outputs[0]]
    mine = position_of.get(out.root)
    if mine is None or segment.buffers[mine].first != position or not out.view.is_dense:
        return
    specs = [None if s is None else s.spec for s in step.node.inputs]
    for i in step.op.inplace(specs, [p.spec for p in step.node.outputs]):
        if step.inputs[i] < 0:
            continue
        x = values[step.inputs[i]]
        theirs = position_of.get(x.root)
        if theirs is None or segment.buffers[theirs].last != position or x.root == out.root:
            continue
        same_memory = [values[j] for j in step.inputs if j >= 0 and values[j].root == x.root]
        if (segment.buffers[theirs].nbytes is not segment.buffers[mine].nbytes
                and segment.buffers[theirs].nbytes != segment.buffers[mine].nbytes) or x.view != out.view or any(
                    y.view != x.view for y in same_memory):
            continue
        holder = theirs
        while segment.buffers[holder].shares >= 0:
            holder = segment.buffers[holder].shares
        segment.buffers[mine].shares = holder
        segment.buffers[holder].last = max(segment.buffers[holder].last, segment.buffers[mine].last)
        return


def _nbytes(value: Value) -> Int:
    return value.view.size * value.type.storage.itemsize


def _slots(program: Program, segment: Segment, given: Sequence[int]) -> None:
    for i in [*segment.values, *given]:
        for number in _numbers(program.values[i]):
            segment.slot(number)
    for step in segment.steps:
        for number in _host_numbers(step):
            segment.slot(number)
        if step.kind == "upload":  # a shape that comes again finds its binding
            for number in program.values[step.outputs[0]].view.shape:
                segment.slot(number)
    for buffer in segment.buffers:
        segment.slot(buffer.nbytes)


def _located(value: Value, segment: Segment) -> tuple[Geometry, int, int, Type]:
    """What makes a value's array: its geometry, the root it lies in, the number of the root's buffer in the arena
    of the segment (-1 if it is not there), and the element type."""
    buffer = segment.position_of.get(value.root, -1) if value.memory == "buffer" else -1
    return _geometry(value, segment), value.root, buffer, value.type


def _geometry(value: Value, segment: Segment) -> Geometry:
    """A function of its own for every dynamic value: it runs at each inference that changes the value's shape."""
    size = value.type.storage.itemsize

    def code(number: Int, factor: int) -> str:
        if not isinstance(number, Sym):
            return str(number * factor)
        return f"S[{segment.index[number.index]}]" + (f" * {factor}" if factor != 1 else "")

    def row(numbers: Sequence[Int], factor: int) -> str:
        return f"({', '.join(code(n, factor) for n in numbers)}{',' if len(numbers) == 1 else ''})"

    view = value.view
    if not any(isinstance(number, Sym) for number in _numbers(value)):
        known = tuple(view.shape), tuple([stride * size for stride in view.strides]), view.offset * size
        return lambda slots: known
    text = f"({row(view.shape, 1)}, {row(view.strides, size)}, {code(view.offset, size)})"
    return eval(f"lambda S: {text}")  # type: ignore[no-any-return]


def _numbers(value: Value) -> tuple[Int, ...]:
    return (*value.view.shape, *value.view.strides, value.view.offset)


def _host_numbers(step: Step) -> Iterable[Int]:
    return (number for given in step.host.values() for number in given.ints or ())


def _dependencies(program: Program, segment: Segment, number: int, made: dict[int, int]) -> None:
    """Which arrays and steps must be made anew when a slot, or an array from outside, changes."""
    values = program.values
    position_of = {v: i for i, v in enumerate(segment.values)}
    steps_of: dict[int, list[int]] = {}
    for position, step in enumerate(segment.steps):
        for i in dict.fromkeys(_ids(step)) if step.kind != "eager" else ():  # which is not bound to arrays
            steps_of.setdefault(i, []).append(position)
        for expression in _host_numbers(step):
            if isinstance(expression, Sym):
                _add(segment.step_deps, segment.index[expression.index], position)
    for i, position in position_of.items():
        for expression in _numbers(values[i]):
            if isinstance(expression, Sym):
                slot = segment.index[expression.index]
                _add(segment.value_deps, slot, position)
                for step_position in steps_of.get(i, ()):
                    _add(segment.step_deps, slot, step_position)
    outside: dict[int, tuple[list[int], list[int]]] = {}
    for i in sorted({*steps_of, *segment.values}):
        value = values[i]
        if i in position_of:
            if value.memory == "buffer" and made.get(value.root) == number:
                continue
            target = outside.setdefault(value.root, ([], []))  # a view of memory from outside
            target[0].append(position_of[i])
        else:
            target = outside.setdefault(i, ([], []))
        target[1].extend(steps_of.get(i, ()))
    segment.users = {k: (v, sorted(set(s))) for k, (v, s) in outside.items() if values[k].memory != "constant"}


def _add(where: dict[int, list[int]], key: int, item: int) -> None:
    items = where.setdefault(key, [])
    if not items or items[-1] != item:
        items.append(item)


def _available(program: Program, source: Callable[[Segment, Atom], tuple[str, Any, int]], born: Mapping[int, int],
               atom: Atom) -> int:
    """The first segment in whose shape function an outside atom is known."""
    if atom.op not in ("unknown", "item"):
        return 0
    kind, value, _ = source(program.segments[0], atom)
    if kind == "host":  # computed from parameters alone
        return 0
    return born[value] + 1 if value in born else 0
