"""What pooling of regions of interest shares: points between elements, shapes, launches."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base import launch
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Op
from ovgpu.ops.base.strided import THREADS, blocks
from ovgpu.ops.normalization.normalization import check_real
from ovgpu.symbolic import Shape, Spec, same, unknown


def taken(xp: Any, x: Array, image: Array, channel: Array, row: Array, column: Array) -> Array:
    """Elements of x [N, C, H, W] by numbers that broadcast; zeros for an image that there is not."""
    n, channels, height, width = x.shape
    there = (image >= 0) & (image < n)
    place = ((xp.where(there, image, 0) * channels + channel) * height + row) * width + column
    return xp.where(there, xp.take(x.reshape(-1), place), 0)


def interpolated(xp: Any, x: Array, image: Array, channel: Array, y: Array, x_: Array) -> Array:
    """Between four elements, at a point inside the image. One that is not a number stands for the first."""
    last = x.shape[2] - 1, x.shape[3] - 1
    y, x_ = (xp.where(v == v, v, 0) for v in (y, x_))
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


class Regions(Op):
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
        if not launch.is_real(x) or not x.size or max(x.shape) > launch.MAX_INDEX:
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


def check_sampling(ratio: int) -> None:
    """OpError unless it can be the number of points along an axis of a part; 0 stands for one that regions tell."""
    if not 0 <= ratio < 2**31:
        raise OpError(f"sampling_ratio {ratio} is negative or too large")


def check_scale(scale: float) -> None:
    """OpError unless the scale of coordinates is positive and finite."""
    if not 0 < scale < np.inf:
        raise OpError(f"spatial_scale {scale} is not positive and finite")
