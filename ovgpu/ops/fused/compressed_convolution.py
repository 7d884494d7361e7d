"""Convolutions with compressed weights, which are never decompressed as a whole; what passes make of convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from ovgpu.ops.base.op import Array, Op, Workspace, internal_op
from ovgpu.ops.convolution._convolution import Epilogue, reads_weights
from ovgpu.ops.convolution.convolution import Convolution, ConvolutionBackpropData
from ovgpu.ops.fused._packed import Packed, Tile, affine
from ovgpu.ops.fused.compressed import expand
from ovgpu.symbolic import Spec
from ovgpu.types import Type


@internal_op
class CompressedConvolution(Op):
    """``convolution`` of x with a ``kernel`` of these extents: inputs are x, those of `Packed`, and an output shape.

    Some output channels, or groups, at a time, whose weights have at most ``tile`` elements, or are two channels, but
    where a kernel reads those of 16 bits. ``device``: whether by kernels, which need no scratch beside it. The matrices
    of the weights are the groups, their rows output channels, or input channels of a transposed convolution.
    """

    convolution: Convolution | ConvolutionBackpropData
    weights: Packed
    kernel: tuple[int, ...]
    tile: int
    device: bool

    name: ClassVar[str] = "Convolution"
    version: ClassVar[str] = "ovgpu"
    aliases: ClassVar[tuple[str, ...]] = ()
    layout = "blas"
    host_inputs = (4,)

    def infer(self, x: Spec, codes: Spec, scale: Spec | None, zero: Spec | None, *target: Spec) -> tuple[Spec, ...]:
        return self.convolution.infer(x, Spec(x.type, self.kernel), *target)

    @property
    def axis(self) -> int:
        """The axis of the weights along which output channels lie."""
        return int(isinstance(self.convolution, ConvolutionBackpropData))

    @property
    def unit(self) -> int:
        """How many places along that axis a channel has."""
        return prod(self.kernel[self.convolution.leading :]) if self.axis else 1

    @property
    def room(self) -> int:
        """The elements of a tile."""
        count, step = self.weights.tile(self.axis, self.tile, self.unit)
        return count * step * self.weights.shape[1 - self.axis]

    def evaluate(self, xp: Any, x: Array, codes: Array, scale: Array | None = None, zero: Array | None = None,
                 *target: Array) -> tuple[Array, ...]:
        kernel = self.weights.matrix(xp, codes, scale, zero).reshape(self.kernel)
        return self.convolution.evaluate(xp, x, kernel.astype(x.dtype, copy=False), *target)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """A tile, for NumPy scratch of `Packed.unpack`, and what the convolution takes."""
        x, elements = inputs[0], self.room + 1
        assert x is not None
        index = 0 if self.device else self.weights.bytes_of(elements)
        return ((Type.f32, (elements,)), (Type.i64, (index,)),
                *self.convolution.workspace([x, Spec(x.type, self.kernel)], outputs))

    def numpy(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        x, stored, target = inputs[0], inputs[1:4], inputs[4:]
        room, index, *scratch = workspace
        for tile, shape, channels, part in self._tiles(x, outputs[0]):
            k(self._decompress, *stored, tile, room, index)
            kernel, place = room[: prod(shape)].reshape(shape), outputs[0][:, part]
            if self.convolution.numpy(k, [channels, kernel, *target], [place], scratch) is NotImplemented:
                return NotImplemented
        return None

    def _decompress(self, codes: Array, scale: Array | None, zero: Array | None, tile: Tile, room: Array,
                    index: Array) -> None:
        part = self.weights.part(codes, tile, room, index)
        affine(part, self.weights.terms(scale, tile), self.weights.terms(zero, tile))

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any],
             epilogue: Epilogue | None = None) -> None:
        x, stored, target, out = inputs[0], inputs[1:4], inputs[4:], outputs[0]
        room, _, *scratch = workspace
        if self.weights.kind in (Type.f16, Type.bf16) and stored[1] is None and x.dtype == np.float32:
            kernel = stored[0].reshape(self.kernel)
            if reads_weights(self.convolution.convolved(x, kernel, out, (), bool(self.axis))):
                return self.convolution.cuda(k, [x, kernel, *target], outputs, scratch, epilogue)
        for tile, shape, channels, part in self._tiles(x, out):
            first, extents = self.weights.place(tile)
            kernel = room.view(x.dtype)[: prod(shape)]
            expand(k, self.weights, kernel.reshape(-1, extents[2]), stored, first)
            of_part = None if epilogue is None else epilogue.cut(1, part, out.ndim)
            self.convolution.cuda(k, [channels, kernel.reshape(shape), *target], [out[:, part]], scratch, of_part)
        return None

    def _tiles(self, x: Any, out: Any) -> Iterator[tuple[Tile, tuple[int, ...], Any, slice]]:
        """Of weights; the shapes of such a kernel, the channels that it reads, and which it writes."""
        if not out.size:
            return
        leading, groups = self.convolution.leading, self.weights.matrices
        each, outputs = x.shape[1] // groups, out.shape[1] // groups
        for tile in self.weights.tiles(self.axis, self.tile, self.unit):
            count, width = tile.matrices.stop - tile.matrices.start, (tile.cut.stop - tile.cut.start) // self.unit
            shape = [*((count,) if leading == 3 else ()), *self.kernel[leading - 2 :]]
            shape[leading - 2 + self.axis] = width
            first = tile.matrices.start * outputs + tile.cut.start // self.unit
            yield (tile, tuple(shape), x[:, tile.matrices.start * each : tile.matrices.stop * each],
                   slice(first, first + count * width))
