"""Conversion of images from video formats: NV12 and I420 to RGB and BGR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops._axes import MAX_INDEX
from ovgpu.ops._elementwise import merge_types
from ovgpu.ops._op import Op, Workspace, op
from ovgpu.ops._storage import is_plain
from ovgpu.ops._strided import THREADS, blocks, strides_of
from ovgpu.ops._trace import TILE
from ovgpu.symbolic import Spec, maximum, minimum, same
from ovgpu.types import Type

BRIGHT = 1.164
TERMS = (((1, 1.596),), ((0, -0.391), (1, -0.813)), ((0, 2.018),))
"""What red, green and blue have of U and V: their numbers, and the factors."""


class _FromYuv(Op):
    """Base: ``Y [n, h, w, 1]`` and colours of half its height and width, to ``[n, h, w, 3]`` between 0 and 255.

    All planes may also be one input ``[n, 3/2 h, w, 1]``. Elements are u8 or real; u8 is computed in f32, rounded
    after every operation, and halves go to even, as in the plugin (in the reference, away from zero).
    """

    layout = "dense"

    channels: ClassVar[tuple[int, ...]]
    """Of separate planes."""

    bgr: ClassVar[bool]

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        kind = merge_types(inputs)
        if not (kind.is_real() or kind in (Type.u8, Type.dynamic)):
            raise OpError(f"element type {kind.get_type_name()} is neither u8 nor real")
        if len(inputs) not in (1, len(self.channels)):
            raise OpError(f"{len(inputs)} inputs instead of 1 or {len(self.channels)}")
        for spec, channels in zip(inputs, self.channels):
            if spec.rank not in (None, 4):
                raise OpError(f"images must have rank 4, not {spec.rank}")
            if spec.shape is not None:
                same(spec.shape[3], channels, "{0} channels instead of {1}")
        if inputs[0].shape is None:
            return (Spec(kind, None),)
        n, height, width, _ = inputs[0].shape
        if len(inputs) == 1:
            same(height // 3 * 3, height, "the height of all planes, {1}, is no multiple of 3")
            height = height // 3 * 2
        same(height // 2 * 2, height, "the image's height {1} is odd")
        same(width // 2 * 2, width, "the image's width {1} is odd")
        for shape in (spec.shape for spec in inputs[1:] if spec.shape is not None):
            for found, wanted, what in zip(shape, (n, height // 2, width // 2), ("images", "rows", "columns")):
                same(found, wanted, f"{{0}} {what} of colours instead of {{1}}")
        return (Spec(kind, (n, height, width, 3)),)

    def split(self, planes: Sequence[Any]) -> list[Any]:
        """Y [n, h, w], U and V [n, h/2, w/2], as views."""
        raise NotImplementedError

    def evaluate(self, xp: Any, *planes: Any) -> tuple[Any, ...]:
        kind = planes[0].dtype
        real = np.float64 if kind == np.float64 else np.float32
        y, *colours = (plane.astype(real) for plane in self.split(planes))
        spread = [(colour - 128).repeat(2, axis=1).repeat(2, axis=2) for colour in colours]
        found = []
        for terms in TERMS:
            total = real(BRIGHT) * (y - 16)
            for number, factor in terms:
                total = total + real(factor) * spread[number]
            found.append(total)
        image = xp.clip(xp.stack(found[::-1] if self.bgr else found, axis=3), 0, 255)
        return (image if kind.kind == "f" else xp.rint(image).astype(kind),)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Tiles of rows: brightness, a channel, and half as much of a colour twice, once for all columns."""
        shape, kind = outputs[0].shape, Type.f64 if outputs[0].type is Type.f64 else Type.f32
        assert shape is not None
        size = maximum(2 * shape[2], minimum(shape[1] * shape[2], TILE))
        return ((kind, (size,)),) * 4

    def numpy(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        out = outputs[0]
        if not is_plain(out.dtype) or out.dtype.name == "bfloat16":
            return NotImplemented
        if out.size:
            k(_convert, *self.split(inputs), out[..., ::-1] if self.bgr else out, workspace)
        return None

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        out = outputs[0]
        _, height, width, _ = out.shape
        size = out.size // 12
        if not is_plain(out.dtype) or max(size, height * width) > MAX_INDEX - THREADS:
            return NotImplemented
        if not size:
            return None
        planes = self.split(inputs)
        strides = np.array(list(zip(*map(strides_of, planes))), np.int64)
        k.kernel("color.cu", f"from_yuv<{k.c_type(out.dtype)}>", blocks(size, THREADS), (THREADS,),
                 (*planes, out, strides, *map(np.int32, (size, height, width)), np.bool_(self.bgr)))
        return None


class _FromNV12(_FromYuv):
    channels = (1, 2)

    def split(self, planes: Sequence[Any]) -> list[Any]:
        if len(planes) == 2:
            y, uv = planes
            return [y[..., 0], uv[..., 0], uv[..., 1]]
        height = planes[0].shape[1] // 3 * 2
        y, uv = planes[0][:, :height, :, 0], planes[0][:, height:, :, 0]
        return [y, uv[..., ::2], uv[..., 1::2]]


class _FromI420(_FromYuv):
    channels = (1, 1, 1)

    def split(self, planes: Sequence[Any]) -> list[Any]:
        if len(planes) == 3:
            return [plane[..., 0] for plane in planes]
        n, total, width, _ = planes[0].shape
        height = total // 3 * 2
        flat = planes[0].reshape(n, -1)
        u, v = height * width, height * width // 4 * 5
        shape = (n, height // 2, width // 2)
        return [flat[:, :u].reshape(n, height, width), flat[:, u:v].reshape(shape), flat[:, v:].reshape(shape)]


def _convert(y: Any, u: Any, v: Any, out: Any, buffers: Sequence[Any]) -> None:
    """Converts images a few rows at a time, so that what is between stays in cache; see `_FromYuv.evaluate`."""
    _, height, width, _ = out.shape
    pairs = max(buffers[0].size // (2 * width), 1)
    for image in range(len(out)):
        for start in range(0, height // 2, pairs):
            stop = min(start + pairs, height // 2)
            rows = slice(2 * start, 2 * stop)
            _convert_rows(y[image, rows], u[image, start:stop], v[image, start:stop], out[image, rows], buffers)


def _convert_rows(y: Any, u: Any, v: Any, out: Any, buffers: Sequence[Any]) -> None:
    rows, width = y.shape
    real = buffers[0].dtype.type
    bright, total = (b[: y.size].reshape(rows // 2, 2, width) for b in buffers[:2])
    spread = buffers[2][: y.size // 2].reshape(rows // 2, 1, width)
    colour = buffers[3][: u.size].reshape(u.shape)
    np.subtract(y.reshape(bright.shape), real(16), bright)
    np.multiply(bright, real(BRIGHT), bright)
    for channel, terms in enumerate(TERMS):
        before = bright
        for number, factor in terms:
            np.subtract((u, v)[number], real(128), colour)
            np.multiply(colour, real(factor), colour)
            spread[:, 0, ::2] = colour
            spread[:, 0, 1::2] = colour
            np.add(before, spread, total)
            before = total
        np.clip(total, 0, 255, total)
        if out.dtype.kind != "f":
            np.rint(total, total)
        np.copyto(out[..., channel], total.reshape(rows, width), casting="unsafe")


@op("NV12toRGB", "opset8")
class NV12toRGB(_FromNV12):
    """``Y [n, h, w, 1], UV [n, h/2, w/2, 2] -> RGB [n, h, w, 3]``, or all planes in one input."""

    bgr = False


@op("NV12toBGR", "opset8")
class NV12toBGR(_FromNV12):
    """``Y [n, h, w, 1], UV [n, h/2, w/2, 2] -> BGR [n, h, w, 3]``, or all planes in one input."""

    bgr = True


@op("I420toRGB", "opset8")
class I420toRGB(_FromI420):
    """``Y [n, h, w, 1], U and V [n, h/2, w/2, 1] -> RGB [n, h, w, 3]``, or all planes in one input."""

    bgr = False


@op("I420toBGR", "opset8")
class I420toBGR(_FromI420):
    """``Y [n, h, w, 1], U and V [n, h/2, w/2, 1] -> BGR [n, h, w, 3]``, or all planes in one input."""

    bgr = True
