"""Reductions over axes: sums, means, extremes, products, norms, logical and / or."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base import launch
from ovgpu.ops.base.op import Op, op
from ovgpu.ops.base.shapes import check_integers, constants, integers, length, normalize_axes, unknowns
from ovgpu.ops.base.strided import strides_of
from ovgpu.symbolic import Int, Shape, Spec, bounds, maximum, minimum, unknown
from ovgpu.types import Type


def reduced_shape(shape: Shape, axes: Spec, keep_dims: bool) -> Shape:
    """The shape after a reduction over ``axes``, of which perhaps only the number is known."""
    if shape is None:
        return None
    known = constants(axes)
    if known is not None:
        gone = normalize_axes(known, len(shape))
        return tuple(1 if i in gone else d for i, d in enumerate(shape) if keep_dims or i not in gone)
    if keep_dims:
        return tuple(_maybe_one(d) for d in shape)
    count = length(axes)
    if count is not None and count > len(shape):
        raise OpError(f"{count} axes are too many for rank {len(shape)}")
    return unknowns(None if count is None else len(shape) - count)


def _maybe_one(dim: Int) -> Int:
    lo, hi = bounds(dim)
    return unknown(min(lo, 1), None if hi is None else max(hi, 1))


@lru_cache(maxsize=64)
def ones(count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """A read-only column ``[count, 1]``; multiplying by it sums rows several times faster than `np.sum`."""
    column = np.ones((count, 1), dtype)
    column.flags.writeable = False
    return column


def as_rows(x: np.ndarray[Any, Any], axes: Sequence[int]) -> np.ndarray[Any, Any] | None:
    """``x`` as a matrix whose rows are what a reduction over ``axes`` folds; None where that is no view."""
    first = x.ndim - len(axes)
    if not x.flags.c_contiguous or list(axes) != list(range(first, x.ndim)):
        return None
    return x.reshape(prod(x.shape[:first]), prod(x.shape[first:]))


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether NumPy computes in this dtype itself (f32, f64), without decoding it first."""
    return dtype.kind == "f" and dtype.itemsize >= 4


class Reduction(Op):
    """``x [...], axes [n] or [] -> [...]`` without the axes, or with extent 1 there if ``keep_dims``.

    Axes count from the end when negative; none at all leave the shape as it is. What the axes hold no
    elements of becomes `identity`. 8-bit integers saturate, wider ones wrap.
    """

    keep_dims: bool = False

    host_inputs = (1,)
    strided_outputs = True
    fold: ClassVar[np.ufunc]
    fold_name: ClassVar[str]
    """`fold` over axes, as the array libraries call it."""
    kernel: ClassVar[str]
    """The reduction in reduction.cu."""

    def infer(self, x: Spec, axes: Spec) -> tuple[Spec, ...]:
        self.check_type(x.type)
        check_integers(axes, "axes", ranks=(0, 1))
        return (Spec(x.type, reduced_shape(x.shape, axes, self.keep_dims)),)

    def check_type(self, kind: Type) -> None:
        if kind in (Type.boolean, Type.string):
            raise OpError(f"element type {kind.get_type_name()} is not numeric")

    def identity(self, dtype: np.dtype[Any]) -> Any:
        """The result over no elements."""
        return self.fold.identity

    def before(self, xp: Any, x: Any) -> Any:
        """What is folded, from the input."""
        return x

    def after(self, xp: Any, total: Any, count: int) -> Any:
        """The output, from the fold over ``count`` elements each."""
        return total

    def evaluate(self, xp: Any, x: Any, axes: Any) -> tuple[Any, ...]:
        gone = tuple(normalize_axes(integers(axes), x.ndim))
        count = prod(x.shape[i] for i in gone)
        kind = x.dtype
        saturates = kind.kind in "iu" and kind.itemsize == 1
        folded = self.before(xp, x.astype(np.int32) if saturates else x)
        if count == 0:
            shape = [1 if i in gone else d for i, d in enumerate(x.shape) if self.keep_dims or i not in gone]
            total = xp.full(shape, self.identity(kind), kind)
        elif not gone:
            total = folded.copy()
        elif kind.kind == "O":
            total = np.asarray(SYMBOLIC_FOLDS.get(self.fold, self.fold).reduce(folded, gone, keepdims=self.keep_dims))
        else:
            total = getattr(xp, self.fold_name)(folded, axis=gone, keepdims=self.keep_dims)
        result = self.after(xp, total, count)
        if saturates:
            limits = np.iinfo(kind)
            result = xp.clip(result, limits.min, limits.max).astype(kind)
        return (xp.asarray(result),)

    def numpy(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        x, out = inputs[0], outputs[0]
        gone = tuple(self.gone(x, inputs[1], out))
        count = prod(x.shape[i] for i in gone)
        if not self.takes(x.dtype) or not gone:
            return NotImplemented
        if count == 0:
            k(out.fill, self.identity(x.dtype))
            return None
        return self.record(k, x, gone, count, out)

    def gone(self, x: Any, axes: Any, out: Any) -> list[int]:
        """Return the axes that are reduced. OpError if the output was expected to have fewer axes."""
        found = normalize_axes(integers(axes), x.ndim)
        if not self.keep_dims and x.ndim - len(found) != out.ndim:
            raise OpError(f"axes {integers(axes)} name an axis twice")
        return found

    def takes(self, dtype: np.dtype[Any]) -> bool:
        """Whether the fast form computes in this dtype."""
        return is_float(dtype) or (dtype.kind in "iu" and dtype.itemsize >= 4)

    def record(self, k: Any, x: Any, axes: tuple[int, ...], count: int, out: Any) -> Any:
        k(self.fold.reduce, x, axes, out.dtype, out, self.keep_dims)
        return None

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        x, out = inputs[0], outputs[0]
        gone = self.gone(x, inputs[1], out)
        if not launch.is_plain(x):
            return NotImplemented
        written = iter(strides_of(out))
        kept, folded = [], []
        for i, (extent, step) in enumerate(zip(x.shape, strides_of(x))):
            if i in gone:
                folded.append((extent, step, 0))
                if self.keep_dims:
                    next(written)
            else:
                kept.append((extent, step, next(written)))
        kept, folded = (launch.merged(launch.by_stride(axes)) for axes in (kept, folded))
        if not launch.fit(kept, folded):
            return NotImplemented
        if out.size:
            reduce(k, f"{self.kernel}<{k.c_type(x.dtype)}>", x, out, kept, folded)
        return None


PART = (2048, 16384)  # the least number of elements that a block is given, along columns and along rows


def reduce(k: Any, function: str, x: Any, out: Any, kept: Sequence[launch.Axis], folded: Sequence[launch.Axis]) -> None:
    """Launches a reduction of reduction.cu; in two halves if the results are too few to occupy the device."""
    rows, n = launch.size(kept), launch.size(folded)
    along_rows = folded[-1][1] == 1 or kept[-1][1] != 1
    block = launch.row_block(rows, n) if along_rows else launch.column_block(rows, n)
    per_block = block[along_rows]
    parts = min(2 * launch.PROCESSORS * per_block // rows, n // PART[along_rows])
    if parts < 2:
        _launch(k, along_rows, function, x, out, kept, folded, n, n)
        return
    chunk = launch.ceildiv(n, parts)
    parts = launch.ceildiv(n, chunk)
    partial = k.scratch((rows, parts), _total(x.dtype, function))
    beside, written = [], parts
    for extent, read, _ in reversed(kept):
        beside.append((extent, read, written))
        written *= extent
    _launch(k, along_rows, f"Partial<{function}>", x, partial, beside[::-1], folded, chunk, n)
    results = [(extent, step, to) for (extent, _, step), (_, _, to) in zip(beside[::-1], kept)]
    _launch(k, True, f"Final<{function}>", partial, out, launch.merged(results), [(parts, 1, 0)], parts, n)


def _total(dtype: np.dtype[Any], function: str) -> np.dtype[Any]:
    """What a reduction computes in."""
    if dtype.kind == "b":
        return np.dtype(np.int32)
    if dtype.kind in "iu" and function.startswith("L2<"):
        return np.dtype(np.float64)
    if dtype.kind in "iu":
        return np.dtype(np.uint64 if dtype.kind == "u" and dtype.itemsize > 1 else np.int64)
    return np.dtype(np.float64 if dtype.name == "float64" else np.float32)


def _launch(k: Any, along_rows: bool, function: str, x: Any, out: Any, kept: Sequence[launch.Axis],
            folded: Sequence[launch.Axis], chunk: int, count: int) -> None:
    """Reduces ``count`` elements each, in parts of ``chunk``."""
    rows, n = launch.size(kept), launch.size(folded)
    block = launch.row_block(rows, chunk) if along_rows else launch.column_block(rows, chunk)
    grid = (launch.ceildiv(rows, block[along_rows]), max(launch.ceildiv(n, max(chunk, 1)), 1))
    shared = 0 if along_rows else block[0] * block[1] * 8
    # the axes of a reduction over nothing at all have no elements: one row of threads, none of which finds any
    k.kernel("reduction.cu", f"reduce_{'rows' if along_rows else 'columns'}<{function}>", grid, block,
             (x, out, launch.packed(kept), launch.packed(folded), np.uint32(rows), np.uint32(n), np.uint32(chunk),
              np.int64(count)), shared)


# What folds of symbolic integers use in place of ufuncs that compare.
SYMBOLIC_FOLDS: dict[np.ufunc, np.ufunc] = {
    np.maximum: np.frompyfunc(maximum, 2, 1),
    np.minimum: np.frompyfunc(minimum, 2, 1),
}


@op("ReduceSum", "opset1")
class ReduceSum(Reduction):
    fold = np.add
    fold_name = "sum"
    kernel = "Sum"
    supports_symbolic = True

    def record(self, k: Any, x: Any, axes: tuple[int, ...], count: int, out: Any) -> Any:
        rows = as_rows(x, axes) if is_float(x.dtype) and out.flags.c_contiguous else None
        if rows is None:
            return super().record(k, x, axes, count, out)
        k(np.matmul, rows, ones(count, x.dtype), out.reshape(-1, 1))
        return None


@op("ReduceMean", "opset1")
class ReduceMean(ReduceSum):
    """The mean; of integers, truncated towards zero; over no elements, zero."""

    kernel = "Mean"
    supports_symbolic = False

    def after(self, xp: Any, total: Any, count: int) -> Any:
        if count == 0:
            return total
        if total.dtype.kind == "i":
            return xp.sign(total) * (abs(total) // count)
        return total // count if total.dtype.kind == "u" else total / count

    def takes(self, dtype: np.dtype[Any]) -> bool:
        return is_float(dtype)

    def record(self, k: Any, x: Any, axes: tuple[int, ...], count: int, out: Any) -> Any:
        super().record(k, x, axes, count, out)
        k(np.divide, out, count, out)
        return None


class _Extreme(Reduction):
    supports_symbolic = True

    def takes(self, dtype: np.dtype[Any]) -> bool:
        return is_float(dtype) or dtype.kind in "iu"


@op("ReduceMax", "opset1")
class ReduceMax(_Extreme):
    """The greatest element; over no elements, the least finite value."""

    fold = np.maximum
    fold_name = "max"
    kernel = "Max"

    def identity(self, dtype: np.dtype[Any]) -> Any:
        return np.finfo(dtype).min if dtype.kind == "f" else np.iinfo(dtype).min


@op("ReduceMin", "opset1")
class ReduceMin(_Extreme):
    """The least element; over no elements infinity, or of integers the greatest.

    Infinity is what ONNX asks for, and what OpenVINO's reference gives, and its CPU plugin where the axes are no
    constants, else the greatest finite value.
    """

    fold = np.minimum
    fold_name = "min"
    kernel = "Min"

    def identity(self, dtype: np.dtype[Any]) -> Any:
        return dtype.type(np.inf) if dtype.kind == "f" else np.iinfo(dtype).max


@op("ReduceProd", "opset1")
class ReduceProd(Reduction):
    fold = np.multiply
    fold_name = "prod"
    kernel = "Prod"
    supports_symbolic = True


@op("ReduceL1", "opset4")
class ReduceL1(Reduction):
    """The sum of absolute values."""

    fold = np.add
    fold_name = "sum"
    kernel = "L1"

    def before(self, xp: Any, x: Any) -> Any:
        return abs(x)

    def record(self, k: Any, x: Any, axes: tuple[int, ...], count: int, out: Any) -> Any:
        return NotImplemented


@op("ReduceL2", "opset4")
class ReduceL2(Reduction):
    """The square root of the sum of squares; of integers, truncated."""

    fold = np.add
    fold_name = "sum"
    kernel = "L2"

    def before(self, xp: Any, x: Any) -> Any:
        x = x if x.dtype.kind == "f" else x.astype(np.float64)
        return x * x

    def after(self, xp: Any, total: Any, count: int) -> Any:
        return xp.sqrt(total)

    def record(self, k: Any, x: Any, axes: tuple[int, ...], count: int, out: Any) -> Any:
        rows = as_rows(x, axes) if is_float(x.dtype) and out.flags.c_contiguous else None
        if rows is None:
            return NotImplemented
        k(np.vecdot, rows, rows, out.reshape(-1))
        k(np.sqrt, out, out)
        return None


class _Logical(Reduction):
    def check_type(self, kind: Type) -> None:
        if kind not in (Type.boolean, Type.dynamic):
            raise OpError(f"element type {kind.get_type_name()} is not boolean")

    def takes(self, dtype: np.dtype[Any]) -> bool:
        return dtype.kind == "b"


@op("ReduceLogicalAnd", "opset1")
class ReduceLogicalAnd(_Logical):
    fold = np.logical_and
    fold_name = "all"
    kernel = "All"


@op("ReduceLogicalOr", "opset1")
class ReduceLogicalOr(_Logical):
    fold = np.logical_or
    fold_name = "any"
    kernel = "Any"
