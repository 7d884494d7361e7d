"""Pooling of regions of interest: ROIPooling, ROIAlign, ROIAlignRotated, PSROIPooling, DeformablePSROIPooling.

Of an image that a region names and that there is not, it gets zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops import _axes
from ovgpu.ops._elementwise import merge_types
from ovgpu.ops._op import Array, Op, op
from ovgpu.ops._shapes import at_most, check_integers
from ovgpu.ops._strided import THREADS, blocks
from ovgpu.ops.indexing import readable
from ovgpu.ops.normalization import check_real
from ovgpu.symbolic import Shape, Spec, same, unknown


def taken(xp: Any, x: Array, image: Array, channel: Array, row: Array, column: Array) -> Array:
    """Elements of x [N, C, H, W] by numbers that broadcast; zeros for an image that there is not."""
    n, channels, height, width = x.shape
    there = (image >= 0) & (image < n)
    place = ((xp.where(there, image, 0) * channels + channel) * height + row) * width + column
    return xp.where(there, xp.take(x.reshape(-1), place), 0)


def interpolated(xp: Any, x: Array, image: Array, channel: Array, y: Array, x_: Array) -> Array:
    """Between four elements, at a point inside the image."""
    last = x.shape[2] - 1, x.shape[3] - 1
    (top, left) = (xp.floor(v).astype(np.int64) for v in (y, x_))
    bottom, right = (xp.minimum(v + 1, n) for v, n in zip((top, left), last))
    dy, dx = y - top, x_ - left
    corners = [taken(xp, x, image, channel, row, column) for row in (top, bottom) for column in (left, right)]
    upper, lower = (a + (b - a) * dx for a, b in (corners[:2], corners[2:]))
    return upper + (lower - upper) * dy


def rounded(xp: Any, x: Array) -> Array:
    """To the nearest integer, a half away from zero."""
    return xp.trunc(x + xp.copysign(0.5, x).astype(x.dtype))


def spread(x: Array, axis: int) -> Array:
    """[R] or [R, n] as it broadcasts to [R, C, height, width], with n along that axis."""
    shape = [len(x), 1, 1, 1]
    if x.ndim > 1:
        shape[axis] = x.shape[1]
    return x.reshape(shape)


class _Regions(Op):
    """Base: ``maps [N, C, H, W], regions [R, 4 or 5] ... -> [R, channels, height, width]``."""

    layout = "dense"
    columns: ClassVar[int] = 5
    """The numbers of a region."""

    def pooled(self) -> tuple[int, int]:
        """The output's height and width."""
        raise NotImplementedError

    def infer(self, x: Spec, regions: Spec, *others: Spec) -> tuple[Spec, ...]:
        kind = merge_types((x, regions))
        check_real(kind)
        for spec, rank, what in ((x, 4, "feature maps"), (regions, 2, "regions")):
            if spec.rank not in (None, rank):
                raise OpError(f"the {what} must have rank {rank}, not {spec.rank}")
        if regions.shape is not None:
            same(regions.shape[1], self.columns, "a region has {0} numbers, not {1}")
        if min(self.pooled()) < 1:
            raise OpError(f"the pooled size is {self.pooled()[0]} x {self.pooled()[1]}")
        count = unknown() if regions.shape is None else regions.shape[0]
        return (Spec(kind, (count, self.channels(x.shape), *self.pooled())),)

    def channels(self, shape: Shape) -> Any:
        """How many channels the output has, for maps of that shape."""
        return unknown() if shape is None else shape[1]

    def empty(self, xp: Any, x: Array, regions: Array, channels: int) -> Array | None:
        """The result where there is nothing to compute it from."""
        shape = (len(regions), channels, *self.pooled())
        return None if x.size and prod(shape) else xp.zeros(shape, x.dtype)

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        x, out = inputs[0], outputs[0]
        if not _axes.is_real(x) or not x.size or max(x.shape) > _axes.MAX_INDEX:
            return NotImplemented
        if out.size:
            sizes = [np.int32(n) for n in (*x.shape, *out.shape[1:])]
            name, operands, numbers = self.kernel(k, inputs)
            k.kernel("roi_pooling.cu", f"{name}>", blocks(out.size, THREADS), (THREADS,),
                     (*operands, out, np.int64(out.size), *sizes, *numbers))
        return None

    def kernel(self, k: Any, inputs: Sequence[Any]) -> tuple[str, Sequence[Any], Sequence[Any]]:
        """The beginning of the kernel's name, its operands, and its last arguments."""
        raise NotImplementedError


def check_scale(scale: float) -> None:
    """OpError unless the scale of coordinates is positive."""
    if not scale > 0:
        raise OpError(f"spatial_scale {scale} is not positive")


@op("ROIPooling", "opset2")
class ROIPooling(_Regions):
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
                (_axes.real(self.spatial_scale, x), np.bool_(self.method == "bilinear")))


class _Aligned(_Regions):
    """Base: the mean or the maximum of points at even distances in each part of a region. One farther than 1 from the
    image gives 0."""

    pooled_h: int
    pooled_w: int
    sampling_ratio: int
    spatial_scale: float

    rotated: ClassVar[bool]

    def pooled(self) -> tuple[int, int]:
        return self.pooled_h, self.pooled_w

    def infer(self, x: Spec, regions: Spec, *others: Spec) -> tuple[Spec, ...]:
        (images,) = others
        check_scale(self.spatial_scale)
        if self.sampling_ratio < 0:
            raise OpError(f"sampling_ratio {self.sampling_ratio} is negative")
        check_integers(images, "the numbers of the images")
        if images.shape is not None and regions.shape is not None:
            same(images.shape[0], regions.shape[0], "{0} numbers of images are given for {1} regions")
        return super().infer(x, regions)

    def boxes(self, xp: Any, regions: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Where regions begin, before they are rotated, and their heights and widths; y comes before x."""
        raise NotImplementedError

    def placed(self, xp: Any, regions: Array, y: Array, x: Array) -> tuple[Array, Array]:
        """Where points of regions lie in the image."""
        return y, x

    def is_maximum(self) -> bool:
        return False

    def evaluate(self, xp: Any, x: Array, regions: Array, images: Array) -> tuple[Array, ...]:
        nothing = self.empty(xp, x, regions, x.shape[1])
        if nothing is not None:
            return (nothing,)
        image, channel = spread(images.astype(np.int64), 0), xp.arange(x.shape[1]).reshape(1, -1, 1, 1)
        starts, extents = self.boxes(xp, regions)
        bins = [extent / count for extent, count in zip(extents, self.pooled())]
        ratios = [xp.maximum(xp.ceil(b), 0).astype(np.int64) if self.sampling_ratio == 0
                  else xp.full(b.shape, self.sampling_ratio) for b in bins]
        most = [int(r.max()) for r in ratios]
        total = xp.zeros((len(regions), x.shape[1], *self.pooled()), x.dtype)
        for i, j in np.ndindex(*most):
            points = []
            for axis, (first, count, b, ratio, n) in enumerate(zip(starts, self.pooled(), bins, ratios, (i, j))):
                within = b / xp.maximum(ratio, 1).astype(x.dtype) * (n + 0.5)
                part = xp.arange(count, dtype=x.dtype)
                points.append(spread(first[:, None] + part * b[:, None] + within[:, None], 2 + axis))
            y, x_ = self.placed(xp, regions, *points)
            inside = (y >= -1) & (y <= x.shape[2]) & (x_ >= -1) & (x_ <= x.shape[3])
            used = spread((i < ratios[0]) & (j < ratios[1]), 0)
            y, x_ = (xp.clip(v, 0, n - 1) for v, n in ((y, x.shape[2]), (x_, x.shape[3])))
            value = xp.where(inside & used, interpolated(xp, x, image, channel, y, x_), 0)
            total = xp.maximum(total, value) if self.is_maximum() else total + value
        if not self.is_maximum():
            total = total / spread(xp.maximum(ratios[0] * ratios[1], 1), 0)
        return (total.astype(x.dtype),)

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        x, regions, images = inputs
        images = readable(k, images)
        if images is NotImplemented:
            return NotImplemented
        return super().cuda(k, [x, regions, images], outputs, workspace)

    def kernel(self, k: Any, inputs: Sequence[Any]) -> tuple[str, Sequence[Any], Sequence[Any]]:
        x, _, images = inputs
        name = f"roi_align<{k.c_type(x.dtype)}, {k.c_type(images.dtype)}, {str(self.rotated).lower()}"
        return name, inputs, (np.int32(self.sampling_ratio), _axes.real(self.spatial_scale, x),
                              *(_axes.real(v, x) for v in self.shifts()), np.bool_(self.flag()))

    def shifts(self) -> tuple[float, float]:
        """What is added to coordinates before and after they are scaled."""
        return 0.0, -0.5

    def flag(self) -> bool:
        """The last argument of the kernel."""
        raise NotImplementedError


@op("ROIAlign", "opset3")
class ROIAlign(_Aligned):
    """``maps [N, C, H, W], regions [R, (x1, y1, x2, y2)], images [R] -> [R, C, pooled_h, pooled_w]``.

    Regions have sides of 1 at least. The maximum is 0 at least, as with OpenVINO.
    """

    mode: Literal["avg", "max"]

    columns = 4
    rotated = False

    def is_maximum(self) -> bool:
        return self.mode == "max"

    def shifts(self) -> tuple[float, float]:
        return 0.0, 0.0

    def boxes(self, xp: Any, regions: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        before, after = self.shifts()
        x1, y1, x2, y2 = ((regions[:, i] + before) * self.spatial_scale + after for i in range(4))
        height, width = y2 - y1, x2 - x1
        if after == 0:
            height, width = xp.maximum(height, 1), xp.maximum(width, 1)
        return (y1, x1), (height, width)

    def flag(self) -> bool:
        return self.is_maximum()


@op("ROIAlign", "opset9")
class ROIAlign9(ROIAlign):
    """ROIAlign-3; with an ``aligned_mode`` other than asymmetric, pixels have their centres between integers, and
    regions any sides."""

    aligned_mode: Literal["asymmetric", "half_pixel_for_nn", "half_pixel"] = "asymmetric"

    def shifts(self) -> tuple[float, float]:
        if self.aligned_mode == "asymmetric":
            return super().shifts()
        return 0.5 if self.aligned_mode == "half_pixel" else 0.0, -0.5


@op("ROIAlignRotated", "opset15")
class ROIAlignRotated(_Aligned):
    """``maps [N, C, H, W], regions [R, (x, y, width, height, angle)], images [R] -> [R, C, pooled_h, pooled_w]``.

    The mean of points in each part of regions, given by their centres and turned by the angle.
    """

    clockwise_mode: bool = False

    rotated = True

    def boxes(self, xp: Any, regions: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        width, height = (regions[:, i] * self.spatial_scale for i in (2, 3))
        return (height * -0.5, width * -0.5), (height, width)

    def placed(self, xp: Any, regions: Array, y: Array, x: Array) -> tuple[Array, Array]:
        center_x, center_y = (spread(regions[:, i] * self.spatial_scale - 0.5, 0) for i in (0, 1))
        angle = -regions[:, 4] if self.clockwise_mode else regions[:, 4]
        cos, sin = spread(xp.cos(angle), 0), spread(xp.sin(angle), 0)
        return y * cos - x * sin + center_y, y * sin + x * cos + center_x

    def flag(self) -> bool:
        return self.clockwise_mode


class _PositionSensitive(_Regions):
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
                (_axes.real(self.spatial_scale, x),
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
                at_most(1, classes, "the offsets have no channels")
                same(self.output_dim % classes, 0, f"{self.output_dim} channels have offsets that do not come out even")
                for extent in offsets.shape[2:]:
                    same(extent, self.part_size, "the offsets have {0} parts along an axis, part_size is {1}")
        return super().infer(x, regions)

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
                (_axes.real(self.spatial_scale, x), np.int32(self.spatial_bins_y), np.int32(self.spatial_bins_x),
                 _axes.real(self.trans_std, x), np.int32(self.part_size), np.int32(classes)))
