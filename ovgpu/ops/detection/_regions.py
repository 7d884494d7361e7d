"""Base of the ops that pool regions of interest: interpolation, shape inference, kernel launches."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base import launch
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.strided import THREADS, blocks
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.normalization.normalization import check_real
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import same, unknown


def values_at(xp: Adapter, x: Array, image: Array, channel: Array, row: Array, column: Array) -> Array:
    """Return the elements of x [N, C, H, W] at indices that broadcast; 0 where the image does not exist."""
    n, channels, height, width = x.shape
    exists = (image >= 0) & (image < n)
    index = ((xp.where(exists, image, 0) * channels + channel) * height + row) * width + column
    return xp.where(exists, xp.take(x.reshape(-1), index), 0)


def interpolate(xp: Adapter, x: Array, image: Array, channel: Array, y: Array, x_: Array) -> Array:
    """Return the bilinear interpolation of x [N, C, H, W] at points (y, x_) inside the image; NaN counts as 0."""
    last = x.shape[2] - 1, x.shape[3] - 1
    y, x_ = (xp.where(v == v, v, 0) for v in (y, x_))
    (top, left) = (xp.floor(v).astype(np.int64) for v in (y, x_))
    bottom, right = (xp.minimum(v + 1, n) for v, n in zip((top, left), last))
    dy, dx = y - top, x_ - left
    corners = [values_at(xp, x, image, channel, row, column) for row in (top, bottom) for column in (left, right)]
    upper, lower = (a + (b - a) * dx for a, b in (corners[:2], corners[2:]))
    return upper + (lower - upper) * dy


def round_half_away(xp: Adapter, x: Array) -> Array:
    """Round to the nearest integer, halves away from zero."""
    return xp.trunc(x + xp.copysign(0.5, x).astype(x.dtype))


def unsqueeze(x: Array, axis: int) -> Array:
    """Reshape [R] or [R, n] so that it broadcasts to [R, C, height, width], with n along ``axis``."""
    shape = [len(x), 1, 1, 1]
    if x.ndim > 1:
        shape[axis] = x.shape[1]
    return x.reshape(shape)


class Regions(Op):
    """Base: ``maps [N, C, H, W], regions [R, 4 or 5] ... -> [R, channels, height, width]``."""

    layout = "dense"
    columns: ClassVar[int] = 5
    """The number of values that describe a region."""

    def pooled_size(self) -> tuple[int, int]:
        """Return the output's height and width."""
        raise NotImplementedError

    def infer_specs(self, x: Spec, regions: Spec, *others: Spec) -> tuple[Spec, ...]:
        dtype = merge_types((x, regions))
        check_real(dtype)
        for spec, rank, what in ((x, 4, "feature maps"), (regions, 2, "regions")):
            if spec.rank not in (None, rank):
                raise OpError(f"the {what} must have rank {rank}, not {spec.rank}")
        if regions.shape is not None:
            same(regions.shape[1], self.columns, "a region has {0} numbers, not {1}")
        if min(self.pooled_size()) < 1:
            raise OpError(f"the pooled size is {self.pooled_size()[0]} x {self.pooled_size()[1]}")
        count = unknown() if regions.shape is None else regions.shape[0]
        return (Spec(dtype, (count, self.channels(x.shape), *self.pooled_size())),)

    def channels(self, shape: Shape) -> Any:
        """Return the number of output channels for maps of this shape. Raises OpError if they do not fit."""
        return unknown() if shape is None else shape[1]

    def empty(self, xp: Adapter, x: Array, regions: Array, channels: int) -> Array | None:
        """Return the result, zeros, if the maps or the output have no elements; else None."""
        shape = (len(regions), channels, *self.pooled_size())
        return None if x.size and prod(shape) else xp.zeros(shape, x.dtype)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out = inputs[0], outputs[0]
        if not launch.is_real(x) or not x.size or max(x.shape) > launch.MAX_INDEX:
            return NotImplemented
        if out.size:
            sizes = [np.int32(n) for n in (*x.shape, *out.shape[1:])]
            name, operands, scalars = self.kernel(k, inputs)
            k.kernel(
                "roi_pooling.cu",
                f"{name}>",
                blocks(out.size, THREADS),
                (THREADS,),
                (*operands, out, np.int64(out.size), *sizes, *scalars),
            )
        return None

    def kernel(self, k: KernelRecorder, inputs: Sequence[Any]) -> tuple[str, Sequence[Any], Sequence[Any]]:
        """Return the kernel's name up to the closing ``>``, its input arrays, and its last scalar arguments."""
        raise NotImplementedError


def check_sampling(ratio: int) -> None:
    """Raise OpError unless ``ratio`` is a count of sampling points per axis, or 0, which derives it from the region."""
    if not 0 <= ratio < 2**31:
        raise OpError(f"sampling_ratio {ratio} is negative or too large")


def check_scale(scale: float) -> None:
    """Raise OpError unless the scale of coordinates is positive and finite."""
    if not 0 < scale < np.inf:
        raise OpError(f"spatial_scale {scale} is not positive and finite")
