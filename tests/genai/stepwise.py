"""Texts of decoders that OpenVINO computes alone, token by token: the judge where openvino_genai is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu.genai.sampling import Sampler, Sampling
from tests.harness import judge

Array = np.ndarray[Any, Any]


class Stepwise:
    """A decoder in OpenVINO. It computes each text anew, so that no text depends on another one.

    With ``one_by_one``, the mask is for the new tokens alone, as optimum-intel has it for Mamba and Zamba2.
    """

    def __init__(self, path: Path, one_by_one: bool = False) -> None:
        core: Any = judge.core()
        self._one_by_one = one_by_one
        self._request = core.compile_model(core.read_model(path), "CPU", judge.CONFIG).create_infer_request()
        self._names = {port.get_any_name() for port in self._request.model_inputs}
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], Array] = {}

    def logits(self, prompt: Sequence[int], tokens: Sequence[int]) -> Array:
        """Return the logits [vocabulary] after a prompt and later tokens."""
        key = tuple(prompt), tuple(tokens)
        if key not in self._known:
            self._request.reset_state()
            past = 0
            for new in ([*prompt], *([token] for token in tokens)):
                past += len(new)
                self._request.infer(self._inputs(new, past))
            self._known[key] = self._request.get_tensor("logits").data[0, -1].copy()
        return self._known[key]

    def greedy(self, prompt: Sequence[int], count: int, **penalties: float) -> list[int]:
        """Return the most likely tokens after a prompt."""
        tokens: list[int] = []
        sampler = Sampler((), Sampling(**penalties), 0, prompt=prompt)
        for _ in range(count):
            tokens.append(sampler.choose(self.logits(prompt, tokens), tokens)[0])
        return tokens

    def _inputs(self, new: Sequence[int], past: int) -> dict[str, Array]:
        """Return the inputs for new tokens, with which there are ``past``. Mamba's have the columns of the states of
        convolutions that the tokens fill."""
        inputs = {
            "input_ids": np.array([new]),
            "attention_mask": np.ones((1, len(new) if self._one_by_one else past), np.int64),
            "position_ids": np.arange(past - len(new), past)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        if "cache_position" in self._names:
            convolution = next(state for state in self._request.query_state() if ".conv." in state.name)
            columns = convolution.state.shape[-1]
            inputs["cache_position"] = np.arange(0 if past == len(new) else columns - 1, columns)
        return {name: array for name, array in inputs.items() if name in self._names}
