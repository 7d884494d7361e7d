"""Reductions over axes: sum, mean, maximum, minimum, product, L1 and L2 norm, logical and / or."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base import launch
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import axes_of_scalar, check_integers, constants, integers, length, normalize_axes, unknowns
from ovgpu.ops.base.strided import CHUNK_BYTES, strides_of
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import Int, bounds, maximum, minimum, unknown
from ovgpu.types import Type

COLUMN_ELEMENTS = 4  # elements of a column that a thread loads at once


def reduced_shape(shape: Shape, axes: Spec, keep_dims: bool) -> Shape:
    """Return the shape after a reduction over ``axes``; its rank may be known even if only their number is known."""
    if shape is None:
        return None
    known = constants(axes)
    if known is not None:
        reduced = [] if axes_of_scalar(known, len(shape)) and not keep_dims else normalize_axes(known, len(shape))
        return tuple(1 if i in reduced else d for i, d in enumerate(shape) if keep_dims or i not in reduced)
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
    """Return a read-only column of ones, [count, 1]. Multiplying by it sums rows several times faster than `np.sum`."""
    column = np.ones((count, 1), dtype)
    column.flags.writeable = False
    return column


def as_rows(x: np.ndarray[Any, Any], axes: Sequence[int]) -> np.ndarray[Any, Any] | None:
    """Return ``x`` as a matrix [results, n] whose rows a reduction over ``axes`` folds, None if that takes a copy."""
    first = x.ndim - len(axes)
    if not x.flags.c_contiguous or list(axes) != list(range(first, x.ndim)):
        return None
    return x.reshape(prod(x.shape[:first]), prod(x.shape[first:]))


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether NumPy computes in this dtype itself (f32, f64), without decoding it first."""
    return dtype.kind == "f" and dtype.itemsize >= 4


class Reduction(Op):
    """Base of reductions: ``x [...], axes [n] or [] -> [...]`` without the axes, or with extent 1 if ``keep_dims``.

    Negative axes count from the end. Without axes, the shape stays as it is. A reduction over no elements gives
    `identity`. 8-bit integers saturate, wider ones wrap.
    """

    keep_dims: bool = False

    host_inputs = (1,)
    strided_outputs = True
    fold: ClassVar[np.ufunc]
    fold_name: ClassVar[str]
    """The name of the function of NumPy and CuPy that applies `fold` over axes."""
    kernel: ClassVar[str]
    """The name of the reduction in reduction.cu."""

    def infer_specs(self, x: Spec, axes: Spec) -> tuple[Spec, ...]:
        self.check_type(x.type)
        check_integers(axes, "axes", ranks=(0, 1))
        return (Spec(x.type, reduced_shape(x.shape, axes, self.keep_dims)),)

    def check_type(self, dtype: Type) -> None:
        if dtype in (Type.boolean, Type.string):
            raise OpError(f"element type {dtype.get_type_name()} is not numeric")

    def identity(self, dtype: np.dtype[Any]) -> Any:
        """Return the result over no elements."""
        return self.fold.identity

    def before(self, xp: Adapter, x: Array) -> Array:
        """Compute the values to fold from the input."""
        return x

    def after(self, xp: Adapter, total: Array, count: int) -> Array:
        """Compute the output from the folds of ``count`` elements each."""
        return total

    def evaluate(self, xp: Adapter, x: Array, axes: Array) -> tuple[Array, ...]:
        reduced = tuple(self.axes(x, axes))
        count = prod(x.shape[i] for i in reduced)
        dtype = x.dtype
        saturates = dtype.kind in "iu" and dtype.itemsize == 1
        folded = self.before(xp, x.astype(np.int32) if saturates else x)
        if count == 0:
            shape = [1 if i in reduced else d for i, d in enumerate(x.shape) if self.keep_dims or i not in reduced]
            total = xp.full(shape, self.identity(dtype), dtype)
        elif not reduced:
            total = folded.copy()
        elif dtype.kind == "O":
            total = np.asarray(
                SYMBOLIC_FOLDS.get(self.fold, self.fold).reduce(folded, reduced, keepdims=self.keep_dims)
            )
        else:
            total = getattr(xp, self.fold_name)(folded, axis=reduced, keepdims=self.keep_dims)
        result = self.after(xp, total, count)
        if saturates:
            limits = np.iinfo(dtype)
            result = xp.clip(result, limits.min, limits.max).astype(dtype)
        return (xp.asarray(result),)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out = inputs[0], outputs[0]
        reduced = tuple(self.reduced(x, inputs[1], out))
        count = prod(x.shape[i] for i in reduced)
        if not self.supports(x.dtype) or not reduced:
            return NotImplemented
        if count == 0:
            k(out.fill, self.identity(x.dtype))
            return None
        return self.record(k, x, reduced, count, out)

    def axes(self, x: Any, axes: Any) -> list[int]:
        """Return the axes that are reduced, in ascending order; a scalar has none."""
        values = integers(axes)
        return [] if axes_of_scalar(values, x.ndim) and not self.keep_dims else normalize_axes(values, x.ndim)

    def reduced(self, x: Any, axes: Any, out: Any) -> list[int]:
        """Return the axes that are reduced. Raises OpError if the output was inferred to have fewer axes."""
        reduced = self.axes(x, axes)
        if not self.keep_dims and x.ndim - len(reduced) != out.ndim:
            raise OpError(f"axes {integers(axes)} name an axis twice")
        return reduced

    def supports(self, dtype: np.dtype[Any]) -> bool:
        """Return whether the `numpy` form computes in this dtype."""
        return is_float(dtype) or (dtype.kind in "iu" and dtype.itemsize >= 4)

    def record(self, k: HostRecorder, x: Any, axes: tuple[int, ...], count: int, out: Any) -> Any:
        """Record the `numpy` form, or return NotImplemented. ``axes`` is not empty, and ``count``, the number of
        elements per result, is not 0."""
        k(self.fold.reduce, x, axes, out.dtype, out, self.keep_dims)
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out = inputs[0], outputs[0]
        reduced = self.reduced(x, inputs[1], out)
        if not launch.is_plain(x):
            return NotImplemented
        out_stride = iter(strides_of(out))
        retained, folded = [], []
        for i, (extent, step) in enumerate(zip(x.shape, strides_of(x))):
            if i in reduced:
                folded.append((extent, step, 0))
                if self.keep_dims:
                    next(out_stride)
            else:
                retained.append((extent, step, next(out_stride)))
        retained, folded = (launch.merged(launch.by_stride(axes)) for axes in (retained, folded))
        if not launch.fit(retained, folded):
            return NotImplemented
        if out.size:
            reduce(k, f"{self.kernel}<{k.c_type(x.dtype)}>", x, out, retained, folded)
        return None


def reduce(
    k: KernelRecorder, function: str, x: Any, out: Any, retained: Sequence[launch.Axis], folded: Sequence[launch.Axis]
) -> None:
    """Record a reduction of reduction.cu over the axes ``folded``. If there are too few results to occupy the device,
    a first launch reduces parts, and a second one the results of the parts."""
    rows, n = launch.size(retained), launch.size(folded)
    along_rows = folded[-1][1] == 1 or retained[-1][1] != 1
    vector = 1 if along_rows else _vector(x, retained, folded)
    block = _block(k, along_rows, rows // vector, n)
    per_block = block[along_rows] * vector
    parts = min(2 * k.multiprocessors * per_block // rows, n // launch.MIN_PART_ELEMENTS)
    if parts < 2 or (along_rows and n <= launch.LONG_ROW):
        _launch(k, along_rows, function, x, out, retained, folded, n, n, vector)
        return
    chunk = launch.ceildiv(n, parts)
    parts = launch.ceildiv(n, chunk)
    partial = k.scratch((rows, parts), _total(x.dtype, function))
    partial_axes, out_stride = [], parts
    for extent, read, _ in reversed(retained):
        partial_axes.append((extent, read, out_stride))
        out_stride *= extent
    _launch(k, along_rows, f"Partial<{function}>", x, partial, partial_axes[::-1], folded, chunk, n, vector)
    results = [(extent, step, to) for (extent, _, step), (_, _, to) in zip(partial_axes[::-1], retained)]
    _launch(k, True, f"Final<{function}>", partial, out, launch.merged(results), [(parts, 1, 0)], parts, n)


def _total(dtype: np.dtype[Any], function: str) -> np.dtype[Any]:
    """Return the dtype of a reduction's accumulator."""
    if dtype.kind == "b":
        return np.dtype(np.int32)
    if dtype.kind in "iu" and function.startswith("L2<"):
        return np.dtype(np.float64)
    if dtype.kind in "iu":
        return np.dtype(np.uint64 if dtype.kind == "u" and dtype.itemsize > 1 else np.int64)
    return np.dtype(np.float64 if dtype.name == "float64" else np.float32)


def _vector(x: Any, retained: Sequence[launch.Axis], folded: Sequence[launch.Axis]) -> int:
    """Return the number of neighbouring columns that a thread reduces: 16 bytes of floats if strides and address allow
    it, else one."""
    vector: int = CHUNK_BYTES // x.itemsize
    *outer, (columns, _, _) = retained
    strides = (columns, *(step for _, step, _ in (*outer, *folded)))
    return (
        vector
        if launch.is_real(x)
        and x.itemsize <= 4
        and x.data.ptr % CHUNK_BYTES == 0
        and not any(n % vector for n in strides)
        else 1
    )


def _block(k: KernelRecorder, along_rows: bool, rows: int, n: int) -> tuple[int, int]:
    """Return the threads of a block, along x and y."""
    if along_rows:
        return launch.row_block(k.multiprocessors, rows, n)
    return launch.column_block(k.multiprocessors, rows, launch.ceildiv(n, COLUMN_ELEMENTS))


def _launch(
    k: KernelRecorder,
    along_rows: bool,
    function: str,
    x: Any,
    out: Any,
    retained: Sequence[launch.Axis],
    folded: Sequence[launch.Axis],
    chunk: int,
    count: int,
    vector: int = 1,
) -> None:
    """Record one launch that reduces ``count`` elements per result, in parts of ``chunk``. A thread has ``vector``
    columns."""
    *outer, (columns, _, written) = retained
    if vector > 1:
        retained = [*outer, (columns // vector, vector, vector * written)]
    rows, n = launch.size(retained), launch.size(folded)
    block = _block(k, along_rows, rows, chunk)
    grid = (launch.ceildiv(rows, block[along_rows]), max(launch.ceildiv(n, max(chunk, 1)), 1))
    shared = 0 if along_rows else block[0] * block[1] * 8
    kernel, further = "rows" if along_rows else "columns", list[Any]()
    if vector > 1:
        kernel, further, shared = "vectors", [np.uint32(written)], block[0] * block[1] * vector * 4
    # A reduction over no elements still needs one row of blocks, whose threads find none.
    k.kernel(
        "reduction.cu",
        f"reduce_{kernel}<{function}>",
        grid,
        block,
        (
            x,
            out,
            launch.packed(retained),
            launch.packed(folded),
            np.uint32(rows),
            np.uint32(n),
            np.uint32(chunk),
            np.int64(count),
            *further,
        ),
        shared,
        early=True,
    )


# Ufuncs that fold symbolic integers, in place of those that compare elements
SYMBOLIC_FOLDS: dict[np.ufunc, np.ufunc] = {
    np.maximum: np.frompyfunc(maximum, 2, 1),
    np.minimum: np.frompyfunc(minimum, 2, 1),
}


@op("ReduceSum", "opset1", "reduction/reduce-sum-1")
class ReduceSum(Reduction):
    """The sum; over no elements, zero.

    >>> reduce_sum([[1, 2], [3, 4]], [1], keep_dims=True)
    [[3], [7]]
    """

    fold = np.add
    fold_name = "sum"
    kernel = "Sum"
    supports_symbolic = True
    host_in_decode = True

    def record(self, k: HostRecorder, x: Any, axes: tuple[int, ...], count: int, out: Any) -> Any:
        rows = as_rows(x, axes) if is_float(x.dtype) and out.flags.c_contiguous else None
        if rows is None:
            return super().record(k, x, axes, count, out)
        k(np.matmul, rows, ones(count, x.dtype), out.reshape(-1, 1))
        return None


@op("ReduceMean", "opset1", "reduction/reduce-mean-1")
class ReduceMean(ReduceSum):
    """The mean; for integers truncated towards zero; over no elements, zero.

    >>> reduce_mean([[1, 2], [-1, -2]], [1])
    [1, -1]
    """

    kernel = "Mean"
    supports_symbolic = False
    half_precision = "promoted"
    host_in_decode = False

    def after(self, xp: Adapter, total: Array, count: int) -> Array:
        if count == 0:
            return total
        if total.dtype.kind == "i":
            return xp.sign(total) * (abs(total) // count)
        return total // count if total.dtype.kind == "u" else total / count

    def supports(self, dtype: np.dtype[Any]) -> bool:
        return is_float(dtype)

    def record(self, k: HostRecorder, x: Any, axes: tuple[int, ...], count: int, out: Any) -> Any:
        super().record(k, x, axes, count, out)
        k(np.divide, out, count, out)
        return None


class _Extreme(Reduction):
    """Base of maximum and minimum."""

    supports_symbolic = True
    half_precision = "promoted"
    host_in_decode = True

    def supports(self, dtype: np.dtype[Any]) -> bool:
        return is_float(dtype) or dtype.kind in "iu"


@op("ReduceMax", "opset1", "reduction/reduce-max-1")
class ReduceMax(_Extreme):
    """The greatest element; over no elements, the least finite value.

    >>> reduce_max([[1, 5], [7, 3]], [0])
    [7, 5]
    """

    fold = np.maximum
    fold_name = "max"
    kernel = "Max"

    def identity(self, dtype: np.dtype[Any]) -> Any:
        return np.finfo(dtype).min if dtype.kind == "f" else np.iinfo(dtype).min


@op("ReduceMin", "opset1", "reduction/reduce-min-1")
class ReduceMin(_Extreme):
    """The least element; over no elements, infinity, or for integers the greatest value.

    ONNX requires infinity, and OpenVINO's reference gives it. Its CPU plugin gives it only if the axes are not
    constants, else the greatest finite value.

    >>> reduce_min([[1, 5], [7, 3]], [0, 1])
    1
    """

    fold = np.minimum
    fold_name = "min"
    kernel = "Min"

    def identity(self, dtype: np.dtype[Any]) -> Any:
        return dtype.type(np.inf) if dtype.kind == "f" else np.iinfo(dtype).max


@op("ReduceProd", "opset1", "reduction/reduce-prod-1")
class ReduceProd(Reduction):
    """The product; over no elements, one.

    >>> reduce_prod([[1, 2], [3, 4]], [-1])
    [2, 12]
    """

    fold = np.multiply
    fold_name = "prod"
    kernel = "Prod"
    supports_symbolic = True
    host_in_decode = True


@op("ReduceL1", "opset4", "reduction/reduce-l1-4")
class ReduceL1(Reduction):
    """The sum of absolute values.

    >>> reduce_l1([3.0, -4], 0)
    7.0
    """

    fold = np.add
    fold_name = "sum"
    kernel = "L1"

    def before(self, xp: Adapter, x: Array) -> Array:
        return abs(x)

    def record(self, k: HostRecorder, x: Any, axes: tuple[int, ...], count: int, out: Any) -> Any:
        return NotImplemented


@op("ReduceL2", "opset4", "reduction/reduce-l2-4")
class ReduceL2(Reduction):
    """The square root of the sum of squares; for integers truncated.

    >>> reduce_l2([3.0, -4], 0)
    5.0
    """

    fold = np.add
    fold_name = "sum"
    kernel = "L2"

    def before(self, xp: Adapter, x: Array) -> Array:
        x = x if x.dtype.kind == "f" else x.astype(np.float64)
        return x * x

    def after(self, xp: Adapter, total: Array, count: int) -> Array:
        return xp.sqrt(total)

    def record(self, k: HostRecorder, x: Any, axes: tuple[int, ...], count: int, out: Any) -> Any:
        rows = as_rows(x, axes) if is_float(x.dtype) and out.flags.c_contiguous else None
        if rows is None:
            return NotImplemented
        k(np.vecdot, rows, rows, out.reshape(-1))
        k(np.sqrt, out, out)
        return None


class _Logical(Reduction):
    """Base of reductions of booleans."""

    host_in_decode = True

    def check_type(self, dtype: Type) -> None:
        if dtype not in (Type.boolean, Type.dynamic):
            raise OpError(f"element type {dtype.get_type_name()} is not boolean")

    def supports(self, dtype: np.dtype[Any]) -> bool:
        return dtype.kind == "b"


@op("ReduceLogicalAnd", "opset1", "reduction/reduce-logical-and-1")
class ReduceLogicalAnd(_Logical):
    """The logical and; over no elements, true.

    >>> reduce_logical_and([[True, False], [True, True]], [1])
    [False, True]
    """

    fold = np.logical_and
    fold_name = "all"
    kernel = "All"


@op("ReduceLogicalOr", "opset1", "reduction/reduce-logical-or-1")
class ReduceLogicalOr(_Logical):
    """The logical or; over no elements, false.

    >>> reduce_logical_or([[True, False], [False, False]], [1])
    [True, False]
    """

    fold = np.logical_or
    fold_name = "any"
    kernel = "Any"
