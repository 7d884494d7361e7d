"""Convolutions, and the transposed ones, of one to three spatial axes, whole or in groups of channels."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ovgpu.ops._elementwise import merge_types
from ovgpu.ops._op import Array, op
from ovgpu.ops._shapes import unknowns
from ovgpu.ops._windows import Windowed, check_number, framed, taps
from ovgpu.symbolic import Int, Spec, same, unknown

CHANNELS = "the data has {0} channels, the kernel takes {1}"


@op("Convolution", "opset1")
class Convolution(Windowed):
    """``x [N, C, ...], kernel [O, C, ...] -> [N, O, ...]``: the kernel's products with what it slides over, summed.

    One to three spatial axes, any type of numbers; 8-bit integers saturate, wider ones wrap.
    """

    layout = "dense"
    strided_outputs = True

    def infer(self, x: Spec, kernel: Spec) -> tuple[Spec, ...]:
        kind = merge_types((x, kernel))
        check_number(kind)
        axes = self.spatial(x, kernel)
        if axes is None:
            return (Spec(kind, None),)
        groups, outputs, channels, *extents = self.grouped(kernel.shape or self.any_kernel(axes))
        batch, given, *sizes = x.shape or (unknown(), groups * channels, *(unknowns(axes) or ()))
        same(given, groups * channels, CHANNELS)
        return (Spec(kind, (batch, groups * outputs, *self.extents(sizes, extents))),)

    def grouped(self, kernel: tuple[Int, ...]) -> tuple[Int, ...]:
        """The kernel's shape as groups, channels that leave and enter each, and spatial axes."""
        return (1, *kernel)

    def any_kernel(self, axes: int) -> tuple[Int, ...]:
        """The shape of a kernel of which only the rank is known."""
        return unknowns(self.leading + axes) or ()

    def evaluate(self, xp: Any, x: Array, kernel: Array) -> tuple[Array, ...]:
        kind = x.dtype
        x, kernel = wide(x), wide(kernel.reshape(self.grouped(kernel.shape)))
        groups, outputs, channels, *sizes = kernel.shape
        extents = self.extents(x.shape[2:], sizes)
        begin, end = self.pads(x.shape[2:], sizes)
        x = framed(xp, x, begin, end).reshape(len(x), groups, channels, *(np.add(x.shape[2:], begin) + end))
        strides, dilations = (self.per_axis(name, len(sizes), 1) for name in ("strides", "dilations"))
        out = xp.zeros((len(x), groups, outputs, prod(extents)), x.dtype)
        for tap in np.ndindex(*sizes):
            part = x[(..., *taps([t * d for t, d in zip(tap, dilations)], strides, extents))]
            out += xp.matmul(kernel[(..., *tap)], part.reshape(*x.shape[:3], prod(extents)))
        return (narrow(xp, out, kind).reshape(len(x), groups * outputs, *extents),)


@op("GroupConvolution", "opset1")
class GroupConvolution(Convolution):
    """``x [N, G C, ...], kernel [G, O, C, ...] -> [N, G O, ...]``: a Convolution for each of G groups of channels."""

    leading = 3

    def grouped(self, kernel: tuple[Int, ...]) -> tuple[Int, ...]:
        return kernel


def wide(x: Array) -> Array:
    """Elements as they are multiplied and summed: 8-bit integers exactly."""
    return x.astype(np.float64) if x.dtype.kind in "iu" and x.dtype.itemsize == 1 else x


def narrow(xp: Any, x: Array, kind: np.dtype[Any]) -> Array:
    """Sums of `wide` elements in their own type, where 8-bit integers saturate."""
    if x.dtype == kind:
        return x
    limits = np.iinfo(kind)
    return xp.clip(x, limits.min, limits.max).astype(kind)
