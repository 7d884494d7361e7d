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
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import Int, Sym, Table, active, apply, atoms, maximum, same, unknown
from ovgpu.types import Type


@dataclass(frozen=True)
class InputMap:
    """An input of the node that enters the body: whole, or sliced along ``axis``, one slice per iteration.

    ``start`` and ``end`` (exclusive) count from the end of the axis when negative, -1 being one past the last
    element. A slice has ``part_size`` elements, and the next one begins ``stride`` elements later (of either sign).
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
        """Return ``start`` and ``end`` counted from the beginning of an axis."""
        return tuple(extent + 1 + v if v < 0 else v for v in (self.start, self.end))  # type: ignore[return-value]

    def trips(self, extent: Int) -> Int:
        """Return the number of slices of an axis of this extent. Raises OpError if slices do not divide the axis."""
        start, end = self._ends(extent)
        length, step = (end - start, self.stride) if self.stride > 0 else (start - end, -self.stride)
        if step == 0:
            raise OpError("a sliced input has stride 0")
        slices = f"slices from {self.start} to {self.end} by {self.stride}"
        if not isinstance(extent, Sym) and not all(0 <= v <= extent for v in (start, end)):
            raise OpError(f"{slices} reach past an axis of {extent}")
        if not isinstance(length, Sym) and (length < 0 or length % step):
            raise OpError(
                f"{slices} do not divide "
                + (f"{length} elements" if isinstance(extent, Sym) else f"an axis of {extent}")
            )
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
        """Return the first index of slice ``i`` on an axis of this extent. Raises OpError if the slice is outside."""
        start, _ = self._ends(extent)
        begin: int = start + i * self.stride - (self.part_size if self.stride < 0 else 0)
        if not 0 <= begin <= extent - self.part_size:
            raise OpError(f"slice {i} reaches past an axis of {extent}")
        return begin


@dataclass(frozen=True)
class OutputMap:
    """A result of the body that is an output of the node: the last one, or all concatenated along ``axis``."""

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
    """A loop-carried value: a result of an iteration that is a parameter of the next one."""

    result: int
    """Index in ``body.results``."""
    parameter: int
    """Index in ``body.parameters``."""


class _BodyScope:
    """Context in which the specs of bodies are inferred, with the symbol table of the model around them.

    At the end, the checks that bodies demand are dropped: a body may never run, and its own program checks again when
    it does. Unknown extents inside a body become unknown extents of the node.
    """

    def __enter__(self) -> Self:
        self._checks, self._first = len(active().checks), atoms(unknown())[0].index
        self._outer: dict[int, Int] = {}
        return self

    def __exit__(self, *error: object) -> None:
        del active().checks[self._checks :]

    def outer_spec(self, spec: Spec) -> Spec:
        """Return a result's spec for the model around the body, with unknown extents of the node."""
        return Spec(spec.type, None if spec.shape is None else tuple(map(self._extent, spec.shape)))

    def depends_on_body(self, dim: Int) -> bool:
        """Return whether an extent is known only when the body has run, and so may differ between iterations."""
        return any(a.op == "unknown" and a.index > self._first for a in atoms(dim))

    def _extent(self, dim: Int) -> Int:
        if isinstance(dim, Sym) and self.depends_on_body(dim):
            if dim.index not in self._outer:
                self._outer[dim.index] = unknown(max(dim.lo, 0), dim.hi)
            return self._outer[dim.index]
        return dim


def _generalised(old: Spec, new: Spec, free: Sequence[Int] = ()) -> Spec:
    """Return the spec of a value that is ``old`` in the first iteration and ``new`` afterwards. Extents that differ
    become unknown, except those in ``free``, which already stand for any extent. Raises OpError if the types differ."""
    if old.type != new.type and not (old.type.is_dynamic() or new.type.is_dynamic()):
        raise OpError(f"a back edge brings {new.type.get_type_name()} to a parameter of {old.type.get_type_name()}")
    if old.shape is None or new.shape is None or len(old.shape) != len(new.shape):
        return Spec(new.type, None)
    extents = [a if _same(a, b) or any(a is f for f in free) else unknown() for a, b in zip(old.shape, new.shape)]
    return Spec(new.type, tuple(extents))


def _same(a: Int, b: Int) -> bool:
    return a is b or (not isinstance(a, Sym) and not isinstance(b, Sym) and bool(a == b))


def _alike(a: Spec, b: Spec) -> bool:
    if a.shape is None or b.shape is None:
        return a.shape is b.shape
    return len(a.shape) == len(b.shape) and all(map(_same, a.shape, b.shape))


class _Iterating(Op):
    """Base of TensorIterator and Loop."""

    body: Model
    inputs: tuple[InputMap, ...]
    outputs: tuple[OutputMap, ...]
    back_edges: tuple[BackEdge, ...] = ()

    def _infer_body(
        self, specs: Sequence[Spec | None] | dict[int, Spec], counter: int | None = None, most: int | None = None
    ) -> list[Spec]:
        """Return specs of the body's results that hold for all iterations, of which there are at most ``most``.

        Specs of loop-carried parameters are generalised until they hold for the back edges' results (fixed point).
        """
        arguments: list[Spec | None] = [None] * len(self.body.parameters)
        for m in self.inputs:
            spec = specs[m.port]
            if spec is None:
                raise OpError(f"input {m.port} of the port map is not connected")
            arguments[m.parameter] = Spec(spec.type, _part(spec.shape, m))
        if counter is not None:
            op: Any = self.body.parameters[counter].op
            shape = (1,) if len(op.shape) else ()
            decides = self.body.parameters[counter].ports[0] in shape_tensor_ports(self.body)
            value = np.full(shape, unknown(0, most - 1), object) if most and decides else None
            arguments[counter] = Spec(op.element_type, shape, value)
        for index, spec in enumerate(arguments):
            if spec is None:
                name = self.body.parameters[index].friendly_name
                raise OpError(f"parameter '{name}' of the body has no input")
        merged = {b.parameter: b.result for b in self.back_edges}
        free: list[Int] = []  # extents that differ between iterations, each generalised once
        while True:
            results = self.body.infer([s for s in arguments if s is not None], active())
            general = {
                p: _generalised(arguments[p], results[r], free)  # type: ignore[arg-type]
                for p, r in merged.items()
            }
            if all(_alike(arguments[p], spec) for p, spec in general.items()):  # type: ignore[arg-type]
                return results
            for p, spec in general.items():
                before = arguments[p].shape or ()  # type: ignore[union-attr]
                free += [d for d in spec.shape or () if not any(d is b for b in before)]
                arguments[p] = spec

    def _outputs(
        self, specs: Sequence[Spec | None], results: Sequence[Spec], scope: _BodyScope, trips: Int | None
    ) -> tuple[Spec, ...]:
        """Return the specs of the outputs: last values, and concatenations of ``trips`` parts."""
        initial = {m.parameter: specs[m.port] for m in self.inputs if m.axis is None}
        merged = {b.result: initial.get(b.parameter) for b in self.back_edges}
        output_specs: dict[int, Spec] = {}
        for m in self.outputs:
            spec = scope.outer_spec(results[m.result])
            shape = spec.shape
            if shape is not None and m.axis is not None:
                if not -len(shape) <= m.axis < len(shape):
                    raise OpError(f"output {m.port} is concatenated along axis {m.axis} of rank {len(shape)}")
                axis = m.axis % len(shape)
                varies = trips is None or scope.depends_on_body((results[m.result].shape or shape)[axis])
                total = unknown() if varies else shape[axis] * trips
                shape = (*shape[:axis], total, *shape[axis + 1 :])
            elif m.axis is None and (trips is None or isinstance(trips, Sym) or trips == 0):
                initial_spec = merged.get(m.result)  # the value without any iteration
                if initial_spec is not None:
                    shape = (
                        initial_spec.shape
                        if trips == 0 and not isinstance(trips, Sym)
                        else _generalised(initial_spec, spec).shape
                    )
            output_specs[m.port] = Spec(spec.type, shape)
        return tuple(
            output_specs[i] if i in output_specs else Spec(Type.dynamic, None)
            for i in range(max(output_specs, default=-1) + 1)
        )

    def _iterate(
        self, xp: Adapter, inputs: Sequence[Array], limit: int, counter: int | None = None, condition: int | None = None
    ) -> tuple[Array, ...]:
        """Run the body up to ``limit`` times (without limit if negative), or until its condition fails."""
        carried: dict[int, Array] = {}
        parts: dict[int, list[Array]] = {m.port: [] for m in self.outputs if m.axis is not None}
        results: Sequence[Array] = ()
        i = 0
        while limit < 0 or i < limit:
            arguments: list[Any] = [None] * len(self.body.parameters)
            for entry in self.inputs:
                p = entry.parameter
                arguments[p] = carried[p] if p in carried else part(inputs[entry.port], entry, i)
            if counter is not None:
                op: Any = self.body.parameters[counter].op
                arguments[counter] = xp.asarray(np.full((1,) if len(op.shape) else (), i, op.element_type.storage))
            results = xp.run(self.body, arguments)
            carried = {b.parameter: results[b.result] for b in self.back_edges}
            for m in self.outputs:
                if m.axis is not None:
                    parts[m.port].append(results[m.result])
            i += 1
            if condition is not None and not first(results[condition], "the body's condition"):
                break
        return self._collect(xp, inputs, results, parts, counter)

    def _collect(
        self,
        xp: Adapter,
        inputs: Sequence[Array],
        results: Sequence[Array],
        parts: dict[int, list[Array]],
        counter: int | None,
    ) -> tuple[Array, ...]:
        initial = {m.parameter: inputs[m.port] for m in self.inputs if m.axis is None}
        initial_values = {b.result: initial[b.parameter] for b in self.back_edges if b.parameter in initial}
        outputs: dict[int, Array] = {}
        for m in self.outputs:
            if m.axis is not None and parts[m.port]:
                pieces = parts[m.port][:: -1 if m.stride < 0 else 1]
                outputs[m.port] = _joined(xp, pieces, m)
            elif m.axis is not None:
                outputs[m.port] = self._empty(xp, m, inputs, counter)
            elif results:
                outputs[m.port] = results[m.result]
            elif m.result in initial_values:
                outputs[m.port] = initial_values[m.result]
            else:
                raise no_value(m)
        return tuple(outputs[i] for i in range(len(outputs)))

    def _empty(self, xp: Adapter, m: OutputMap, inputs: Sequence[Array], counter: int | None) -> Array:
        """Return the concatenation of no parts, whose other extents are inferred from the body."""
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
    """Return the error for a last value that does not exist, because there was no iteration and no initial value."""
    return OpError(f"output {m.port} has no value: there was no iteration")


def _one(spec: Spec | None, name: str, boolean: bool) -> None:
    """Raise OpError unless ``spec`` is a boolean or integer scalar, or a vector of one element."""
    if spec is None:
        return
    dtype = spec.type
    if not dtype.is_dynamic() and not (dtype == Type.boolean if boolean else dtype.is_integral_number()):
        raise OpError(f"the {name} must be {'a boolean' if boolean else 'an integer'}, not {dtype.get_type_name()}")
    if spec.shape is not None:
        if len(spec.shape) > 1:
            raise OpError(f"the {name} must be a scalar, it has rank {len(spec.shape)}")
        for dim in spec.shape:
            same(dim, 1, f"the {name} must have one element, it has {{0}}")


def _joined(xp: Adapter, parts: Sequence[Array], m: OutputMap) -> Array:
    """Return the concatenation of the iterations' parts. Raises OpError for parts that do not fit together."""
    axis = normalize_axis(m.axis or 0, parts[0].ndim)
    begin = parts[0].shape
    for x in parts:
        if (*x.shape[:axis], *x.shape[axis + 1 :]) != (*begin[:axis], *begin[axis + 1 :]):
            raise OpError(
                f"output {m.port} cannot join parts of shapes {list(begin)} and {list(x.shape)} along axis {m.axis}"
            )
    return xp.concatenate(parts, axis=axis)


def _part(shape: Shape, m: InputMap) -> Shape:
    if shape is None or m.axis is None:
        return shape
    if not -len(shape) <= m.axis < len(shape):
        raise OpError(f"input {m.port} is sliced along axis {m.axis} of rank {len(shape)}")
    axis = m.axis % len(shape)
    return (*shape[:axis], m.part_size, *shape[axis + 1 :])


def part(array: Array, m: InputMap, i: int) -> Array:
    """Return slice ``i`` of a sliced input, or all of an input that is not sliced, as a view."""
    if m.axis is None:
        return array
    axis = m.axis % array.ndim
    begin = m.begin(array.shape[axis], i)
    return array[(slice(None),) * axis + (slice(begin, begin + m.part_size),)]


@op("TensorIterator", "opset1", "infrastructure/tensor-iterator-1")
class TensorIterator(_Iterating):
    """A loop that runs ``body`` once per slice of the sliced inputs."""

    body: Model
    inputs: tuple[InputMap, ...]
    outputs: tuple[OutputMap, ...]
    back_edges: tuple[BackEdge, ...] = ()

    exact = True
    layout = "dense"

    def trips(self, specs: Sequence[Spec | None]) -> Int | None:
        """Return the number of iterations: as many as there are slices, 1 without sliced inputs, None if the shape of a
        sliced input is unknown."""
        count: Int | None = None
        for m in self.inputs:
            spec = specs[m.port]
            if m.axis is None or spec is None:
                continue
            if spec.shape is None:
                return None
            trips = m.trips(spec.shape[m.axis])
            count = trips if count is None else same(count, trips, "sliced inputs give {0} and {1} iterations")
        return 1 if count is None else count

    def infer_specs(self, *specs: Spec | None) -> tuple[Spec, ...]:
        with _BodyScope() as scope:
            results = self._infer_body(specs)
        return self._outputs(specs, results, scope, self.trips(specs))

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        counts = [m.trips(inputs[m.port].shape[m.axis]) for m in self.inputs if m.axis is not None]
        return self._iterate(xp, inputs, counts[0] if counts else 1)


@op("Loop", "opset5", "infrastructure/loop-5")
class Loop(_Iterating):
    """A loop that runs ``body`` at most input 0 times (-1: no limit), while input 1 and then `condition` are true."""

    body: Model
    inputs: tuple[InputMap, ...]
    outputs: tuple[OutputMap, ...]
    back_edges: tuple[BackEdge, ...] = ()
    current_iteration: int | None = None
    """Index in ``body.parameters`` of the parameter that gets the index of the iteration."""
    condition: int | None = None
    """Index in ``body.results`` of the condition to go on."""

    host_inputs = (0, 1)
    exact = True
    layout = "dense"

    def trips(self, specs: Sequence[Spec | None]) -> Int | None:
        """Return the number of iterations, None if a computed condition decides. Call it after the body's inference."""
        limit, start = ([1] if s is None else s.ints() for s in specs[:2])
        if limit is None or start is None or len(limit) != 1 or len(start) != 1:
            return None
        if not isinstance(start[0], Sym) and not start[0]:
            return 0
        count = limit[0]
        if self.condition is not None:
            going = self.body.results[self.condition].ports[0].spec.constant
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

    def infer_specs(self, *specs: Spec | None) -> tuple[Spec, ...]:
        _one(specs[0], "trip count", False)
        _one(specs[1], "execution condition", True)
        limit = None if specs[0] is None else constants(specs[0])
        most = None if limit is None else limit[0]
        with _BodyScope() as scope:
            results = self._infer_body(specs, self.current_iteration, most)
        return self._outputs(specs, results, scope, self.trips(specs))

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        limit, start = first(inputs[0], "the trip count"), first(inputs[1], "the execution condition")
        return self._iterate(xp, inputs, limit if start else 0, self.current_iteration, self.condition)


@op("If", "opset8", "condition/if-8")
class If(Op):
    """A branch: ``then_body`` runs if input 0 is true, else ``else_body``."""

    then_body: Model
    else_body: Model
    then_inputs: tuple[InputMap, ...]
    else_inputs: tuple[InputMap, ...]
    then_outputs: tuple[OutputMap, ...]
    else_outputs: tuple[OutputMap, ...]

    host_inputs = (0,)
    exact = True
    layout = "dense"

    def infer_specs(self, *specs: Spec | None) -> tuple[Spec, ...]:
        condition = specs[0]
        _one(condition, "condition", True)
        with _BodyScope() as scope:
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
            return tuple(scope.outer_spec(taken[i]) for i in sorted(taken))
        return tuple(_generalised(scope.outer_spec(then[i]), scope.outer_spec(other[i])) for i in sorted(then))

    def _branch(
        self, body: Model, inputs: Sequence[InputMap], outputs: Sequence[OutputMap], specs: Sequence[Spec | None]
    ) -> dict[int, Spec]:
        """Return the specs of one branch's outputs, by output index."""
        arguments: dict[int, Spec] = {}
        for m in inputs:
            spec = specs[m.port]
            if spec is None:
                raise OpError(f"input {m.port} of the port map is not connected")
            arguments[m.parameter] = spec
        if len(arguments) != len(body.parameters):
            raise OpError(f"a branch has {len(body.parameters)} parameters, {len(arguments)} of them have an input")
        results = body.infer([arguments[i] for i in range(len(arguments))], active())
        return {m.port: results[m.result] for m in outputs}

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        taken = first(inputs[0], "the condition")
        body = self.then_body if taken else self.else_body
        arguments: list[Any] = [None] * len(body.parameters)
        for m in self.then_inputs if taken else self.else_inputs:
            arguments[m.parameter] = inputs[m.port]
        results = xp.run(body, arguments)
        outputs = {m.port: results[m.result] for m in (self.then_outputs if taken else self.else_outputs)}
        return tuple(outputs[i] for i in sorted(outputs))
