"""BinaryConvolution: a convolution of the signs 1 and -1."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.launch import dense
from ovgpu.ops.base.op import Array, Arrays, op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.shapes import unknowns
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.windows import Windowed, check_number, framed, taps
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.convolution._convolution import convolve_signs, shortened
from ovgpu.ops.convolution._convolved import Convolved
from ovgpu.spec import Spec
from ovgpu.symbolic import same
from ovgpu.types import Type


@op("BinaryConvolution", "opset1", "convolution/binary-convolution-1")
class BinaryConvolution(Windowed):
    """``x [N, C, Y, X], kernel [O, C, Y, X] -> [N, O, Y, X]``: a convolution of bits; 1 stands for 1, 0 for -1.

    The kernel has type u1, the data any type of numbers. As in OpenVINO's plugin, data above 0 stands for 1, all other
    data for -1. Elements outside of the data count as ``pad_value``; 0 adds nothing. In a constant kernel, unlike in
    other constants of u1, the first bit of a byte is the lowest; `passes.canonicalise` reverses its bits.

    >>> binary_convolution([[[[5.0]]] * 6 + [[[-5]]] * 2], u1([[[[0]]] * 8]), strides=[1, 1], pads_begin=[0, 0],
    ...                    pads_end=[0, 0], dilations=[1, 1], mode="xnor-popcount", pad_value=0.0)
    [[[[-4.0]]]]
    """

    mode: Literal["xnor-popcount"]
    pad_value: float

    layout = "blas"
    strided_outputs = True
    axes = (2,)

    def infer_specs(self, x: Spec, kernel: Spec) -> tuple[Spec, ...]:
        check_number(x.type)
        if kernel.type not in (Type.u1, Type.dynamic):
            raise OpError(f"the kernel must be of u1, not {kernel.type.get_type_name()}")
        self.spatial(x, kernel)
        batch, channels, *sizes = x.shape or unknowns(4) or ()
        outputs, kernel_channels, *extents = kernel.shape or unknowns(4) or ()
        same(channels, kernel_channels, "the data has {0} channels, the kernel takes {1}")
        return (Spec(x.type, (batch, outputs, *self.extents(sizes, extents))),)

    def evaluate(self, xp: Adapter, x: Array, kernel: Array) -> tuple[Array, ...]:
        outputs, channels, *sizes = kernel.shape
        extents = self.extents(x.shape[2:], sizes)
        signs = framed(xp, signs_of(xp, x), *self.pads(x.shape[2:], sizes), self.padding)
        out = xp.zeros((len(x), outputs, prod(extents)), signs.dtype)
        strides, dilations = (self.per_axis(name, 2, 1) for name in ("strides", "dilations"))
        for tap in np.ndindex(*sizes):
            part = signs[(..., *taps([t * d for t, d in zip(tap, dilations)], strides, extents))]
            out += xp.matmul(signs_of(xp, kernel[(..., *tap)]), part.reshape(len(x), channels, prod(extents)))
        return (out.reshape(len(x), outputs, *extents).astype(x.dtype),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, kernel), out = inputs, outputs[0]
        if not is_plain(out.dtype):
            return NotImplemented
        strides = shortened(self.per_axis("strides", 2, 1), out.shape[2:])
        dilations = shortened(self.per_axis("dilations", 2, 1), kernel.shape[2:])
        bits = dense(k, kernel.view(np.uint8))[None]
        begin, _ = self.pads(x.shape[2:], kernel.shape[2:])
        convolve_signs(k, Convolved(x, bits, out, strides, dilations, begin), self.padding)
        return None

    @property
    def padding(self) -> int:
        """The sign of an element outside the data: 1, 0 or -1."""
        return int(self.pad_value) if self.pad_value in (0, 1) else -1

    def propagate(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Sequence[Spec]:
        return outputs  # without values: the bits of a constant kernel may not be reversed yet


def signs_of(xp: Adapter, x: Array) -> Array:
    """Return 1 where an element is above 0, else -1, in f32."""
    return xp.where(x > 0, xp.float32(1), xp.float32(-1))
