"""Region pooling by bins: ROIPooling, PSROIPooling, DeformablePSROIPooling.

A region of a nonexistent image gives zeros.
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
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.shapes import at_most
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.detection._regions import Regions, check_scale, interpolate, round_half_away, unsqueeze, values_at
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import same

MIN_SIDE = 0.1  # least side of a scaled region of position-sensitive pooling; as in roi_pooling.cu


@op("ROIPooling", "opset2", "detection/roi-pooling-1")
class ROIPooling(Regions):
    """``maps [N, C, H, W], regions [R, (image, x1, y1, x2, y2)] -> [R, C, pooled_h, pooled_w]``.

    max: the maximum of each bin of a region, whose corners are scaled and rounded (Girshick 2015); bins overlap, and
    an empty one gives 0. bilinear: points at equal distances from corner to corner of a region, whose coordinates
    range from 0 to 1; a point outside gives 0. OpenVINO's plugin takes image -1 as the end of the regions.

    >>> roi_pooling([[[[1.0, 5, 2]]]], [[0.0, 0, 0, 2, 0]], output_roi=[1, 2], spatial_scale=1.0, method="max")
    [[[[5.0, 5.0]]]]
    """

    pooled_h: int
    pooled_w: int
    spatial_scale: float
    method: Literal["max", "bilinear"] = "max"

    def pooled_size(self) -> tuple[int, int]:
        return self.pooled_h, self.pooled_w

    def infer_specs(self, x: Spec, regions: Spec, *others: Spec) -> tuple[Spec, ...]:
        check_scale(self.spatial_scale)
        return super().infer_specs(x, regions)

    def evaluate(self, xp: Adapter, x: Array, regions: Array) -> tuple[Array, ...]:
        empty_result = self.empty(xp, x, regions, x.shape[1])
        if empty_result is not None:
            return (empty_result,)
        image = unsqueeze(regions[:, 0].astype(np.int64), 0)
        channel = xp.arange(x.shape[1]).reshape(1, -1, 1, 1)
        pool = self.max_pool if self.method == "max" else self.bilinear_pool
        return (pool(xp, x, image, channel, regions).astype(x.dtype),)

    def max_pool(self, xp: Adapter, x: Array, image: Array, channel: Array, regions: Array) -> Array:
        spans = []
        for axis, count in enumerate(self.pooled_size()):
            first, last = (
                round_half_away(xp, regions[:, i - axis] * self.spatial_scale).astype(np.int64) for i in (2, 4)
            )
            size = xp.maximum(last - first + 1, 1).astype(x.dtype) / count
            part = xp.arange(count, dtype=x.dtype)
            start, stop = (
                xp.clip(v.astype(np.int64) + first[:, None], 0, x.shape[2 + axis])
                for v in (xp.floor(part * size[:, None]), xp.ceil((part + 1) * size[:, None]))
            )
            spans.append((unsqueeze(start, 2 + axis), unsqueeze(stop, 2 + axis)))
        (top, bottom), (left, right) = spans
        best = xp.full((len(regions), x.shape[1], *self.pooled_size()), -np.inf, x.dtype)
        for i in range(int((bottom - top).max())):
            for j in range(int((right - left).max())):
                inside = (top + i < bottom) & (left + j < right)
                row, column = xp.minimum(top + i, x.shape[2] - 1), xp.minimum(left + j, x.shape[3] - 1)
                best = xp.where(inside, xp.maximum(best, values_at(xp, x, image, channel, row, column)), best)
        return xp.where((bottom > top) & (right > left), best, 0)

    def bilinear_pool(self, xp: Adapter, x: Array, image: Array, channel: Array, regions: Array) -> Array:
        points = []
        for axis, count in enumerate(self.pooled_size()):
            first, last = regions[:, 2 - axis, None], regions[:, 4 - axis, None]
            reach, part = x.shape[2 + axis] - 1, xp.arange(count, dtype=x.dtype)
            if count == 1:
                at = (first + last) * reach * 0.5
            else:
                at = part * ((last - first) * reach / (count - 1)) + first * reach
                at = xp.where(part == count - 1, last * reach, at)
            points.append((unsqueeze(xp.clip(at, 0, reach), 2 + axis), unsqueeze((at >= 0) & (at <= reach), 2 + axis)))
        (y, y_inside), (x_, x_inside) = points
        return xp.where(y_inside & x_inside, interpolate(xp, x, image, channel, y, x_), 0)

    def kernel(self, k: KernelRecorder, inputs: Sequence[Any]) -> tuple[str, Sequence[Any], Sequence[Any]]:
        x, _ = inputs
        return (
            f"roi_pooling<{k.c_type(x.dtype)}",
            inputs,
            (launch.real(self.spatial_scale, x), np.bool_(self.method == "bilinear")),
        )


class _PositionSensitive(Regions):
    """Base: each of the ``group_size ** 2`` bins of a region has its own input channel for each output channel."""

    output_dim: int
    spatial_scale: float
    group_size: int = 1
    spatial_bins_x: int = 1
    spatial_bins_y: int = 1

    mixed_reals = (1, 2)

    def pooled_size(self) -> tuple[int, int]:
        return self.group_size, self.group_size

    def infer_specs(self, x: Spec, regions: Spec, *others: Spec) -> tuple[Spec, ...]:
        check_scale(self.spatial_scale)
        for name in ("output_dim", "group_size", "spatial_bins_x", "spatial_bins_y"):
            if getattr(self, name) < 1:
                raise OpError(f"{name} is {getattr(self, name)}")
        return super().infer_specs(x, regions)

    def channels(self, shape: Shape) -> Any:
        if shape is not None:
            same(shape[1], self.output_dim * self.channels_per_output(), "there are {0} channels, not {1}")
        return self.output_dim

    def channels_per_output(self) -> int:
        """Return the number of input channels per output channel."""
        return self.group_size**2

    def own_channels(self, xp: Adapter) -> Array:
        """Return the input channel of each output channel and bin, [1, output_dim, group_size, group_size]."""
        return xp.arange(self.output_dim * self.group_size**2).reshape(1, self.output_dim, *self.pooled_size())


@op("PSROIPooling", "opset1", "detection/psroi-pooling-1")
class PSROIPooling(_PositionSensitive):
    """``maps [N, C, H, W], regions [R, (image, x1, y1, x2, y2)] -> [R, output_dim, group_size, group_size]``.

    Position-sensitive RoI pooling (Dai et al. 2016). average: the mean of each bin of a region, whose corners are
    rounded, then scaled; a bin outside the image gives 0. bilinear: the mean of points in
    ``spatial_bins_y * spatial_bins_x`` cells of a region, whose scaled coordinates range from 0 to 1. Each cell has its
    own channels, and a point outside counts as 0.

    >>> psroi_pooling([[[[1.0]], [[2]], [[3]], [[4]]]], [[0.0, 0, 0, 0, 0]], output_dim=1, group_size=2,
    ...               spatial_scale=1.0, spatial_bins_x=1, spatial_bins_y=1, mode="average")
    [[[[1.0, 2.0], [3.0, 4.0]]]]
    """

    mode: Literal["average", "bilinear"] = "average"

    def channels_per_output(self) -> int:
        return self.spatial_bins_x * self.spatial_bins_y if self.mode == "bilinear" else super().channels_per_output()

    def evaluate(self, xp: Adapter, x: Array, regions: Array) -> tuple[Array, ...]:
        empty_result = self.empty(xp, x, regions, self.output_dim)
        if empty_result is not None:
            return (empty_result,)
        image = unsqueeze(regions[:, 0].astype(np.int64), 0)
        pool = self.average if self.mode == "average" else self.bilinear_pool
        return (pool(xp, x, image, regions).astype(x.dtype),)

    def average(self, xp: Adapter, x: Array, image: Array, regions: Array) -> Array:
        spans = []
        for axis, count in enumerate(self.pooled_size()):
            first = round_half_away(xp, regions[:, 2 - axis]) * self.spatial_scale
            last = (round_half_away(xp, regions[:, 4 - axis]) + 1) * self.spatial_scale
            size = xp.maximum(last - first, MIN_SIDE) / count
            part = xp.arange(count, dtype=x.dtype)
            start, stop = (
                xp.clip(v.astype(np.int64), 0, x.shape[2 + axis])
                for v in (
                    xp.floor(part * size[:, None] + first[:, None]),
                    xp.ceil((part + 1) * size[:, None] + first[:, None]),
                )
            )
            spans.append((unsqueeze(start, 2 + axis), unsqueeze(stop, 2 + axis)))
        (top, bottom), (left, right) = spans
        height, width = bottom - top, right - left
        total = xp.zeros((len(regions), self.output_dim, *self.pooled_size()), x.dtype)
        for i, j in np.ndindex(max(int(height.max()), 0), max(int(width.max()), 0)):
            row, column = xp.minimum(top + i, x.shape[2] - 1), xp.minimum(left + j, x.shape[3] - 1)
            total = total + xp.where(
                (i < height) & (j < width), values_at(xp, x, image, self.own_channels(xp), row, column), 0
            )
        return total / xp.maximum(height * width, 1)

    def bilinear_pool(self, xp: Adapter, x: Array, image: Array, regions: Array) -> Array:
        bins = self.spatial_bins_y, self.spatial_bins_x
        total = xp.zeros((len(regions), self.output_dim, *self.pooled_size()), x.dtype)
        for cell in np.ndindex(*bins):
            points = []
            for axis, (index, count) in enumerate(zip(cell, self.pooled_size())):
                first, last = (regions[:, i - axis, None] * self.spatial_scale for i in (2, 4))
                size, reach = (last - first) / bins[axis], x.shape[2 + axis] - 1
                low, high = first + index * size, first + (index + 1) * size
                if count == 1:
                    at = (low + high) * reach * 0.5
                else:
                    at = xp.arange(count, dtype=x.dtype) * ((high - low) * reach / (count - 1)) + low * reach
                points.append(
                    (unsqueeze(xp.clip(at, 0, reach), 2 + axis), unsqueeze((at >= 0) & (at <= reach), 2 + axis))
                )
            (y, y_inside), (x_, x_inside) = points
            channel = (
                xp.arange(self.output_dim).reshape(1, -1, 1, 1)
                + (cell[0] * self.spatial_bins_x + cell[1]) * self.output_dim
            )
            total = total + xp.where(y_inside & x_inside, interpolate(xp, x, image, channel, y, x_), 0)
        return total / prod(bins)

    def kernel(self, k: KernelRecorder, inputs: Sequence[Any]) -> tuple[str, Sequence[Any], Sequence[Any]]:
        x = inputs[0]
        bilinear = self.mode == "bilinear"
        return (
            f"psroi_{'bilinear' if bilinear else 'average'}<{k.c_type(x.dtype)}",
            inputs,
            (
                launch.real(self.spatial_scale, x),
                *((np.int32(self.spatial_bins_y), np.int32(self.spatial_bins_x)) if bilinear else ()),
            ),
        )


@op("DeformablePSROIPooling", "opset1", "detection/deformable-psroi-pooling-1")
class DeformablePSROIPooling(_PositionSensitive):
    """``maps [N, C, H, W], regions [R, (image, x1, y1, x2, y2)] (, offsets [R, 2 classes, part_size, part_size]) ->
    [R, output_dim, group_size, group_size]``.

    Deformable position-sensitive RoI pooling (Dai et al. 2017): the mean of those ``spatial_bins_y * spatial_bins_x``
    points of each bin that lie in the image, 0 if none does. Bins are moved by the offsets times ``trans_std``, in
    units of the region's sides.

    >>> deformable_psroi_pooling([[[[1.0, 2, 3, 4]]]], [[0.0, 0, 0, 1, 0]], output_dim=1, spatial_scale=1.0,
    ...                          offsets=f32([[[[1.0]], [[0]]]]))
    [[[[2.5]]]]
    """

    mode: Literal["bilinear_deformable"] = "bilinear_deformable"
    trans_std: float = 1.0
    part_size: int = 1

    def infer_specs(self, x: Spec, regions: Spec, *others: Spec) -> tuple[Spec, ...]:
        specs = super().infer_specs(x, regions)
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
        return specs

    def shifts(self, xp: Adapter, offsets: Array | None) -> Array:
        """Return the offsets (down, right) of each bin of each region, in units of the region's sides."""
        if offsets is None:
            return 0, 0
        classes = offsets.shape[1] // 2
        of_class = xp.arange(self.output_dim) // max(self.output_dim // classes, 1)
        part = xp.arange(self.group_size) * self.part_size // self.group_size
        chosen = offsets.reshape(len(offsets), classes, 2, *offsets.shape[2:])[:, of_class][..., part, :][..., part]
        return chosen[:, :, 1] * self.trans_std, chosen[:, :, 0] * self.trans_std

    def evaluate(self, xp: Adapter, x: Array, regions: Array, offsets: Array | None = None) -> tuple[Array, ...]:
        empty_result = self.empty(xp, x, regions, self.output_dim)
        if empty_result is not None:
            return (empty_result,)
        image, steps, bins = (
            unsqueeze(regions[:, 0].astype(np.int64), 0),
            [],
            (self.spatial_bins_y, self.spatial_bins_x),
        )
        for axis, (count, shifts, cells) in enumerate(zip(self.pooled_size(), self.shifts(xp, offsets), bins)):
            first = round_half_away(xp, regions[:, 2 - axis]) * self.spatial_scale - 0.5
            last = (round_half_away(xp, regions[:, 4 - axis]) + 1) * self.spatial_scale - 0.5
            extent = xp.maximum(last - first, MIN_SIDE)
            size = extent / count
            start = unsqueeze(first[:, None] + xp.arange(count, dtype=x.dtype) * size[:, None], 2 + axis)
            start = start + shifts * unsqueeze(extent, 0)
            steps.append((start, unsqueeze(size / cells, 0)))
        total, count = xp.zeros((len(regions), self.output_dim, *self.pooled_size()), x.dtype), 0
        for cell in np.ndindex(*bins):
            y, x_ = (start + n * size for n, (start, size) in zip(cell, steps))
            inside = (y >= -0.5) & (y <= x.shape[2] - 0.5) & (x_ >= -0.5) & (x_ <= x.shape[3] - 0.5)
            y, x_ = (xp.clip(v, 0, n - 1) for v, n in ((y, x.shape[2]), (x_, x.shape[3])))
            total = total + xp.where(inside, interpolate(xp, x, image, self.own_channels(xp), y, x_), 0)
            count = count + inside
        return ((total / xp.maximum(count, 1)).astype(x.dtype),)

    def kernel(self, k: KernelRecorder, inputs: Sequence[Any]) -> tuple[str, Sequence[Any], Sequence[Any]]:
        x, regions, *others = inputs
        offsets = others[0] if others else None
        classes = 1 if offsets is None else offsets.shape[1] // 2
        return (
            f"deformable_psroi<{k.c_type(x.dtype)}",
            (x, regions, offsets),
            (
                launch.real(self.spatial_scale, x),
                np.int32(self.spatial_bins_y),
                np.int32(self.spatial_bins_x),
                launch.real(self.trans_std, x),
                np.int32(self.part_size),
                np.int32(classes),
            ),
        )
