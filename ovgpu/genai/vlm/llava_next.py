"""Class LlavaNext: images of LLaVA-NeXT, formerly LLaVA 1.6, which are also seen in parts of higher resolution."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.vlm.family import Array, Vision
from ovgpu.genai.vlm.images import resize
from ovgpu.genai.vlm.llava import Llava
from ovgpu.genai.vlm.parts import Parts, size_of

SIZES = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
"""Widths and heights of images in parts, unless preprocessor_config.json has others."""


class LlavaNext(Llava):
    """An image is seen as a whole, and in a grid of parts, whose rows of tokens end with an embedding of their own.

    The image is resized to fit into the best one of several sizes, with margins, of which no token remains.
    """

    def __init__(self, parts: Parts) -> None:
        sizes = parts.processor.get("image_grid_pinpoints", SIZES)
        if not isinstance(sizes, list) or not sizes or not all(map(_is_size, sizes)):
            raise Error(f"the images' image_grid_pinpoints must be pairs of integers above 0, not {sizes!r}")
        super().__init__(parts)
        self._sizes = [(width, height) for width, height in sizes]
        row_end = parts.config.get("image_newline")
        if not isinstance(row_end, list) or not all(isinstance(number, (int, float)) for number in row_end):
            raise Error(f"{parts.folder / 'config.json'} has no image_newline, the numbers that end a row of tokens")
        self._row_end = np.array(row_end, np.float32)
        self._patch = size_of(parts.config, "vision_config.patch_size", 14)
        if any(width < self._edge or height < self._edge for width, height in self._sizes):
            raise Error(f"the images' image_grid_pinpoints must be at least {self._edge}: {self._sizes}")

    def image(self, pixels: Array) -> Vision:
        height, width = pixels.shape[:2]
        grid_width, grid_height = self._best_size(height, width)
        whole, canvas = resize(pixels, self._edge, self._edge), _fitted(pixels, grid_height, grid_width)
        side, rows, columns = self._height, grid_height // self._height, grid_width // self._height
        parts = [whole]
        parts += [
            canvas[side * i : side * (i + 1), side * j : side * (j + 1)] for i in range(rows) for j in range(columns)
        ]
        found = self._request.infer([np.stack([self._normalised(part) for part in parts])])[0]
        if self._row_end.shape != found.shape[2:]:
            raise Error(f"image_newline has {len(self._row_end)} numbers, and a token {found.shape[2]}")
        tall, wide = self._height // self._patch, self._width // self._patch
        joined = found[1:].reshape(rows, columns, tall, wide, -1).transpose(0, 2, 1, 3, 4)
        inside = _without_margins(joined.reshape(rows * tall, columns * wide, -1), height, width)
        ends = np.broadcast_to(self._row_end, (len(inside), 1, len(self._row_end)))
        lines = np.concatenate([inside, ends], axis=1).reshape(-1, found.shape[2])
        tokens = np.concatenate([found[0], lines])
        return Vision(tokens, (1, 1, len(tokens)))

    def _best_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the width and height that keep most of an image's pixels; of equal ones, those with least margin."""

        def kept(size: tuple[int, int]) -> tuple[int, int]:
            scale = min(np.float32(size[0]) / np.float32(width), np.float32(size[1]) / np.float32(height))
            scaled = int(np.float32(width) * scale) * int(np.float32(height) * scale)
            pixels = min(scaled, width * height)
            return pixels, pixels - size[0] * size[1]

        return max(self._sizes, key=kept)


def _is_size(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(n, int) and n > 0 for n in value)


def _fitted(pixels: Array, height: int, width: int) -> Array:
    """Return an image of a size, in the middle of which the image is as large as possible."""
    scales = np.float32(width) / np.float32(pixels.shape[1]), np.float32(height) / np.float32(pixels.shape[0])
    if scales[0] < scales[1]:
        size = min(ceil(np.float32(pixels.shape[0]) * scales[0]), height), width
    else:
        size = height, min(ceil(np.float32(pixels.shape[1]) * scales[1]), width)
    canvas = np.zeros((height, width, 3), np.uint8)
    top, left = (height - size[0]) // 2, (width - size[1]) // 2
    canvas[top : top + size[0], left : left + size[1]] = resize(pixels, *size)
    return canvas


def _without_margins(tokens: Array, height: int, width: int) -> Array:
    """Return the tokens [rows, columns, width] of an image of this height and width, without those of its margins."""
    rows, columns = tokens.shape[:2]
    if np.float32(width) / np.float32(height) > np.float32(columns) / np.float32(rows):
        margin = (rows - int(np.float32(height) * (np.float32(columns) / np.float32(width)))) // 2
        return tokens[margin : rows - margin]
    margin = (columns - int(np.float32(width) * (np.float32(rows) / np.float32(height)))) // 2
    return tokens[:, margin : columns - margin]
