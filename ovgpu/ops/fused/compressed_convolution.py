"""Internal op of convolutions with compressed weights, which are never decompressed as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, ClassVar

from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, internal_op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.convolution._convolved import Epilogue
from ovgpu.ops.convolution.convolution import Convolution, ConvolutionBackpropData
from ovgpu.ops.fused._packed import Packed, Tile, affine
from ovgpu.ops.fused.compressed import expand
from ovgpu.spec import Spec
from ovgpu.types import Type


@internal_op
class CompressedConvolution(Op):
    """The ``convolution`` of x with compressed weights, whose decompressed shape is ``kernel``.

    Inputs are x, the codes, scale and zero point of `Packed`, and optionally an output shape. Weights are decompressed
    for some output channels or groups at a time: at most ``tile`` elements, but at least two channels. ``device``: True
    if kernels decompress, which need no scratch beside the tile. The matrices of the weights are groups. Their rows are
    output channels (transposed: input channels).
    """

    convolution: Convolution | ConvolutionBackpropData
    weights: Packed
    kernel: tuple[int, ...]
    tile: int
    device: bool

    name: ClassVar[str] = "Convolution"
    layout = "blas"
    host_inputs = (4,)
    half_precision = "always"

    def infer_specs(
        self, x: Spec, codes: Spec, scale: Spec | None, zero: Spec | None, *target: Spec
    ) -> tuple[Spec, ...]:
        return self.convolution.infer_specs(x, Spec(x.type, self.kernel), *target)

    @property
    def axis(self) -> int:
        """The axis of the weights that holds the output channels."""
        return int(isinstance(self.convolution, ConvolutionBackpropData))

    @property
    def unit(self) -> int:
        """The extent of one output channel along that axis."""
        return prod(self.kernel[self.convolution.leading :]) if self.axis else 1

    @property
    def tile_buffer(self) -> int:
        """The number of elements of a tile's buffer."""
        count, step = self.weights.tile(self.axis, self.tile, self.unit)
        return count * step * self.weights.shape[1 - self.axis]

    def evaluate(
        self, xp: Adapter, x: Array, codes: Array, scale: Array | None = None, zero: Array | None = None, *target: Array
    ) -> tuple[Array, ...]:
        kernel = self.weights.matrix(xp, codes, scale, zero).reshape(self.kernel)
        return self.convolution.evaluate(xp, x, kernel.astype(x.dtype, copy=False), *target)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Return the workspace: a tile, on NumPy the scratch of `Packed.unpack`, and the convolution's own."""
        x, elements = inputs[0], self.tile_buffer + 1
        assert x is not None
        index = 0 if self.device else self.weights.bytes_of(elements)
        return (
            (Type.f32, (elements,)),
            (Type.i64, (index,)),
            *self.convolution.workspace([x, Spec(x.type, self.kernel)], outputs),
        )

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, stored, target = inputs[0], inputs[1:4], inputs[4:]
        tile_buffer, index, *scratch = workspace
        for tile, shape, channels, part in self._tiles(x, outputs[0]):
            k(self._decompress, *stored, tile, tile_buffer, index)
            kernel, location = tile_buffer[: prod(shape)].reshape(shape), outputs[0][:, part]
            if self.convolution.numpy(k, [channels, kernel, *target], [location], scratch) is NotImplemented:
                return NotImplemented
        return None

    def _decompress(
        self, codes: Array, scale: Array | None, zero: Array | None, tile: Tile, tile_buffer: Array, index: Array
    ) -> None:
        part = self.weights.part(codes, tile, tile_buffer, index)
        affine(part, self.weights.quant_params(scale, tile), self.weights.quant_params(zero, tile))

    def cuda(
        self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays, epilogue: Epilogue | None = None
    ) -> None:
        x, stored, target, out = inputs[0], inputs[1:4], inputs[4:], outputs[0]
        tile_buffer, _, *scratch = workspace
        for tile, shape, channels, part in self._tiles(x, out):
            first, extents = self.weights.location(tile)
            kernel = tile_buffer.view(x.dtype)[: prod(shape)]
            expand(k, self.weights, kernel.reshape(-1, extents[2]), stored, first)
            of_part = None if epilogue is None else epilogue.cut(1, part, out.ndim)
            self.convolution.cuda(k, [channels, kernel.reshape(shape), *target], [out[:, part]], scratch, of_part)

    def _tiles(self, x: Any, out: Any) -> Iterator[tuple[Tile, tuple[int, ...], Any, slice]]:
        """Yield for each tile of the weights: the tile, its kernel's shape, the channels of x that it reads, and the
        slice of output channels that it writes."""
        if not out.size:
            return
        leading, groups = self.convolution.leading, self.weights.matrices
        each, outputs = x.shape[1] // groups, out.shape[1] // groups
        for tile in self.weights.tiles(self.axis, self.tile, self.unit):
            count, width = tile.matrices.stop - tile.matrices.start, (tile.cut.stop - tile.cut.start) // self.unit
            shape = [*((count,) if leading == 3 else ()), *self.kernel[leading - 2 :]]
            shape[leading - 2 + self.axis] = width
            first = tile.matrices.start * outputs + tile.cut.start // self.unit
            yield (
                tile,
                tuple(shape),
                x[:, tile.matrices.start * each : tile.matrices.stop * each],
                slice(first, first + count * width),
            )
