"""Class Family: what differs between families of models that see images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.vlm.decoder import EmbeddedPrompt
from ovgpu.genai.vlm.parts import Parts
from ovgpu.genai.vlm.tags import expand_tags, place_tags

Array = np.ndarray[Any, Any]
Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Vision:
    """Embeddings of an image or a video [tokens, width], f32, in the order of its ``grid`` of frames, rows and
    columns."""

    rows: Array
    grid: Grid


@dataclass(frozen=True)
class Prompt:
    """Text of a prompt, in which tokens stand for ``images`` and ``videos``, in this order."""

    text: str
    images: Sequence[Vision] = ()
    videos: Sequence[Vision] = ()


class Family(ABC):
    """Models of one type: how they embed images, and where the embeddings stand in a prompt.

    Subclasses set ``image_tag``, and ``video_tag`` if they take videos, texts that stand for an image in prompts, and
    ``image_token`` and ``video_token``, the tokens with the embeddings.
    """

    image_tag: ClassVar[str]
    video_tag: ClassVar[str] = ""
    image_token: int
    video_token: int = -1

    @abstractmethod
    def __init__(self, parts: Parts) -> None:
        """Compile the models of images. Raises: Error for missing models and settings that make no sense."""

    @abstractmethod
    def image(self, pixels: Array) -> Vision:
        """Return the embeddings of an image, u8 [height, width, 3]. Raises: Error for sizes that a model refuses."""

    def video(self, frames: Array) -> Vision:
        """Return the embeddings of a video, u8 [n, height, width, 3]. Raises: Error for models without."""
        raise Error("the model takes no videos: pass their frames as images")

    @abstractmethod
    def text_of(self, vision: Vision, tag: str) -> str:
        """Return the text that takes the place of a tag."""

    def prompt(self, text: str, images: Sequence[Vision], videos: Sequence[Vision], first: tuple[int, int]) -> Prompt:
        """Return a prompt that has a tag for each image and video, and others ahead of it, see `place_tags`.

        ``first`` are the numbers of the first image and the first video.
        """
        placed = []
        kinds = ("image", self.image_tag, images), ("video", self.video_tag, videos)
        for (kind, tag, visions), number in zip(kinds, first):
            order: list[int] = []
            if tag:
                text, order = place_tags(text, tag, kind, number, len(visions))
                text = expand_tags(text, tag, [self.text_of(visions[i], tag) for i in order])
            placed.append([visions[i] for i in order])
        return Prompt(text, *placed)

    def embed(self, tokens: Sequence[int], images: Sequence[Vision], videos: Sequence[Vision]) -> EmbeddedPrompt:
        """Return a prompt with embeddings. Raises: Error if it has not as many tokens for them."""
        ids = np.asarray(tokens)
        places, rows = [], []
        for token, visions, what in ((self.image_token, images, "images"), (self.video_token, videos, "videos")):
            found = np.flatnonzero(ids == token)
            count = sum(len(vision.rows) for vision in visions)
            if len(found) != count:
                raise Error(f"the prompt has {len(found)} tokens of {what}, and {count} embeddings of them")
            places.append(found)
            rows += [vision.rows for vision in visions]
        if not rows:
            return EmbeddedPrompt(tokens)
        return EmbeddedPrompt(tokens, np.concatenate(rows), np.concatenate(places))
