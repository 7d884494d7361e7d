"""Ops that create tensors from shapes and numbers: ShapeOf, Range, Eye."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import check_integers, integer, integers, length, unknowns
from ovgpu.ops.base.storage import decode
from ovgpu.ops.base.strided import THREADS, bits, blocks
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import Int, Sym, bounds, ceildiv, maximum, unknown
from ovgpu.types import Type


@op("ShapeOf", "opset1", "shape/shape-of-1")
class ShapeOf(Op):
    """``data [...] -> [rank]``: the extents of the data, as i64."""

    exact = True
    supports_symbolic = True

    @property
    def dtype(self) -> Type:
        """The output's element type."""
        return Type.i64

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        if x.shape is None:
            return (Spec(self.dtype, (unknown(),)),)
        symbolic = any(isinstance(d, Sym) for d in x.shape)
        if any(bounds(d)[0] > 2**31 - 1 for d in x.shape) and self.dtype == Type.i32:
            raise OpError(f"an extent of [{', '.join(map(str, x.shape))}] does not fit into i32")
        value = np.empty(len(x.shape), object if symbolic else self.dtype.storage)
        value[:] = x.shape
        return (Spec(self.dtype, (len(x.shape),), value),)

    def evaluate(self, xp: Adapter, x: Array) -> tuple[Array, ...]:
        return (xp.asarray(np.array(x.shape, self.dtype.storage)),)


@op("ShapeOf", "opset3", "shape/shape-of-3")
class ShapeOf3(ShapeOf):
    """ShapeOf-1 with an output type: i64 or i32.

    >>> shape_of([[1, 2, 3]])
    [1, 3]
    """

    output_type: Type = Type.i64

    @property
    def dtype(self) -> Type:
        return self.output_type

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        if self.output_type not in (Type.i32, Type.i64):
            raise OpError(f"output_type {self.output_type.get_type_name()} is neither i32 nor i64")
        return super().infer_specs(x)


@op("Range", "opset1", "generation/range-1")
class Range(Op):
    """``start, stop, step -> [n]``: numbers from start on, ``step`` apart, before stop; all of one element type."""

    supports_symbolic = True
    host_inputs = (0, 1, 2)
    host_in_decode = True

    def dtype(self, start: Spec, stop: Spec, step: Spec) -> Type:
        """Return the output's element type."""
        return merge_types([start, stop, step])

    def infer_specs(self, start: Spec, stop: Spec, step: Spec) -> tuple[Spec, ...]:
        dtype = self.dtype(start, stop, step)
        arguments = (start, stop, step)
        for spec, what in zip(arguments, ("start", "stop", "step")):
            if spec.rank not in (None, 0):
                raise OpError(f"{what} is no scalar but has rank {spec.rank}")
            if spec.type in (Type.boolean, Type.string):
                raise OpError(f"{what} is of type {spec.type.get_type_name()}, which has no order")
        return (Spec(dtype, (self.count(dtype, [_element(s) for s in arguments]),)),)

    def count(self, dtype: Type, arguments: Sequence[Int | float | None]) -> Int:
        """Return the number of elements, as far as (start, stop, step) are known."""
        known = [v for v in arguments if v is not None]
        if len(known) < len(arguments):
            return unknown()
        if dtype.is_integral():
            known = [int(v) if isinstance(v, float) and math.isfinite(v) else v for v in known]
        return count(*known)

    def evaluate(self, xp: Adapter, start: Array, stop: Array, step: Array) -> tuple[Array, ...]:
        return self.numbers(xp, start, stop, step, start.dtype.kind == "f")

    def numbers(self, xp: Adapter, start: Array, stop: Array, step: Array, real: bool) -> tuple[Array, ...]:
        """Return the output, computed in f64 if ``real``, else in i64."""
        arguments = [np.asarray(v).astype(np.float64 if real else np.int64).item() for v in (start, stop, step)]
        return (xp.arange(count(*arguments), dtype=np.float64 if real else np.int64) * arguments[2] + arguments[0],)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        assert outputs[0].shape is not None
        return ((Type.f64 if outputs[0].type.is_real() else Type.i64, outputs[0].shape),)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (start, _, step), out, scratch = inputs, outputs[0], workspace[0]
        k(np.multiply, np.arange(out.size, dtype=scratch.dtype), step, scratch, casting="unsafe")
        k(np.add, scratch, start, out, casting="unsafe")

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        (start, _, step), out = inputs, outputs[0]
        accumulator, c_type = (np.int64, "long long") if out.dtype.kind in "iub" else (np.float64, "double")
        if out.size:
            k.kernel(
                "range.cu",
                f"range<{k.c_type(out.dtype)}, {c_type}>",
                blocks(out.size, THREADS),
                (THREADS,),
                (out, *(np.asarray(v).astype(accumulator).reshape(-1)[0] for v in (start, step)), np.int64(out.size)),
            )


def _element(spec: Spec) -> Int | float | None:
    if spec.value is None:
        return None
    if spec.type.is_real():
        return float(decode(spec.value).ravel()[0])
    return (spec.ints() or [0])[0]


def count(start: Int | float, stop: Int | float, step: Int | float) -> Int:
    """Return how many numbers from ``start`` on, ``step`` apart, lie before ``stop``. Raise OpError if step is 0."""
    symbolic = isinstance(start, Sym) or isinstance(stop, Sym)
    if isinstance(step, Sym) or (symbolic and any(_fractional(v) for v in (start, stop, step))):
        return unknown()
    if symbolic:
        start, stop, step = (int(v) if isinstance(v, float) else v for v in (start, stop, step))
    for value, what in ((start, "start"), (stop, "stop"), (step, "step")):
        if isinstance(value, float) and not math.isfinite(value):
            raise OpError(f"{what} is {value}")
    if step == 0:
        raise OpError("step is 0")
    span = stop - start if step > 0 else start - stop
    if isinstance(span, float) or isinstance(step, float):
        return max(math.ceil(span / abs(step)), 0)
    return ceildiv(maximum(span, 0), abs(step))


def _fractional(value: Int | float) -> bool:
    return isinstance(value, float) and not value.is_integer()


@op("Range", "opset4", "generation/range-4")
class Range4(Range):
    """Range-1 with an output type; for an integer type, start, stop and step are truncated first.

    >>> range(7, 0, -3, output_type="i64")
    [7, 4, 1]
    """

    output_type: Type

    def dtype(self, start: Spec, stop: Spec, step: Spec) -> Type:
        if self.output_type in (Type.boolean, Type.string, Type.dynamic):
            raise OpError(f"output_type {self.output_type.get_type_name()} is not numeric")
        return self.output_type

    def evaluate(self, xp: Adapter, start: Array, stop: Array, step: Array) -> tuple[Array, ...]:
        return self.numbers(xp, start, stop, step, self.output_type.is_real())


@op("Eye", "opset9", "generation/eye-9")
class Eye(Op):
    """``rows, columns, diagonal, batch_shape [n] (optional) -> [*batch_shape, rows, columns]``: 1 at each
    ``[.., i, i + diagonal]``, and 0 elsewhere.

    >>> eye(2, 3, 1, output_type="i32")
    [[0, 1, 0], [0, 0, 1]]
    """

    output_type: Type

    host_inputs = (0, 1, 2, 3)
    host_in_decode = True

    def infer_specs(self, rows: Spec, columns: Spec, diagonal: Spec, batch: Spec | None = None) -> tuple[Spec, ...]:
        if self.output_type in (Type.string, Type.dynamic):
            raise OpError(f"output_type {self.output_type.get_type_name()} is not numeric")
        for spec, what in ((rows, "num_rows"), (columns, "num_columns"), (diagonal, "diagonal_index")):
            check_integers(spec, what, ranks=(0, 1))
            if length(spec) not in (None, 1):
                raise OpError(f"{what} is one number, not {length(spec)}")
        lead: Shape = ()
        if batch is not None:
            check_integers(batch, "batch_shape")
            known = batch.ints()
            lead = unknowns(length(batch)) if known is None else tuple(_extent(d, "batch_shape") for d in known)
        if lead is None:
            return (Spec(self.output_type, None),)
        sizes = [None if s.value is None else s.ints() for s in (rows, columns)]
        last = [unknown() if v is None else _extent(v[0], what) for v, what in zip(sizes, ("num_rows", "num_columns"))]
        return (Spec(self.output_type, (*lead, *last)),)

    def evaluate(
        self, xp: Adapter, rows: Array, columns: Array, diagonal: Array, batch: Array | None = None
    ) -> tuple[Array, ...]:
        m, n, k = (integer(value, "a size or the diagonal") for value in (rows, columns, diagonal))
        one = xp.eye(m, n, k, dtype=np.int8)
        return (xp.broadcast_to(one, (*(() if batch is None else integers(batch)), m, n)),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        out, diagonal = outputs[0], integer(inputs[2], "a size or the diagonal")
        one = np.ones((), np.int8).astype(out.dtype).view(f"u{out.dtype.itemsize}")[()]
        if out.size:
            k.kernel(
                "eye.cu",
                f"eye<{bits(out.dtype.itemsize)}>",
                blocks(out.size),
                (THREADS,),
                (out, one, *map(np.int64, (out.size, *out.shape[-2:], diagonal))),
            )


def _extent(value: Int, what: str) -> Int:
    if isinstance(value, Sym):
        return maximum(value, 0)
    if value < 0:
        raise OpError(f"{what} {value} is negative")
    return value
