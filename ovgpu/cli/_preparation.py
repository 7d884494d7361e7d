"""Preparation of images for a model, as files of Model API, ultralytics and transformers describe it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ovgpu.model import Model

Resize = Literal["stretch", "fit", "letterbox", "crop"]
UNCROPPED = 384  # pixels: ConvNeXt crops images of smaller sizes only
RESIZE_TYPES: dict[str, Resize] = {
    "standard": "stretch",
    "fit_to_window": "fit",
    "crop": "crop",
    "fit_to_window_letterbox": "letterbox",
}


@dataclass(frozen=True)
class Preparation:
    """Preparation of RGB images with pixels from 0 to 255 for a model, which gets (pixel - mean) / scale.

    ``resize`` is "stretch", "fit" (the image keeps its proportions and is padded at the right and at the bottom),
    "letterbox" (padded on all sides) or "crop". A crop takes the middle of the image. Before it, the image is resized:
    its shorter edge, or its height and width, become ``uncropped``, by default so that as much as possible remains.

    If the input's shape leaves height and width open, they are ``size``, else the image's own. ``edges`` scales the
    latter: to its first number for the shorter edge, but at most its second for the longer one. ``source`` names the
    file or entry that describes the preparation.
    """

    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    bgr: bool = False
    resize: Resize = "stretch"
    size: tuple[int, int] | None = None
    edges: tuple[int, int] | None = None
    uncropped: int | tuple[int, int] | None = None
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


def _of_model_info(info: Mapping[str, str]) -> Preparation:
    def numbers(name: str) -> tuple[float, ...]:
        return tuple(map(float, re.findall(r"[-+.\deE]+", info.get(name, "")))) if not embedded else ()

    embedded = info.get("embedded_processing", "").upper() in ("YES", "TRUE", "1")
    known = "reverse_input_channels" in info
    rgb = info.get("reverse_input_channels", "").upper() in ("YES", "TRUE", "1")  # Model API itself reads BGR
    return Preparation(
        numbers("mean_values"),
        numbers("scale_values"),
        known and not rgb,
        RESIZE_TYPES.get(info.get("resize_type", ""), "stretch"),
        pad=int(info.get("pad_value") or 0),
        source="the model's model_info",
    )


def _of_transformers(config: Mapping[str, Any]) -> Preparation:
    factor = float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0
    offset = 1.0 if config.get("rescale_offset") else 0.0
    normalized = bool(config.get("do_normalize", False)) and "image_mean" in config
    means, stds = (config["image_mean"], config["image_std"]) if normalized else ((0.0,), (1.0,))
    base = Preparation(
        tuple((m + offset) / factor for m in means),
        tuple(s / factor for s in stds),
        resample=int(config.get("resample", 2)),
        source="preprocessor_config.json",
    )
    if base.mean == (0.0,):
        base = replace(base, mean=(), scale=() if base.scale == (1.0,) else base.scale)
    size, crop = config.get("size") or {}, config.get("crop_size")
    shortest = size.get("shortest_edge") if isinstance(size, Mapping) else None
    if config.get("do_center_crop") and crop is not None:
        before = shortest or (_size(size) if size else None)
        return replace(base, resize="crop", size=_size(crop), uncropped=before)
    if shortest and config.get("crop_pct") and shortest < UNCROPPED:
        return replace(base, resize="crop", size=(shortest, shortest), uncropped=int(shortest / config["crop_pct"]))
    if shortest and not config.get("crop_pct"):
        longest = size.get("longest_edge") or 100 * shortest  # in effect, no limit
        return replace(base, edges=(shortest, longest))
    return replace(base, size=_size(size)) if size else base


def _size(value: Any) -> tuple[int, int]:
    """Return (height, width) of a size as transformers writes it: a number, a list, or a dict."""
    if isinstance(value, Mapping):
        edge = value.get("shortest_edge")
        return int(edge or value["height"]), int(edge or value["width"])
    return (int(value[0]), int(value[1])) if isinstance(value, Sequence) else (int(value), int(value))
