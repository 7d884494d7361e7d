"""Colour formats: the planes of an image, and the conversions between them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from ovgpu.model import Output
from ovgpu.preprocess._layouts import axis, permutation
from ovgpu.types import Layout, PartialShape, Type

if TYPE_CHECKING:
    from ovgpu.preprocess._steps import Context


class ColorFormat(Enum):
    """Storage format of an image's pixels, as in openvino. The X of RGBX is ignored."""

    UNDEFINED = 0
    NV12_SINGLE_PLANE = 1
    NV12_TWO_PLANES = 2
    I420_SINGLE_PLANE = 3
    I420_THREE_PLANES = 4
    RGB = 5
    BGR = 6
    GRAY = 7
    RGBX = 8
    BGRX = 9


# Family of formats and number of planes.
_YUV = {
    ColorFormat.NV12_SINGLE_PLANE: ("NV12", 1),
    ColorFormat.NV12_TWO_PLANES: ("NV12", 2),
    ColorFormat.I420_SINGLE_PLANE: ("I420", 1),
    ColorFormat.I420_THREE_PLANES: ("I420", 3),
}
_FOUR_CHANNELS = {ColorFormat.RGBX: ColorFormat.RGB, ColorFormat.BGRX: ColorFormat.BGR}
_THREE_CHANNELS = (ColorFormat.RGB, ColorFormat.BGR)
# Weights of the channels: https://docs.opencv.org/3.4/de/d25/imgproc_color_conversions.html
_GRAY = {ColorFormat.RGB: (0.299, 0.587, 0.114), ColorFormat.BGR: (0.114, 0.587, 0.299)}


def planes(color: ColorFormat) -> int:
    """Return the number of planes of an image, each of which is a tensor."""
    return _YUV[color][1] if color in _YUV else 1


def default_layout(color: ColorFormat) -> Layout:
    """Return the layout of images for which the user sets none."""
    return Layout() if color in (ColorFormat.UNDEFINED, ColorFormat.GRAY) else Layout("NHWC")


def plane_shape(color: ColorFormat, plane: int, shape: PartialShape, layout: Layout) -> PartialShape:
    """Return the shape of one plane of images of ``shape``. The colour planes of YUV have half the height and width."""
    if shape.rank.is_dynamic or color in (ColorFormat.UNDEFINED, ColorFormat.GRAY):
        return shape
    dims: list[Any] = list(shape)
    if color in _THREE_CHANNELS:
        dims[axis(layout, "C", shape)] = 3
    elif len(dims) == 4 and color in _FOUR_CHANNELS:
        dims[3] = 4
    elif len(dims) == 4:
        family, count = _YUV[color]
        dims[3] = 2 if family == "NV12" and plane else 1
        for i in (1,) if count == 1 else (1, 2) if plane else ():
            if dims[i].is_static:
                extent = dims[i].get_length()
                dims[i] = extent * 3 // 2 if count == 1 else extent // 2
    return PartialShape(dims)


def convert(context: Context, images: Sequence[Output], target: ColorFormat) -> list[Output]:
    """Convert images to another format. RuntimeError if there is no conversion."""
    source = context.color
    if source == target:
        return list(images)
    converted = _converted(context, images, source, target)
    if converted is None:
        raise RuntimeError(f"Source color format '{source.name}' is not convertible to '{target.name}'")
    context.color = target
    return [converted]


def _converted(context: Context, images: Sequence[Output], source: ColorFormat, target: ColorFormat) -> Output | None:
    if source in _YUV:
        if target in _THREE_CHANNELS:
            return context.graph.add(f"{_YUV[source][0]}to{target.name}", "opset8", *images)
        return images[0] if (source, target) == (ColorFormat.NV12_TWO_PLANES, ColorFormat.GRAY) else None
    if source in _THREE_CHANNELS and target in _THREE_CHANNELS:
        return reversed_channels(context, images[0])
    if source in _THREE_CHANNELS and target == ColorFormat.GRAY:
        return _gray(context, images[0], _GRAY[source])
    if source in _FOUR_CHANNELS and target in _THREE_CHANNELS:
        graph, channel = context.graph, axis(context.layout, "C", images[0].partial_shape)
        without_x = graph.add("Slice", "opset8", images[0], *(graph.constant([v]) for v in (0, -1, 1, channel)))
        return without_x if target == _FOUR_CHANNELS[source] else reversed_channels(context, without_x)
    return None


def reversed_channels(context: Context, x: Output) -> Output:
    """Reverse the order of an image's channels. RuntimeError if the layout has none."""
    if not context.layout.has_name("C"):
        raise RuntimeError(f"Layout {context.layout} doesn't have `channels` dimension")
    graph, channel = context.graph, axis(context.layout, "C", x.partial_shape)
    return graph.add("Slice", "opset8", x, *(graph.constant([v]) for v in (-1, -(2**31), -1, channel)))


def _gray(context: Context, x: Output, weights: Sequence[float]) -> Output:
    """Compute a weighted sum of the channels, in f32. Integers are rounded to the nearest, halves to even."""
    graph, shape, dtype = context.graph, x.partial_shape, x.element_type
    if shape.rank.is_dynamic or len(shape) != 4 or shape[axis(context.layout, "C", shape)] != 3:
        raise RuntimeError(f"only images of rank 4 and 3 channels can be converted to gray, not of shape {shape}")
    channels_last = axis(context.layout, "C", shape) == 3
    if channels_last:
        x = graph.transpose(x, permutation(context.layout, 4, Layout("NC...")) or range(4))
    if dtype.is_integral():
        x = graph.add("Convert", "opset1", x, destination_type=Type.f32)
    kernel = graph.constant([[[[w]] for w in weights]], Type.f32)
    defaults = {"strides": (1, 1), "pads_begin": (0, 0), "pads_end": (0, 0), "dilations": (1, 1)}
    x = graph.add("Convolution", "opset1", x, kernel, **defaults)
    if dtype.is_integral():
        x = graph.add("Round", "opset5", x, mode="half_to_even")
        x = graph.add("Convert", "opset1", x, destination_type=dtype)
    if channels_last:
        x = graph.transpose(x, permutation(Layout("NC..."), 4, context.layout) or range(4))
    return x
