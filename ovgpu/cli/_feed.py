"""Inputs of successive inferences; those of a language model continue its sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ovgpu.cli._ports import port_names
from ovgpu.model import Output

Array = np.ndarray[Any, Any]
TOKENS = ("input_ids", "inputs_embeds")  # inputs with the tokens of a language model: [batch, length, ...]


def token_input(ports: Sequence[Output]) -> int | None:
    """Return the index of the input with the tokens of a language model, or None if there is no such input."""
    names = port_names(ports)
    return next((names.index(name) for name in TOKENS if name in names), None)


class Feed:
    """Inputs of successive inferences: the same arrays each time.

    For a stateful language model with ``attention_mask`` (and ``position_ids``), each inference continues the
    sequence: the mask also covers earlier tokens, and the positions count on. A sequence begins with ``prompt``
    tokens if that is not 0. Raises: ValueError if there is a prompt, but the model does not continue sequences.
    """

    def __init__(self, ports: Sequence[Output], arrays: Mapping[int, Array], stateful: bool, prompt: int = 0) -> None:
        self.arrays = dict(arrays)
        named = {name: index for index, name in enumerate(port_names(ports))}
        self.ids = token_input(ports)
        self.mask, self.positions = named.get("attention_mask"), named.get("position_ids")
        continues = (
            stateful
            and self.ids is not None
            and self.mask is not None
            and arrays[self.mask].ndim == 2
            and ports[self.mask].partial_shape[1].is_dynamic
        )
        self.length = self.arrays[self.ids].shape[1] if continues and self.ids is not None else 0
        self.past, self.prompt = 0, prompt
        if prompt and not self.length:
            raise ValueError("--prompt is for models with state, and inputs input_ids and attention_mask")

    @property
    def tokens(self) -> int:
        """The number of tokens of one inference; 0 unless the model is a language model."""
        return int(np.prod(self.arrays[self.ids].shape[:2])) if self.ids is not None else 0

    def next(self) -> dict[int, Array]:
        """Return the arrays of the next inference by input index."""
        arrays = dict(self.arrays)
        if self.length and self.mask is not None and self.ids is not None:
            length = self.length if self.past else self.prompt or self.length
            mask, ids = arrays[self.mask], arrays[self.ids]
            arrays[self.mask] = np.ones((mask.shape[0], self.past + length), mask.dtype)
            arrays[self.ids] = ids if length == self.length else np.resize(ids, (len(ids), length, *ids.shape[2:]))
            if self.positions is not None:
                positions = arrays[self.positions]
                arrays[self.positions] = (
                    np.broadcast_to(np.arange(length), (*positions.shape[:-1], length)) + self.past
                ).astype(positions.dtype)
            self.past += length
        return arrays

    def restart(self) -> None:
        """Begin a new sequence."""
        self.past = 0
