"""Conversion of images between video formats and colours: NV12 and I420 to RGB and BGR, and these to NV12."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.launch import MAX_INDEX
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.strided import THREADS, blocks, strides_of
from ovgpu.ops.base.trace import TILE
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, maximum, minimum, same, unknown
from ovgpu.types import Type

LUMA_FACTOR = 1.164
CHROMA_TERMS = (((1, 1.596),), ((0, -0.391), (1, -0.813)), ((0, 2.018),))
"""Terms of red, green and blue in U and V: (0 for U or 1 for V, factor)."""
YUV_WEIGHTS = ((0.257, 0.504, 0.098, 16), (-0.148, -0.291, 0.439, 128), (0.439, -0.368, -0.071, 128))
"""Weights of red, green and blue in Y, U and V, and an offset."""


def check_type(dtype: Type) -> Type:
    """Return the element type. Raise OpError unless it is u8, a floating-point type or unknown."""
    if not (dtype.is_real() or dtype in (Type.u8, Type.dynamic)):
        raise OpError(f"element type {dtype.get_type_name()} is neither u8 nor real")
    return dtype


def check_image(spec: Spec, channels: int) -> None:
    """Raise OpError, now or at run time, unless ``spec`` is a tensor of images with ``channels`` channels."""
    if spec.rank not in (None, 4):
        raise OpError(f"images must have rank 4, not {spec.rank}")
    if spec.shape is not None:
        same(spec.shape[3], channels, "{0} channels instead of {1}")


def check_even(height: Int, width: Int) -> None:
    """Raise OpError, now or at run time, unless height and width are even."""
    same(height // 2 * 2, height, "the image's height {1} is odd")
    same(width // 2 * 2, width, "the image's width {1} is odd")


def tiles(image: Spec, count: int) -> Workspace:
    """Return ``count`` buffers, each for some rows (at least two) of one channel of an image."""
    assert image.shape is not None
    _, height, width, _ = image.shape
    dtype = Type.f64 if image.type is Type.f64 else Type.f32
    return ((dtype, (maximum(2 * width, minimum(height * width, TILE)),)),) * count


class _FromYuv(Op):
    """Base of conversions from ``Y [n, h, w, 1]`` and chroma of half its height and width to ``[n, h, w, 3]``, between
    0 and 255.

    All planes may also be one input ``[n, 3/2 h, w, 1]``. Elements are u8 or real; u8 is computed in f32, which is
    rounded after every operation, and results are rounded to nearest even, as in OpenVINO's CPU plugin (its reference
    rounds halves away from zero).
    """

    layout = "dense"

    channels: ClassVar[tuple[int, ...]]
    """The number of channels of each plane, if planes are separate inputs."""

    bgr: ClassVar[bool]

    def infer_specs(self, *inputs: Spec) -> tuple[Spec, ...]:
        dtype = check_type(merge_types(inputs))
        if len(inputs) not in (1, len(self.channels)):
            raise OpError(f"{len(inputs)} inputs instead of 1 or {len(self.channels)}")
        for spec, channels in zip(inputs, self.channels):
            check_image(spec, channels)
        if inputs[0].shape is None:
            return (Spec(dtype, None),)
        n, height, width, _ = inputs[0].shape
        if len(inputs) == 1:
            same(height // 3 * 3, height, "the height of all planes, {1}, is no multiple of 3")
            height = height // 3 * 2
        check_even(height, width)
        for shape in (spec.shape for spec in inputs[1:] if spec.shape is not None):
            for extent, expected, what in zip(shape, (n, height // 2, width // 2), ("images", "rows", "columns")):
                same(extent, expected, f"{{0}} {what} of colours instead of {{1}}")
        return (Spec(dtype, (n, height, width, 3)),)

    def split(self, planes: Sequence[Any]) -> list[Any]:
        """Return Y [n, h, w], U and V [n, h/2, w/2] as views."""
        raise NotImplementedError

    def evaluate(self, xp: Adapter, *planes: Array) -> tuple[Array, ...]:
        dtype = planes[0].dtype
        real = np.float64 if dtype == np.float64 else np.float32
        y, *colours = (plane.astype(real) for plane in self.split(planes))
        upsampled = [(colour - 128).repeat(2, axis=1).repeat(2, axis=2) for colour in colours]
        channels = []
        for terms in CHROMA_TERMS:
            total = real(LUMA_FACTOR) * (y - 16)
            for chroma, factor in terms:
                total = total + real(factor) * upsampled[chroma]
            channels.append(total)
        image = xp.clip(xp.stack(channels[::-1] if self.bgr else channels, axis=3), 0, 255)
        return (image if dtype.kind == "f" else xp.rint(image).astype(dtype),)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Return tiles of rows: of luma, an output channel, chroma with each column repeated, and chroma itself."""
        return tiles(outputs[0], 4)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        out = outputs[0]
        if not is_plain(out.dtype) or out.dtype.name == "bfloat16":
            return NotImplemented
        if out.size:
            k(_convert, *self.split(inputs), out[..., ::-1] if self.bgr else out, workspace)
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        out = outputs[0]
        _, height, width, _ = out.shape
        size = out.size // 12  # threads: one for every 2 x 2 pixels of three channels
        if not is_plain(out.dtype) or max(size, height * width) > MAX_INDEX - THREADS:
            return NotImplemented
        if not size:
            return None
        planes = self.split(inputs)
        strides = np.array(list(zip(*map(strides_of, planes))), np.int64)
        k.kernel(
            "color.cu",
            f"from_yuv<{k.c_type(out.dtype)}>",
            blocks(size, THREADS),
            (THREADS,),
            (*planes, out, strides, *map(np.int32, (size, height, width)), np.bool_(self.bgr)),
        )
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
        flat = planes[0].reshape(n, total * width)
        u, v = height * width, height * width // 4 * 5
        shape = (n, height // 2, width // 2)
        return [flat[:, :u].reshape(n, height, width), flat[:, u:v].reshape(shape), flat[:, v:].reshape(shape)]


def _convert(y: Any, u: Any, v: Any, out: Any, buffers: Sequence[Any]) -> None:
    """Convert images a few rows at a time, so that intermediates stay in cache; see `_FromYuv.evaluate`."""
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
    luma, total = (b[: y.size].reshape(rows // 2, 2, width) for b in buffers[:2])
    upsampled = buffers[2][: y.size // 2].reshape(rows // 2, 1, width)
    colour = buffers[3][: u.size].reshape(u.shape)
    np.subtract(y.reshape(luma.shape), real(16), luma)
    np.multiply(luma, real(LUMA_FACTOR), luma)
    for channel, terms in enumerate(CHROMA_TERMS):
        before = luma
        for chroma, factor in terms:
            np.subtract((u, v)[chroma], real(128), colour)
            np.multiply(colour, real(factor), colour)
            upsampled[:, 0, ::2] = colour
            upsampled[:, 0, 1::2] = colour
            np.add(before, upsampled, total)
            before = total
        np.clip(total, 0, 255, total)
        if out.dtype.kind != "f":
            np.rint(total, total)
        np.copyto(out[..., channel], total.reshape(rows, width), casting="unsafe")


@op("NV12toRGB", "opset8", "image/nv12-to-rgb-8")
class NV12toRGB(_FromNV12):
    """``Y [n, h, w, 1], UV [n, h/2, w/2, 2] -> RGB [n, h, w, 3]``, or all planes in one input.

    >>> nv12_to_rgb([[[[16.0], [235]], [[16], [235]]]], [[[[128.0, 128]]]])
    [[[[0.0, 0.0, 0.0], [254.9, 254.9, 254.9]], [[0.0, 0.0, 0.0], [254.9, 254.9, 254.9]]]]
    """

    bgr = False


@op("NV12toBGR", "opset8", "image/nv12-to-bgr-8")
class NV12toBGR(_FromNV12):
    """``Y [n, h, w, 1], UV [n, h/2, w/2, 2] -> BGR [n, h, w, 3]``, or all planes in one input.

    >>> nv12_to_bgr([[[[16.0], [16]], [[16], [16]]]], [[[[228.0, 128]]]])
    [[[[201.8, 0.0, 0.0], [201.8, 0.0, 0.0]], [[201.8, 0.0, 0.0], [201.8, 0.0, 0.0]]]]
    """

    bgr = True


@op("I420toRGB", "opset8", "image/i420-to-rgb-8")
class I420toRGB(_FromI420):
    """``Y [n, h, w, 1], U and V [n, h/2, w/2, 1] -> RGB [n, h, w, 3]``, or all planes in one input.

    >>> i420_to_rgb([[[[16.0], [16]], [[16], [16]]]], [[[[228.0]]]], [[[[128.0]]]])
    [[[[0.0, 0.0, 201.8], [0.0, 0.0, 201.8]], [[0.0, 0.0, 201.8], [0.0, 0.0, 201.8]]]]
    """

    bgr = False


@op("I420toBGR", "opset8", "image/i420-to-bgr-8")
class I420toBGR(_FromI420):
    """``Y [n, h, w, 1], U and V [n, h/2, w/2, 1] -> BGR [n, h, w, 3]``, or all planes in one input.

    >>> i420_to_bgr([[[[16.0], [16]], [[16], [16]]]], [[[[228.0]]]], [[[[128.0]]]])
    [[[[201.8, 0.0, 0.0], [201.8, 0.0, 0.0]], [[201.8, 0.0, 0.0], [201.8, 0.0, 0.0]]]]
    """

    bgr = True


class _ToNV12(Op):
    """Base of conversions from colours ``[n, h, w, 3]`` between 0 and 255: to all planes in one, ``[n, 3/2 h, w, 1]``,
    with ``single_plane``, else to ``Y [n, h, w, 1], UV [n, h/2, w/2, 2]``.

    U and V are means of four pixels. Elements are u8 or real; u8 is computed in f32, which is rounded after every
    operation, and to integers (halves upwards) before and after the mean, as in OpenVINO's reference; its CPU plugin
    has no such op.
    """

    single_plane: bool = True

    layout = "dense"

    bgr: ClassVar[bool]

    def infer_specs(self, image: Spec) -> tuple[Spec, ...]:
        dtype = check_type(image.type)
        check_image(image, 3)
        n, height, width, _ = image.shape or [unknown() for _ in range(4)]
        check_even(height, width)
        if self.single_plane:
            return (Spec(dtype, (n, height // 2 * 3, width, 1)),)
        return Spec(dtype, (n, height, width, 1)), Spec(dtype, (n, height // 2, width // 2, 2))

    def colours(self, image: Any) -> list[Any]:
        """Return red, green and blue [n, h, w] as views."""
        return [image[..., 2 - i if self.bgr else i] for i in range(3)]

    def planes(self, image: Any, outputs: Sequence[Any]) -> list[Any]:
        """Return Y [n, h, w], U and V [n, h/2, w/2] as views of the outputs."""
        height = image.shape[1]
        if self.single_plane:
            y, uv = outputs[0][:, :height, :, 0], outputs[0][:, height:, :, 0]
            return [y, uv[..., ::2], uv[..., 1::2]]
        return [outputs[0][..., 0], outputs[1][..., 0], outputs[1][..., 1]]

    def evaluate(self, xp: Adapter, image: Array) -> tuple[Array, ...]:
        n, height, width, _ = image.shape
        real = np.float64 if image.dtype == np.float64 else np.float32
        red, green, blue = (colour.astype(real) for colour in self.colours(image))

        def rounded(x: Any) -> Any:
            return x if image.dtype.kind == "f" else xp.floor(x + 0.5)

        y, *colours = (
            rounded(xp.clip(real(a) * red + real(b) * green + real(c) * blue + real(d), 0, 255))
            for a, b, c, d in YUV_WEIGHTS
        )
        quads = [colour.reshape(n, height // 2, 2, width // 2, 2) for colour in colours]
        means = [(x[:, :, 0, :, 0] + x[:, :, 0, :, 1] + x[:, :, 1, :, 0] + x[:, :, 1, :, 1]) / 4 for x in quads]
        uv = rounded(xp.stack(means, -1))
        if self.single_plane:
            return (xp.concatenate([y, uv.reshape(n, height // 2, width)], 1)[..., None].astype(image.dtype),)
        return y[..., None].astype(image.dtype), uv.astype(image.dtype)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Return tiles of rows: of the three colours, a plane, and products or means."""
        assert inputs[0] is not None
        return tiles(inputs[0], 5)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        image = inputs[0]
        if not is_plain(image.dtype) or image.dtype.name == "bfloat16":
            return NotImplemented
        if image.size:
            k(_separate, self.colours(image), *self.planes(image, outputs), workspace)
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        image = inputs[0]
        _, height, width, _ = image.shape
        size = image.size // 12  # threads: one for every 2 x 2 pixels of three channels
        if not is_plain(image.dtype) or max(size, height * width) > MAX_INDEX - THREADS:
            return NotImplemented
        if size:
            planes = self.planes(image, outputs)
            strides = np.array(list(zip(*map(strides_of, planes))), np.int64)
            k.kernel(
                "color.cu",
                f"to_yuv<{k.c_type(image.dtype)}>",
                blocks(size, THREADS),
                (THREADS,),
                (image, *planes, strides, *map(np.int32, (size, height, width)), np.bool_(self.bgr)),
            )
        return None


def _separate(colours: Sequence[Any], y: Any, u: Any, v: Any, buffers: Sequence[Any]) -> None:
    """Convert images a few rows at a time, so that intermediates stay in cache; see `_ToNV12.evaluate`."""
    _, height, width = y.shape
    pairs = max(buffers[0].size // (2 * width), 1)
    for image in range(len(y)):
        for start in range(0, height // 2, pairs):
            stop = min(start + pairs, height // 2)
            rows = slice(2 * start, 2 * stop)
            _separate_rows(
                [colour[image, rows] for colour in colours],
                y[image, rows],
                u[image, start:stop],
                v[image, start:stop],
                buffers,
            )


def _separate_rows(colours: Sequence[Any], y: Any, u: Any, v: Any, buffers: Sequence[Any]) -> None:
    *colour_tiles, total, product = (b[: y.size].reshape(y.shape) for b in buffers)
    real, mean = total.dtype.type, buffers[4][: u.size].reshape(u.shape)
    for colour, tile in zip(colours, colour_tiles):
        np.copyto(tile, colour)
    for (first, *others, added), target in zip(YUV_WEIGHTS, (y, u, v)):
        np.multiply(colour_tiles[0], real(first), total)
        for weight, tile in zip(others, colour_tiles[1:]):
            np.multiply(tile, real(weight), product)
            np.add(total, product, total)
        np.add(total, real(added), total)
        np.clip(total, 0, 255, total)
        if target.dtype.kind != "f":
            _round_up(total)
        if target is not y:
            quads = total.reshape(len(u), 2, -1, 2)
            np.add(quads[:, 0, :, 0], quads[:, 0, :, 1], mean)
            for i in (0, 1):
                np.add(mean, quads[:, 1, :, i], mean)
            np.multiply(mean, real(0.25), mean)
            if target.dtype.kind != "f":
                _round_up(mean)
        np.copyto(target, total if target is y else mean, casting="unsafe")


def _round_up(x: Any) -> None:
    """Round to the nearest integer in place, halves upwards."""
    np.add(x, x.dtype.type(0.5), x)
    np.floor(x, x)


@op("RGBtoNV12", "opset17", "image/rgb-to-nv12-17")
class RGBtoNV12(_ToNV12):
    """``RGB [n, h, w, 3] -> Y [n, h, w, 1], UV [n, h/2, w/2, 2]``, or all planes in one output."""

    bgr = False


@op("BGRtoNV12", "opset17", "image/bgr-to-nv12-17")
class BGRtoNV12(_ToNV12):
    """``BGR [n, h, w, 3] -> Y [n, h, w, 1], UV [n, h/2, w/2, 2]``, or all planes in one output."""

    bgr = True
