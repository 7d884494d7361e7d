"""Pad: elements around a tensor, constant or from the tensor; negative pads crop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import at_most, check_integers, integers, length, unknowns
from ovgpu.ops.base.storage import zero_of
from ovgpu.ops.base.strided import THREADS, Axes, bits, blocks, strides_of
from ovgpu.ops.base.view import View, equal
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, maximum


@op("Pad", "opset1", "movement/pad-1")
class Pad(Op):
    """``data [...], begin [rank], end [rank] (, value) ->`` data padded at its edges; negative pads crop.

    Mode constant pads with ``value``, by default 0; edge repeats the edge element; reflect mirrors the data without
    the edge element, symmetric with it. The two mirroring modes add at most as many elements as there are to mirror.
    """

    pad_mode: Literal["constant", "edge", "reflect", "symmetric"]

    exact = True
    supports_symbolic = True
    host_inputs = (1, 2)
    half_precision = "promoted"
    host_in_decode = True

    def infer_specs(self, x: Spec, begin: Spec, end: Spec, value: Spec | None = None) -> tuple[Spec, ...]:
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

    def evaluate(
        self, xp: Adapter, x: Array, begin: Array, end: Array, value: Array | None = None
    ) -> tuple[Array, ...]:
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

    def view(
        self, inputs: Sequence[View | None], specs: Sequence[Spec | None], outputs: Sequence[Spec]
    ) -> Sequence[View | None] | None:
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

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out = inputs[0], outputs[0]
        value = inputs[3] if len(inputs) > 3 else None
        if self.pad_mode != "constant":
            return NotImplemented
        target, source = _overlap(x.shape, integers(inputs[1]), out.shape)
        k(np.copyto, out, np.zeros((), out.dtype) if value is None else value)
        k(np.copyto, out[target], x[source])
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
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
        k.kernel(
            "pad.cu",
            f"pad<{bits(out.dtype.itemsize)}, {self.pad_mode.upper()}, {axes.index}, {axes.rank}>",
            blocks(out.size),
            (THREADS,),
            (x, value, out, axes.packed(), pads, *axes.numbers(out.size)),
        )
        return None

    def merged(self, *columns: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Return (extents, pads before, data extents, data strides) with adjacent axes merged where possible."""
        merged_axes: list[tuple[int, int, int, int]] = []
        for extent, begin, data_extent, stride in zip(*columns):
            if extent == data_extent == 1 and begin == 0:
                continue
            outer = merged_axes[-1] if merged_axes else None
            whole = begin == 0 and extent == data_extent  # the axis is not padded
            if (
                outer
                and whole
                and outer[3] == stride * data_extent
                and (self.pad_mode == "constant" or (outer[1] == 0 and outer[0] == outer[2]))
            ):
                merged_axes[-1] = (outer[0] * extent, outer[1] * extent, outer[2] * data_extent, stride)
            else:
                merged_axes.append((extent, begin, data_extent, stride))
        return tuple(zip(*merged_axes)) or ((), (), (), ())


@op("Pad", "opset12", "movement/pad-12")
class Pad12(Pad):
    __doc__ = f"""{Pad.__doc__}
    >>> pad([1, 2, 3], [2], [-1], pad_mode="reflect")
    [3, 2, 1, 2]
    """


def padded(extent: Int, begin: Int, end: Int) -> Int:
    """Return the extent of an axis after padding or cropping."""
    return maximum(begin + extent + end, 0)


def _overlap(
    shape: Sequence[int], begin: Sequence[int], out: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return the slices of the output that data fill, and the slices of the data that fill them."""
    target, source = [], []
    for extent, b, total in zip(shape, begin, out):
        first, last = max(b, 0), max(min(b + extent, total), 0)
        target.append(slice(first, max(last, first)))
        source.append(slice(first - b, max(last, first) - b))
    return tuple(target), tuple(source)
