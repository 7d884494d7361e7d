"""Ops that repeat a tensor's elements: Broadcast, Tile, Pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Op, op
from ovgpu.ops.base.shapes import at_most, check_integers, constants, integers, length, unknowns
from ovgpu.ops.base.storage import zero_of
from ovgpu.ops.base.strided import THREADS, Axes, bits, blocks, strides_of
from ovgpu.ops.base.view import View, equal
from ovgpu.symbolic import Int, Shape, Spec, broadcast, broadcast_shapes, maximum, onto

EXPLICIT = ("explicit", "none")


class _Broadcast(Op):
    """``data [...], target shape [n] (, axes mapping [rank]) -> [target shape]``.

    Mode numpy aligns axes at the end; explicit (none) moves axis ``i`` of the data to ``mapping[i]``; bidirectional
    is numpy, but the target's extents of 1 also broadcast to the data's; pdpd aligns axes at the start, and the
    target's extents of 1 broadcast to the data's. OpenVINO also writes a mapping in other modes of Broadcast-1, where
    it has no meaning.
    """

    exact = True
    supports_symbolic = True
    host_inputs = (1, 2)

    mode: str

    def infer(self, x: Spec, target: Spec, mapping: Spec | None = None) -> tuple[Spec, ...]:
        check_integers(target, "the target shape")
        mapping = self.axes_mapping(mapping)
        if mapping is not None:
            check_integers(mapping, "the axes mapping")
        return (Spec(x.type, self.shape(x, target.ints(), length(target), mapping)),)

    def axes_mapping(self, *mapping: Any) -> Any:
        """Return the axes mapping, or None in modes that have none."""
        return mapping[0] if mapping and self.mode in EXPLICIT else None

    def shape(self, x: Spec, target: Sequence[Int] | None, rank: int | None, mapping: Spec | None) -> Shape:
        """Return the output's shape as far as it is known."""
        grows = self.mode in ("bidirectional", "pdpd")
        known = None if mapping is None else constants(mapping)
        if target is not None and x.shape is not None and (mapping is None or known is not None):
            return self.align_axes(x.shape, target, known)[1]
        if target is not None and not grows:
            return tuple(target)
        if self.mode == "bidirectional":
            rank = None if rank is None or x.rank is None else max(rank, x.rank)
        return unknowns(rank)

    def evaluate(self, xp: Any, x: Any, target: Any, *others: Any) -> tuple[Any, ...]:
        mapping = self.axes_mapping(*others)
        output_axes, shape = self.align_axes(x.shape, integers(target), None if mapping is None else integers(mapping))
        return (xp.broadcast_to(x.reshape(_expanded_shape(x.shape, output_axes, len(shape))), shape),)

    def numpy(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        x, out = inputs[0], outputs[0]
        k(np.copyto, out, self.with_new_axes(x, out, self.axes_mapping(*inputs[2:])))

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> None:
        x, out = inputs[0], outputs[0]
        k.copy(self.with_new_axes(x, out, self.axes_mapping(*inputs[2:])), out)

    def with_new_axes(self, x: Any, out: Any, mapping: Any) -> Any:
        """Return a view of the data with new axes of extent 1, which broadcasts to the output."""
        output_axes, _ = self.align_axes(x.shape, out.shape, None if mapping is None else integers(mapping))
        return x[tuple(slice(None) if i in output_axes else None for i in range(out.ndim))] if output_axes else x

    def view(self, inputs: Sequence[View | None], specs: Sequence[Spec | None],
             outputs: Sequence[Spec]) -> Sequence[View | None] | None:
        x, target, shape = inputs[0], specs[1], outputs[0].shape
        mapping = self.axes_mapping(*specs[2:])
        known = None if mapping is None else constants(mapping)
        target_shape = None if target is None else target.ints()
        if x is None or target_shape is None or shape is None or (mapping is not None and known is None):
            return None
        output_axes, _ = self.align_axes(x.shape, target_shape, known)
        view = x.expand(shape, output_axes)
        return None if view is None else [view]

    def align_axes(self, shape: Sequence[Int], target: Sequence[Int],
                   mapping: Sequence[int] | None) -> tuple[list[int], tuple[Int, ...]]:
        """Return the output axis of each data axis, and the output's shape. Raise OpError if they do not fit."""
        if self.mode == "bidirectional":
            out = broadcast_shapes(shape, target)
        else:
            out = tuple(target)
        if mapping is not None:
            output_axes = _check_mapping(mapping, len(shape), len(out))
        elif len(shape) > len(out):
            raise OpError(f"rank {len(shape)} is over the target's {len(out)}")
        elif self.mode == "pdpd":
            output_axes = list(range(len(shape)))
            grown = [broadcast(d, out[i]) for i, d in enumerate(shape)]
            out = (*grown, *out[len(shape) :])
        else:
            output_axes = list(range(len(out) - len(shape), len(out)))
        for extent, i in zip(shape, output_axes):
            onto(extent, out[i])
        return output_axes, out


def _check_mapping(mapping: Sequence[int], rank: int, target: int) -> list[int]:
    if rank == 0 and len(mapping) == 1:  # a scalar may be mapped as if it had one axis
        return []
    if len(mapping) != rank:
        raise OpError(f"an axes mapping of {len(mapping)} does not fit rank {rank}")
    if list(mapping) != sorted(set(mapping)):
        raise OpError(f"axes mapping {list(mapping)} is not in ascending order")
    if any(not 0 <= a < target for a in mapping):
        raise OpError(f"axes mapping {list(mapping)} is out of range for a target of rank {target}")
    return list(mapping)


def _expanded_shape(shape: Sequence[int], output_axes: Sequence[int], rank: int) -> list[int]:
    """Return a shape of ``rank`` axes with the extents of ``shape`` at ``output_axes``, and 1 elsewhere."""
    result = [1] * rank
    for extent, i in zip(shape, output_axes):
        result[i] = extent
    return result


@op("Broadcast", "opset1", "movement/broadcast-1")
class Broadcast(_Broadcast):
    __doc__ = _Broadcast.__doc__

    mode: Literal["numpy", "explicit", "none", "pdpd"] = "numpy"


@op("Broadcast", "opset3", "movement/broadcast-3")
class Broadcast3(_Broadcast):
    __doc__ = _Broadcast.__doc__

    mode: Literal["numpy", "explicit", "none", "bidirectional", "pdpd"] = "numpy"

    def infer(self, x: Spec, target: Spec, mapping: Spec | None = None) -> tuple[Spec, ...]:
        if (self.mode in EXPLICIT) != (mapping is not None):
            raise OpError(f"mode {self.mode} {'needs' if mapping is None else 'takes no'} axes mapping")
        return super().infer(x, target, mapping)


@op("Tile", "opset1", "movement/tile-1")
class Tile(Op):
    """``data [...], repeats [n] ->`` data repeated along each axis, with 1s before the shorter of shape and repeats."""

    exact = True
    supports_symbolic = True
    host_inputs = (1,)

    def infer(self, x: Spec, repeats: Spec) -> tuple[Spec, ...]:
        check_integers(repeats, "repeats")
        count, times = length(repeats), repeats.ints()
        if x.shape is None or (times is None and count is None):
            return (Spec(x.type, None),)
        if times is None:
            return (Spec(x.type, unknowns(max(len(x.shape), count or 0))),)
        shape, repeated = equal_ranks(x.shape, times)
        return (Spec(x.type, tuple(d * maximum(n, 0) for d, n in zip(shape, repeated))),)

    def evaluate(self, xp: Any, x: Any, repeats: Any) -> tuple[Any, ...]:
        return (xp.tile(x, [max(n, 0) for n in integers(repeats)]),)

    def numpy(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> None:
        x, out = inputs[0], outputs[0]
        shape = (1,) * (out.ndim - x.ndim) + x.shape
        if 0 in out.shape:
            return
        blocks = [n for d, total in zip(shape, out.shape) for n in (total // d, d)]
        k(np.copyto, out.reshape(blocks), x.reshape([n for d in shape for n in (1, d)]))

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> None:
        x, out = inputs[0], outputs[0]
        if out.size:
            shape = (1,) * (out.ndim - x.ndim) + x.shape
            whole = x[(None,) * (out.ndim - x.ndim) + (...,)]
            k.copy(whole[(None, slice(None)) * out.ndim],
                   out.reshape([n for d, total in zip(shape, out.shape) for n in (total // d, d)]))


def equal_ranks(a: Sequence[Int], b: Sequence[Int]) -> tuple[tuple[Int, ...], tuple[Int, ...]]:
    """Return both sequences with the same length: 1s are put before the shorter one."""
    rank = max(len(a), len(b))
    return (1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b)


@op("Pad", "opset1", "movement/pad-1")
class Pad(Op):
    """``data [...], begin [rank], end [rank] (, value) ->`` data padded at its edges; negative pads crop.

    Mode constant pads with ``value``, by default 0; edge repeats the edge element; reflect mirrors the data without
    the edge element, symmetric with it. The mirrored modes pad at most by the elements that there are to mirror.
    """

    pad_mode: Literal["constant", "edge", "reflect", "symmetric"]

    exact = True
    supports_symbolic = True
    host_inputs = (1, 2)

    def infer(self, x: Spec, begin: Spec, end: Spec, value: Spec | None = None) -> tuple[Spec, ...]:
        for pads, what in ((begin, "pads_begin"), (end, "pads_end")):
            check_integers(pads, what)
            if x.rank is not None and length(pads) not in (None, x.rank):
                raise OpError(f"{what} has {length(pads)} elements for rank {x.rank}")
        if value is not None and self.pad_mode == "constant":
            merge_types([x, value])
            if value.rank not in (None, 0):
                raise OpError(f"the padding value is no scalar but has rank {value.rank}")
        before, after = begin.ints(), end.ints()
        if x.shape is None or before is None or after is None:
            return (Spec(x.type, unknowns(x.rank if x.rank is not None else length(begin))),)
        for i, extent in enumerate(x.shape):
            self.check(extent, before[i], after[i], i)
        return (Spec(x.type, tuple(padded(d, b, e) for d, b, e in zip(x.shape, before, after))),)

    def check(self, extent: Int, begin: Int, end: Int, axis: int) -> None:
        """Raise OpError, now or at run time, if an axis has too few elements to take the padding from."""
        if self.pad_mode == "edge":
            if equal(extent, 0) and not (equal(begin, 0) and equal(end, 0)):
                raise OpError(f"axis {axis} is empty and has no edge")
        elif self.pad_mode != "constant":
            limit = extent - 1 if self.pad_mode == "reflect" else extent
            for pad in (begin, end):
                if not equal(pad, 0):
                    at_most(pad, limit, f"axis {axis} is padded by {{0}}, and only {{1}} can be mirrored")

    def evaluate(self, xp: Any, x: Any, begin: Any, end: Any, value: Any = None) -> tuple[Any, ...]:
        before, after = integers(begin), integers(end)
        if self.pad_mode == "constant":
            shape = [padded(d, b, e) for d, b, e in zip(x.shape, before, after)]
            out = xp.empty(shape, x.dtype)
            out[...] = zero_of(x) if value is None else value
            target, source = _overlap(x.shape, before, shape)
            out[target] = x[source]
            return (out,)
        for axis, (b, e) in enumerate(zip(before, after)):
            self.check(x.shape[axis], b, e, axis)
            if b or e:
                x = xp.take(x, xp.asarray(self.sources(x.shape[axis], b, e)), axis=axis)
        return (x,)

    def view(self, inputs: Sequence[View | None], specs: Sequence[Spec | None],
             outputs: Sequence[Spec]) -> Sequence[View | None] | None:
        """Return the data itself if nothing is padded."""
        pads = [None if s is None else s.constant for s in specs[1:3]]
        return None if any(p is None or p.any() for p in pads) or inputs[0] is None else [inputs[0]]

    def sources(self, extent: int, begin: int, end: int) -> np.ndarray[Any, Any]:
        """Return the source index of each element of a padded axis."""
        count = max(extent + begin + end, 0)
        i = np.arange(-begin, count - begin) if count else np.zeros(0, np.int64)
        if self.pad_mode == "edge":
            return np.clip(i, 0, extent - 1)
        last = extent - 1
        shift = 0 if self.pad_mode == "reflect" else 1
        i = np.where(i < 0, -i - shift, i)
        return np.where(i > last, 2 * last - i + shift, i)

    def numpy(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        x, out = inputs[0], outputs[0]
        value = inputs[3] if len(inputs) > 3 else None
        if self.pad_mode != "constant":
            return NotImplemented
        target, source = _overlap(x.shape, integers(inputs[1]), out.shape)
        k(np.copyto, out, np.zeros((), out.dtype) if value is None else value)
        k(np.copyto, out[target], x[source])
        return None

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        x, out, before = inputs[0], outputs[0], integers(inputs[1])
        if not out.size:
            return None
        for axis, (b, e) in enumerate(zip(before, integers(inputs[2]))):
            self.check(x.shape[axis], b, e, axis)
        extents, begin, data_extent, strides = self.merged(out.shape, before, x.shape, strides_of(x))
        axes = Axes(extents, (strides,), 2 * x.size)
        if not axes.rank:
            return NotImplemented
        missing = axes.rank - len(extents)
        pads = np.array(axes.numbers(*(0,) * missing, *begin, *(1,) * missing, *data_extent))
        value = inputs[3] if len(inputs) > 3 and self.pad_mode == "constant" else None
        k.kernel("pad.cu", f"pad<{bits(out.dtype.itemsize)}, {self.pad_mode.upper()}, {axes.index}, {axes.rank}>",
                 blocks(out.size), (THREADS,), (x, value, out, axes.packed(), pads, *axes.numbers(out.size)))
        return None

    def merged(self, *columns: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Return (extents, pads before, data extents, data strides) with adjacent axes merged where possible."""
        merged_axes: list[tuple[int, int, int, int]] = []
        for extent, begin, data_extent, stride in zip(*columns):
            if extent == data_extent == 1 and begin == 0:
                continue
            outer = merged_axes[-1] if merged_axes else None
            whole = begin == 0 and extent == data_extent  # the axis is not padded
            if outer and whole and outer[3] == stride * data_extent and (
                    self.pad_mode == "constant" or (outer[1] == 0 and outer[0] == outer[2])):
                merged_axes[-1] = (outer[0] * extent, outer[1] * extent, outer[2] * data_extent, stride)
            else:
                merged_axes.append((extent, begin, data_extent, stride))
        return tuple(zip(*merged_axes)) or ((), (), (), ())


@op("Pad", "opset12", "movement/pad-12")
class Pad12(Pad):
    __doc__ = Pad.__doc__


def padded(extent: Int, begin: Int, end: Int) -> Int:
    """Return the extent of an axis after padding or cropping."""
    return maximum(begin + extent + end, 0)


def _overlap(shape: Sequence[int], begin: Sequence[int],
             out: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return the slices of the output that the data fill, and the slices of the data that go there."""
    target, source = [], []
    for extent, b, total in zip(shape, begin, out):
        first, last = max(b, 0), max(min(b + extent, total), 0)
        target.append(slice(first, max(last, first)))
        source.append(slice(first - b, max(last, first) - b))
    return tuple(target), tuple(source)
