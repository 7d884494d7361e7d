"""Internal ops of convolutions that read and write tensors whose channels are adjacent in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, evaluate, internal_op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.shapes import unknowns
from ovgpu.ops.base.strided import CHUNK_BYTES, THREADS, Axes, blocks, has_chunks, strides_of
from ovgpu.ops.base.view import IMAGE_RANK
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.convolution.convolution import Convolution
from ovgpu.ops.fused._elementwise import Layer
from ovgpu.ops.fused.convolution_epilogue import ConvolutionWithEpilogue
from ovgpu.spec import Spec
from ovgpu.types import Type


@internal_op
class ChannelsLastConvolution(Op):
    """A convolution of tensors [N, C, H, W] that lie in memory as [N, H, W, C], as tensor cores read them.

    With ``moved``, the kernel is [O, H, W, C] instead of [O, C, H, W], or [H, W, G] instead of [G, 1, 1, H, W].
    ``layer`` is the convolution's origin."""

    layer: Layer
    convolution: Convolution | ConvolutionWithEpilogue
    moved: bool

    name: ClassVar[str] = "Convolution"
    layout = "channels_last"
    strided_outputs = True
    exact = True  # because the convolution decodes and encodes
    half_precision = "always"

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that are computed together; empty for a convolution alone."""
        op = self.convolution
        return op.layers if isinstance(op, ConvolutionWithEpilogue) else ()

    def attributes(self) -> dict[str, Any]:
        return self.convolution.attributes()

    def takes_parts(self, dtype: Type) -> bool:
        """Return False for types wider than 16 bits: cuDNN multiplies these, and takes only whole tensors."""
        return dtype.bitwidth <= 16

    def infer_specs(self, *inputs: Any) -> tuple[Spec, ...]:
        return self.convolution.infer_specs(*self._specs(inputs))

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        return tuple(evaluate(self.convolution, xp, self._arrays(inputs), [Type.of(inputs[0].dtype)]))

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        return self.convolution.workspace(self._specs(inputs), outputs)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        return self.convolution.cuda(k, self._arrays(inputs), outputs, workspace)

    def _specs(self, inputs: Sequence[Any]) -> Sequence[Any]:
        x, kernel, *others = inputs
        if self.moved and kernel.shape is not None:
            *sizes, last = kernel.shape
            kernel = Spec(kernel.type, (last, 1, 1, *sizes) if len(sizes) == 2 else (sizes[0], last, *sizes[1:]))
        return x, kernel, *others

    def _arrays(self, inputs: Sequence[Array]) -> Sequence[Array]:
        x, kernel, *others = inputs
        if self.moved:
            depthwise = kernel.ndim == 3
            kernel = kernel.transpose(2, 0, 1)[:, None, None] if depthwise else kernel.transpose(0, 3, 1, 2)
        return x, kernel, *others


@internal_op
class PadChannels(Op):
    """``x [N, C, H, W] -> [N, channels, H, W]`` of ``type``: x rounded to that type, with zeros in the channels behind
    those of x. x has f32, f16 or bf16; the result, of 16 bits, has as many channels as a thread loads at once."""

    channels: int
    type: Type

    name: ClassVar[str] = "PadChannels"
    strided_outputs = True
    keeps_layout = True
    half_precision = "always"

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        batch, _, *sizes = x.shape or unknowns(IMAGE_RANK) or ()
        return (Spec(self.type, (batch, self.channels, *sizes)),)

    def evaluate(self, xp: Adapter, x: Array) -> tuple[Array, ...]:
        missing = self.channels - x.shape[1]
        return (xp.pad(x, [(0, 0), (0, missing), (0, 0), (0, 0)]),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x,), (out,) = inputs, outputs
        if not x.size:
            return None
        if not has_chunks(out) or out.shape[1] * out.dtype.itemsize != CHUNK_BYTES:
            return NotImplemented
        pixels = [0, *range(2, x.ndim)]
        steps = [[strides_of(a)[i] for i in pixels] for a in (x, out)]
        axes = Axes.collapse([x.shape[i] for i in pixels], *steps, reach=strides_of(x)[1] * x.shape[1])
        name = f"pad_channels<{k.c_type(x.dtype)}, {k.c_type(out.dtype)}, {axes.index}, {axes.rank}>"
        k.kernel(
            "channels.cu",
            name,
            blocks(axes.size, THREADS),
            (THREADS,),
            (x, out, axes.packed(), *axes.numbers(x.shape[1], strides_of(x)[1], axes.size)),
            early=True,
        )
        return None
