"""Ops that move elements between channels, batches and space, by splitting axes and putting the parts elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Op, op
from ovgpu.ops.base.shapes import at_most, check_integers, integers, length, normalize_axis, unknowns
from ovgpu.ops.base.view import View, equal
from ovgpu.ops.movement.replication import Pad, padded
from ovgpu.symbolic import Int, Shape, Spec, Sym, product, same

Parts = tuple[Sequence[Int], Sequence[int], tuple[Int, ...]]
"""The extents into which axes are split, the order of these parts, and the extents into which they are joined."""


def _divided(extent: Int, divisor: Int, what: str) -> Int:
    """``extent / divisor``; OpError, now or when run, if that leaves something over."""
    part = extent // divisor
    named = "the blocks" if isinstance(divisor, Sym) else divisor
    same(extent, part * divisor, f"{what}, {{0}}, is no multiple of {named}")
    return part


class _Rearranging(Op):
    """Base: ``x.reshape(split).transpose(order).reshape(joined)``, which is one strided copy, or a view."""

    exact = True
    supports_symbolic = True
    strided_outputs = True

    def parts(self, shape: Sequence[Int]) -> Parts:
        """How x of that shape is rearranged. OpError if it cannot be."""
        raise NotImplementedError

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        return (Spec(x.type, None if x.shape is None else self.parts(x.shape)[2]),)

    def evaluate(self, xp: Any, x: Any) -> tuple[Any, ...]:
        split, order, joined = self.parts(x.shape)
        return (x.reshape(split).transpose(order).reshape(joined),)

    def view(self, inputs: Sequence[View | None], specs: Sequence[Spec | None],
             outputs: Sequence[Spec]) -> Sequence[View | None] | None:
        return None if inputs[0] is None else [rearranged(inputs[0], self.parts(inputs[0].shape))]

    def numpy(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> None:
        source, target = pair(inputs[0], outputs[0], self.parts(inputs[0].shape))
        k(np.copyto, target, source)

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> None:
        k.copy(*pair(inputs[0], outputs[0], self.parts(inputs[0].shape)))


def rearranged(x: View, parts: Parts) -> View | None:
    split, order, joined = parts
    view = x.reshape(split)
    return None if view is None else view.permute(order).reshape(joined)


def pair(x: Any, out: Any, parts: Parts) -> tuple[Any, Any]:
    """Source and target of the copy, both as views whose axes are the parts."""
    split, order, _ = parts
    return x.reshape(split).transpose(order), out.reshape([split[i] for i in order])


class _Blocks(_Rearranging):
    """Base of the ops between depth and space: ``block_size`` along each spatial axis."""

    block_size: int = 1
    mode: Literal["blocks_first", "depth_first"]

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        if self.block_size < 1:
            raise OpError(f"block_size {self.block_size} is not positive")
        if x.rank is not None and x.rank < 3:
            raise OpError(f"rank {x.rank} is less than 3")
        return super().infer(x)


@op("DepthToSpace", "opset1")
class DepthToSpace(_Blocks):
    """``[N, C, D1 .. DK] -> [N, C / b**K, D1 * b .. DK * b]``: channels become blocks of b in space.

    The number of a channel is that of a place in the block and then of the new channel (blocks_first), or the reverse.
    """

    def parts(self, shape: Sequence[Int]) -> Parts:
        batch, depth, *space = shape
        block, count = self.block_size, len(space)
        channels = _divided(depth, block**count, "the number of channels")
        spread = tuple(d * block for d in space)
        first = self.mode == "blocks_first"
        blocks = [1 + i if first else 2 + i for i in range(count)]
        order = [0, 1 + count if first else 1, *chain(*zip(range(2 + count, 2 + 2 * count), blocks))]
        deep = [*[block] * count, channels] if first else [channels, *[block] * count]
        return [batch, *deep, *space], order, (batch, channels, *spread)


@op("SpaceToDepth", "opset1")
class SpaceToDepth(_Blocks):
    """``[N, C, D1 .. DK] -> [N, C * b**K, D1 / b .. DK / b]``: the reverse of DepthToSpace."""

    def parts(self, shape: Sequence[Int]) -> Parts:
        batch, depth, *space = shape
        block, count = self.block_size, len(space)
        outer = [_divided(d, block, f"extent of axis {i}") for i, d in enumerate(space, start=2)]
        split = [batch, depth, *chain(*zip(outer, [block] * count))]
        places, blocks = range(2, 2 + 2 * count, 2), range(3, 3 + 2 * count, 2)
        order = [0, *blocks, 1, *places] if self.mode == "blocks_first" else [0, 1, *blocks, *places]
        return split, order, (batch, depth * block**count, *outer)


@op("ShuffleChannels", "opset1")
class ShuffleChannels(_Rearranging):
    """``[.., group * n, ..]`` with channel ``g * n + i`` of ``axis`` at ``i * group + g``."""

    axis: int = 1
    group: int = 1

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        if self.group < 1:
            raise OpError(f"group {self.group} is not positive")
        return super().infer(x)

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

    def shape(self, shape: Sequence[Int], block: Sequence[Int], begin: Sequence[Int],
              end: Sequence[Int]) -> tuple[Int, ...]:
        """The shape of the output."""
        raise NotImplementedError

    def infer(self, x: Spec, block: Spec, begin: Spec, end: Spec) -> tuple[Spec, ...]:
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
        found: Shape = unknowns(rank)
        if x.shape is not None and blocks is not None and before is not None and after is not None:
            found = self.shape(x.shape, blocks, before, after)
        return (Spec(x.type, found),)


@op("BatchToSpace", "opset2")
class BatchToSpace(_Batches):
    """``data [B * b1 * .. * bN, D1 .. DN], block_shape [1, b1 .. bN], crops_begin, crops_end -> [B, D1 * b1 ..]``:
    batches become blocks in space, of which the crops are cut off."""

    def parts(self, shape: Sequence[Int], block: Sequence[Int]) -> Parts:
        count = len(shape) - 1
        batch = _divided(shape[0], product(block[1:]), "the number of batches")
        order = [count, *chain(*zip(range(count + 1, 2 * count + 1), range(count)))]
        spread = tuple(d * b for d, b in zip(shape[1:], block[1:]))
        return [*block[1:], batch, *shape[1:]], order, (batch, *spread)

    def shape(self, shape: Sequence[Int], block: Sequence[Int], begin: Sequence[Int],
              end: Sequence[Int]) -> tuple[Int, ...]:
        whole = self.parts(shape, block)[2]
        for i, (d, b, e) in enumerate(zip(whole, begin, end)):
            at_most(b + e, d, f"{{0}} elements are cropped of the {{1}} of axis {i}")
        return tuple(d - b - e for d, b, e in zip(whole, begin, end))

    def evaluate(self, xp: Any, x: Any, *given: Any) -> tuple[Any, ...]:
        block, begin, end = map(integers, given)
        split, order, whole = self.parts(x.shape, block)
        kept = tuple(slice(b, d - e) for b, e, d in zip(begin, end, whole))
        self.shape(x.shape, block, begin, end)
        return (x.reshape(split).transpose(order).reshape(whole)[kept],)

    def view(self, inputs: Sequence[View | None], specs: Sequence[Spec | None],
             outputs: Sequence[Spec]) -> Sequence[View | None] | None:
        block, begin, _ = (None if s is None else s.ints() for s in specs[1:])
        x, shape = inputs[0], outputs[0].shape
        if x is None or block is None or begin is None or shape is None:
            return None
        view = rearranged(x, self.parts(x.shape, block))
        for axis, (first, extent) in enumerate(zip(begin, shape)):
            view = None if view is None else view.slice(axis, first, extent)
        return [view]

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> None:
        x, out = (a.view(f"u{a.dtype.itemsize}") for a in (inputs[0], outputs[0]))
        block, begin, _ = map(integers, inputs[1:])
        parts = self.parts(x.shape, block)
        if parts[2] == out.shape:
            k.copy(*pair(x, out, parts))
        elif out.size:
            whole = k.scratch(parts[2], x.dtype)
            k.copy(*pair(x, whole, parts))
            k.copy(whole[tuple(slice(b, b + d) for b, d in zip(begin, out.shape))], out)


@op("SpaceToBatch", "opset2")
class SpaceToBatch(_Batches):
    """``data [B, D1 .. DN], block_shape [1, b1 .. bN], pads_begin, pads_end -> [B * b1 * .. * bN, (D1 + p1) / b1 ..]``:
    the reverse of BatchToSpace, after padding with zeros."""

    def parts(self, shape: Sequence[Int], block: Sequence[Int]) -> Parts:
        count = len(shape) - 1
        outer = [_divided(d, b, f"the padded extent of axis {i}")
                 for i, (d, b) in enumerate(zip(shape[1:], block[1:]), start=1)]
        split = [shape[0], *chain(*zip(outer, block[1:]))]
        order = [*range(2, 2 * count + 1, 2), 0, *range(1, 2 * count + 1, 2)]
        return split, order, (shape[0] * product(block[1:]), *outer)

    def shape(self, shape: Sequence[Int], block: Sequence[Int], begin: Sequence[Int],
              end: Sequence[Int]) -> tuple[Int, ...]:
        return self.parts([padded(*each) for each in zip(shape, begin, end)], block)[2]

    def evaluate(self, xp: Any, x: Any, *given: Any) -> tuple[Any, ...]:
        block, begin, end = given
        (x,) = PADDED.evaluate(xp, x, begin, end)
        split, order, joined = self.parts(x.shape, integers(block))
        return (x.reshape(split).transpose(order).reshape(joined),)

    def view(self, inputs: Sequence[View | None], specs: Sequence[Spec | None],
             outputs: Sequence[Spec]) -> Sequence[View | None] | None:
        block, begin, end = (None if s is None else s.ints() for s in specs[1:])
        x = inputs[0]
        if x is None or block is None or not all(equal(p, 0) for p in (*(begin or [1]), *(end or [1]))):
            return None
        return [rearranged(x, self.parts(x.shape, block))]

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        x, out = (a.view(f"u{a.dtype.itemsize}") for a in (inputs[0], outputs[0]))
        block, begin, end = inputs[1:]
        shape = tuple(map(padded, x.shape, integers(begin), integers(end)))
        if shape != x.shape:
            whole = k.scratch(shape, x.dtype)
            if PADDED.cuda(k, [x, begin, end], [whole], ()) is NotImplemented:
                return NotImplemented
            x = whole
        k.copy(*pair(x, out, self.parts(shape, integers(block))))
        return None


PADDED = Pad(pad_mode="constant")
