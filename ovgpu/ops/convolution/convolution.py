"""Convolutions and transposed convolutions over one to three spatial axes, plain or grouped."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base import tasks
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Workspace, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import at_most, check_integers, integers, length, unknowns
from ovgpu.ops.base.windows import Windowed, check_number, framed, taps
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.convolution import _columns
from ovgpu.ops.convolution._columns import BLOCK_ELEMENTS, HostEpilogue
from ovgpu.ops.convolution._convolution import COLUMN_ELEMENTS, convolve, shortened
from ovgpu.ops.convolution._convolved import Convolved, Epilogue
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, maximum, minimum, product, same
from ovgpu.types import Type

CHANNELS = "the data has {0} channels, the kernel takes {1}"


class _Convolution(Windowed):
    """Base of convolutions. ``leading``, the number of the kernel's axes before the spatial ones, is 3 if these include
    an axis of groups, else 2."""

    layout = "blas"
    strided_outputs = True
    half_precision = "always"

    def grouped(self, kernel: Sequence[Int]) -> tuple[Int, ...]:
        """Return the kernel's shape with an axis of groups."""
        return (*kernel,) if self.leading == 3 else (1, *kernel)

    def operands(self, x: Spec, kernel: Spec, axes: int) -> tuple[tuple[Int, ...], tuple[Int, ...]]:
        """Return the shapes of the data and the `grouped` kernel, with unknown extents where only the rank is known."""
        return (x.shape or unknowns(2 + axes) or (), self.grouped(kernel.shape or unknowns(self.leading + axes) or ()))

    def convolved(
        self,
        x: Array,
        kernel: Array,
        out: Array,
        begin: Sequence[int],
        transposed: bool = False,
        epilogue: Epilogue | None = None,
    ) -> Convolved:
        """Return the description of the convolution of these arrays."""
        strides, dilations = (self.per_axis(name, x.ndim - 2, 1) for name in ("strides", "dilations"))
        kernel = kernel.reshape(self.grouped(kernel.shape))
        return Convolved(
            x,
            kernel,
            out,
            shortened(strides, (x if transposed else out).shape[2:]),
            shortened(dilations, kernel.shape[3:]),
            begin,
            transposed,
            epilogue,
        )


@op("Convolution", "opset1", "convolution/convolution-1")
class Convolution(_Convolution):
    """``x [N, C, ...], kernel [O, C, ...] -> [N, O, ...]``: cross-correlation of data and kernel, summed over channels.

    The data has one to three spatial axes, and any type of numbers; 8-bit integers saturate, wider ones wrap.

    >>> convolution([[[1.0, 2, 4]]], [[[1.0, -1]]], strides=[1], pads_begin=[0], pads_end=[0], dilations=[1])
    [[[-1.0, -2.0]]]
    """

    def infer_specs(self, x: Spec, kernel: Spec) -> tuple[Spec, ...]:
        dtype = merge_types((x, kernel))
        check_number(dtype)
        axes = self.spatial(x, kernel)
        if axes is None:
            return (Spec(dtype, None),)
        (batch, data_channels, *sizes), (groups, outputs, channels, *taps) = self.operands(x, kernel, axes)
        same(data_channels, groups * channels, CHANNELS)
        return (Spec(dtype, (batch, groups * outputs, *self.extents(sizes, taps))),)

    def evaluate(self, xp: Adapter, x: Array, kernel: Array) -> tuple[Array, ...]:
        dtype = x.dtype
        x, kernel = to_sum_type(x), to_sum_type(kernel.reshape(self.grouped(kernel.shape)))
        groups, outputs, channels, *sizes = kernel.shape
        extents = self.extents(x.shape[2:], sizes)
        begin, end = self.pads(x.shape[2:], sizes)
        x = framed(xp, x, begin, end).reshape(len(x), groups, channels, *(np.add(x.shape[2:], begin) + end))
        strides, dilations = (self.per_axis(name, len(sizes), 1) for name in ("strides", "dilations"))
        out = xp.zeros((len(x), groups, outputs, prod(extents)), x.dtype)
        for tap in np.ndindex(*sizes):
            part = x[(..., *taps([t * d for t, d in zip(tap, dilations)], strides, extents))]
            out += xp.matmul(kernel[(..., *tap)], part.reshape(*x.shape[:3], prod(extents)))
        return (from_sum_type(xp, out, dtype).reshape(len(x), groups * outputs, *extents),)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        x, kernel, out = inputs[0], inputs[1], outputs[0]
        assert x is not None and x.shape and kernel is not None and kernel.shape and out.shape
        taps, strides = kernel.shape[self.leading :], self.per_axis("strides", len(x.shape) - 2, 1)
        depth = x.shape[1] * product(taps)
        columns = x.shape[0] * depth * product(out.shape[2:])
        if out.type.bitwidth == 16:
            return ((out.type, (minimum(columns, COLUMN_ELEMENTS),)),)
        if out.type not in (Type.f32, Type.f64):
            return ()
        reach = self.reach(taps)
        span = product((n - 1) * s + r for n, s, r in zip(out.shape[2:], strides, reach))
        frame = x.shape[0] * x.shape[1] * maximum(span, 0)  # negative if the output has no pixels
        return (
            (out.type, (tasks.WORKERS * minimum(columns, maximum(depth, BLOCK_ELEMENTS)),)),
            (out.type, (tasks.WORKERS * minimum(frame, maximum(x.shape[1] * product(reach), BLOCK_ELEMENTS)),)),
        )

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        return self.with_epilogue(k, inputs, outputs[0], workspace)

    def with_epilogue(
        self,
        k: HostRecorder,
        inputs: Sequence[Any],
        out: Any,
        workspace: Sequence[Any],
        epilogue: HostEpilogue | None = None,
    ) -> Any:
        """Record the calls of `numpy`, and those of an epilogue on the result."""
        x, kernel = inputs
        if out.dtype.itemsize < 4 or out.dtype.kind != "f" or not out.size or not kernel.flags.c_contiguous:
            return NotImplemented
        begin, _ = self.pads(x.shape[2:], kernel.shape[self.leading :])
        return _columns.convolve(k, self.convolved(x, kernel, out, begin), workspace, epilogue)

    def cuda(
        self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays, epilogue: Epilogue | None = None
    ) -> None:
        x, kernel = inputs
        begin, _ = self.pads(x.shape[2:], kernel.shape[self.leading :])
        convolve(k, self.convolved(x, kernel, outputs[0], begin, epilogue=epilogue), workspace)


@op("GroupConvolution", "opset1", "convolution/group-convolution-1")
class GroupConvolution(Convolution):
    """``x [N, G C, ...], kernel [G, O, C, ...] -> [N, G O, ...]``: a Convolution for each of G groups of channels.

    >>> group_convolution([[[1.0, 2], [3, 4]]], [[[[10.0]]], [[[100]]]],
    ...                   strides=[1], pads_begin=[0], pads_end=[0], dilations=[1])
    [[[10.0, 20.0], [300.0, 400.0]]]
    """

    leading = 3


@op("ConvolutionBackpropData", "opset1", "convolution/convolution-backprop-data-1")
class ConvolutionBackpropData(_Convolution):
    """``x [N, C, ...], kernel [C, O, ...] (, output_shape [axes]) -> [N, O, ...]``: the transposed Convolution.

    Every element of x times the kernel is added to the pixels of the output from which a Convolution would compute that
    element. Padding is then cut off. If an output shape is given with same_upper or same_lower, the excess is cut off
    (same_upper: the larger half at the beginning), and missing elements at the end are zeros. Without an output shape,
    same_upper and same_lower pad nothing. The specification would cut the excess for explicit and valid padding, too;
    here their padding at the beginning is kept, as in the frameworks of such models.

    >>> convolution_backprop_data([[[1.0, 10]]], [[[1.0, 2, 3]]], strides=[2])
    [[[1.0, 2.0, 13.0, 20.0, 30.0]]]
    """

    output_padding: tuple[int, ...] = ()

    host_inputs = (2,)

    def infer_specs(self, x: Spec, kernel: Spec, target: Spec | None = None) -> tuple[Spec, ...]:
        dtype = merge_types((x, kernel))
        check_number(dtype)
        axes = self.spatial(x, kernel)
        if target is not None:
            check_integers(target, "the output shape")
            if None not in (axes, length(target)) and axes != length(target):
                raise OpError(f"the output shape has {length(target)} elements for {axes} spatial axes")
            axes = length(target) if axes is None else axes
        if axes is None:
            return (Spec(dtype, None),)
        (batch, data_channels, *sizes), (groups, channels, outputs, *taps) = self.operands(x, kernel, axes)
        same(data_channels, groups * channels, CHANNELS)
        if target is None:
            extents = self.extents(sizes, taps)
        else:
            extents = target.ints() or [*(unknowns(axes) or ())]
            for axis, extent in enumerate(extents):
                at_most(0, extent, f"the output shape has {{1}} along spatial axis {axis}")
        return (Spec(dtype, (batch, groups * outputs, *extents)),)

    def full(self, sizes: Sequence[Int], kernel: Sequence[Int]) -> list[Int]:
        """Return the extents of the output along each spatial axis before anything is cut off."""
        strides = self.per_axis("strides", len(sizes), 1)
        return [(size - 1) * stride + reach for size, stride, reach in zip(sizes, strides, self.reach(kernel))]

    def extents(self, sizes: Sequence[Int], kernel: Sequence[Int]) -> list[Int]:
        extents = [
            full + added - begin - end
            for full, added, begin, end in zip(
                self.full(sizes, kernel),
                self.per_axis("output_padding", len(sizes), 0),
                *self.explicit_pads(len(sizes)),
            )
        ]
        for axis, extent in enumerate(extents):
            at_most(0, extent, f"padding leaves {{1}} elements along spatial axis {axis}")
        return extents

    def begins(self, sizes: Sequence[int], kernel: Sequence[int], target: Sequence[int] | None) -> tuple[int, ...]:
        """Return the number of elements that are cut off at the beginning of each spatial axis."""
        if target is None or not self.same:
            return self.explicit_pads(len(sizes))[0]
        padding = self.per_axis("output_padding", len(sizes), 0)
        total = [
            max(full - extent + added, 0) for full, extent, added in zip(self.full(sizes, kernel), target, padding)
        ]
        return tuple(t - t // 2 if self.auto_pad == "same_upper" else t // 2 for t in total)

    def evaluate(self, xp: Adapter, x: Array, kernel: Array, target: Array | None = None) -> tuple[Array, ...]:
        dtype = x.dtype
        x, kernel = to_sum_type(x), to_sum_type(kernel.reshape(self.grouped(kernel.shape)))
        groups, channels, outputs, *extents = kernel.shape
        sizes = x.shape[2:]
        shape = None if target is None else integers(target)
        begins = self.begins(sizes, extents, shape)
        shape = self.extents(sizes, extents) if shape is None else shape
        buffer_extents = [max(full, begin + n) for full, begin, n in zip(self.full(sizes, extents), begins, shape)]
        out = xp.zeros((len(x), groups, outputs, *buffer_extents), x.dtype)
        strides, dilations = (self.per_axis(name, len(sizes), 1) for name in ("strides", "dilations"))
        columns = x.reshape(len(x), groups, channels, prod(sizes))
        for tap in np.ndindex(*extents):
            product = xp.matmul(kernel[(..., *tap)].swapaxes(1, 2), columns)
            out[(..., *taps([t * d for t, d in zip(tap, dilations)], strides, sizes))] += product.reshape(
                *out.shape[:3], *sizes
            )
        out = out[(..., *taps(begins, (1,) * len(sizes), shape))]
        return (from_sum_type(xp, out, dtype).reshape(len(x), groups * outputs, *shape),)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        x, kernel, out = inputs[0], inputs[1], outputs[0]
        assert x is not None and x.shape and kernel is not None and kernel.shape and out.shape
        columns = product(x.shape[2:]) * out.shape[1] * product(kernel.shape[self.leading :])
        sums = Type.f64 if out.type == Type.f64 else Type.f32
        return ((sums, (minimum(x.shape[0] * columns, maximum(columns, COLUMN_ELEMENTS)),)),)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        return self.with_epilogue(k, inputs, outputs[0], workspace)

    def with_epilogue(
        self,
        k: HostRecorder,
        inputs: Sequence[Any],
        out: Any,
        workspace: Sequence[Any],
        epilogue: HostEpilogue | None = None,
    ) -> Any:
        """Record the calls of `numpy`, and those of an epilogue on the result."""
        x, kernel, target = (*inputs, None)[:3]
        if out.dtype.itemsize < 4 or out.dtype.kind != "f" or not out.size or not kernel.flags.c_contiguous:
            return NotImplemented
        begin = self.begins(x.shape[2:], kernel.shape[self.leading :], None if target is None else out.shape[2:])
        c = self.convolved(x, kernel, out, begin, transposed=True)
        return _columns.convolve_transposed(k, c, workspace[0], epilogue)

    def cuda(
        self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays, epilogue: Epilogue | None = None
    ) -> None:
        (x, kernel, target), out = (*inputs, None)[:3], outputs[0]
        begin = self.begins(x.shape[2:], kernel.shape[self.leading :], None if target is None else out.shape[2:])
        convolve(k, self.convolved(x, kernel, out, begin, True, epilogue), workspace)

    @property
    def pad_names(self) -> tuple[str, ...]:
        return (*super().pad_names, "output_padding")


@op("GroupConvolutionBackpropData", "opset1", "convolution/group-convolution-backprop-data-1")
class GroupConvolutionBackpropData(ConvolutionBackpropData):
    """``x [N, G C, ...], kernel [G, C, O, ...] (, output_shape [axes]) -> [N, G O, ...]``.

    This is a ConvolutionBackpropData for each of G groups of channels.

    >>> group_convolution_backprop_data([[[1.0], [10]]], [[[[1.0, 2]]], [[[3, 4]]]], strides=[1])
    [[[1.0, 2.0], [30.0, 40.0]]]
    """

    leading = 3


def to_sum_type(x: Array) -> Array:
    """Return the data in the type of its products and sums: 8-bit integers in f64, whose sums are exact."""
    return x.astype(np.float64) if x.dtype.kind in "iu" and x.dtype.itemsize == 1 else x


def from_sum_type(xp: Adapter, x: Array, dtype: np.dtype[Any]) -> Array:
    """Cast sums of `to_sum_type` elements back to ``dtype``; 8-bit integers saturate."""
    if x.dtype == dtype:
        return x
    limits = np.iinfo(dtype)
    return xp.clip(x, limits.min, limits.max).astype(dtype)
