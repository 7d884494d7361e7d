"""Given images and masks: their size, and their values for the models."""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgpu.api.core import Core
from ovgpu.errors import Error
from ovgpu.genai.text_model import layer
from ovgpu.model import Model, Node
from ovgpu.ops.image.interpolate import Interpolate11
from ovgpu.ops.infrastructure.graph import Parameter, Result
from ovgpu.types import PartialShape, Type

Array = np.ndarray[Any, Any]
GRAY = (0.299, 0.587, 0.114)  # parts of red, green and blue: ITU-R BT.601


def read_image(image: Any, what: str, channels: tuple[int, ...]) -> Array:
    """Return an image [1, height, width, channels] of u8. Raises: Error for another type or shape."""
    pixels = np.asarray(getattr(image, "data", image))
    if isinstance(image, (str, bytes)) or pixels.dtype != np.uint8 or pixels.ndim != 4 or len(pixels) != 1:
        raise Error(f"{what} is a tensor of u8 [1, height, width, channels], not {pixels.dtype} {list(pixels.shape)}")
    if pixels.shape[3] not in channels or not pixels.size:
        raise Error(f"{what} has {' or '.join(map(str, channels))} channels, and pixels, not {list(pixels.shape)}")
    return pixels


def resize(pixels: Array, height: int, width: int) -> Array:
    """Return an image [1, height, width, channels] of u8 in another size: bicubic as in Pillow."""
    if pixels.shape[1:3] == (height, width):
        return pixels
    image = Node(Parameter(element_type=Type.u8, shape=PartialShape(pixels.shape)), [])
    resizing = Interpolate11(
        mode="bicubic_pillow",
        shape_calculation_mode="sizes",
        coordinate_transformation_mode="pytorch_half_pixel",
        nearest_mode="floor",
        pads_begin=(0, 0),
        pads_end=(0, 0),
    )
    resized = layer(resizing, image.ports[0], [height, width], [1, 2])
    found: Array = Core().compile_model(Model([Node(Result(), [resized])], [image]), "CPU")([pixels])[0]
    return found


def normalised(pixels: Array) -> Array:
    """Return an image [1, 3, height, width] of f32, from -1 to 1."""
    values = pixels.transpose(0, 3, 1, 2).astype(np.float32)
    return values / np.float32(127.5) - np.float32(1)


def binary_mask(pixels: Array) -> Array:
    """Return a mask [1, 1, height, width] of f32: 1 where the gray value of an image is half of 255 or more, else 0."""
    values = pixels.astype(np.float32)
    if values.shape[3] == 3:
        values = values @ np.array(GRAY, np.float32)[:, None]
    return (values / np.float32(255) >= 0.5).astype(np.float32).transpose(0, 3, 1, 2)
