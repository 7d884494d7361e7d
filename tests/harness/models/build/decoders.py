"""Stateful decoders, as optimum-intel exports them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import openvino as ov

from ..drive import GREEDY_STEPS, Array, Call, Decoding, decoder_inputs
from ._convert import Built, Inputs, exported, perturbed, tokens

Context = Callable[[np.random.RandomState, int], Inputs]


def causal(model_type: str, seed: int, **config: Any) -> Built:
    """Build a decoder by its model type in transformers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    module = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **config))
    return stateful(module, partial(exported, perturbed(module), "text-generation-with-past"))


def stateful(module: Any, make: Callable[[], ov.Model], context: Context | None = None) -> Built:
    """Describe a decoder. `context(random, batch)` returns further inputs, such as an encoder's output."""
    context_of = context or (lambda random, batch: {})
    vocabulary, make = module.config.vocab_size, cache(make)

    def calls(random: np.random.RandomState) -> list[Call]:
        """Record one sequence; then, after a reset, three left-padded ones, with reordered beams and several tokens."""
        steps = [
            (1, 6, None),
            (1, 1, None),
            (1, 1, None),
            (3, 7, None),
            (3, 1, None),
            (3, 1, [2, 0, 0]),
            (3, 4, [1, 1, 2]),
        ]
        names = {port.get_any_name() for port in make().inputs}
        recorded, mask, also = [], np.ones((1, 0), np.int64), context_of(random, 1)
        for batch, length, beam in steps:
            new, reset = np.ones((batch, length), np.int64), batch != len(mask)
            if reset:
                mask, also = np.ones((batch, 0), np.int64), context_of(random, batch)
                new[1, :2] = new[2, :4] = 0
            mask = np.concatenate([mask if beam is None else mask[beam], new], axis=1)
            inputs = decoder_inputs(tokens(random, vocabulary, batch, length), mask, beam and np.array(beam)) | also
            recorded.append(Call({name: a for name, a in inputs.items() if name in names}, reset=reset))
        return recorded

    def prompts(random: np.random.RandomState) -> list[tuple[Array, Inputs]]:
        lengths = (1, 5), (2, 9)
        return [(3 + tokens(random, vocabulary - 3, *shape), context_of(random, shape[0])) for shape in lengths]

    return Built(make, calls, module, prompts)


class Eager(Decoding):
    """Decoding in torch, with the default cache of transformers."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module, self.cache = module, None

    def reset(self) -> None:
        self.cache = None

    def feed(self, inputs: Inputs) -> Array:
        import torch

        with torch.inference_mode():
            tensors = {name: torch.from_numpy(a) for name, a in inputs.items() if name != "beam_idx"}
            result = self.module(**tensors, past_key_values=self.cache, use_cache=True)
        self.cache = result.past_key_values
        return result.logits.numpy()


def continuation(module: Any, prompt: Array, context: Inputs) -> Array:
    """Decode greedily in torch without a cache, so that only the tokens decide."""
    import torch

    also = {name: torch.from_numpy(a) for name, a in context.items()}
    ids, key = torch.from_numpy(prompt), "input_ids"
    if also:
        key, also["encoder_outputs"] = "decoder_input_ids", (also.pop("encoder_hidden_states"),)
        also["attention_mask"] = also.pop("encoder_attention_mask", None)
    with torch.no_grad():
        for _ in range(GREEDY_STEPS):
            best = module(**{key: ids}, **also, use_cache=False).logits[:, -1:].argmax(-1)
            ids = torch.cat([ids, best], 1)
    return ids[:, prompt.shape[1] :].numpy()
