"""GridSample: images sampled at the positions of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as pairs
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.launch import MAX_INDEX
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import unknowns
from ovgpu.ops.base.storage import decode, is_plain
from ovgpu.ops.base.strided import THREADS, bits
from ovgpu.ops.base.xp import NUMPY, Adapter
from ovgpu.ops.image._resample_cuda import grid_of
from ovgpu.ops.image._resampling import limits
from ovgpu.spec import Spec
from ovgpu.symbolic import product, same
from ovgpu.types import Type

MAX_COORDINATE = 2.0**30  # coordinates are clamped to it before they become integers
CUBIC_COEFF = -0.75  # parameter of the cubic convolution (Keys 1981)
PADDINGS = ("zeros", "border", "reflection")  # in the order of enum Padding in grid_sample.cu


@op("GridSample", "opset9", "image/grid-sample-9")
class GridSample(Op):
    """``data [n, c, h, w], grid [n, y, x, 2] -> [n, c, y, x]``, where the grid holds (column, row) from -1 to 1.

    With ``align_corners``, -1 and 1 are the centres of the first and last elements, else their outer edges. Integers
    of 8 bits are rounded, wider ones truncated, as in OpenVINO's CPU plugin.

    >>> grid_sample([[[[1.0, 2, 4]]]], [[[[-1.0, 0], [0.5, 0]]]], attributes={"align_corners": True})
    [[[[1.0, 3.0]]]]
    """

    align_corners: bool = False
    mode: Literal["bilinear", "bicubic", "nearest"] = "bilinear"
    padding_mode: Literal["zeros", "border", "reflection"] = "zeros"

    layout = "dense"

    def infer_specs(self, x: Spec, grid: Spec) -> tuple[Spec, ...]:
        if x.type in (Type.boolean, Type.string):
            raise OpError(f"element type {x.type.get_type_name()} is no number")
        if not (grid.type.is_real() or grid.type.is_dynamic()):
            raise OpError(f"the grid must have floating-point numbers, not {grid.type.get_type_name()}")
        for spec, what in ((x, "the data"), (grid, "the grid")):
            if spec.rank not in (None, 4):
                raise OpError(f"{what} must have rank 4, not {spec.rank}")
        n, channels, *_ = x.shape or unknowns(4) or ()
        images, rows, columns, pair = grid.shape or unknowns(4) or ()
        if grid.shape is not None:
            same(pair, 2, "the grid's last dim is {0} instead of {1}")
            n = same(n, images, "the data has {0} images, the grid {1}") if x.shape is not None else images
        return (Spec(x.type, (n, channels, rows, columns)),)

    def evaluate(self, xp: Adapter, x: Array, grid: Array) -> tuple[Array, ...]:
        n, channels, height, width = x.shape
        shape = (n, channels, *grid.shape[1:3])
        if not x.size:
            return (xp.zeros(shape, x.dtype),)
        images = xp.arange(n).reshape(n, 1, 1)
        rows, columns = (self.taps(xp, grid[..., i], extent) for i, extent in ((1, height), (0, width)))
        pixels = x.transpose(0, 2, 3, 1)
        total = 0
        for (i, row_weight, row_inside), (j, column_weight, column_inside) in pairs(rows, columns):
            values = xp.where((row_inside & column_inside)[..., None], pixels[images, i, j], x.dtype.type(0))
            if self.mode == "nearest":
                return (values.transpose(0, 3, 1, 2),)
            real = x.dtype if x.dtype.kind == "f" else np.dtype(np.float32)
            total = total + (row_weight * column_weight).astype(real)[..., None] * values
        return (self.rounded(xp, total, x.dtype).transpose(0, 3, 1, 2),)

    def taps(self, xp: Adapter, at: Array, extent: int) -> list[tuple[Array, Array, Array]]:
        """Return (index, weight, mask of positions inside the data) of each tap along one axis, at the grid's
        coordinates ``at``."""
        at = (at + 1) * (extent - 1) / 2 if self.align_corners else ((at + 1) * extent - 1) / 2
        if self.mode == "nearest":
            tap_index, inside = self.padded(xp, _clamped(xp, xp.rint(at)), extent)
            return [(tap_index, None, inside)]
        below = xp.floor(at)
        t = at - below
        u = 1 - t
        weights = (
            [u, t]
            if self.mode == "bilinear"
            else [
                CUBIC_COEFF * u * u * t,
                ((CUBIC_COEFF + 2) * t - (CUBIC_COEFF + 3)) * t * t + 1,
                ((CUBIC_COEFF + 2) * u - (CUBIC_COEFF + 3)) * u * u + 1,
                CUBIC_COEFF * t * t * u,
            ]
        )
        first = _clamped(xp, below) - (self.mode == "bicubic")
        padded = [self.padded(xp, first + p, extent) for p in range(len(weights))]
        return [(tap_index, weight, inside) for (tap_index, inside), weight in zip(padded, weights)]

    def padded(self, xp: Adapter, tap_index: Array, extent: int) -> tuple[Array, Array]:
        """Return the indices to read by ``padding_mode``, and a mask that is false where 0 is read instead."""
        if self.padding_mode == "reflection":
            last = extent - self.align_corners
            tap_index = tap_index % max(2 * last, 1)
            tap_index = xp.where(tap_index < extent, tap_index, 2 * last - tap_index - (not self.align_corners))
        inside = (
            (tap_index >= 0) & (tap_index < extent) if self.padding_mode == "zeros" else xp.ones(tap_index.shape, bool)
        )
        return xp.clip(tap_index, 0, extent - 1), inside

    def rounded(self, xp: Adapter, x: Array, dtype: np.dtype[Any]) -> Array:
        """Return floats converted to elements of type ``dtype``."""
        if dtype.kind == "f":
            return x
        return xp.clip(xp.rint(x) if dtype.itemsize == 1 else xp.trunc(x), *limits(dtype)).astype(dtype)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Return scratch for NumPy: the values that one tap reads for an image."""
        assert outputs[0].shape is not None
        return ((outputs[0].type, (product(outputs[0].shape[1:]),)),)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, grid), out = inputs, outputs[0]
        if not x.size or not out.size or x.dtype not in (np.float32, np.float64) or grid.dtype.name == "bfloat16":
            return NotImplemented
        k(self.sample, x, grid, out, workspace[0])
        return None

    def sample(self, x: Any, grid: Any, out: Any, buffer: Any) -> None:
        """Compute `evaluate` image by image, in the memory order of data and output; ``buffer`` is scratch."""
        n, channels, height, width = x.shape
        rows, columns = (self.taps(NUMPY, decode(grid[..., i]), extent) for i, extent in ((1, height), (0, width)))
        for image in range(n):
            pixels, target = x[image].reshape(channels, -1), out[image].reshape(channels, -1)
            for tap, ((i, row_weight, row_inside), (j, column_weight, column_inside)) in enumerate(
                pairs(rows, columns)
            ):
                values = buffer.reshape(target.shape) if tap else target
                np.take(pixels, (i[image] * width + j[image]).reshape(-1), 1, values, "clip")
                if self.padding_mode == "zeros":
                    np.copyto(values, 0, where=~(row_inside & column_inside)[image].reshape(-1))
                if row_weight is not None:
                    np.multiply(values, (row_weight * column_weight)[image].reshape(-1), values)
                if tap:
                    np.add(target, values, target)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, grid), out = inputs, outputs[0]
        n, channels, height, width = x.shape
        points = out.shape[2] * out.shape[3]
        moved = self.mode == "nearest"
        fits = max(n * points, height * width) <= MAX_INDEX - THREADS
        if not x.size or not is_plain(grid.dtype) or not (moved or is_plain(x.dtype)) or not fits:
            return NotImplemented
        if not out.size:
            return None
        types = f"{bits(x.dtype.itemsize) if moved else k.c_type(x.dtype)}, {k.c_type(grid.dtype)}"
        function = f"sample_nearest<{types}>" if moved else f"sample<{types}, {2 if self.mode == 'bilinear' else 4}>"
        numbers = (n * points, points, channels, height, width, PADDINGS.index(self.padding_mode))
        k.kernel(
            "grid_sample.cu",
            function,
            grid_of(k.multiprocessors, n * points, channels),
            (THREADS,),
            (x, grid, out, *map(np.int32, numbers), np.bool_(self.align_corners)),
        )
        return None


def _clamped(xp: Adapter, at: Array) -> Array:
    """Return coordinates as integers, clamped to plus or minus ``MAX_COORDINATE``."""
    return xp.fmin(xp.fmax(at, -MAX_COORDINATE), MAX_COORDINATE).astype(np.int64)
