"""Ops that move elements between channels, batches and space by splitting, transposing and joining axes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import at_most, check_integers, integers, length, normalize_axis, unknowns
from ovgpu.ops.base.view import View, equal
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.movement.pad import Pad, padded
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import Int, Sym, product, same

Parts = tuple[Sequence[Int], Sequence[int], tuple[Int, ...]]
"""(split extents, order of the parts, joined extents) of a reshape, a transposition and a second reshape."""


def _divided(extent: Int, divisor: Int, what: str) -> Int:
    """Return ``extent / divisor``; raise OpError, now or at run time, if there is a remainder."""
    part = extent // divisor
    named = "the blocks" if isinstance(divisor, Sym) else divisor
    same(extent, part * divisor, f"{what}, {{0}}, is no multiple of {named}")
    return part


class _Rearranging(Op):
    """Base of ops that compute ``x.reshape(split).transpose(order).reshape(joined)``: one strided copy, or a view."""

    exact = True
    supports_symbolic = True
    strided_outputs = True
    half_precision = "promoted"

    def parts(self, shape: Sequence[Int]) -> Parts:
        """Return the `Parts` by which data of ``shape`` are rearranged. Raise OpError if the shape does not divide."""
        raise NotImplementedError

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        return (Spec(x.type, None if x.shape is None else self.parts(x.shape)[2]),)

    def evaluate(self, xp: Adapter, x: Array) -> tuple[Array, ...]:
        split, order, joined = self.parts(x.shape)
        return (x.reshape(split).transpose(order).reshape(joined),)

    def view(
        self, inputs: Sequence[View | None], specs: Sequence[Spec | None], outputs: Sequence[Spec]
    ) -> Sequence[View | None] | None:
        return None if inputs[0] is None else [rearranged(inputs[0], self.parts(inputs[0].shape))]

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        source, target = copy_views(inputs[0], outputs[0], self.parts(inputs[0].shape))
        k(np.copyto, target, source)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        k.copy(*copy_views(inputs[0], outputs[0], self.parts(inputs[0].shape)))


def rearranged(x: View, parts: Parts) -> View | None:
    """Return ``x`` rearranged as a view; None if that takes a copy."""
    split, order, joined = parts
    view = x.reshape(split)
    return None if view is None else view.permute(order).reshape(joined)


def copy_views(x: Any, out: Any, parts: Parts) -> tuple[Any, Any]:
    """Return source and target of the copy, both as views whose axes are the parts."""
    split, order, _ = parts
    return x.reshape(split).transpose(order), out.reshape([split[i] for i in order])


class _Blocks(_Rearranging):
    """Base of the ops between depth and space, whose blocks have ``block_size`` elements along each spatial axis."""

    block_size: int = 1
    mode: Literal["blocks_first", "depth_first"]

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        if self.block_size < 1:
            raise OpError(f"block_size {self.block_size} is not positive")
        if x.rank is not None and x.rank < 3:
            raise OpError(f"rank {x.rank} is less than 3")
        return super().infer_specs(x)


@op("DepthToSpace", "opset1", "movement/depth-to-space-1")
class DepthToSpace(_Blocks):
    """``[N, C, D1 .. DK] -> [N, C / b**K, D1 * b .. DK * b]``: channels become blocks of extent b in space.

    The index of an input channel combines the position in the block and the new channel, in this order for
    blocks_first, in reverse order for depth_first.

    >>> depth_to_space([[[1], [2], [3], [4]]], mode="blocks_first", block_size=2)
    [[[1, 3], [2, 4]]]
    """

    def parts(self, shape: Sequence[Int]) -> Parts:
        batch, depth, *space = shape
        block, count = self.block_size, len(space)
        channels = _divided(depth, block**count, "the number of channels")
        spatial = tuple(d * block for d in space)
        first = self.mode == "blocks_first"
        blocks = [1 + i if first else 2 + i for i in range(count)]
        order = [0, 1 + count if first else 1, *chain(*zip(range(2 + count, 2 + 2 * count), blocks))]
        depth_parts = [*[block] * count, channels] if first else [channels, *[block] * count]
        return [batch, *depth_parts, *space], order, (batch, channels, *spatial)


@op("SpaceToDepth", "opset1", "movement/space-to-depth-1")
class SpaceToDepth(_Blocks):
    """``[N, C, D1 .. DK] -> [N, C * b**K, D1 / b .. DK / b]``: the reverse of DepthToSpace.

    >>> space_to_depth([[[1, 3], [2, 4]]], mode="blocks_first", block_size=2)
    [[[1], [2], [3], [4]]]
    """

    def parts(self, shape: Sequence[Int]) -> Parts:
        batch, depth, *space = shape
        block, count = self.block_size, len(space)
        outer = [_divided(d, block, f"extent of axis {i}") for i, d in enumerate(space, start=2)]
        split = [batch, depth, *chain(*zip(outer, [block] * count))]
        outer_axes, blocks = range(2, 2 + 2 * count, 2), range(3, 3 + 2 * count, 2)
        order = [0, *blocks, 1, *outer_axes] if self.mode == "blocks_first" else [0, 1, *blocks, *outer_axes]
        return split, order, (batch, depth * block**count, *outer)


@op("ShuffleChannels", "opset1", "movement/shuffle-channels-1")
class ShuffleChannels(_Rearranging):
    """``[.., group * n, ..]`` with channel ``g * n + i`` of ``axis`` moved to ``i * group + g``.

    >>> shuffle_channels([1, 2, 3, 4], axis=0, group=2)
    [1, 3, 2, 4]
    """

    axis: int = 1
    group: int = 1

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        if self.group < 1:
            raise OpError(f"group {self.group} is not positive")
        return super().infer_specs(x)

    def parts(self, shape: Sequence[Int]) -> Parts:
        axis = normalize_axis(self.axis, len(shape))
        each = _divided(shape[axis], self.group, "the number of channels")
        order = list(range(len(shape) + 1))
        order[axis], order[axis + 1] = axis + 1, axis
        return [*shape[:axis], self.group, each, *shape[axis + 1 :]], order, tuple(shape)


class _Batches(Op):
    """Base of the ops between batch and space: ``data, block_shape [rank], begin [rank], end [rank]``."""

    exact = True
    supports_symbolic = True
    host_inputs = (1, 2, 3)
    half_precision = "promoted"

    def shape(
        self, shape: Sequence[Int], block: Sequence[Int], begin: Sequence[Int], end: Sequence[Int]
    ) -> tuple[Int, ...]:
        """Return the shape of the output."""
        raise NotImplementedError

    def infer_specs(self, x: Spec, block: Spec, begin: Spec, end: Spec) -> tuple[Spec, ...]:
        rank = x.rank
        for spec, what in zip((block, begin, end), ("block_shape", "begin", "end")):
            check_integers(spec, what)
            rank = length(spec) if rank is None else rank
            if length(spec) not in (None, rank):
                raise OpError(f"{what} has {length(spec)} elements for rank {rank}")
        if rank is not None and rank < 2:
            raise OpError(f"rank {rank} is less than 2")
        blocks, before, after = block.ints(), begin.ints(), end.ints()
        for values, what, least in ((blocks, "block_shape", 1), (before, "begin", 0), (after, "end", 0)):
            for i, value in enumerate(values or ()):
                if not isinstance(value, Sym) and value < least:
                    raise OpError(f"{what} {value} of axis {i} is less than {least}")
                at_most(least, value, f"{what} {{1}} of axis {i} is less than {{0}}")
                if i == 0:
                    same(value, least, f"{what} {{0}} of the batch axis is not {least}")
        out_shape: Shape = unknowns(rank)
        if x.shape is not None and blocks is not None and before is not None and after is not None:
            out_shape = self.shape(x.shape, blocks, before, after)
        return (Spec(x.type, out_shape),)


@op("BatchToSpace", "opset2", "movement/batch-to-space-2")
class BatchToSpace(_Batches):
    """``data [B * b1 * .. * bN, D1 .. DN], block_shape [1, b1 .. bN], crops_begin, crops_end -> [B, D1 * b1 ..]``:
    batches become blocks in space, and the crops are then cut off.

    >>> batch_to_space([[1, 3], [2, 4]], [1, 2], [0, 0], [0, 1])
    [[1, 2, 3]]
    """

    def parts(self, shape: Sequence[Int], block: Sequence[Int]) -> Parts:
        count = len(shape) - 1
        batch = _divided(shape[0], product(block[1:]), "the number of batches")
        order = [count, *chain(*zip(range(count + 1, 2 * count + 1), range(count)))]
        spatial = tuple(d * b for d, b in zip(shape[1:], block[1:]))
        return [*block[1:], batch, *shape[1:]], order, (batch, *spatial)

    def shape(
        self, shape: Sequence[Int], block: Sequence[Int], begin: Sequence[Int], end: Sequence[Int]
    ) -> tuple[Int, ...]:
        whole = self.parts(shape, block)[2]
        for i, (d, b, e) in enumerate(zip(whole, begin, end)):
            at_most(b + e, d, f"{{0}} elements are cropped of the {{1}} of axis {i}")
        return tuple(d - b - e for d, b, e in zip(whole, begin, end))

    def evaluate(self, xp: Adapter, x: Array, *parameters: Array) -> tuple[Array, ...]:
        block, begin, end = map(integers, parameters)
        split, order, whole = self.parts(x.shape, block)
        cropped = tuple(slice(b, d - e) for b, e, d in zip(begin, end, whole))
        self.shape(x.shape, block, begin, end)
        return (x.reshape(split).transpose(order).reshape(whole)[cropped],)

    def view(
        self, inputs: Sequence[View | None], specs: Sequence[Spec | None], outputs: Sequence[Spec]
    ) -> Sequence[View | None] | None:
        block, begin, _ = (None if s is None else s.ints() for s in specs[1:])
        x, shape = inputs[0], outputs[0].shape
        if x is None or block is None or begin is None or shape is None:
            return None
        view = rearranged(x, self.parts(x.shape, block))
        for axis, (first, extent) in enumerate(zip(begin, shape)):
            view = None if view is None else view.slice(axis, first, extent)
        return [view]

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        x, out = (a.view(f"u{a.dtype.itemsize}") for a in (inputs[0], outputs[0]))
        block, begin, _ = map(integers, inputs[1:])
        parts = self.parts(x.shape, block)
        if parts[2] == out.shape:
            k.copy(*copy_views(x, out, parts))
        elif out.size:
            whole = k.scratch(parts[2], x.dtype)
            k.copy(*copy_views(x, whole, parts))
            k.copy(whole[tuple(slice(b, b + d) for b, d in zip(begin, out.shape))], out)


@op("SpaceToBatch", "opset2", "movement/space-to-batch-2")
class SpaceToBatch(_Batches):
    """``data [B, D1 .. DN], block_shape [1, b1 .. bN], pads_begin, pads_end -> [B * b1 * .. * bN, (D1 + p1) / b1 ..]``:
    the reverse of BatchToSpace, after padding with zeros.

    >>> space_to_batch([[1, 2, 3]], [1, 2], [0, 0], [0, 1])
    [[1, 3], [2, 0]]
    """

    def parts(self, shape: Sequence[Int], block: Sequence[Int]) -> Parts:
        count = len(shape) - 1
        outer = [
            _divided(d, b, f"the padded extent of axis {i}")
            for i, (d, b) in enumerate(zip(shape[1:], block[1:]), start=1)
        ]
        split = [shape[0], *chain(*zip(outer, block[1:]))]
        order = [*range(2, 2 * count + 1, 2), 0, *range(1, 2 * count + 1, 2)]
        return split, order, (shape[0] * product(block[1:]), *outer)

    def shape(
        self, shape: Sequence[Int], block: Sequence[Int], begin: Sequence[Int], end: Sequence[Int]
    ) -> tuple[Int, ...]:
        return self.parts([padded(*each) for each in zip(shape, begin, end)], block)[2]

    def evaluate(self, xp: Adapter, x: Array, *parameters: Array) -> tuple[Array, ...]:
        block, begin, end = parameters
        (x,) = ZERO_PAD.evaluate(xp, x, begin, end)
        split, order, joined = self.parts(x.shape, integers(block))
        return (x.reshape(split).transpose(order).reshape(joined),)

    def view(
        self, inputs: Sequence[View | None], specs: Sequence[Spec | None], outputs: Sequence[Spec]
    ) -> Sequence[View | None] | None:
        block, begin, end = (None if s is None else s.ints() for s in specs[1:])
        x = inputs[0]
        if x is None or block is None or not all(equal(p, 0) for p in (*(begin or [1]), *(end or [1]))):
            return None
        return [rearranged(x, self.parts(x.shape, block))]

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out = (a.view(f"u{a.dtype.itemsize}") for a in (inputs[0], outputs[0]))
        block, begin, end = inputs[1:]
        shape = tuple(map(padded, x.shape, integers(begin), integers(end)))
        if shape != x.shape:
            whole = k.scratch(shape, x.dtype)
            if ZERO_PAD.cuda(k, [x, begin, end], [whole], ()) is NotImplemented:
                return NotImplemented
            x = whole
        k.copy(*copy_views(x, out, self.parts(shape, integers(block))))
        return None


ZERO_PAD = Pad(pad_mode="constant")
