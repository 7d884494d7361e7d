"""Internal ops of convolutions and products of 8-bit integers, for a device, with their epilogues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, internal_op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.convolution._convolved import Convolved, Epilogue
from ovgpu.ops.convolution._implicit_gemm import Scales, convolve_pixels, multiplies_pixels, partial_elements
from ovgpu.ops.convolution.convolution import Convolution
from ovgpu.ops.fused._epilogue import OpWithEpilogue
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.spec import Spec
from ovgpu.symbolic import product
from ovgpu.types import Type


@internal_op
class _Quantized(Op):
    """Base: sums of products of codes of i8, times a factor for each output, as ``dtype``.

    Inputs are x, weights, and for each output a factor of f32 and a correction of i32: ``zero``, the code of x that
    stands for 0, times the sum of the output's weights.
    """

    zero: int
    dtype: Type

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        weights = inputs[1]
        assert weights is not None and weights.shape is not None
        count = partial_elements(int(product(weights.shape[1:])))
        return ((Type.f32, (count,)),) if count else ()

    def cuda(
        self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays, epilogue: Epilogue | None = None
    ) -> Any:
        x, weights, factor, correction = inputs
        if not outputs[0].size:
            return None
        c = self.convolved(x, weights, outputs[0], epilogue)
        scales = Scales(factor, correction, self.zero)
        if not multiplies_pixels(k, c, scales):
            return NotImplemented
        convolve_pixels(k, c, scales, self.dtype.storage, early=True, partial=workspace[0] if workspace else None)
        return None

    def convolved(self, x: Array, weights: Array, out: Array, epilogue: Epilogue | None) -> Convolved:
        """Return the arrays as those of a convolution whose channels are adjacent in memory."""
        raise NotImplementedError

    def _scaled(self, xp: Adapter, sums: Array, factor: Array) -> tuple[Array, ...]:
        return (sums.astype(np.float32) * factor,)


@internal_op
class QuantizedConvolution(_Quantized):
    """A convolution of images [N, C, H, W] that lie in memory as [N, H, W, C], by a kernel [O, H, W, C]."""

    convolution: Convolution

    name: ClassVar[str] = "Convolution"
    layout = "channels_last"

    def attributes(self) -> dict[str, Any]:
        return self.convolution.attributes()

    def infer_specs(self, x: Spec, kernel: Spec, *_: Spec) -> tuple[Spec, ...]:
        if kernel.shape is not None:
            outputs, *sizes, channels = kernel.shape
            kernel = Spec(kernel.type, (outputs, channels, *sizes))
        return (replace(self.convolution.infer_specs(x, kernel)[0], type=self.dtype),)

    def evaluate(self, xp: Adapter, x: Array, kernel: Array, factor: Array, correction: Array) -> tuple[Array, ...]:
        codes = x.astype(np.float64) - self.zero
        (sums,) = self.convolution.evaluate(xp, codes, kernel.transpose(0, 3, 1, 2).astype(np.float64))
        return self._scaled(xp, sums, factor.reshape(-1, 1, 1))

    def convolved(self, x: Array, weights: Array, out: Array, epilogue: Epilogue | None) -> Convolved:
        begin, _ = self.convolution.pads(x.shape[2:], weights.shape[1:3])
        return self.convolution.convolved(x, weights.transpose(0, 3, 1, 2), out, begin, epilogue=epilogue)


@internal_op
class QuantizedMatMul(_Quantized):
    """The product ``x [..., M, K] @ weights [N, K]^T``."""

    name: ClassVar[str] = "MatMul"
    layout = "dense"

    def infer_specs(self, x: Spec, weights: Spec, *_: Spec) -> tuple[Spec, ...]:
        return (replace(MatMul(transpose_b=True).infer_specs(x, weights)[0], type=self.dtype),)

    def evaluate(self, xp: Adapter, x: Array, weights: Array, factor: Array, correction: Array) -> tuple[Array, ...]:
        sums = xp.matmul(x.astype(np.float64) - self.zero, weights.astype(np.float64).swapaxes(0, 1))
        return self._scaled(xp, sums, factor.reshape(-1))

    def convolved(self, x: Array, weights: Array, out: Array, epilogue: Epilogue | None) -> Convolved:
        """Return the product as a convolution by 1 x 1: rows of x are the pixels of an image of height 1."""
        rows, columns = prod(out.shape[:-1]), out.shape[-1]
        if epilogue is not None:
            epilogue = replace(
                epilogue, operands=tuple([_as_image(a, rows if a.size == out.size else 1) for a in epilogue.operands])
            )
        kernel = weights.reshape(1, columns, x.shape[-1], 1, 1)
        return Convolved(_as_image(x, rows), kernel, _as_image(out, rows), (1, 1), (1, 1), (0, 0), epilogue=epilogue)


def _as_image(x: Array, rows: int) -> Any:
    """Return an array [..., N] of ``rows`` rows as the image [1, N, 1, rows]."""
    return x.reshape(1, 1, rows, x.size // rows).transpose(0, 3, 1, 2)


@internal_op
class QuantizedWithEpilogue(OpWithEpilogue):
    """A quantised product and the elementwise layers after it, of which the last may be a `Quantize`."""

    product: QuantizedConvolution | QuantizedMatMul

    strided_outputs = False

    @property
    def first(self) -> QuantizedConvolution | QuantizedMatMul:
        return self.product

    def first_type(self, inputs: Sequence[Array]) -> Type:
        return self.product.dtype

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        return self.product.workspace(self.split(inputs)[0], outputs)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        arrays, others = self.split(inputs)
        return self.product.cuda(k, arrays, outputs, workspace, Epilogue(self.fused.chain, tuple(others)))


@internal_op
class QuantizedConvolutionWithEpilogue(QuantizedWithEpilogue):
    """A `QuantizedConvolution` with an epilogue."""

    name: ClassVar[str] = "Convolution"
    layout = "channels_last"


@internal_op
class QuantizedMatMulWithEpilogue(QuantizedWithEpilogue):
    """A `QuantizedMatMul` with an epilogue."""

    name: ClassVar[str] = "MatMul"
    layout = "dense"
