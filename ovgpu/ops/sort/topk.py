"""TopK: the largest or smallest elements along an axis, with their indices."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base import launch
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.shapes import at_most, check_integers, integer, integers, normalize_axis
from ovgpu.ops.base.strided import strides_of
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, Sym, bounds, unknown
from ovgpu.types import Type

ENTRY_BYTES = 32 << 10  # shared memory for the entries that a block collects
PARTITION_FACTOR = 16  # an axis of at least this times k is partitioned instead of sorted as a whole


@op("TopK", "opset1", "sort/top-k-1")
class TopK(Op):
    """``x [...], k [] -> values, indices``, both with k elements along ``axis``.

    The k greatest or least elements are ordered by value (``sort`` is value or none) or by index. Of equal elements,
    the first ones are selected. NaN is the greatest.
    """

    axis: int
    mode: Literal["max", "min"]
    sort: Literal["value", "index", "none"]
    index_element_type: Type = Type.i32

    host_inputs = (1,)

    def infer_specs(self, x: Spec, k: Spec) -> tuple[Spec, ...]:
        if self.index_element_type not in (Type.i32, Type.i64):
            raise OpError(f"index_element_type is {self.index_element_type.get_type_name()}, not i32 or i64")
        check_integers(k, "k", ranks=(0,))
        if x.shape is None:
            return Spec(x.type, None), Spec(self.index_element_type, None)
        if not x.shape:
            raise OpError("a scalar has no axis")
        axis = normalize_axis(self.axis, len(x.shape))
        shape = (*x.shape[:axis], self.count(k, x.shape[axis]), *x.shape[axis + 1 :])
        return Spec(x.type, shape), Spec(self.index_element_type, shape)

    def count(self, k: Spec, extent: Int) -> Int:
        """Return the number of elements to select of ``extent``. Raises OpError if k is out of range."""
        known = k.ints()
        if known is None:
            return unknown(0, bounds(extent)[1])
        count = known[0]
        if not isinstance(count, Sym) and count < 0:
            raise OpError(f"k is {count}")
        at_most(count, extent, "k is {0}, of {1} elements")
        return count

    def evaluate(self, xp: Adapter, x: Array, k: Array) -> tuple[Array, ...]:
        axis = normalize_axis(self.axis, x.ndim)
        count, extent = integer(k, "k"), x.shape[axis]
        if not 0 <= count <= extent:
            raise OpError(f"k is {count}, of {extent} elements")
        chosen = self.select(xp, x, count, axis) if count and PARTITION_FACTOR * count <= extent else None
        if chosen is None:
            order = self.order(xp, x, axis)[(slice(None),) * axis + (slice(count),)]
        else:
            order = self.order(xp, xp.take_along_axis(x, chosen, axis=axis), axis)
            order = xp.take_along_axis(chosen, order, axis=axis)
        if self.sort == "index":
            order = xp.sort(order, axis=axis)
        return xp.take_along_axis(x, order, axis=axis), order

    def order(self, xp: Adapter, x: Array, axis: int) -> Array:
        """Return the indices that sort x along ``axis``, best first; the sort is stable."""
        if self.mode == "min":
            return xp.argsort(x, axis=axis, kind="stable")
        return x.shape[axis] - 1 - xp.flip(xp.argsort(xp.flip(x, axis), axis=axis, kind="stable"), axis)

    def select(self, xp: Adapter, x: Array, count: int, axis: int) -> Array:
        """Return the ascending indices of the best elements by partitioning; None if ties make them ambiguous."""
        last = x.shape[axis] - count if self.mode == "max" else count - 1
        part = slice(last, None) if self.mode == "max" else slice(count)
        chosen = xp.argpartition(x, last, axis=axis)[(slice(None),) * axis + (part,)]
        values = xp.take_along_axis(x, chosen, axis=axis)
        if self.mode == "max":
            at_least = x >= values.min(axis=axis, keepdims=True)
        else:
            at_least = x <= values.max(axis=axis, keepdims=True)
        return xp.sort(chosen, axis=axis) if (at_least.sum(axis=axis) == count).all() else None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, (values, indices) = inputs[0], outputs
        axis = normalize_axis(self.axis, x.ndim)
        count, n = integers(inputs[1])[0], x.shape[axis]
        if not launch.is_plain(x) or not 0 <= count <= n:  # `evaluate` raises the error
            return NotImplemented
        entry = 16 if x.itemsize == 8 else 8
        axes = list(zip(x.shape, strides_of(x), strides_of(values)))
        _, step, out_step = axes.pop(axis)
        outer = launch.merged(axes)
        if not launch.fit(outer, [(n, step, out_step)]):
            return NotImplemented
        if not values.size:
            return None
        rows, c_type, index = launch.size(outer), k.c_type(x.dtype), k.c_type(indices.dtype)
        chunk = _part_elements(k.multiprocessors, rows, n, count)
        part = None if chunk == n else _block(chunk, count, entry)
        parts = 1 if part is None else launch.ceildiv(n, chunk)
        whole = _block(n if part is None else parts * count, count, entry)
        if whole is None:
            return NotImplemented
        steps = np.int64(step), np.int64(out_step)
        greatest, by_index = np.bool_(self.mode == "max"), np.bool_(self.sort == "index")
        if part is None:
            k.kernel(
                "topk.cu",
                f"topk<{c_type}, {index}>",
                (rows,),
                (whole[1],),
                (
                    x,
                    values,
                    indices,
                    launch.packed(outer),
                    *map(np.uint32, (n, count, whole[0])),
                    *steps,
                    greatest,
                    by_index,
                ),
                entry * whole[0],
            )
            return None
        candidates = k.scratch((rows, parts, count, entry // 8), np.dtype(np.uint64))
        k.kernel(
            "topk.cu",
            f"topk_parts<{c_type}>",
            (parts, rows),
            (part[1],),
            (x, candidates, launch.packed(outer), *map(np.uint32, (n, count, chunk, part[0])), steps[0], greatest),
            entry * part[0],
        )
        k.kernel(
            "topk.cu",
            f"topk_join<{c_type}, {index}>",
            (rows,),
            (whole[1],),
            (
                x,
                candidates,
                values,
                indices,
                launch.packed(outer),
                *map(np.uint32, (parts * count, count, whole[0])),
                *steps,
                by_index,
            ),
            entry * whole[0],
        )
        return None


def _part_elements(multiprocessors: int, rows: int, n: int, count: int) -> int:
    """Return the elements of the parts that few long rows are divided into, a power of two; n if they stay whole."""
    least = max(launch.MIN_PART_ELEMENTS, 8 * count, n * rows / (2 * multiprocessors))
    chunk = launch.power(least, high=1 << 31)
    return chunk if n > launch.LONG_ROW and rows <= multiprocessors and n >= 2 * chunk else n


def _block(n: int, count: int, entry: int) -> tuple[int, int] | None:
    """Return the number of entries that a block collects out of n, and its threads; None if a block cannot select
    ``count`` of them. ``entry`` is the size of an entry in bytes."""
    capacity = launch.power(n, high=ENTRY_BYTES // entry)
    if n <= capacity:
        return capacity, launch.power(n / 4, low=32)
    threads = launch.power(n / 4, low=32, high=capacity // 8)
    if count + 4 * threads > capacity:
        threads //= 2
    return (capacity, threads) if count + 4 * threads <= capacity else None


@op("TopK", "opset3", "sort/top-k-3")
class TopK3(TopK):
    """TopK-3: ``k`` of any integer type."""


@op("TopK", "opset11", "sort/top-k-11")
class TopK11(TopK3):
    """TopK-11: the attribute ``stable`` has no effect, because this implementation is always stable.

    >>> topk([5, 3, 9], 2, axis=0, mode="max", sort="index")
    ([5, 9], [0, 2])
    """

    stable: bool = False

    def infer_specs(self, x: Spec, k: Spec) -> tuple[Spec, ...]:
        if self.stable and self.sort == "none":
            raise OpError("stable needs sort to be value or index")
        return super().infer_specs(x, k)
