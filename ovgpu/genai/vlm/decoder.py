"""Class VLMDecoder: a language model whose prompts have embeddings of images among those of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.decoder import INPUTS, Decoder, DecoderInputs
from ovgpu.genai.vlm.joining import find_parameter, layer, only_value, parameter, replace_input
from ovgpu.model import Model, Output
from ovgpu.model.ports import port_names
from ovgpu.ops.comparison import Select
from ovgpu.types import Type

Array = np.ndarray[Any, Any]
EMBEDDINGS, IMAGES, PLACES = "inputs_embeds", "image_embeds", "is_image"


@dataclass(frozen=True)
class EmbeddedPrompt:
    """Tokens of a prompt [length].

    If there are ``rows`` [n, width], f32, they are the embeddings of the tokens at ``places`` [n]. ``positions`` are
    i64 [1, length], or [3, 1, length] on the axes of time, height and width; None if they count up. Tokens that follow
    have the position after all of these, which is ``shift`` more than their number.
    """

    tokens: Sequence[int]
    rows: Array | None = None
    places: Array | None = None
    positions: Array | None = None
    shift: int = 0


class VLMInputs(DecoderInputs):
    """Inputs of a decoder for the text that follows a prompt, or for several rows of equal length."""

    def __init__(self, ports: Sequence[Output], prompt: EmbeddedPrompt) -> None:
        super().__init__(ports)
        names = port_names(ports)
        self._images, self._places = names.index(IMAGES), names.index(PLACES)
        self._ports = [entry for entry in self._ports if entry[1] not in (IMAGES, PLACES)]
        self._positions = names.index("position_ids") if "position_ids" in names else None
        self._types = names.index("token_type_ids") if "token_type_ids" in names else None
        self._width, self._prompt = ports[self._images].partial_shape[2].get_length(), prompt

    def next(self, rows: Sequence[Sequence[int]], parents: Sequence[int] = (0,)) -> dict[int, Array]:
        is_prompt, prompt = not self._past, self._prompt
        arrays = super().next(rows, parents)
        shape = len(rows), len(rows[0])
        arrays[self._images] = np.zeros((*shape, self._width), np.float32)
        arrays[self._places] = np.zeros((*shape, 1), np.bool_)
        if is_prompt and prompt.rows is not None:
            arrays[self._images][:, prompt.places] = prompt.rows
            arrays[self._places][:, prompt.places] = True
            if self._types is not None:
                arrays[self._types][:, prompt.places] = 1
        if self._positions is not None and prompt.positions is not None:
            positions = prompt.positions if is_prompt else arrays[self._positions] + prompt.shift
            arrays[self._positions] = positions.astype(arrays[self._positions].dtype)
        return arrays


class VLMDecoder(Decoder):
    """Language model with the embeddings of its tokens. `begin` says which prompt texts continue.

    Embeddings of tokens are computed where the model is, so that a decode step takes a token, as in other decoders.
    """

    shares_prompts = False

    known = (*INPUTS, IMAGES, PLACES)

    def __init__(self, language: Model, text: Model, device: str, properties: Mapping[str, Any]) -> None:
        """``language`` takes embeddings, which ``text`` computes. Both are changed.

        Raises: Error for a language model without state or without inputs_embeds, and embeddings of another width.
        """
        embeddings = only_value(text)
        width = find_parameter(language, EMBEDDINGS).ports[0].partial_shape
        if width.rank.is_dynamic or len(width) != 3 or width[2].is_dynamic or len(text.parameters) != 1:
            raise Error(f"{EMBEDDINGS} have the shape {width}: a language model takes [batch, length, width]")
        text.parameters[0].ports[0].set_names({"input_ids"})
        images = parameter(IMAGES, Type.f32, [-1, -1, width[2].get_length()])
        places = parameter(PLACES, Type.boolean, [-1, -1, 1])
        chosen = layer(Select(), places.ports[0], images.ports[0], embeddings)
        replace_input(language, EMBEDDINGS, chosen, [text.parameters[0], images, places])
        self._prompt = EmbeddedPrompt([])
        super().__init__(language, device, properties)

    def begin(self, prompt: EmbeddedPrompt) -> None:
        """Take the prompt of the texts that follow."""
        self._prompt = prompt

    def inputs(self, ports: Sequence[Output]) -> DecoderInputs:
        return VLMInputs(ports, self._prompt)
