"""Ops on rows with segment ids or sparse indices: SegmentMax, SparseFillEmptyRows."""

from __future__ import annotations

from math import prod
from typing import Any, Literal

import ml_dtypes
import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, internal_op, op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.segments import ascends, check_below, check_numbers, fold, shares
from ovgpu.ops.base.shapes import integer, integers
from ovgpu.ops.base.storage import decode, is_plain
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.sparse.embedding import segment_count
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, Sym, maximum, same, unknown
from ovgpu.types import Type


@op("SegmentMax", "opset16", "arithmetic/segment-max-16")
class SegmentMax(Op):
    """``data [n, D..], segment_ids [n], num_segments [] (optional) -> [segments, D..]``: the maximum of the rows with
    the same id. Ids ascend; without ``num_segments``, the number of segments is the last id plus one.

    An empty segment has zeros, or the lowest finite number. NaN is the greatest; OpenVINO drops it, and turns minus
    infinity into the lowest finite number.

    >>> segment_max([1.0, 5, 3], [0, 0, 2], fill_mode="ZERO")
    [5.0, 0.0, 3.0]
    """

    fill_mode: Literal["zero", "lowest"] = "zero"

    exact = True  # the lowest number depends on the storage type
    layout = "dense"
    host_inputs = (2,)

    def infer_specs(self, x: Spec, ids: Spec, count: Spec | None = None) -> tuple[Spec, ...]:
        if x.type in (Type.boolean, Type.string):
            raise OpError(f"element type {x.type.get_type_name()} is not numeric")
        if x.rank == 0:
            raise OpError("the data are a scalar")
        check_numbers(ids, "segment_ids", 1)
        if count is not None:
            check_numbers(count, "num_segments", 0)
        for a, b in zip(x.shape or (), ids.shape or ()):
            same(a, b, "there are {0} rows and {1} segment_ids")
        known = ids.constant
        if known is not None:
            _check_ids(known)
        if x.shape is None:
            return (Spec(x.type, None),)
        extent = segment_count(count) if count is not None else unknown() if known is None else _count(known)
        return (Spec(x.type, (extent, *x.shape[1:])),)

    def evaluate(self, xp: Adapter, x: Array, ids: Array, count: Array | None = None) -> tuple[Array, ...]:
        _check_ids(ids)
        bounds = xp.searchsorted(ids, xp.arange((_count(ids) if count is None else integer(count, "num_segments")) + 1))
        least, empty = self.limits(Type.of(x.dtype))
        x = decode(x, xp)
        out = xp.full((len(bounds) - 1, *x.shape[1:]), least, x.dtype)
        fold(xp, out, bounds[:-1], bounds[1:], lambda positions: x[positions], xp.maximum, xp.max)
        out[bounds[:-1] == bounds[1:]] = empty
        return (out,)

    def limits(self, dtype: Type) -> tuple[float, float]:
        """Return the initial value of maxima, the least value of the type, and the value of an empty segment."""
        if dtype.is_real():
            least, lowest = -np.inf, float(ml_dtypes.finfo(dtype.storage).min)  # type: ignore[no-untyped-call]
        else:
            least = lowest = -(2 ** (dtype.bitwidth - 1)) if dtype.is_signed() else 0
        return least, lowest if self.fill_mode == "lowest" else 0

    def widened(self, dtype: Type) -> Op:
        """Return the op for data upcast from ``dtype``. Empty segments keep the value that they have in ``dtype``."""
        return WidenedSegmentMax(fill_mode=self.fill_mode, dtype=dtype)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, ids, *_), out = inputs, outputs[0]
        if not is_plain(x.dtype):
            return NotImplemented
        if not out.size:
            return None
        vector, grid, block, shared, scratch = shares(x, out, len(x))
        accumulator = _ACCUMULATORS.get(x.dtype.name, np.int64)
        k.kernel(
            "segments.cu",
            f"segment_max<{k.c_type(x.dtype)}, {k.c_type(ids.dtype)}, {vector}>",
            grid,
            block,
            (
                x,
                ids,
                out,
                *map(np.int64, (len(x), prod(out.shape[1:]), len(out))),
                *map(accumulator, self.limits(Type.of(x.dtype))),
                shared,
            ),
            scratch,
        )
        return None


_ACCUMULATORS: dict[str, Any] = {"float64": np.float64, "uint64": np.uint64} | dict.fromkeys(
    ("float32", "float16", "bfloat16"), np.float32
)
"""The types of the kernel's `Accumulator` that are not i64."""


def _check_ids(ids: Array) -> None:
    if not ascends(ids) or (ids[:1] < 0).any():
        raise OpError("segment_ids do not ascend from 0")


def _count(ids: Array) -> int:
    """Return the number of segments that ascending ids imply."""
    return int(ids[-1]) + 1 if len(ids) else 0


@internal_op
class WidenedSegmentMax(SegmentMax):
    """SegmentMax of upcast data. ``dtype`` is their type in the file, which determines the value of empty segments."""

    dtype: Type

    name = "SegmentMax"

    def limits(self, dtype: Type) -> tuple[float, float]:
        return super().limits(dtype)[0], super().limits(self.dtype)[1]


@op("SparseFillEmptyRows", "opset16", "sparse/fill-empty-rows-16")
class SparseFillEmptyRows(Op):
    """``values [n], dense_shape [2], indices [n, 2], default [] -> indices [m, 2], values [m], empty [rows]``: a sparse
    matrix in coordinate format (row, column), in row-major order, with ``default`` in column 0 of empty rows.

    Indices out of range are an error; OpenVINO's CPU plugin ignores such rows unless they are known when the model is
    compiled.

    >>> sparse_fill_empty_rows([7], [2, 3], [[1, 2]], 0)
    ([[0, 0], [1, 2]], [0, 7], [True, False])
    """

    exact = True
    mixed_reals = (3,)
    host_inputs = (1,)

    def infer_specs(self, values: Spec, shape: Spec, indices: Spec, default: Spec) -> tuple[Spec, ...]:
        dtype, index = merge_types((values, default)), merge_types((indices, shape))
        for spec, what, rank in ((values, "values", 1), (default, "the default value", 0)):
            if spec.rank not in (None, rank):
                raise OpError(f"{what} must have rank {rank}, not {spec.rank}")
        check_numbers(shape, "dense_shape", 1)
        check_numbers(indices, "indices", 2)
        if shape.shape is not None:
            same(shape.shape[0], 2, "dense_shape has {0} elements, not {1}")
        if indices.shape is not None:
            same(indices.shape[1], 2, "an index has {0} elements, not {1}")
        for a, b in zip(values.shape or (), indices.shape or ()):
            same(a, b, "there are {0} values and {1} indices")
        known = shape.ints()
        extents = [unknown(), unknown()] if known is None else [_extent(d) for d in known]
        count = unknown()
        if indices.constant is not None:
            for axis, what in enumerate(("row", "column")):
                check_below(Spec(index, None, indices.constant[:, axis]), extents[axis], what)
            if isinstance(extents[0], int):
                count = len(indices.constant) + extents[0] - len(np.unique(indices.constant[:, 0]))
        return Spec(index, (count, 2)), Spec(dtype, (count,)), Spec(Type.boolean, (extents[0],))

    def evaluate(self, xp: Adapter, values: Array, shape: Array, indices: Array, default: Array) -> tuple[Array, ...]:
        rows, columns = (_extent(d) for d in integers(shape))
        row, column = indices[:, 0], indices[:, 1]
        if (indices < 0).any() or (row >= rows).any() or (column >= columns).any():
            raise OpError(f"an index is out of range for {rows} rows and {columns} columns")
        empty = xp.ones(rows, bool)
        empty[row] = False
        (added,) = xp.nonzero(empty)
        coordinates = xp.concatenate([indices, xp.stack([added, xp.zeros_like(added)], 1).astype(indices.dtype)])
        order = xp.lexsort(xp.ascontiguousarray(coordinates.T[::-1]))
        elements = xp.concatenate([values, default.reshape(1)])
        return coordinates[order], xp.take(elements, xp.minimum(order, len(values))), empty


def _extent(value: Int) -> Int:
    if isinstance(value, Sym):
        return maximum(value, 0)
    if value < 0:
        raise OpError(f"dense_shape has the extent {value}")
    return value
