"""Internal op of a convolution that reads and writes tensors whose channels are adjacent in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, evaluate, internal_op
from ovgpu.ops.base.recorder import KernelRecorder
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

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        return self.convolution.infer(*self._specs(inputs))

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
