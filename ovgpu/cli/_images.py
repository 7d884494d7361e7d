"""Images as input tensors. Pillow reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu._util.extras import install_command
from ovgpu.cli._ports import port_name
from ovgpu.cli._preparation import Preparation
from ovgpu.model import Output
from ovgpu.types import PartialShape

Array = np.ndarray[Any, Any]
SUFFIXES = (
    ".bmp",
    ".dib",
    ".gif",
    ".jpeg",
    ".jpg",
    ".jpe",
    ".jp2",
    ".png",
    ".pbm",
    ".pgm",
    ".ppm",
    ".sr",
    ".ras",
    ".tiff",
    ".tif",
    ".webp",
)
MAX_CHANNELS = 4  # of an image; a larger dimension is a height or a width


def parse_numbers(text: str) -> dict[str, tuple[float, ...]]:
    """Return numbers by input name ("" if there is none) from ``[1,2,3]`` or ``data[1,2,3],info[4]``."""
    if not re.fullmatch(r"([^\[\],]*\[[^\]]*\],?)*", text.strip()):
        raise ValueError(f"cannot read the values {text!r}: write [1,2,3] or name[1,2,3]")
    return {
        name.strip(): tuple(map(float, numbers.split(",")))
        for name, numbers in re.findall(r"([^\[\],]*)\[([^\]]*)\]", text)
    }


def image_layout(port: Output, shape: PartialShape) -> str:
    """Return an image input's layout: the port's, else the one of NCHW, NHWC, CHW, HWC that fits its shape, or ""."""
    layout = getattr(port.node, "layout", None)
    if layout is not None and not layout.empty:
        return str(layout).strip("[]").replace(",", "")
    if shape.rank.is_dynamic or len(shape) not in (3, 4):
        return ""
    sizes = [dimension.get_max_length() for dimension in shape][-3:]
    batch = "N" * (len(shape) - 3)
    if sizes[0] <= MAX_CHANNELS < sizes[2]:
        return batch + "CHW"
    return batch + "HWC" if sizes[2] <= MAX_CHANNELS < sizes[0] else ""


def image_tensor(
    paths: Sequence[Path], port: Output, shape: PartialShape, preparation: Preparation, axes: str = ""
) -> tuple[Array, str]:
    """Return the tensor of one or several images, and a note of what was done.

    ``axes`` is the layout, by default `image_layout`. The images fill the batch in turns. A height and width that the
    shape leaves open come from the preparation, else from the first image. Raises: ValueError if the input takes no
    images, or Pillow is missing or cannot read a file.
    """
    images = [_open(path) for path in paths]
    axes = axes or image_layout(port, shape) or _assumed_layout(shape)
    if not {"C", "H", "W"} <= set(axes) or len(axes) != len(shape) or not port.element_type.is_static():
        raise ValueError(f"{paths[0]}: input '{port_name(port)}' of shape {shape} takes no images")
    extents = {axis: None if d.is_dynamic else d.get_length() for axis, d in zip(axes, shape)}
    default = preparation.size_of(images[0].height, images[0].width)
    height, width = extents["H"] or default[0], extents["W"] or default[1]
    channels = extents["C"] or 3
    if channels not in (1, 3, 4):
        raise ValueError(f"{paths[0]}: input '{port_name(port)}' has {channels} channels, an image has 1, 3 or 4")
    arrays = [pixels(image, channels, height, width, preparation) for image in images]
    array, source = arrays[0], "HWC"
    if "N" in axes:
        array, source = np.stack([arrays[i % len(arrays)] for i in range(extents["N"] or len(arrays))]), "NHWC"
    array = array.transpose([source.index(axis) for axis in axes])
    return (
        np.ascontiguousarray(array, port.element_type.storage),
        _note(paths[0], images[0], axes, array.shape, channels, preparation),
    )


def pixels(image: Any, channels: int, height: int, width: int, preparation: Preparation) -> Array:
    """Return the pixels [height, width, channels] of an image, normalised: f32, or u8 if nothing was computed."""
    image = image.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels])
    array: Array = np.asarray(_resized(image, height, width, preparation)).reshape(height, width, channels)
    if preparation.bgr and channels > 1:
        array = array[..., [2, 1, 0, 3][:channels]]
    if preparation.mean or preparation.scale:
        mean, scale = np.array(preparation.mean or (0,), np.float32), np.array(preparation.scale or (1,), np.float32)
        array = (array - mean) / scale
    return array


def _resized(image: Any, height: int, width: int, preparation: Preparation) -> Any:
    if (image.height, image.width) == (height, width):
        return image
    if preparation.resize == "stretch":
        return image.resize((width, height), preparation.resample)
    down, across = height / image.height, width / image.width
    if preparation.resize == "crop":
        h, w = _uncropped(image, height, width, preparation)
        left, top = (w - width) // 2, (h - height) // 2
        return image.resize((w, h), preparation.resample).crop((left, top, left + width, top + height))
    factor = min(down, across)
    w, h = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    padded = image.resize((width, height))
    padded.paste((preparation.pad,) * len(image.getbands()), (0, 0, width, height))
    corner = ((width - w) // 2, (height - h) // 2) if preparation.resize == "letterbox" else (0, 0)
    padded.paste(image.resize((w, h), preparation.resample), corner)
    return padded


def _uncropped(image: Any, height: int, width: int, preparation: Preparation) -> tuple[int, int]:
    """Return the height and width of an image before it is cropped, as transformers computes them."""
    if isinstance(preparation.uncropped, tuple):
        return preparation.uncropped
    shorter = min(image.height, image.width)
    size = preparation.uncropped or max(height / image.height, width / image.width) * shorter
    return max(height, int(size * image.height / shorter)), max(width, int(size * image.width / shorter))


def _note(path: Path, image: Any, axes: str, shape: Sequence[int], channels: int, preparation: Preparation) -> str:
    extents = dict(zip(axes, shape))
    size = (extents["W"], extents["H"])
    resized = "" if size == image.size else f" to {size[0]}x{size[1]} ({preparation.resize})"
    order = {1: "gray"}.get(channels, "BGR" if preparation.bgr else "RGB")
    if preparation.mean or preparation.scale:
        numbers = [
            f"{name} {', '.join(f'{n:.4g}' for n in values)}"
            for name, values in (("mean", preparation.mean), ("scale", preparation.scale))
            if values
        ]
        values = f"{' and '.join(numbers)}" + (f" from {preparation.source}" if preparation.source else "")
    else:
        values = "pixels from 0 to 255" + ("" if preparation.source else " (see --mean_values and --scale_values)")
    return f"{path.name}: {image.width}x{image.height}{resized}, {axes}, {order}, {values}"


def _open(path: Path) -> Any:
    try:
        pillow: Any = import_module("PIL.Image")
    except ImportError:
        raise ValueError(f"{path}: images need Pillow: {install_command('images')}") from None
    try:
        with pillow.open(path) as image:
            image.load()
            return image.copy()
    except FileNotFoundError:
        raise
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as e:
        raise ValueError(f"{path} cannot be read as an image: {e}") from None


def _assumed_layout(shape: PartialShape) -> str:
    """Return the layout of an image with few pixels, or with a dynamic height and width; channels first by default."""
    if shape.rank.is_dynamic or len(shape) not in (3, 4):
        return ""
    first, last = (d.is_static and d.get_length() <= MAX_CHANNELS for d in (shape[len(shape) - 3], shape[-1]))
    return "N" * (len(shape) - 3) + ("HWC" if last and not first else "CHW")
