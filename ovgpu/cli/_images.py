"""Images as input tensors. Pillow reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ovgpu.cli._ports import port_name
from ovgpu.model import Model, Output
from ovgpu.types import PartialShape

Array = np.ndarray[Any, Any]
Resize = Literal["stretch", "fit", "letterbox", "crop"]
SUFFIXES = (".bmp", ".dib", ".gif", ".jpeg", ".jpg", ".jpe", ".jp2", ".png", ".pbm", ".pgm", ".ppm", ".sr", ".ras",
            ".tiff", ".tif", ".webp")
MAX_CHANNELS = 4  # of an image; a larger dimension is a height or a width
RESIZE_TYPES: dict[str, Resize] = {"standard": "stretch", "fit_to_window": "fit", "crop": "crop",
                                   "fit_to_window_letterbox": "letterbox"}


@dataclass(frozen=True)
class Preparation:
    """Preparation of RGB images with pixels from 0 to 255 for a model, which gets (pixel - mean) / scale.

    ``resize`` is "stretch", "fit" (the image keeps its proportions and is padded at the right and at the bottom),
    "letterbox" (padded on all sides) or "crop" (the largest part of the middle that has the model's proportions).
    Where the input's shape leaves height and width open, they are those of ``size``, or the image's own, scaled until
    the shorter edge has the first and the longer edge at most the second number of ``edges``. A cropped image is first
    ``enlarged`` times as large as the input. ``source`` says where this was found.
    """

    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    bgr: bool = False
    resize: Resize = "stretch"
    size: tuple[int, int] | None = None
    edges: tuple[int, int] | None = None
    enlarged: float = 1.0
    pad: int = 0
    resample: int = 2  # Pillow's number: bilinear
    source: str = ""

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of an input with an open shape for an image of this height and width."""
        if self.size is not None or self.edges is None:
            return self.size or (height, width)
        factor = min(self.edges[0] / min(height, width), self.edges[1] / max(height, width))
        return round(height * factor), round(width * factor)

    def replaced(self, options: Mapping[str, Any]) -> Preparation:
        """Return the preparation with some fields from the command line."""
        return replace(self, **options, source="" if {"mean", "scale"} <= options.keys() else self.source)


def preparation(model: Model, folder: Path) -> Preparation:
    """Return the preparation that a model needs.

    It is in the model's runtime information (``model_info``, as Model API and ultralytics write it), or in
    ``preprocessor_config.json`` in the model's folder, as transformers writes it. Raises ValueError for a damaged file.
    """
    info = model.rt_info.plain().get("model_info")
    if isinstance(info, dict):
        return _of_model_info({key: str(value) for key, value in info.items()})
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return Preparation()
    try:
        return _of_transformers(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError) as e:
        raise ValueError(f"{path} cannot be read: {type(e).__name__}: {e}") from None


def parse_numbers(text: str) -> dict[str, tuple[float, ...]]:
    """Return numbers by input name ("" if there is none) from ``[1,2,3]`` or ``data[1,2,3],info[4]``."""
    found = {}
    rest = re.sub(r"([^\[\],]*)\[([^\]]*)\],?", lambda m: found.update({m[1].strip(): m[2]}) or "", text)
    if rest.strip():
        raise ValueError(f"cannot read the values {text!r}: write [1,2,3] or name[1,2,3]")
    return {name: tuple(map(float, numbers.split(","))) for name, numbers in found.items()}


def image_layout(port: Output, shape: PartialShape) -> str:
    """Return the layout of an image input: that of the port, else NCHW, NHWC, CHW or HWC, from its shape; or ""."""
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


def image_tensor(paths: Sequence[Path], port: Output, shape: PartialShape, how: Preparation,
                 axes: str = "") -> tuple[Array, str]:
    """Return the tensor of one or several images, and a note of what was done.

    ``axes`` is the layout, by default `image_layout`. The images fill the batch in turns. Sizes that the shape leaves
    open are those of the preparation, else of the first image. Raises: ValueError if the input takes no images, or
    Pillow is missing or cannot read a file.
    """
    images = [_open(path) for path in paths]
    axes = axes or image_layout(port, shape) or _assumed_layout(shape)
    if not {"C", "H", "W"} <= set(axes) or len(axes) != len(shape) or not port.element_type.is_static():
        raise ValueError(f"{paths[0]}: input '{port_name(port)}' of shape {shape} takes no images")
    extents = {axis: None if d.is_dynamic else d.get_length() for axis, d in zip(axes, shape)}
    default = how.size_of(images[0].height, images[0].width)
    height, width = extents["H"] or default[0], extents["W"] or default[1]
    channels = extents["C"] or 3
    if channels not in (1, 3, 4):
        raise ValueError(f"{paths[0]}: input '{port_name(port)}' has {channels} channels, an image has 1, 3 or 4")
    found = [pixels(image, channels, height, width, how) for image in images]
    array, source = found[0], "HWC"
    if "N" in axes:
        array, source = np.stack([found[i % len(found)] for i in range(extents["N"] or len(found))]), "NHWC"
    array = array.transpose([source.index(axis) for axis in axes])
    return (np.ascontiguousarray(array, port.element_type.storage),
            _note(paths[0], images[0], axes, array.shape, channels, how))


def pixels(image: Any, channels: int, height: int, width: int, how: Preparation) -> Array:
    """Return the pixels [height, width, channels] of an image, normalised: f32, or u8 if nothing was computed."""
    image = image.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels])
    array: Array = np.asarray(_resized(image, height, width, how)).reshape(height, width, channels)
    if how.bgr and channels > 1:
        array = array[..., [2, 1, 0, 3][:channels]]
    if how.mean or how.scale:
        mean, scale = np.array(how.mean or (0,), np.float32), np.array(how.scale or (1,), np.float32)
        array = (array - mean) / scale
    return array


def _resized(image: Any, height: int, width: int, how: Preparation) -> Any:
    if (image.height, image.width) == (height, width):
        return image
    if how.resize == "stretch":
        return image.resize((width, height), how.resample)
    down, across = height / image.height, width / image.width
    if how.resize == "crop":
        factor = max(down, across) * how.enlarged
        w, h = max(width, round(image.width * factor)), max(height, round(image.height * factor))
        left, top = (w - width) // 2, (h - height) // 2
        return image.resize((w, h), how.resample).crop((left, top, left + width, top + height))
    factor = min(down, across)
    w, h = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    padded = image.resize((width, height))
    padded.paste((how.pad,) * len(image.getbands()), (0, 0, width, height))
    corner = ((width - w) // 2, (height - h) // 2) if how.resize == "letterbox" else (0, 0)
    padded.paste(image.resize((w, h), how.resample), corner)
    return padded


def _note(path: Path, image: Any, axes: str, shape: Sequence[int], channels: int, how: Preparation) -> str:
    extents = dict(zip(axes, shape))
    size = (extents["W"], extents["H"])
    resized = "" if size == image.size else f" to {size[0]}x{size[1]} ({how.resize})"
    order = {1: "gray"}.get(channels, "BGR" if how.bgr else "RGB")
    if how.mean or how.scale:
        numbers = [f"{name} {', '.join(f'{n:.4g}' for n in values)}"
                   for name, values in (("mean", how.mean), ("scale", how.scale)) if values]
        values = f"{' and '.join(numbers)}" + (f" from {how.source}" if how.source else "")
    else:
        values = "pixels from 0 to 255" + ("" if how.source else " (see --mean_values and --scale_values)")
    return f"{path.name}: {image.width}x{image.height}{resized}, {axes}, {order}, {values}"


def _open(path: Path) -> Any:
    try:
        pillow: Any = import_module("PIL.Image")
    except ImportError:
        raise ValueError(f'{path}: images need Pillow: pip install "ovgpu[images]"') from None
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


# ---- formats

def _of_model_info(info: Mapping[str, str]) -> Preparation:
    def numbers(name: str) -> tuple[float, ...]:
        return tuple(map(float, re.findall(r"[-+.\deE]+", info.get(name, "")))) if not embedded else ()

    embedded = info.get("embedded_processing", "").upper() in ("YES", "TRUE", "1")
    known = "reverse_input_channels" in info
    rgb = info.get("reverse_input_channels", "").upper() in ("YES", "TRUE", "1")  # Model API itself reads BGR
    return Preparation(numbers("mean_values"), numbers("scale_values"), known and not rgb,
                       RESIZE_TYPES.get(info.get("resize_type", ""), "stretch"), pad=int(info.get("pad_value") or 0),
                       source="the model's model_info")


def _of_transformers(config: Mapping[str, Any]) -> Preparation:
    factor = float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0
    normalized = bool(config.get("do_normalize", False)) and "image_mean" in config
    mean = tuple(m / factor for m in config["image_mean"]) if normalized else ()
    std = tuple(s / factor for s in config["image_std"]) if normalized else ((1 / factor,) if factor != 1 else ())
    size, crop = config.get("size") or {}, config.get("crop_size")
    cropped = bool(config.get("do_center_crop")) and crop is not None
    found = Preparation(mean, std, resample=int(config.get("resample", 2)), source="preprocessor_config.json")
    shortest = size.get("shortest_edge") if isinstance(size, Mapping) else None
    if cropped:
        height, width = _size(crop)
        enlarged = shortest / min(height, width) if shortest else 1.0
        return replace(found, resize="crop", size=(height, width), enlarged=enlarged)
    if shortest and config.get("crop_pct"):  # ConvNeXt
        enlarged = 1 / config["crop_pct"] if shortest < 384 else 1.0
        return replace(found, resize="crop", size=(shortest, shortest), enlarged=enlarged)
    if shortest:
        return replace(found, edges=(shortest, size.get("longest_edge") or 100 * shortest))
    return replace(found, size=_size(size)) if size else found


def _size(value: Any) -> tuple[int, int]:
    """Return (height, width) of a size as transformers writes it: a number, a list, or a dict."""
    if isinstance(value, Mapping):
        return int(value["height"]), int(value["width"])
    return (int(value[0]), int(value[1])) if isinstance(value, Sequence) else (int(value), int(value))
