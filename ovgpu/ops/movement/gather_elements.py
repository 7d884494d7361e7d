"""Ops that gather elements one by one, or by tuples of indices: GatherElements, GatherND, GatherTree."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.shapes import check_integers, normalize_axis, unknowns
from ovgpu.ops.base.storage import is_plain, zero_of
from ovgpu.ops.base.strided import THREADS, Axes, bits, blocks, strides_of, vectorized
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.movement.indices import check_range, from_front, readable
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import Int, Sym, broadcast, product, same
from ovgpu.types import Type

MAX_TUPLE = 8  # indices in a tuple that kernels take


@op("GatherElements", "opset6", "movement/gather-elements-6")
class GatherElements(Op):
    """``data [.., n, ..], indices [.., m, ..] -> [.., m, ..]``: ``data[.., indices[.., i, ..], ..]`` along ``axis``.

    An index below 0 counts from the end, as in OpenVINO's CPU plugin. An index out of range is an error if it is known
    when the model is compiled; if it is computed it gives zeros, where the plugin reads out of bounds.

    >>> gather_elements([[1, 2], [3, 4]], [[0, -1]], axis=0)
    [[1, 4]]
    """

    axis: int

    exact = True
    supports_symbolic = True
    strided_outputs = True
    half_precision = "promoted"
    host_in_decode = True
    partial_inputs = (0,)

    def infer_specs(self, x: Spec, indices: Spec) -> tuple[Spec, ...]:
        check_integers(indices, "indices", ranks=None)
        rank = x.rank if x.rank is not None else indices.rank
        if rank is None:
            return (Spec(x.type, None),)
        if indices.rank not in (None, rank):
            raise OpError(f"indices have rank {indices.rank}, data has {rank}")
        axis = normalize_axis(self.axis, rank)
        if x.shape is None:
            return (Spec(x.type, indices.shape),)
        if indices.shape is None:
            (count,) = unknowns(1) or ()
            return (Spec(x.type, (*x.shape[:axis], count, *x.shape[axis + 1 :])),)
        check_range(indices, x.shape[axis])
        return (
            Spec(
                x.type,
                tuple(
                    m
                    if i == axis
                    else same(n, m, f"extents {{0}} of the data and {{1}} of the indices differ on axis {i}")
                    for i, (n, m) in enumerate(zip(x.shape, indices.shape))
                ),
            ),
        )

    def evaluate(self, xp: Adapter, x: Array, indices: Array) -> tuple[Array, ...]:
        axis = normalize_axis(self.axis, x.ndim)
        if not x.shape[axis]:
            return (xp.full(indices.shape, zero_of(x), x.dtype),)
        index, outside = from_front(xp, indices, x.shape[axis])
        out = xp.take_along_axis(x, index, axis=axis)
        if outside.any():
            out[outside] = zero_of(x)
        return (out,)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, indices), out = inputs, outputs[0]
        if not out.size:
            return None
        indices = readable(k, indices)
        if indices is NotImplemented:
            return NotImplemented
        axis, steps = normalize_axis(self.axis, x.ndim), list(strides_of(x))
        row, steps[axis] = steps[axis], 0
        axes = Axes.collapse(out.shape, steps, strides_of(indices), strides_of(out), reach=x.shape[axis] * abs(row))
        if not axes.rank:
            return NotImplemented
        k.kernel(
            "gather.cu",
            f"gather<{bits(out.dtype.itemsize)}, {k.c_type(indices.dtype)}, {axes.index}, {axes.rank}>",
            blocks(axes.size),
            (THREADS,),
            (x, indices, out, axes.packed(), *axes.numbers(axes.size, x.shape[axis], row)),
            early=True,
        )
        return None


class _GatherND(Op):
    """``data [B.., D1 .. Dk, S..], indices [B.., I.., k] -> [B.., I.., S..]``: slices of data by tuples of k indices.

    The first ``batch_dims`` axes B are shared; their extents broadcast, which the specification allows and OpenVINO
    refuses. Indices are treated as in GatherElements.
    """

    batch_dims: int = 0

    exact = True
    supports_symbolic = True
    strided_outputs = True
    half_precision = "promoted"
    host_in_decode = True
    partial_inputs = (0,)

    def infer_specs(self, x: Spec, indices: Spec) -> tuple[Spec, ...]:
        check_integers(indices, "indices", ranks=None)
        batch = self.batch_dims
        if batch < 0:
            raise OpError(f"batch_dims {batch} is negative")
        for spec, what in ((x, "data"), (indices, "indices")):
            if spec.rank is not None and spec.rank <= batch:
                raise OpError(f"batch_dims {batch} is out of range for {what} of rank {spec.rank}")
        if x.shape is None or indices.shape is None or isinstance(indices.shape[-1], Sym):
            return (Spec(x.type, None),)
        count = indices.shape[-1]
        if batch + count > len(x.shape):
            raise OpError(f"tuples of {count} indices after {batch} batch dims do not fit rank {len(x.shape)}")
        if indices.constant is not None:
            for i in range(count):
                check_range(Spec(indices.type, None, indices.constant[..., i]), x.shape[batch + i])
        batch_shape = self.batch_shape(x.shape, indices.shape)
        return (Spec(x.type, (*self.folded(batch_shape), *indices.shape[batch:-1], *x.shape[batch + count :])),)

    def batch_shape(self, data: Sequence[Int], indices: Sequence[Int]) -> tuple[Int, ...]:
        """Return the extents of the shared batch axes."""
        return tuple(
            broadcast(a, b, f"batch dim {i} is {{0}} of the data and {{1}} of the indices")
            for i, (a, b) in enumerate(zip(data[: self.batch_dims], indices[: self.batch_dims]))
        )

    def folded(self, batch: Sequence[Int]) -> Sequence[Int]:
        """Return the extents of the output's batch axes."""
        return batch

    def shapes(self, x: Any, indices: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return (batch shape, tuple shape, slice shape): together, the output's shape before batch axes are folded."""
        batch, count = self.batch_dims, indices.shape[-1]
        if batch + count > x.ndim:
            raise OpError(f"tuples of {count} indices after {batch} batch dims do not fit rank {x.ndim}")
        return self.batch_shape(x.shape, indices.shape), indices.shape[batch:-1], x.shape[batch + count :]

    def evaluate(self, xp: Adapter, x: Array, indices: Array) -> tuple[Array, ...]:
        batch, tuple_shape, rest = self.shapes(x, indices)
        extents = x.shape[self.batch_dims :][: indices.shape[-1]]
        shape = (*self.folded(batch), *tuple_shape, *rest)
        if not prod(extents):
            return (xp.full(shape, zero_of(x), x.dtype),)
        row_index = xp.arange(prod(batch)).reshape((*batch, *(1,) * len(tuple_shape)))  # across all batches
        row_index = xp.broadcast_to(row_index, (*batch, *tuple_shape))
        outside = xp.zeros(row_index.shape, bool)
        for i, extent in enumerate(extents):
            index, beyond = from_front(xp, indices[..., i], extent)
            row_index, outside = row_index * extent + index, outside | beyond
        rows = xp.broadcast_to(x, (*batch, *x.shape[len(batch) :])).reshape((prod(batch) * prod(extents), *rest))
        out = xp.asarray(xp.take(rows, row_index, axis=0))  # for one index and no further axis NumPy returns a scalar
        if outside.any():
            out[outside] = zero_of(x)
        return (out.reshape(shape),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, indices), out = inputs, outputs[0]
        batch, count = self.batch_dims, indices.shape[-1]
        if not out.size:
            return None
        indices = readable(k, indices)
        if indices is NotImplemented or count > MAX_TUPLE:
            return NotImplemented
        batch_shape, tuple_shape, rest = self.shapes(x, indices)
        out = out.reshape((*batch_shape, *tuple_shape, *rest))
        steps, index = strides_of(x), strides_of(indices)
        extents, rows = x.shape[batch : batch + count], steps[batch : batch + count]
        axes = Axes.collapse(
            out.shape,
            (*steps[:batch], *(0,) * len(tuple_shape), *steps[batch + count :]),
            (*index[:-1], *(0,) * len(rest)),
            strides_of(out),
            reach=sum((n - 1) * abs(step) for n, step in zip(extents, rows)),
        )
        axes, width = vectorized(axes, out.dtype.itemsize, (x.data.ptr, None, out.data.ptr), gcd(*rows))
        if not axes.rank:
            return NotImplemented
        padding = (0,) * (MAX_TUPLE - count)
        rows = tuple(step * out.dtype.itemsize // width for step in rows)
        k.kernel(
            "gather.cu",
            f"gather_nd<{bits(width)}, {k.c_type(indices.dtype)}, {axes.index}, {axes.rank}>",
            blocks(axes.size),
            (THREADS,),
            (
                x,
                indices,
                out,
                axes.packed(),
                np.array(axes.numbers(*extents, *padding, *rows, *padding)),
                *axes.numbers(axes.size, count, index[-1]),
            ),
            early=True,
        )
        return None


@op("GatherND", "opset5", "movement/gather-nd-5")
class GatherND5(_GatherND):
    __doc__ = f"{_GatherND.__doc__}\n    Version 5 folds the batch axes of the output into one.\n    "

    def folded(self, batch: Sequence[Int]) -> Sequence[Int]:
        return [product(batch)] if batch else []


@op("GatherND", "opset8", "movement/gather-nd-8")
class GatherND8(_GatherND):
    __doc__ = f"""{_GatherND.__doc__}
    >>> gather_nd([[1, 2], [3, 4]], [[0, 1], [1, 0]])
    [2, 3]
    """


@op("GatherTree", "opset1", "movement/gather-tree-1")
class GatherTree(Op):
    """``step_ids, parent_ids [time, batch, beam], max_seq_len [batch], end_token [] -> [time, batch, beam]``.

    Tokens of every beam of a beam search, traced from its last step back along the parents. After the first end token
    of a beam, and from its batch's length on, all tokens are end tokens. So are the tokens before a step whose parent
    does not exist; there OpenVINO's CPU plugin leaves the output unwritten, or reads past the input's end.

    >>> gather_tree([[[1, 2]], [[3, 4]]], [[[0, 0]], [[1, 0]]], [2], 9)
    [[[2, 1]], [[3, 4]]]
    """

    partial_inputs = (0,)

    def infer_specs(self, ids: Spec, parents: Spec, lengths: Spec, end: Spec) -> tuple[Spec, ...]:
        dtype = merge_types((ids, parents, lengths, end))
        if dtype in (Type.boolean, Type.string):
            raise OpError(f"element type {dtype.get_type_name()} is not numeric")
        named = {"step_ids": (ids, 3), "parent_ids": (parents, 3), "max_seq_len": (lengths, 1), "end_token": (end, 0)}
        for what, (spec, rank) in named.items():
            if spec.rank not in (None, rank):
                raise OpError(f"{what} must have rank {rank}, not {spec.rank}")
        shape: Shape = ids.shape if ids.shape is not None else parents.shape
        if ids.shape is not None and parents.shape is not None:
            shape = tuple(
                same(a, b, "step_ids and parent_ids differ: {0} and {1}") for a, b in zip(ids.shape, parents.shape)
            )
        if shape is not None and lengths.shape is not None:
            same(lengths.shape[0], shape[1], "there are {0} lengths for {1} batches")
        return (Spec(dtype, shape if shape is not None else unknowns(3)),)

    def evaluate(self, xp: Adapter, ids: Array, parents: Array, lengths: Array, end: Array) -> tuple[Array, ...]:
        out = xp.empty(ids.shape, ids.dtype)
        steps, beams = ids.shape[0], ids.shape[2]
        beam = xp.broadcast_to(xp.arange(beams), ids.shape[1:])  # the beam that holds the token, -1 for none
        for step in reversed(range(steps)):
            inside, exists = (lengths > step)[:, None], beam >= 0
            index = xp.where(exists, beam, 0)
            out[step] = xp.where(inside & exists, xp.take_along_axis(ids[step], index, axis=1), end)
            parent = xp.take_along_axis(parents[step], index, axis=1).astype(np.int64)
            parent = xp.where(exists & (parent >= 0) & (parent < beams), parent, -1)
            beam = xp.where(inside, parent, beam)
        ended = xp.cumsum(out == end, axis=0) > 0
        return (xp.where(ended, end, out),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        ids, parents, lengths, end = inputs
        steps, batch, beams = ids.shape
        if not ids.size:
            return None
        if not is_plain(ids.dtype):
            return NotImplemented
        strides = [n for x in (ids, parents) for n in strides_of(x)]
        k.kernel(
            "gather.cu",
            f"gather_tree<{k.c_type(ids.dtype)}>",
            blocks(batch * beams, THREADS),
            (THREADS,),
            (
                ids,
                parents,
                lengths,
                end,
                outputs[0],
                np.array(strides, np.int64),
                np.int64(strides_of(lengths)[0]),
                np.int64(steps),
                np.int64(batch),
                np.int64(beams),
            ),
        )
        return None
