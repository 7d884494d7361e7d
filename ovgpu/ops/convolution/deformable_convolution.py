"""DeformableConvolution: offsets move the positions that a convolution reads."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.launch import dense
from ovgpu.ops.base.op import Array, Arrays, Workspace, op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.shapes import unknowns
from ovgpu.ops.base.windows import Windowed, check_number
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.convert import Convert
from ovgpu.ops.convolution._convolution import COLUMN_ELEMENTS, converted, convolve_deformed, shortened
from ovgpu.ops.convolution._convolved import Convolved
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, maximum, minimum, product, same
from ovgpu.types import Type


@op("DeformableConvolution", "opset1", "convolution/deformable-convolution-1")
class DeformableConvolution(Windowed):
    """``x [N, G C, Y, X], offsets [N, D taps 2, ...], kernel [G O, C, ...] -> [N, G O, ...]``: a Convolution in G
    groups. For each pixel and tap, an offset (y, x) moves the position that is read.

    D groups of channels have separate offsets. Values between pixels are interpolated bilinearly. Outside of the data
    they are 0, but positions less than a pixel behind the last pixel read that pixel.
    """

    group: int = 1
    deformable_group: int = 1

    layout = "blas"
    strided_outputs = True
    axes = (2,)
    interpolates_padding = False
    """True if values fade to 0 over one pixel around the data."""

    def infer_specs(self, x: Spec, offsets: Spec, kernel: Spec, mask: Spec | None = None) -> tuple[Spec, ...]:
        operands = [s for s in (x, offsets, kernel, mask) if s is not None]
        dtype = merge_types(operands)
        check_number(dtype)
        for name in ("group", "deformable_group"):
            if getattr(self, name) < 1:
                raise OpError(f"attribute '{name}': {getattr(self, name)} is less than 1")
        self.spatial(x, kernel)
        batch, channels, *sizes = x.shape or unknowns(4) or ()
        outputs, kernel_channels, *extents = kernel.shape or unknowns(4) or ()
        self.divide(outputs, "group", "outputs")
        self.divide(channels, "deformable_group", "channels")
        same(channels, kernel_channels * self.group, "the data has {0} channels, the kernel takes {1}")
        out_extents = self.extents(sizes, extents)
        for spec, each, what in ((offsets, 2, "offsets"), (mask, 1, "mask")):
            if spec is None or spec.shape is None:
                continue
            if len(spec.shape) != 4:
                raise OpError(f"{what} must have rank 4, not {len(spec.shape)}")
            expected = (batch, product(extents) * each * self.deformable_group, *out_extents)
            for axis, (dim, extent) in enumerate(zip(spec.shape, expected)):
                same(dim, extent, f"{what} have {{0}} instead of {{1}} along axis {axis}")
        return (Spec(dtype, (batch, outputs, *out_extents)),)

    def divide(self, count: Int, name: str, what: str) -> None:
        """Raise OpError, now or when the model runs, unless the attribute ``name`` divides ``count``."""
        parts = getattr(self, name)
        same(count // parts * parts, count, f"{{1}} {what} do not divide into '{name}' {parts}")

    def evaluate(
        self, xp: Adapter, x: Array, offsets: Array, kernel: Array, mask: Array | None = None
    ) -> tuple[Array, ...]:
        dtype = x.dtype
        sums = np.dtype(np.float64 if dtype == np.float64 else np.float32)
        x, offsets, kernel = (a.astype(sums) for a in (x, offsets, kernel))
        batch, channels, *sizes = x.shape
        outputs, kernel_channels, *extents = kernel.shape
        out_extents = self.extents(sizes, extents)
        begin, _ = self.pads(sizes, extents)
        strides, dilations = (self.per_axis(name, 2, 1) for name in ("strides", "dilations"))
        pixels, deformed, groups = prod(out_extents), self.deformable_group, self.group
        data = x.reshape(batch, deformed, channels // deformed, prod(sizes))
        offsets = offsets.reshape(batch, deformed, prod(extents), 2, *out_extents)
        masks = None if mask is None else mask.astype(sums).reshape(batch, deformed, prod(extents), 1, pixels)
        weights = kernel.reshape(groups, outputs // groups, kernel_channels, prod(extents))
        out = xp.zeros((batch, groups, outputs // groups, pixels), sums)
        for tap, at in enumerate(np.ndindex(*extents)):
            rows, columns = (
                xp.arange(n) * s + (t * d - b) for n, s, t, d, b in zip(out_extents, strides, at, dilations, begin)
            )
            y = (rows.astype(sums)[:, None] + offsets[:, :, tap, 0]).reshape(batch, deformed, 1, pixels)
            z = (columns.astype(sums) + offsets[:, :, tap, 1]).reshape(batch, deformed, 1, pixels)
            values = self.sample(xp, data, sizes, y, z)
            if masks is not None:
                values = values * masks[:, :, tap]
            out += xp.matmul(weights[..., tap], values.reshape(batch, groups, kernel_channels, pixels))
        return (out.reshape(batch, outputs, *out_extents).astype(dtype),)

    def sample(self, xp: Adapter, x: Array, sizes: Sequence[int], y: Array, z: Array) -> Array:
        """Interpolate the data [N, D, C, Y X] at the coordinates (y, z) [N, D, 1, pixels]: [N, D, C, pixels]."""
        lowest = -1 if self.interpolates_padding else 0
        inside = (y < sizes[0]) & (z < sizes[1])
        inside &= (y > lowest) & (z > lowest) if self.interpolates_padding else (y >= lowest) & (z >= lowest)
        y, z = xp.where(inside, y, 0), xp.where(inside, z, 0)
        low = [xp.floor(y), xp.floor(z)]
        parts = [y - low[0], z - low[1]]
        total = 0
        for up in np.ndindex(2, 2):
            weight, index, exists = inside.astype(x.dtype), 0, True
            for i in (0, 1):
                at = low[i].astype(np.int64) + up[i]
                weight = weight * (parts[i] if up[i] else 1 - parts[i])
                if self.interpolates_padding:
                    exists = exists & (at >= 0) & (at < sizes[i])
                index = index * sizes[i] + xp.clip(at, 0, sizes[i] - 1)
            total = total + xp.where(exists, weight, 0) * xp.take_along_axis(x, index, axis=3)
        return total

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        x, kernel, out = inputs[0], inputs[2], outputs[0]
        assert x is not None and x.shape and kernel is not None and kernel.shape and out.shape
        columns = product(out.shape[2:]) * x.shape[1] * product(kernel.shape[2:])
        sums = out.type if out.type == Type.f64 else Type.f32
        return ((sums, (minimum(x.shape[0] * columns, maximum(columns, COLUMN_ELEMENTS)),)),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        operands, out = inputs, outputs[0]
        if out.dtype.kind in "iu" or out.dtype.itemsize == 1:
            return NotImplemented
        if out.dtype.itemsize == 2:  # interpolated values are not rounded before they are summed
            operands = [None if a is None else converted(k, a, workspace[0].dtype) for a in inputs]
            out = k.scratch(out.shape, workspace[0].dtype)
        x, offsets, kernel, mask = (*operands, None)[:4]
        strides = shortened(self.per_axis("strides", 2, 1), out.shape[2:])
        dilations = shortened(self.per_axis("dilations", 2, 1), kernel.shape[2:])
        begin, _ = self.pads(x.shape[2:], kernel.shape[2:])
        weights = dense(k, kernel).reshape(self.group, -1, *kernel.shape[1:])
        done = convolve_deformed(
            k,
            Convolved(x, weights, out, strides, dilations, begin),
            dense(k, offsets),
            None if mask is None else dense(k, mask),
            self.deformable_group,
            self.interpolates_padding,
            workspace[0],
        )
        if out is not outputs[0]:
            Convert(destination_type=Type.of(outputs[0].dtype)).cuda(k, [out], outputs, ())
        return done


@op("DeformableConvolution", "opset8", "convolution/deformable-convolution-8")
class DeformableConvolution8(DeformableConvolution):
    """DeformableConvolution-1 with an optional mask [N, D taps, ...] that the values read by taps are multiplied by.

    With ``bilinear_interpolation_pad``, values fade to 0 over one pixel outside of the data, on all sides.

    >>> deformable_convolution([[[[1.0, 2, 4]]]], [[[[0.0, 0, 0]], [[1, 0.5, 0]]]], [[[[1.0]]]],
    ...                        strides=[1, 1], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1])
    [[[[2.0, 3.0, 4.0]]]]
    """

    bilinear_interpolation_pad: bool = False

    mixed_reals = (3,)

    @property
    def interpolates_padding(self) -> bool:  # type: ignore[override]
        return self.bilinear_interpolation_pad
