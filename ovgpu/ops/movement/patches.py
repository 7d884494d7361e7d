"""Ops between images and the patches of a sliding window: ExtractImagePatches (im2col) and Col2Im."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.launch import MAX_INDEX
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.shapes import check_integers, constants, integers, length, unknowns
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.strided import THREADS, Axes, bits, blocks, strides_of
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.convolution._convolution import shortened
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, ceildiv, maximum, product, same, unknown
from ovgpu.types import Type


def check_pair(op: Op, name: str, least: int) -> None:
    """Raise OpError unless the attribute has two values, for rows and columns, both at least ``least``."""
    values = getattr(op, name)
    if len(values) != 2:
        raise OpError(f"attribute '{name}' has {len(values)} elements instead of 2")
    if min(values) < least:
        raise OpError(f"attribute '{name}': {min(values)} is less than {least}")


@op("ExtractImagePatches", "opset3", "movement/extract-image-patches-3")
class ExtractImagePatches(Op):
    """``data [n, c, h, w] -> [n, prod(sizes) * c, rows, columns]``: the patch of a window at each of its positions.

    In axis 1, the window's elements come before the channels. A window may reach over the edge, where it reads zeros,
    unless ``auto_pad`` is valid.

    >>> extract_image_patches([[[[1.0, 2, 3]]]], sizes=[1, 2], strides=[1, 1], rates=[1, 1], auto_pad="valid")
    [[[[1.0, 2.0]], [[2.0, 3.0]]]]
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    rates: tuple[int, ...]
    auto_pad: Literal["valid", "same_upper", "same_lower"]

    exact = True

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        for name in ("sizes", "strides", "rates"):
            check_pair(self, name, 1)
        if x.type == Type.string:
            raise OpError("element type string has no zeros to pad with")
        if x.rank not in (None, 4):
            raise OpError(f"the data must have rank 4, not {x.rank}")
        return (Spec(x.type, None if x.shape is None else self.shape(x.shape)),)

    def shape(self, shape: Sequence[Int]) -> tuple[Int, ...]:
        """Return the output's shape for data of ``shape``."""
        n, channels, *extents = shape
        if self.auto_pad == "valid":
            extents = [extent - rate * (size - 1) for extent, rate, size in zip(extents, self.rates, self.sizes)]
        positions = [maximum(ceildiv(extent, stride), 0) for extent, stride in zip(extents, self.strides)]
        return (n, channels * prod(self.sizes), *positions)

    def padding_before(self, extents: Sequence[int], positions: Sequence[int]) -> list[int]:
        """Return the number of zeros before the rows and before the columns."""
        if self.auto_pad == "valid":
            return [0, 0]
        total_padding = [
            max((n - 1) * stride + rate * (size - 1) + 1 - extent, 0)
            for n, extent, size, stride, rate in zip(positions, extents, self.sizes, self.strides, self.rates)
        ]
        return [(n + (self.auto_pad == "same_lower")) // 2 for n in total_padding]

    def evaluate(self, xp: Adapter, x: Array) -> tuple[Array, ...]:
        shape = self.shape(x.shape)
        padding_before = self.padding_before(x.shape[2:], shape[2:])
        (down, above), (across, beside) = (
            self.window_indices(xp, x.shape[2 + i], shape[2 + i], i, padding_before[i]) for i in range(2)
        )
        if not x.size:
            return (xp.zeros(shape, x.dtype),)
        patches = x[:, :, down[:, None, :, None], across[:, None]]  # n, c, kernel rows, kernel columns, rows, columns
        patches[:, :, ~(above[:, None, :, None] & beside[:, None])] = 0
        return (patches.transpose(0, 2, 3, 1, 4, 5).reshape(shape),)

    def window_indices(
        self, xp: Adapter, extent: int, positions: int, axis: int, padding_before: int
    ) -> tuple[Array, Array]:
        """Return indices [window, positions] along an axis, clipped to it, and a mask of those that were inside."""
        coordinates = (
            xp.arange(self.sizes[axis])[:, None] * self.rates[axis]
            + xp.arange(positions) * self.strides[axis]
            - padding_before
        )
        return xp.clip(coordinates, 0, max(extent - 1, 0)), (coordinates >= 0) & (coordinates < extent)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out = inputs[0], outputs[0]
        if not out.size:
            return None
        (n, channels, height, width), (across, down, rows, step) = x.shape, strides_of(x)
        extents = (n, *self.sizes, channels, *out.shape[2:])
        (stride, beside), (rate, column_rate) = (
            shortened(self.strides, out.shape[2:]),
            shortened(self.rates, self.sizes),
        )
        axes = Axes.collapse(
            extents,
            (across, rate * rows, column_rate * step, down, stride * rows, beside * step),
            (0, rate, 0, 0, stride, 0),
            (0, 0, column_rate, 0, 0, beside),
            reach=x.size,
        )
        if not axes.rank or not x.size or max(stride, beside, rate, column_rate) > MAX_INDEX:
            return NotImplemented
        k.kernel(
            "patches.cu",
            f"extract<{bits(x.dtype.itemsize)}, {axes.index}, {axes.rank}>",
            blocks(out.size),
            (THREADS,),
            (
                x,
                out,
                axes.packed(),
                *axes.numbers(
                    out.size, *self.padding_before((height, width), out.shape[2:]), height, width, rows, step
                ),
            ),
        )
        return None


@op("Col2Im", "opset15", "movement/col2im-15")
class Col2Im(Op):
    """``data [(n,) c * prod(kernel), positions], output size [2], kernel size [2] -> [(n,) c, h, w]``: sums of patches.

    The reverse of im2col, except that an element is the sum of all patches that cover it.

    >>> col2im([[1.0, 2], [3, 4]], [1, 3], [1, 2])
    [[[1.0, 5.0, 4.0]]]
    """

    strides: tuple[int, ...] = (1, 1)
    dilations: tuple[int, ...] = (1, 1)
    pads_begin: tuple[int, ...] = (0, 0)
    pads_end: tuple[int, ...] = (0, 0)

    layout = "dense"
    host_inputs = (1, 2)

    def infer_specs(self, x: Spec, size: Spec, kernel: Spec) -> tuple[Spec, ...]:
        for name, least in (("strides", 1), ("dilations", 1), ("pads_begin", 0), ("pads_end", 0)):
            check_pair(self, name, least)
        for spec, what in ((size, "the output size"), (kernel, "the kernel size")):
            check_integers(spec, what)
            if length(spec) not in (None, 2):
                raise OpError(f"{what} has {length(spec)} elements instead of 2")
        if x.type in (Type.boolean, Type.string):
            raise OpError(f"element type {x.type.get_type_name()} is no number")
        if x.rank not in (None, 2, 3):
            raise OpError(f"the data must have rank 2 or 3, not {x.rank}")
        if x.shape is None:
            return (Spec(x.type, None),)
        *images, rows, columns = x.shape
        extents, window = size.ints(), constants(kernel)
        if window is not None and min(window) < 1:
            raise OpError(f"kernel size {window} has no elements")
        channels = unknown() if window is None else rows // prod(window)
        if window is not None:
            same(channels * prod(window), rows, f"{{1}} rows are no multiple of {prod(window)}")
            if extents is not None:
                same(columns, product(self.positions(extents, window)), "{0} positions instead of {1}")
        return (Spec(x.type, (*images, channels, *(extents or unknowns(2) or ()))),)

    def positions(self, extents: Sequence[Int], kernel: Sequence[int]) -> list[Int]:
        """Return the number of window positions along rows and along columns."""
        return [
            maximum((extent + begin + end - dilation * (n - 1) - 1) // stride + 1, 0)
            for extent, n, begin, end, dilation, stride in zip(
                extents, kernel, self.pads_begin, self.pads_end, self.dilations, self.strides
            )
        ]

    def evaluate(self, xp: Adapter, x: Array, size: Array, kernel: Array) -> tuple[Array, ...]:
        (height, width), window = integers(size), integers(kernel)
        rows, columns = self.positions((height, width), window)
        if min(window) < 1 or x.shape[-2] % prod(window) or x.shape[-1] != rows * columns:
            raise OpError(
                f"data of shape {list(x.shape)} are no patches of size {window} of images of size {[height, width]}"
            )
        images = x.reshape(-1, *window, rows, columns)
        reach = [
            (n - 1) * stride + (m - 1) * dilation + 1
            for n, stride, m, dilation in zip((rows, columns), self.strides, window, self.dilations)
        ]
        top, left = self.pads_begin
        out = xp.zeros((len(images), max(top + height, reach[0]), max(left + width, reach[1])), x.dtype)
        for i in range(window[0]):
            for j in range(window[1]):
                row, column = i * self.dilations[0], j * self.dilations[1]
                out[:, row :: self.strides[0], column :: self.strides[1]][:, :rows, :columns] += images[:, i, j]
        channels = x.shape[-2] // prod(window)
        return (out[:, top : top + height, left : left + width].reshape(*x.shape[:-2], channels, height, width),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out, kernel = inputs[0], outputs[0], integers(inputs[2])
        height, width = out.shape[-2:]
        if not is_plain(x.dtype) or height * width > MAX_INDEX:
            return NotImplemented
        if not out.size:
            return None
        window = np.array(
            [*kernel, *self.strides, *self.dilations, *self.pads_begin, *self.positions((height, width), kernel)],
            np.int32,
        )
        k.kernel(
            "patches.cu",
            f"fold<{k.c_type(x.dtype)}>",
            blocks(out.size, THREADS),
            (THREADS,),
            (x, out, window, np.int64(out.size), np.int32(height), np.int32(width)),
        )
        return None
