"""Class Gemma3: images of Gemma 3 (arXiv 2503.19786)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ovgpu.genai.vlm.decoder import EmbeddedPrompt
from ovgpu.genai.vlm.family import Array, Family, Vision
from ovgpu.genai.vlm.images import LINEAR, normalised, resize
from ovgpu.genai.vlm.parts import Parts, mean_and_deviation, size_of

SIZE = 896  # of images, unless preprocessor_config.json has another one


class Gemma3(Family):
    """An image is resized to a square. The tokens of an image attend to each other in both directions."""

    image_tag = "<start_of_image>"

    def __init__(self, parts: Parts) -> None:
        settings = parts.processor
        self._size = size_of(settings, "size.height", SIZE), size_of(settings, "size.width", SIZE)
        self._mean, self._deviation = mean_and_deviation(settings)
        self._request = parts.compile(parts.read("vision_embeddings"), "vision_embeddings")
        self.image_token = parts.token("<image_soft_token>")
        tokenizer = parts.tokenizer  # its template would cut off the newlines around an image
        tokenizer.set_chat_template(tokenizer.chat_template.replace("| trim", ""))

    def image(self, pixels: Array) -> Vision:
        values = normalised(resize(pixels, *self._size, LINEAR), self._mean, self._deviation)
        rows = self._request.infer([values[np.newaxis]])[0][0]
        return Vision(rows, (1, 1, len(rows)))

    def text_of(self, vision: Vision, tag: str) -> str:
        return f"\n\n{tag}{'<image_soft_token>' * len(vision.rows)}<end_of_image>\n\n"

    def embed(self, tokens: Sequence[int], images: Sequence[Vision], videos: Sequence[Vision]) -> EmbeddedPrompt:
        positions = np.arange(1, len(tokens) + 1)[np.newaxis]  # they count from 1
        return replace(super().embed(tokens, images, videos), positions=positions, shift=1)
