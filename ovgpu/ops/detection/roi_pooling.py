"""Pooling of the parts of regions: ROIPooling, PSROIPooling, DeformablePSROIPooling.

Of an image that there is not, a region gets zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base import launch
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, op
from ovgpu.ops.base.shapes import at_most
from ovgpu.ops.detection._regions import Regions, check_scale, interpolated, rounded, spread, taken
from ovgpu.symbolic import Shape, Spec, same


@op("ROIPooling", "opset2")
class ROIPooling(Regions):
    """``maps [N, C, H, W], regions [R, (image, x1, y1, x2, y2)] -> [R, C, pooled_h, pooled_w]``.

    max: the greatest element of each part of a region, whose corners are scaled and rounded; parts overlap, and one
    without elements gives 0. bilinear: points at even distances, from corner to corner of a region whose coordinates
    go from 0 to 1; one outside gives 0. OpenVINO's plugin takes image -1 for the end of the regions.
    """

    pooled_h: int
    pooled_w: int
    spatial_scale: float
    method: Literal["max", "bilinear"] = "max"

    def pooled(self) -> tuple[int, int]:
        return self.pooled_h, self.pooled_w

    def infer(self, x: Spec, regions: Spec, *others: Spec) -> tuple[Spec, ...]:
        check_scale(self.spatial_scale)
        return super().infer(x, regions)

    def evaluate(self, xp: Any, x: Array, regions: Array) -> tuple[Array, ...]:
        nothing = self.empty(xp, x, regions, x.shape[1])
        if nothing is not None:
            return (nothing,)
        image = spread(regions[:, 0].astype(np.int64), 0)
        channel = xp.arange(x.shape[1]).reshape(1, -1, 1, 1)
        pool = self.greatest if self.method == "max" else self.between
        return (pool(xp, x, image, channel, regions).astype(x.dtype),)

    def greatest(self, xp: Any, x: Array, image: Array, channel: Array, regions: Array) -> Array:
        spans = []
        for axis, count in enumerate(self.pooled()):
            first, last = (rounded(xp, regions[:, i - axis] * self.spatial_scale).astype(np.int64) for i in (2, 4))
            size = xp.maximum(last - first + 1, 1).astype(x.dtype) / count
            part = xp.arange(count, dtype=x.dtype)
            start, stop = (xp.clip(v.astype(np.int64) + first[:, None], 0, x.shape[2 + axis])
                           for v in (xp.floor(part * size[:, None]), xp.ceil((part + 1) * size[:, None])))
            spans.append((spread(start, 2 + axis), spread(stop, 2 + axis)))
        (top, bottom), (left, right) = spans
        best = xp.full((len(regions), x.shape[1], *self.pooled()), -np.inf, x.dtype)
        for i in range(int((bottom - top).max())):
            for j in range(int((right - left).max())):
                inside = (top + i < bottom) & (left + j < right)
                row, column = xp.minimum(top + i, x.shape[2] - 1), xp.minimum(left + j, x.shape[3] - 1)
                best = xp.where(inside, xp.maximum(best, taken(xp, x, image, channel, row, column)), best)
        return xp.where((bottom > top) & (right > left), best, 0)

    def between(self, xp: Any, x: Array, image: Array, channel: Array, regions: Array) -> Array:
        points = []
        for axis, count in enumerate(self.pooled()):
            first, last = regions[:, 2 - axis, None], regions[:, 4 - axis, None]
            reach, part = x.shape[2 + axis] - 1, xp.arange(count, dtype=x.dtype)
            if count == 1:
                at = (first + last) * reach * 0.5
            else:
                at = part * ((last - first) * reach / (count - 1)) + first * reach
                at = xp.where(part == count - 1, last * reach, at)
            points.append((spread(xp.clip(at, 0, reach), 2 + axis), spread((at >= 0) & (at <= reach), 2 + axis)))
        (y, y_inside), (x_, x_inside) = points
        return xp.where(y_inside & x_inside, interpolated(xp, x, image, channel, y, x_), 0)

    def kernel(self, k: Any, inputs: Sequence[Any]) -> tuple[str, Sequence[Any], Sequence[Any]]:
        x, _ = inputs
        return (f"roi_pooling<{k.c_type(x.dtype)}", inputs,
                (launch.real(self.spatial_scale, x), np.bool_(self.method == "bilinear")))


class _PositionSensitive(Regions):
    """Base: each of ``group_size ** 2`` parts of a region, and each output channel, has input channels of its own."""

    output_dim: int
    spatial_scale: float
    group_size: int = 1
    spatial_bins_x: int = 1
    spatial_bins_y: int = 1

    def pooled(self) -> tuple[int, int]:
        return self.group_size, self.group_size

    def infer(self, x: Spec, regions: Spec, *others: Spec) -> tuple[Spec, ...]:
        check_scale(self.spatial_scale)
        for name in ("output_dim", "group_size", "spatial_bins_x", "spatial_bins_y"):
            if getattr(self, name) < 1:
                raise OpError(f"{name} is {getattr(self, name)}")
        return super().infer(x, regions)

    def channels(self, shape: Shape) -> Any:
        if shape is not None:
            same(shape[1], self.output_dim * self.per_output(), "there are {0} channels, not {1}")
        return self.output_dim

    def per_output(self) -> int:
        """How many input channels there are for each of the output."""
        return self.group_size**2

    def own(self, xp: Any) -> Array:
        """The input channel of each part and output channel."""
        return xp.arange(self.output_dim * self.group_size**2).reshape(1, self.output_dim, *self.pooled())


@op("PSROIPooling", "opset1")
class PSROIPooling(_PositionSensitive):
    """``maps [N, C, H, W], regions [R, (image, x1, y1, x2, y2)] -> [R, output_dim, group_size, group_size]``.

    average: the mean of each part of a region, whose corners are rounded, then scaled, 0 for one outside. bilinear:
    the mean of points in ``spatial_bins_y * spatial_bins_x`` cells of a region whose scaled coordinates go from 0 to 1,
    with channels for each cell; a point outside counts as 0.
    """

    mode: Literal["average", "bilinear"] = "average"

    def per_output(self) -> int:
        return self.spatial_bins_x * self.spatial_bins_y if self.mode == "bilinear" else super().per_output()

    def evaluate(self, xp: Any, x: Array, regions: Array) -> tuple[Array, ...]:
        nothing = self.empty(xp, x, regions, self.output_dim)
        if nothing is not None:
            return (nothing,)
        image = spread(regions[:, 0].astype(np.int64), 0)
        pool = self.average if self.mode == "average" else self.between
        return (pool(xp, x, image, regions).astype(x.dtype),)

    def average(self, xp: Any, x: Array, image: Array, regions: Array) -> Array:
        spans = []
        for axis, count in enumerate(self.pooled()):
            first = rounded(xp, regions[:, 2 - axis]) * self.spatial_scale
            last = (rounded(xp, regions[:, 4 - axis]) + 1) * self.spatial_scale
            size = xp.maximum(last - first, 0.1) / count
            part = xp.arange(count, dtype=x.dtype)
            start, stop = (xp.clip(v.astype(np.int64), 0, x.shape[2 + axis])
                           for v in (xp.floor(part * size[:, None] + first[:, None]),
                                     xp.ceil((part + 1) * size[:, None] + first[:, None])))
            spans.append((spread(start, 2 + axis), spread(stop, 2 + axis)))
        (top, bottom), (left, right) = spans
        height, width = bottom - top, right - left
        total = xp.zeros((len(regions), self.output_dim, *self.pooled()), x.dtype)
        for i, j in np.ndindex(max(int(height.max()), 0), max(int(width.max()), 0)):
            row, column = xp.minimum(top + i, x.shape[2] - 1), xp.minimum(left + j, x.shape[3] - 1)
            total = total + xp.where((i < height) & (j < width), taken(xp, x, image, self.own(xp), row, column), 0)
        return total / xp.maximum(height * width, 1)

    def between(self, xp: Any, x: Array, image: Array, regions: Array) -> Array:
        bins = self.spatial_bins_y, self.spatial_bins_x
        total = xp.zeros((len(regions), self.output_dim, *self.pooled()), x.dtype)
        for cell in np.ndindex(*bins):
            points = []
            for axis, (place, count) in enumerate(zip(cell, self.pooled())):
                first, last = (regions[:, i - axis, None] * self.spatial_scale for i in (2, 4))
                size, reach = (last - first) / bins[axis], x.shape[2 + axis] - 1
                low, high = first + place * size, first + (place + 1) * size
                if count == 1:
                    at = (low + high) * reach * 0.5
                else:
                    at = xp.arange(count, dtype=x.dtype) * ((high - low) * reach / (count - 1)) + low * reach
                points.append((spread(xp.clip(at, 0, reach), 2 + axis), spread((at >= 0) & (at <= reach), 2 + axis)))
            (y, y_inside), (x_, x_inside) = points
            channel = xp.arange(self.output_dim).reshape(1, -1, 1, 1) + \
                (cell[0] * self.spatial_bins_x + cell[1]) * self.output_dim
            total = total + xp.where(y_inside & x_inside, interpolated(xp, x, image, channel, y, x_), 0)
        return total / prod(bins)

    def kernel(self, k: Any, inputs: Sequence[Any]) -> tuple[str, Sequence[Any], Sequence[Any]]:
        x = inputs[0]
        bilinear = self.mode == "bilinear"
        return (f"psroi_{'bilinear' if bilinear else 'average'}<{k.c_type(x.dtype)}", inputs,
                (launch.real(self.spatial_scale, x),
                 *((np.int32(self.spatial_bins_y), np.int32(self.spatial_bins_x)) if bilinear else ())))


@op("DeformablePSROIPooling", "opset1")
class DeformablePSROIPooling(_PositionSensitive):
    """``maps [N, C, H, W], regions [R, (image, x1, y1, x2, y2)] (, offsets [R, 2 classes, part_size, part_size]) ->
    [R, output_dim, group_size, group_size]``.

    The mean of ``spatial_bins_y * spatial_bins_x`` points in each part of a region that lie in the image, else 0. Parts
    are moved by the offsets, times ``trans_std``, as parts of the region's sides.
    """

    mode: Literal["bilinear_deformable"] = "bilinear_deformable"
    trans_std: float = 1.0
    part_size: int = 1

    def infer(self, x: Spec, regions: Spec, *others: Spec) -> tuple[Spec, ...]:
        found = super().infer(x, regions)
        for offsets in others:
            merge_types((x, offsets))
            if self.part_size < 1:
                raise OpError(f"part_size is {self.part_size}")
            if offsets.rank not in (None, 4):
                raise OpError(f"the offsets must have rank 4, not {offsets.rank}")
            if offsets.shape is not None:
                if regions.shape is not None:
                    same(offsets.shape[0], regions.shape[0], "there are {0} offsets for {1} regions")
                classes = offsets.shape[1] // 2
                same(classes * 2, offsets.shape[1], "the offsets have {1} channels, not two for each class")
                at_most(1, classes, "the offsets have no channels")
                same(self.output_dim % classes, 0, f"{self.output_dim} channels have offsets that do not come out even")
                for extent in offsets.shape[2:]:
                    same(extent, self.part_size, "the offsets have {0} parts along an axis, part_size is {1}")
        return found

    def moved(self, xp: Any, offsets: Array | None) -> Any:
        """How far each part of each region is moved down and right, as a part of the region's sides."""
        if offsets is None:
            return 0, 0
        classes = offsets.shape[1] // 2
        of_class = xp.arange(self.output_dim) // max(self.output_dim // classes, 1)
        part = xp.arange(self.group_size) * self.part_size // self.group_size
        chosen = offsets.reshape(len(offsets), classes, 2, *offsets.shape[2:])[:, of_class][..., part, :][..., part]
        return chosen[:, :, 1] * self.trans_std, chosen[:, :, 0] * self.trans_std

    def evaluate(self, xp: Any, x: Array, regions: Array, offsets: Array | None = None) -> tuple[Array, ...]:
        nothing = self.empty(xp, x, regions, self.output_dim)
        if nothing is not None:
            return (nothing,)
        image, steps, bins = spread(regions[:, 0].astype(np.int64), 0), [], (self.spatial_bins_y, self.spatial_bins_x)
        for axis, (count, moved, cells) in enumerate(zip(self.pooled(), self.moved(xp, offsets), bins)):
            first = rounded(xp, regions[:, 2 - axis]) * self.spatial_scale - 0.5
            last = (rounded(xp, regions[:, 4 - axis]) + 1) * self.spatial_scale - 0.5
            extent = xp.maximum(last - first, 0.1)
            size = extent / count
            start = spread(first[:, None] + xp.arange(count, dtype=x.dtype) * size[:, None], 2 + axis)
            start = start + moved * spread(extent, 0)
            steps.append((start, spread(size / cells, 0)))
        total, count = xp.zeros((len(regions), self.output_dim, *self.pooled()), x.dtype), 0
        for cell in np.ndindex(*bins):
            y, x_ = (start + n * size for n, (start, size) in zip(cell, steps))
            inside = (y >= -0.5) & (y <= x.shape[2] - 0.5) & (x_ >= -0.5) & (x_ <= x.shape[3] - 0.5)
            y, x_ = (xp.clip(v, 0, n - 1) for v, n in ((y, x.shape[2]), (x_, x.shape[3])))
            total = total + xp.where(inside, interpolated(xp, x, image, self.own(xp), y, x_), 0)
            count = count + inside
        return ((total / xp.maximum(count, 1)).astype(x.dtype),)

    def kernel(self, k: Any, inputs: Sequence[Any]) -> tuple[str, Sequence[Any], Sequence[Any]]:
        x, regions, *others = inputs
        offsets = others[0] if others else None
        classes = 1 if offsets is None else offsets.shape[1] // 2
        return (f"deformable_psroi<{k.c_type(x.dtype)}", (x, regions, offsets),
                (launch.real(self.spatial_scale, x), np.int32(self.spatial_bins_y), np.int32(self.spatial_bins_x),
                 launch.real(self.trans_std, x), np.int32(self.part_size), np.int32(classes)))
