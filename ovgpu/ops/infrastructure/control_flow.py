"""Ops with a body: TensorIterator, Loop, If."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from ovgpu.errors import OpError
from ovgpu.model import Model
from ovgpu.ops.base.op import Array, Op, op
from ovgpu.ops.base.shape_inputs import shape_tensor_ports
from ovgpu.ops.base.shapes import constants, first, normalize_axis
from ovgpu.symbolic import Int, Shape, Spec, Sym, Table, active, apply, atoms, maximum, same, unknown
from ovgpu.types import Type


@dataclass(frozen=True)
class InputMap:
    """An input of the node that enters the body: whole, or sliced along ``axis``, one slice per iteration.

    ``start`` and ``end`` (exclusive) count from the end of the axis when negative, -1 being one past the last
    element; ``part_size`` elements make a slice, and ``stride`` (either sign) leads to the next one.
    """

    port: int
    """Index among the node's inputs."""
    parameter: int
    """Index in ``body.parameters``."""
    axis: int | None = None
    start: int = 0
    end: int = -1
    stride: int = 1
    part_size: int = 1

    def _ends(self, extent: Int) -> tuple[Int, Int]:
        """``start`` and ``end`` counted from the beginning of an axis."""
        return tuple(extent + 1 + v if v < 0 else v for v in (self.start, self.end))  # type: ignore[return-value]

    def trips(self, extent: Int) -> Int:
        """The number of slices that an axis of this extent gives."""
        start, end = self._ends(extent)
        length, step = (end - start, self.stride) if self.stride > 0 else (start - end, -self.stride)
        if step == 0:
            raise OpError("a sliced input has stride 0")
        slices = f"slices from {self.start} to {self.end} by {self.stride}"
        if not isinstance(extent, Sym) and not all(0 <= v <= extent for v in (start, end)):
            raise OpError(f"{slices} reach past an axis of {extent}")
        if not isinstance(length, Sym) and (length < 0 or length % step):
            raise OpError(f"{slices} do not divide " + (
                f"{length} elements" if isinstance(extent, Sym) else f"an axis of {extent}"))
        if isinstance(extent, Sym):
            for v in (self.start, self.end):
                if (v if v >= 0 else -v - 1) > extent.lo:
                    extent.table.require("le", v if v >= 0 else -v - 1, extent, slices + " reach past an axis of {1}")
        if isinstance(length, Sym):
            if length.lo < 0:
                length.table.require("le", 0, length, slices + " are {1} elements")
            if step != 1:
                length.table.require("same", length % step, 0, slices + " do not divide the axis: {0} are left")
        return length // abs(self.stride)

    def begin(self, extent: int, i: int) -> int:
        """Where slice ``i`` begins."""
        start, _ = self._ends(extent)
        begin: int = start + i * self.stride - (self.part_size if self.stride < 0 else 0)
        if not 0 <= begin <= extent - self.part_size:
            raise OpError(f"slice {i} reaches past an axis of {extent}")
        return begin


@dataclass(frozen=True)
class OutputMap:
    """A result of the body that leaves it: the last iteration's, or all concatenated along ``axis``."""

    port: int
    """Index among the node's outputs."""
    result: int
    """Index in ``body.results``."""
    axis: int | None = None
    start: int = 0
    end: int = -1
    stride: int = 1
    part_size: int = 1


@dataclass(frozen=True)
class BackEdge:
    """A result of an iteration that is a parameter of the next one."""

    result: int
    """Index in ``body.results``."""
    parameter: int
    """Index in ``body.parameters``."""


class _Inside:
    """Inference of bodies in the table of the model around them.

    What a body checks, its own program checks again when it runs, which it may never do: such checks are dropped
    here. Extents that only a body's running tells become extents that only the node's running tells.
    """

    def __enter__(self) -> Self:
        self._checks, self._first = len(active().checks), atoms(unknown())[0].index
        self._outer: dict[int, Int] = {}
        return self

    def __exit__(self, *error: object) -> None:
        del active().checks[self._checks :]

    def outward(self, spec: Spec) -> Spec:
        """A result's spec as the model around the body may see it."""
        return Spec(spec.type, None if spec.shape is None else tuple(map(self._extent, spec.shape)))

    def tells(self, dim: Int) -> bool:
        """Whether only running the body tells an extent, which may be another one at every iteration."""
        return any(a.op == "unknown" and a.index > self._first for a in atoms(dim))

    def _extent(self, dim: Int) -> Int:
        if isinstance(dim, Sym) and self.tells(dim):
            if dim.index not in self._outer:
                self._outer[dim.index] = unknown(max(dim.lo, 0), dim.hi)
            return self._outer[dim.index]
        return dim


def _generalised(old: Spec, new: Spec, free: Sequence[Int] = ()) -> Spec:
    """The spec of a value that is ``old`` at first and ``new`` afterwards; extents in ``free`` may be anything."""
    if old.type != new.type and not (old.type.is_dynamic() or new.type.is_dynamic()):
        raise OpError(f"a back edge brings {new.type.get_type_name()} to a parameter of {old.type.get_type_name()}")
    if old.shape is None or new.shape is None or len(old.shape) != len(new.shape):
        return Spec(new.type, None)
    kept = [a if _same(a, b) or any(a is f for f in free) else unknown() for a, b in zip(old.shape, new.shape)]
    return Spec(new.type, tuple(kept))


def _same(a: Int, b: Int) -> bool:
    return a is b or (not isinstance(a, Sym) and not isinstance(b, Sym) and bool(a == b))


def _alike(a: Spec, b: Spec) -> bool:
    if a.shape is None or b.shape is None:
        return a.shape is b.shape
    return len(a.shape) == len(b.shape) and all(map(_same, a.shape, b.shape))


class _Iterating(Op):
    """What TensorIterator and Loop share."""

    body: Model
    inputs: tuple[InputMap, ...]
    outputs: tuple[OutputMap, ...]
    back_edges: tuple[BackEdge, ...] = ()

    def _infer_body(self, specs: Sequence[Spec | None] | dict[int, Spec], counter: int | None = None,
                    most: int | None = None) -> list[Spec]:
        """Specs of the body's results that hold for every iteration; there are at most ``most``."""
        given: list[Spec | None] = [None] * len(self.body.parameters)
        for m in self.inputs:
            spec = specs[m.port]
            if spec is None:
                raise OpError(f"input {m.port} of the port map is not connected")
            given[m.parameter] = Spec(spec.type, _part(spec.shape, m))
        if counter is not None:
            op: Any = self.body.parameters[counter].op
            shape = (1,) if len(op.shape) else ()
            decides = id(self.body.parameters[counter].outputs[0]) in shape_tensor_ports(self.body)
            value = np.full(shape, unknown(0, most - 1), object) if most and decides else None
            given[counter] = Spec(op.element_type, shape, value)
        for number, spec in enumerate(given):
            if spec is None:
                name = self.body.parameters[number].friendly_name
                raise OpError(f"parameter '{name}' of the body has no input")
        merged = {b.parameter: b.result for b in self.back_edges}
        free: list[Int] = []  # extents that differ between iterations, each generalised once
        while True:
            results = self.body.infer([s for s in given if s is not None], active())
            wider = {p: _generalised(given[p], results[r], free) for p, r in merged.items()}  # type: ignore[arg-type]
            if all(_alike(given[p], spec) for p, spec in wider.items()):  # type: ignore[arg-type]
                return results
            for p, spec in wider.items():
                before = given[p].shape or ()  # type: ignore[union-attr]
                free += [d for d in spec.shape or () if not any(d is b for b in before)]
                given[p] = spec

    def _outputs(self, specs: Sequence[Spec | None], results: Sequence[Spec], inside: _Inside,
                 trips: Int | None) -> tuple[Spec, ...]:
        """Specs of the outputs: last values, and concatenations of ``trips`` parts."""
        initial = {m.parameter: specs[m.port] for m in self.inputs if m.axis is None}
        merged = {b.result: initial.get(b.parameter) for b in self.back_edges}
        found: dict[int, Spec] = {}
        for m in self.outputs:
            spec = inside.outward(results[m.result])
            shape = spec.shape
            if shape is not None and m.axis is not None:
                if not -len(shape) <= m.axis < len(shape):
                    raise OpError(f"output {m.port} is concatenated along axis {m.axis} of rank {len(shape)}")
                axis = m.axis % len(shape)
                varies = trips is None or inside.tells((results[m.result].shape or shape)[axis])
                total = unknown() if varies else shape[axis] * trips
                shape = (*shape[:axis], total, *shape[axis + 1 :])
            elif m.axis is None and (trips is None or isinstance(trips, Sym) or trips == 0):
                first = merged.get(m.result)  # what it is without any iteration
                if first is not None:
                    shape = first.shape if trips == 0 and not isinstance(trips, Sym) else _generalised(
                        first, spec).shape
            found[m.port] = Spec(spec.type, shape)
        return tuple(found[i] if i in found else Spec(Type.dynamic, None) for i in range(max(found, default=-1) + 1))

    def _iterate(self, xp: Any, inputs: Sequence[Array], limit: int, counter: int | None = None,
                 condition: int | None = None) -> tuple[Array, ...]:
        """Runs the body up to ``limit`` times (no limit if negative), or until its condition fails."""
        carried: dict[int, Array] = {}
        parts: dict[int, list[Array]] = {m.port: [] for m in self.outputs if m.axis is not None}
        results: Sequence[Array] = ()
        i = 0
        while limit < 0 or i < limit:
            given: list[Any] = [None] * len(self.body.parameters)
            for entry in self.inputs:
                p = entry.parameter
                given[p] = carried[p] if p in carried else part(inputs[entry.port], entry, i)
            if counter is not None:
                op: Any = self.body.parameters[counter].op
                given[counter] = xp.asarray(np.full((1,) if len(op.shape) else (), i, op.element_type.storage))
            results = xp.run(self.body, given)
            carried = {b.parameter: results[b.result] for b in self.back_edges}
            for m in self.outputs:
                if m.axis is not None:
                    parts[m.port].append(results[m.result])
            i += 1
            if condition is not None and not first(results[condition], "the body's condition"):
                break
        return self._collect(xp, inputs, results, parts, counter)

    def _collect(self, xp: Any, inputs: Sequence[Array], results: Sequence[Array],
                 parts: dict[int, list[Array]], counter: int | None) -> tuple[Array, ...]:
        initial = {m.parameter: inputs[m.port] for m in self.inputs if m.axis is None}
        first = {b.result: initial[b.parameter] for b in self.back_edges if b.parameter in initial}
        found: dict[int, Array] = {}
        for m in self.outputs:
            if m.axis is not None and parts[m.port]:
                pieces = parts[m.port][:: -1 if m.stride < 0 else 1]
                found[m.port] = _joined(xp, pieces, m)
            elif m.axis is not None:
                found[m.port] = self._empty(xp, m, inputs, counter)
            elif results:
                found[m.port] = results[m.result]
            elif m.result in first:
                found[m.port] = first[m.result]
            else:
                raise no_value(m)
        return tuple(found[i] for i in range(len(found)))

    def _empty(self, xp: Any, m: OutputMap, inputs: Sequence[Array], counter: int | None) -> Array:
        """A concatenation of no parts: its other extents are those that the body would give."""
        specs: dict[int, Spec] = {}
        for entry in self.inputs:
            op: Any = self.body.parameters[entry.parameter].op
            x = inputs[entry.port]
            specs[entry.port] = Spec(Type.of(x.dtype) if op.element_type.is_dynamic() else op.element_type, x.shape)
        with Table():
            twin: _Iterating = replace(self, body=self.body.clone())  # type: ignore[type-var]
            spec = twin._infer_body(specs, counter)[m.result]
        shape = [0 if isinstance(d, Sym) else d for d in spec.shape or (0,)]
        shape[normalize_axis(m.axis or 0, len(shape))] = 0
        return xp.empty(tuple(shape), spec.type.storage)


def no_value(m: OutputMap) -> OpError:
    """The error of a last value that no iteration has given, and no back edge begins."""
    return OpError(f"output {m.port} has no value: there was no iteration")


def _one(spec: Spec | None, name: str, boolean: bool) -> None:
    """Demands a scalar, or a vector of one element."""
    if spec is None:
        return
    kind = spec.type
    if not kind.is_dynamic() and not (kind == Type.boolean if boolean else kind.is_integral_number()):
        raise OpError(f"the {name} must be {'a boolean' if boolean else 'an integer'}, not {kind.get_type_name()}")
    if spec.shape is not None:
        if len(spec.shape) > 1:
            raise OpError(f"the {name} must be a scalar, it has rank {len(spec.shape)}")
        for dim in spec.shape:
            same(dim, 1, f"the {name} must have one element, it has {{0}}")


def _joined(xp: Any, parts: Sequence[Array], m: OutputMap) -> Array:
    """Return the concatenation of the iterations' parts; OpError for parts that do not fit together."""
    axis = normalize_axis(m.axis or 0, parts[0].ndim)
    begin = parts[0].shape
    for x in parts:
        if (*x.shape[:axis], *x.shape[axis + 1 :]) != (*begin[:axis], *begin[axis + 1 :]):
            raise OpError(f"output {m.port} cannot join parts of shapes {list(begin)} and {list(x.shape)} "
                          f"along axis {m.axis}")
    return xp.concatenate(parts, axis=axis)


def _part(shape: Shape, m: InputMap) -> Shape:
    if shape is None or m.axis is None:
        return shape
    if not -len(shape) <= m.axis < len(shape):
        raise OpError(f"input {m.port} is sliced along axis {m.axis} of rank {len(shape)}")
    axis = m.axis % len(shape)
    return (*shape[:axis], m.part_size, *shape[axis + 1 :])


def part(array: Array, m: InputMap, i: int) -> Array:
    """Slice ``i`` of a sliced input, or the whole of another: a view."""
    if m.axis is None:
        return array
    axis = m.axis % array.ndim
    begin = m.begin(array.shape[axis], i)
    return array[(slice(None),) * axis + (slice(begin, begin + m.part_size),)]


@op("TensorIterator", "opset1")
class TensorIterator(_Iterating):
    """Runs ``body`` once per slice of the sliced inputs."""

    body: Model
    inputs: tuple[InputMap, ...]
    outputs: tuple[OutputMap, ...]
    back_edges: tuple[BackEdge, ...] = ()

    exact = True
    layout = "dense"

    def trips(self, specs: Sequence[Spec | None]) -> Int | None:
        """The number of iterations: that of the slices, or 1 if nothing is sliced. None if a rank is unknown."""
        count: Int | None = None
        for m in self.inputs:
            spec = specs[m.port]
            if m.axis is None or spec is None:
                continue
            if spec.shape is None:
                return None
            found = m.trips(spec.shape[m.axis])
            count = found if count is None else same(count, found, "sliced inputs give {0} and {1} iterations")
        return 1 if count is None else count

    def infer(self, *specs: Spec | None) -> tuple[Spec, ...]:
        with _Inside() as inside:
            results = self._infer_body(specs)
        return self._outputs(specs, results, inside, self.trips(specs))

    def evaluate(self, xp: Any, *inputs: Any) -> tuple[Any, ...]:
        counts = [m.trips(inputs[m.port].shape[m.axis]) for m in self.inputs if m.axis is not None]
        return self._iterate(xp, inputs, counts[0] if counts else 1)


@op("Loop", "opset5")
class Loop(_Iterating):
    """Runs ``body`` up to input 0 times (-1: no limit), and only while input 1 and then `condition` hold."""

    body: Model
    inputs: tuple[InputMap, ...]
    outputs: tuple[OutputMap, ...]
    back_edges: tuple[BackEdge, ...] = ()
    current_iteration: int | None = None
    """Index in ``body.parameters`` of the one that gets the iteration number."""
    condition: int | None = None
    """Index in ``body.results`` of the one that says whether to go on."""

    host_inputs = (0, 1)
    exact = True
    layout = "dense"

    def trips(self, specs: Sequence[Spec | None]) -> Int | None:
        """The number of iterations, or None if a computed condition decides. Call after the body's inference."""
        limit, start = ([1] if s is None else s.ints() for s in specs[:2])
        if limit is None or start is None or len(limit) != 1 or len(start) != 1:
            return None
        if not isinstance(start[0], Sym) and not start[0]:
            return 0
        count = limit[0]
        if self.condition is not None:
            going = self.body.results[self.condition].outputs[0].spec.constant
            if going is None:
                return None
            if going.size != 1:
                raise OpError(f"the body's condition must have one element, it has {going.size}")
            if not going.reshape(-1)[0]:
                count = 1 if not isinstance(count, Sym) and count else apply("ne", count, 0)
        if not isinstance(count, Sym):
            if count < 0:
                return None
        elif count.lo < 0:
            count = maximum(count, 0)
        return count if not isinstance(start[0], Sym) else apply("select", start[0], count, 0)

    def infer(self, *specs: Spec | None) -> tuple[Spec, ...]:
        _one(specs[0], "trip count", False)
        _one(specs[1], "execution condition", True)
        limit = None if specs[0] is None else constants(specs[0])
        most = None if limit is None else limit[0]
        with _Inside() as inside:
            results = self._infer_body(specs, self.current_iteration, most)
        return self._outputs(specs, results, inside, self.trips(specs))

    def evaluate(self, xp: Any, *inputs: Any) -> tuple[Any, ...]:
        limit, start = first(inputs[0], "the trip count"), first(inputs[1], "the execution condition")
        return self._iterate(xp, inputs, limit if start else 0, self.current_iteration, self.condition)


@op("If", "opset8")
class If(Op):
    """Runs ``then_body`` if input 0 is true, else ``else_body``."""

    then_body: Model
    else_body: Model
    then_inputs: tuple[InputMap, ...]
    else_inputs: tuple[InputMap, ...]
    then_outputs: tuple[OutputMap, ...]
    else_outputs: tuple[OutputMap, ...]

    host_inputs = (0,)
    exact = True
    layout = "dense"

    def infer(self, *specs: Spec | None) -> tuple[Spec, ...]:
        condition = specs[0]
        _one(condition, "condition", True)
        with _Inside() as inside:
            then = self._branch(self.then_body, self.then_inputs, self.then_outputs, specs)
            other = self._branch(self.else_body, self.else_inputs, self.else_outputs, specs)
        if then.keys() != other.keys():
            raise OpError(f"the branches have outputs {sorted(then)} and {sorted(other)}")
        for i, (a, b) in enumerate((then[i].type, other[i].type) for i in sorted(then)):
            if a != b and not (a.is_dynamic() or b.is_dynamic()):
                raise OpError(f"the branches give output {i} the types {a.get_type_name()} and {b.get_type_name()}")
        known = condition.constant if condition is not None else None
        if known is not None:
            taken = then if known.reshape(-1)[0] else other
            return tuple(inside.outward(taken[i]) for i in sorted(taken))
        return tuple(_generalised(inside.outward(then[i]), inside.outward(other[i])) for i in sorted(then))

    def _branch(self, body: Model, inputs: Sequence[InputMap], outputs: Sequence[OutputMap],
                specs: Sequence[Spec | None]) -> dict[int, Spec]:
        """Specs of the outputs by number, for one branch."""
        given: dict[int, Spec] = {}
        for m in inputs:
            spec = specs[m.port]
            if spec is None:
                raise OpError(f"input {m.port} of the port map is not connected")
            given[m.parameter] = spec
        if len(given) != len(body.parameters):
            raise OpError(f"a branch has {len(body.parameters)} parameters, {len(given)} of them have an input")
        results = body.infer([given[i] for i in range(len(given))], active())
        return {m.port: results[m.result] for m in outputs}

    def evaluate(self, xp: Any, *inputs: Any) -> tuple[Any, ...]:
        taken = first(inputs[0], "the condition")
        body = self.then_body if taken else self.else_body
        given: list[Any] = [None] * len(body.parameters)
        for m in self.then_inputs if taken else self.else_inputs:
            given[m.parameter] = inputs[m.port]
        results = xp.run(body, given)
        outputs = {m.port: results[m.result] for m in (self.then_outputs if taken else self.else_outputs)}
        return tuple(outputs[i] for i in sorted(outputs))
