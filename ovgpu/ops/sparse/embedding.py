"""Sums and means of table rows in bags: the EmbeddingBag family and EmbeddingSegmentsSum.

An index out of range is an error. On a CUDA device, computed indices are not checked; those out of range add nothing.
A bag without indices gives the row ``default_index``, unweighted, or zeros if that is -1 or absent. OpenVINO's CPU
plugin reads stray memory for an empty last bag, and for a default_index of -1 in segments.
"""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.segments import ascends, check_below, check_numbers, fold, shares
from ovgpu.ops.base.shapes import at_most, integer
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, Sym, maximum, same, unknown
from ovgpu.types import Type


class _Bags(Op):
    """Base: ``table [rows, D..]`` of numbers and indices of rows, i32 or i64, ``-> [bags, D..]``.

    Sums are in f32 or f64. Sums of integers wrap around, and their means are truncated.
    """

    layout = "dense"
    kind: ClassVar[int]  # of the kernel's enum Bags: PACKED 0, OFFSETS 1, SEGMENTS 2

    @property
    def means(self) -> bool:
        """True if the bags are means instead of sums."""
        return False

    def check(
        self, table: Spec, indices: Spec, rank: int, others: dict[str, tuple[Spec | None, int]], weights: Spec | None
    ) -> None:
        """Raise OpError for inputs that the specification does not allow. ``others`` maps names of inputs to their
        specs and ranks."""
        dtype = table.type if weights is None else merge_types((table, weights))
        if dtype in (Type.boolean, Type.string):
            raise OpError(f"element type {dtype.get_type_name()} is not numeric")
        if table.rank == 0:
            raise OpError("the table is a scalar")
        given = {"indices": (indices, rank), **others}
        merge_types([spec for spec, _ in given.values() if spec is not None])
        for what, (spec, expected) in given.items():
            if spec is not None:
                check_numbers(spec, what, expected)
        if table.shape is not None:
            check_below(indices, table.shape[0], "index")
        if weights is None:
            return
        if self.means:
            raise OpError("per_sample_weights are for sums, not for means")
        if weights.rank not in (None, rank):
            raise OpError(f"per_sample_weights must have rank {rank}, not {weights.rank}")
        for a, b in zip(indices.shape or (), weights.shape or ()):
            same(a, b, "indices and per_sample_weights differ: {0} and {1}")

    def output(self, table: Spec, bags: Int) -> tuple[Spec, ...]:
        """Return the output's spec, given the table and the number of bags."""
        return (Spec(table.type, None if table.shape is None else (bags, *table.shape[1:])),)

    def pooled(
        self,
        xp: Adapter,
        table: Array,
        indices: Array,
        begin: Array,
        end: Array,
        default: Array | None,
        weights: Array | None,
    ) -> tuple[Array, ...]:
        """Return the bags; each has the indices in ``[begin, end)``. Raises OpError for indices out of range."""
        row = self.default(table, default)
        if ((indices < 0) | (indices >= len(table))).any():
            raise OpError(f"an index is out of range for extent {len(table)}")
        accumulator = (
            table.dtype if table.dtype.kind == "f" else np.dtype(np.uint64 if table.dtype.kind == "u" else np.int64)
        )
        across = (-1, *(1,) * (table.ndim - 1))
        empty = (begin >= end).reshape(across)

        def rows(positions: Any) -> Array:
            taken = xp.take(table, indices[positions], axis=0).astype(accumulator, copy=False)
            return taken if weights is None else taken * weights[positions].astype(accumulator).reshape(across)

        out = xp.zeros((len(begin), *table.shape[1:]), accumulator)
        fold(xp, out, begin, end, rows, xp.add, xp.sum)
        if self.means:
            size = xp.maximum(end - begin, 1).astype(accumulator).reshape(across)
            out = out / size if accumulator.kind == "f" else xp.sign(out) * (abs(out) // size)
        return (out if row is None else xp.where(empty, table[row].astype(accumulator), out).astype(accumulator),)

    def default(self, table: Array, default: Array | None) -> int | None:
        """Return the row for empty bags, or None for zeros."""
        row = -1 if default is None else integer(default, "default_index")
        if not -1 <= row < len(table):
            raise OpError(f"default_index {row} is out of range for extent {len(table)}")
        return None if row < 0 else row

    def record(
        self,
        k: KernelRecorder,
        out: Array,
        table: Array,
        indices: Array,
        bounds: Array | None,
        default: Array | None,
        weights: Array | None,
    ) -> Any:
        """Record the launch; ``bounds`` are the offsets, the segment ids, or None if packed."""
        row = self.default(table, default)
        if not is_plain(table.dtype):
            return NotImplemented
        if not out.size:
            return None
        vector, grid, block, shared, scratch = shares(table, out, indices.size)
        sizes = len(table), prod(out.shape[1:]), len(out), indices.shape[-1], -1 if row is None else row
        k.kernel(
            "embedding.cu",
            f"embedding_bag<{k.c_type(table.dtype)}, {k.c_type(indices.dtype)}, {vector}>",
            grid,
            block,
            (
                table,
                indices,
                bounds,
                weights,
                out,
                np.int32(self.kind),
                *map(np.int64, sizes),
                shared,
                np.bool_(self.means),
            ),
            scratch,
        )
        return None


@op("EmbeddingBagOffsetsSum", "opset3", "sparse/embedding-bag-offsets-sum-3")
class EmbeddingBagOffsetsSum(_Bags):
    """``table [rows, D..], indices [n], offsets [bags], default_index [], per_sample_weights [n] -> [bags, D..]``: sums
    of rows. A bag has the indices from its offset to the next offset or the end. The last two inputs are optional.

    >>> embedding_bag_offsets_sum([[1.0], [10], [100]], [0, 2, 1], [0, 2])
    [[101.0], [10.0]]
    """

    host_inputs = (3,)
    kind = 1

    def infer_specs(
        self, table: Spec, indices: Spec, offsets: Spec, default: Spec | None = None, weights: Spec | None = None
    ) -> tuple[Spec, ...]:
        self.check(table, indices, 1, {"offsets": (offsets, 1), "default_index": (default, 0)}, weights)
        if indices.shape is not None:
            check_below(offsets, indices.shape[0] + 1, "offset")
        if offsets.constant is not None and not ascends(offsets.constant):
            raise OpError("offsets do not ascend")
        return self.output(table, unknown() if offsets.shape is None else offsets.shape[0])

    def evaluate(
        self,
        xp: Adapter,
        table: Array,
        indices: Array,
        offsets: Array,
        default: Array | None = None,
        weights: Array | None = None,
    ) -> tuple[Array, ...]:
        ends = xp.concatenate([offsets[1:], xp.asarray([len(indices)], offsets.dtype)])[: len(offsets)]
        if not ascends(offsets) or ((offsets < 0) | (ends > len(indices))).any():
            raise OpError(f"offsets do not ascend from 0 to {len(indices)}")
        return self.pooled(xp, table, indices, offsets, ends, default, weights)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        table, indices, offsets, *rest = inputs
        return self.record(k, outputs[0], table, indices, offsets, *(*rest, None, None)[:2])


@op("EmbeddingBagOffsets", "opset15", "sparse/embedding-bag-offsets-15")
class EmbeddingBagOffsets(EmbeddingBagOffsetsSum):
    """EmbeddingBagOffsetsSum-3 with the reductions sum and mean; means are not weighted.

    >>> embedding_bag_offsets([[1.0], [10], [100]], [0, 2, 1], [0, 2], reduction="mean")
    [[50.5], [10.0]]
    """

    reduction: Literal["sum", "mean"] = "sum"

    @property
    def means(self) -> bool:
        return self.reduction == "mean"


@op("EmbeddingBagPackedSum", "opset3", "sparse/embedding-bag-packed-sum-3")
class EmbeddingBagPackedSum(_Bags):
    """``table [rows, D..], indices [bags, n], per_sample_weights [bags, n] (optional) -> [bags, D..]``: sums.

    >>> embedding_bag_packed_sum([[1.0], [10], [100]], [[0, 2], [1, 1]])
    [[101.0], [20.0]]
    """

    kind = 0

    def infer_specs(self, table: Spec, indices: Spec, weights: Spec | None = None) -> tuple[Spec, ...]:
        self.check(table, indices, 2, {}, weights)
        return self.output(table, unknown() if indices.shape is None else indices.shape[0])

    def evaluate(self, xp: Adapter, table: Array, indices: Array, weights: Array | None = None) -> tuple[Array, ...]:
        bags, each = indices.shape
        begin = xp.arange(bags) * each
        return self.pooled(
            xp, table, indices.reshape(-1), begin, begin + each, None, None if weights is None else weights.reshape(-1)
        )

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        table, indices, *rest = inputs
        return self.record(k, outputs[0], table, indices, None, None, *(*rest, None)[:1])


@op("EmbeddingBagPacked", "opset15", "sparse/embedding-bag-packed-15")
class EmbeddingBagPacked(EmbeddingBagPackedSum):
    """EmbeddingBagPackedSum-3 with the reductions sum and mean; means are not weighted.

    >>> embedding_bag_packed([[1.0], [10], [100]], [[0, 2], [1, 1]], reduction="mean")
    [[50.5], [10.0]]
    """

    reduction: Literal["sum", "mean"] = "sum"

    @property
    def means(self) -> bool:
        return self.reduction == "mean"


@op("EmbeddingSegmentsSum", "opset3", "sparse/embedding-segments-sum-3")
class EmbeddingSegmentsSum(_Bags):
    """``table [rows, D..], indices [n], segment_ids [n], num_segments [], default_index [], per_sample_weights [n] ->
    [num_segments, D..]``: sums of rows whose indices have the same id. The last two inputs are optional.

    Ids ascend; those of nonexistent segments are ignored.

    >>> embedding_segments_sum([[1.0], [10], [100]], [0, 1, 2], [0, 0, 2], 3)
    [[11.0], [0.0], [100.0]]
    """

    host_inputs = (3, 4)
    kind = 2

    def infer_specs(
        self,
        table: Spec,
        indices: Spec,
        ids: Spec,
        count: Spec,
        default: Spec | None = None,
        weights: Spec | None = None,
    ) -> tuple[Spec, ...]:
        self.check(
            table,
            indices,
            1,
            {"segment_ids": (ids, 1), "num_segments": (count, 0), "default_index": (default, 0)},
            weights,
        )
        for a, b in zip(indices.shape or (), ids.shape or ()):
            same(a, b, "indices and segment_ids differ: {0} and {1}")
        if ids.constant is not None and not ascends(ids.constant):
            raise OpError("segment_ids do not ascend")
        return self.output(table, segment_count(count))

    def evaluate(
        self,
        xp: Adapter,
        table: Array,
        indices: Array,
        ids: Array,
        count: Array,
        default: Array | None = None,
        weights: Array | None = None,
    ) -> tuple[Array, ...]:
        if not ascends(ids):
            raise OpError("segment_ids do not ascend")
        bounds = xp.searchsorted(ids, xp.arange(integer(count, "num_segments") + 1))
        return self.pooled(xp, table, indices, bounds[:-1], bounds[1:], default, weights)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        table, indices, ids, _, *rest = inputs
        return self.record(k, outputs[0], table, indices, ids, *(*rest, None, None)[:2])


def segment_count(count: Spec) -> Int:
    """Return the number of segments that the input ``num_segments`` declares. Raises OpError if it is negative."""
    known = count.ints()
    if known is None:
        return unknown()
    if isinstance(known[0], Sym):
        at_most(0, known[0], "num_segments {1} is negative")
        return maximum(known[0], 0)
    if known[0] < 0:
        raise OpError(f"num_segments {known[0]} is negative")
    return known[0]
