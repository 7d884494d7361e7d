"""Region pooling by points at equal distances: ROIAlign (He et al. 2017), ROIAlignRotated.

A region of a nonexistent image gives zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from ovgpu.ops.base import launch
from ovgpu.ops.base.op import Array, Arrays, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import check_count, check_integers
from ovgpu.ops.base.xp import NUMPY, Adapter
from ovgpu.ops.detection._regions import Regions, check_sampling, check_scale, interpolate, unsqueeze
from ovgpu.ops.movement.indices import readable
from ovgpu.ops.reduction import is_float
from ovgpu.spec import Spec
from ovgpu.symbolic import same


class _Aligned(Regions):
    """Base: the mean or the maximum of interpolated points at equal distances in each bin of a region. A point farther
    than 1 from the image counts as 0."""

    pooled_h: int
    pooled_w: int
    sampling_ratio: int
    spatial_scale: float

    rotated: ClassVar[bool]

    def pooled_size(self) -> tuple[int, int]:
        return self.pooled_h, self.pooled_w

    def infer_specs(self, x: Spec, regions: Spec, *others: Spec) -> tuple[Spec, ...]:
        check_count(2 + len(others), 3)
        (images,) = others
        check_scale(self.spatial_scale)
        check_sampling(self.sampling_ratio)
        check_integers(images, "the numbers of the images")
        specs = super().infer_specs(x, regions)
        if images.shape is not None and regions.shape is not None:
            same(images.shape[0], regions.shape[0], "{0} numbers of images are given for {1} regions")
        return specs

    def boxes(self, xp: Adapter, regions: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Return the starts (y, x) of the regions, before rotation, and their extents (height, width), [R] each."""
        raise NotImplementedError

    def image_coordinates(self, xp: Adapter, regions: Array, y: Array, x: Array) -> tuple[Array, Array]:
        """Return the image coordinates (y, x) of points of the regions."""
        return y, x

    def ratio(self, xp: Adapter, size: Array) -> Array:
        """Return the number of points along bins of these sizes."""
        if self.sampling_ratio:
            return xp.full(size.shape, self.sampling_ratio)
        return xp.maximum(xp.ceil(xp.where(xp.isfinite(size), size, 0)), 0).astype(np.int64)

    def is_maximum(self) -> bool:
        return False

    def evaluate(self, xp: Adapter, x: Array, regions: Array, images: Array) -> tuple[Array, ...]:
        empty_result = self.empty(xp, x, regions, x.shape[1])
        if empty_result is not None:
            return (empty_result,)
        image, channel = unsqueeze(images.astype(np.int64), 0), xp.arange(x.shape[1]).reshape(1, -1, 1, 1)
        starts, extents = self.boxes(xp, regions)
        bins = [extent / count for extent, count in zip(extents, self.pooled_size())]
        ratios = [self.ratio(xp, b) for b in bins]
        most = [int(r.max()) for r in ratios]
        total = xp.zeros((len(regions), x.shape[1], *self.pooled_size()), x.dtype)
        for i, j in np.ndindex(*most):
            points = []
            for axis, (first, count, b, ratio, n) in enumerate(zip(starts, self.pooled_size(), bins, ratios, (i, j))):
                within = b / xp.maximum(ratio, 1).astype(x.dtype) * (n + 0.5)
                part = xp.arange(count, dtype=x.dtype)
                points.append(unsqueeze(first[:, None] + part * b[:, None] + within[:, None], 2 + axis))
            y, x_ = self.image_coordinates(xp, regions, *points)
            inside = (y >= -1) & (y <= x.shape[2]) & (x_ >= -1) & (x_ <= x.shape[3])
            used = unsqueeze((i < ratios[0]) & (j < ratios[1]), 0)
            y, x_ = (xp.clip(v, 0, n - 1) for v, n in ((y, x.shape[2]), (x_, x.shape[3])))
            value = xp.where(inside & used, interpolate(xp, x, image, channel, y, x_), 0)
            total = xp.maximum(total, value) if self.is_maximum() else total + value
        if not self.is_maximum():
            total = total / unsqueeze(xp.maximum(ratios[0] * ratios[1], 1), 0)
        return (total.astype(x.dtype),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, regions, images = inputs
        images = readable(k, images)
        if images is NotImplemented:
            return NotImplemented
        return super().cuda(k, [x, regions, images], outputs, workspace)

    def kernel(self, k: KernelRecorder, inputs: Sequence[Any]) -> tuple[str, Sequence[Any], Sequence[Any]]:
        x, _, images = inputs
        name = f"roi_align<{k.c_type(x.dtype)}, {k.c_type(images.dtype)}, {str(self.rotated).lower()}"
        return (
            name,
            inputs,
            (
                np.int32(self.sampling_ratio),
                launch.real(self.spatial_scale, x),
                *(launch.real(v, x) for v in self.shifts()),
                np.bool_(self.kernel_flag()),
            ),
        )

    def shifts(self) -> tuple[float, float]:
        """Return the summands of coordinates before and after scaling."""
        return 0.0, -0.5

    def kernel_flag(self) -> bool:
        """Return the last argument of the kernel: True for the maximum, or for clockwise angles if rotated."""
        raise NotImplementedError


@op("ROIAlign", "opset3", "detection/roi-align-3")
class ROIAlign(_Aligned):
    """``maps [N, C, H, W], regions [R, (x1, y1, x2, y2)], images [R] -> [R, C, pooled_h, pooled_w]``.

    The sides of regions are at least 1. The maximum is at least 0, as in OpenVINO.
    """

    mode: Literal["avg", "max"]

    columns = 4
    rotated = False

    def is_maximum(self) -> bool:
        return self.mode == "max"

    def shifts(self) -> tuple[float, float]:
        return 0.0, 0.0

    def boxes(self, xp: Adapter, regions: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        before, after = self.shifts()
        x1, y1, x2, y2 = ((regions[:, i] + before) * self.spatial_scale + after for i in range(4))
        height, width = y2 - y1, x2 - x1
        if after == 0:
            height, width = xp.maximum(height, 1), xp.maximum(width, 1)
        return (y1, x1), (height, width)

    def kernel_flag(self) -> bool:
        return self.is_maximum()

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        if self.is_maximum() or not is_float(inputs[0].dtype) or not inputs[0].size:
            return NotImplemented
        k(self.average, *inputs, outputs[0])
        return None

    def average(self, x: Array, regions: Array, images: Array, out: Sequence[Array]) -> None:
        """Write the means to ``out``, computed as products of the maps with two matrices of weights per region."""
        starts, extents = self.boxes(NUMPY, regions)
        down, across = (self.weights(*bins) for bins in zip(starts, extents, self.pooled_size(), x.shape[2:]))
        for i, image in enumerate(images.astype(np.int64)):
            rows, columns = (np.flatnonzero(w[i].any(axis=0)) for w in (down, across))
            if not (0 <= image < len(x) and rows.size and columns.size):
                out[i][...] = 0
                continue
            (top, bottom), (left, right) = ((n[0], n[-1] + 1) for n in (rows, columns))
            part = x[image, :, top:bottom, left:right].transpose(1, 0, 2)
            lines = np.matmul(part.reshape(-1, right - left), across[i, :, left:right].T)
            pooled = np.matmul(down[i, :, top:bottom], lines.reshape(bottom - top, -1))
            np.copyto(out[i], pooled.reshape(self.pooled_h, -1, self.pooled_w).transpose(1, 0, 2))

    def weights(self, start: Array, extent: Array, count: int, length: int) -> Array:
        """Return the weights [R, count, length] of the elements of an axis in each of ``count`` bins of each region."""
        size, dtype = extent / count, extent.dtype
        ratio = self.ratio(NUMPY, size)
        divisor = np.maximum(ratio, 1).astype(dtype)[:, None, None]
        part, point = np.arange(count, dtype=dtype)[:, None], np.arange(ratio.max(initial=0), dtype=dtype)
        size = size[:, None, None]
        at = start[:, None, None] + part * size + size / divisor * (point + 0.5)
        used = (point < ratio[:, None, None]) & (at >= -1) & (at <= length)
        at = np.where(used, np.clip(at, 0, length - 1), 0)  # coordinates may be NaN
        low = np.floor(at)
        weights = np.zeros((len(start), count, length), dtype)
        index = low.astype(np.int64) + np.arange(0, weights.size, length).reshape(len(start), count, 1)
        np.add.at(weights.reshape(-1), index, np.where(used, 1 - (at - low), 0))
        np.add.at(weights.reshape(-1), index + (low < length - 1), np.where(used, at - low, 0))
        return weights / divisor


@op("ROIAlign", "opset9", "detection/roi-align-9")
class ROIAlign9(ROIAlign):
    """ROIAlign-3 with ``aligned_mode``: except for asymmetric, pixel centres lie halfway between integers, and the
    sides of regions have no lower bound.

    >>> roi_align([[[[1.0, 2], [3, 4]]]], [[0.0, 0, 2, 2]], [0], pooled_h=1, pooled_w=1, sampling_ratio=1,
    ...           spatial_scale=1.0, mode="avg", aligned_mode="half_pixel_for_nn")
    [[[[2.5]]]]
    """

    aligned_mode: Literal["asymmetric", "half_pixel_for_nn", "half_pixel"] = "asymmetric"

    def shifts(self) -> tuple[float, float]:
        if self.aligned_mode == "asymmetric":
            return super().shifts()
        return 0.5 if self.aligned_mode == "half_pixel" else 0.0, -0.5


@op("ROIAlignRotated", "opset15", "detection/roi-align-rotated-15")
class ROIAlignRotated(_Aligned):
    """``maps [N, C, H, W], regions [R, (x, y, width, height, angle)], images [R] -> [R, C, pooled_h, pooled_w]``.

    The mean of points in each bin of the rotated regions. The angle is in radians.

    >>> roi_align_rotated([[[[1.0, 2], [3, 4]]]], [[1.0, 1, 2, 2, 3.1416]], [0], pooled_h=2, pooled_w=2,
    ...                   sampling_ratio=1, spatial_scale=1.0, clockwise_mode=True)
    [[[[4.0, 3.0], [2.0, 1.0]]]]
    """

    clockwise_mode: bool = False

    rotated = True

    def boxes(self, xp: Adapter, regions: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        width, height = (regions[:, i] * self.spatial_scale for i in (2, 3))
        return (height * -0.5, width * -0.5), (height, width)

    def image_coordinates(self, xp: Adapter, regions: Array, y: Array, x: Array) -> tuple[Array, Array]:
        center_x, center_y = (unsqueeze(regions[:, i] * self.spatial_scale - 0.5, 0) for i in (0, 1))
        angle = -regions[:, 4] if self.clockwise_mode else regions[:, 4]
        cos, sin = unsqueeze(xp.cos(angle), 0), unsqueeze(xp.sin(angle), 0)
        return y * cos - x * sin + center_y, y * sin + x * cos + center_x

    def kernel_flag(self) -> bool:
        return self.clockwise_mode
