"""Class Llava: images of LLaVA 1.5 (Liu et al., arXiv 2310.03744)."""

from __future__ import annotations

import numpy as np

from ovgpu.genai.vlm.family import Array, Family, Vision
from ovgpu.genai.vlm.images import normalised, resize
from ovgpu.genai.vlm.parts import Parts, mean_and_deviation, size_of

SIZE = 336  # of images, unless preprocessor_config.json has another one


class Llava(Family):
    """An image is resized and cut to a square, and has as many tokens as patches."""

    image_tag = "<image>"

    def __init__(self, parts: Parts) -> None:
        settings = parts.processor
        self._edge = size_of(settings, "size.shortest_edge", SIZE)
        self._height, self._width = (size_of(settings, f"crop_size.{name}", SIZE) for name in ("height", "width"))
        self._mean, self._deviation = mean_and_deviation(settings)
        self._request = parts.compile(parts.read("vision_embeddings"), "vision_embeddings")
        self.image_token = parts.token(self.image_tag)

    def image(self, pixels: Array) -> Vision:
        rows = self._request.infer([self._normalised(pixels)[np.newaxis]])[0][0]
        return Vision(rows, (1, 1, len(rows)))

    def text_of(self, vision: Vision, tag: str) -> str:
        return tag * len(vision.rows) + "\n"

    def _normalised(self, pixels: Array) -> Array:
        """Return the middle of an image, f32 [3, height, width]."""
        height, width = pixels.shape[:2]
        scale = np.float32(self._edge) / np.float32(min(height, width))
        resized = resize(
            pixels, max(int(np.float32(height) * scale), self._height), max(int(np.float32(width) * scale), self._width)
        )
        top, left = (resized.shape[0] - self._height) // 2, (resized.shape[1] - self._width) // 2
        middle = resized[top : top + self._height, left : left + self._width]
        return normalised(middle, self._mean, self._deviation)
