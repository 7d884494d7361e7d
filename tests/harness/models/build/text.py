"""Text encoders, and encoder-decoder models."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..drive import Array, Call
from ._convert import Built, Calls, exported, normal, perturbed, tokens
from .decoders import stateful

SHAPES = (2, 7), (1, 16), (3, 11)


def _calls(vocabulary: int, shapes: tuple[tuple[int, int], ...], types: bool = False, least: int = 0) -> Calls:
    """Record texts of different lengths, padded on the right, with token types if `types`."""

    def calls(random: np.random.RandomState) -> list[Call]:
        recorded = []
        for batch, time in shapes:
            mask = np.ones((batch, time), np.int64)
            mask[-1, time - 3 :] = 0
            inputs = {"input_ids": least + tokens(random, vocabulary - least, batch, time), "attention_mask": mask}
            if types:
                second = (np.arange(time) > time // 2).astype(np.int64)
                inputs["token_type_ids"] = np.broadcast_to(second, (batch, time))
            recorded.append(Call(inputs))
        return recorded

    return calls


def bert(shape: tuple[int, int] | None = None, **config: Any) -> Built:
    """Build a BERT encoder: input_ids, attention_mask, token_type_ids [batch, time] -> last_hidden_state."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(5)
    settings = BertConfig(**config)
    module = perturbed(BertModel(settings, add_pooling_layer=False))
    make = partial(exported, module, "feature-extraction", fixed=shape)
    return Built(make, _calls(settings.vocab_size, (shape,) if shape else SHAPES, types=True), module)


def distilbert(**config: Any) -> Built:
    """Build a DistilBERT encoder: input_ids, attention_mask [batch, time] -> last_hidden_state."""
    import torch
    from transformers import DistilBertConfig, DistilBertModel

    torch.manual_seed(31)
    module = perturbed(DistilBertModel(DistilBertConfig(**config)))
    return Built(partial(exported, module, "feature-extraction"), _calls(module.config.vocab_size, SHAPES))


def roberta(**config: Any) -> Built:
    """Build a RoBERTa classifier, whose positions skip padding: input_ids, attention_mask [batch, time] -> logits."""
    import torch
    from transformers import RobertaConfig, RobertaForSequenceClassification

    torch.manual_seed(32)
    module = perturbed(RobertaForSequenceClassification(RobertaConfig(num_labels=5, **config)))
    return Built(partial(exported, module, "text-classification"), _calls(module.config.vocab_size, SHAPES, least=2))


def deberta(**config: Any) -> Built:
    """Build a DeBERTa-v2 encoder with relative positions: input_ids, attention_mask [batch, time] -> states."""
    import torch
    from transformers import DebertaV2Config, DebertaV2Model

    torch.manual_seed(33)
    settings = DebertaV2Config(
        relative_attention=True, pos_att_type=["p2c", "c2p"], share_att_key=True, norm_rel_ebd="layer_norm",
        position_biased_input=False, type_vocab_size=0, **config,
    )  # fmt: skip
    module = perturbed(DebertaV2Model(settings))
    return Built(partial(exported, module, "feature-extraction"), _calls(settings.vocab_size, SHAPES))


def t5(half: str, **config: Any) -> Built:
    """Build half of a T5 with relative positions and gated GELU: "encoder" or "decoder"."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(34)
    settings = T5Config(feed_forward_proj="gated-gelu", decoder_start_token_id=0, **config)
    return _half(T5ForConditionalGeneration(settings), half)


def bart(half: str, **config: Any) -> Built:
    """Build half of a BART: "encoder" or "decoder"."""
    import torch
    from transformers import BartConfig, BartForConditionalGeneration

    torch.manual_seed(35)
    return _half(BartForConditionalGeneration(BartConfig(**config)), half)


def _half(module: Any, half: str) -> Built:
    make = partial(exported, perturbed(module), "text2text-generation-with-past", f"{half}_model")
    settings = module.config

    def context(random: np.random.RandomState, batch: int) -> dict[str, Array]:
        mask = np.ones((batch, 8), np.int64)
        mask[-1, 6:] = 0
        return {"encoder_hidden_states": normal(random, batch, 8, settings.d_model), "encoder_attention_mask": mask}

    if half == "decoder":
        return stateful(module, make, context)
    return Built(make, _calls(settings.vocab_size, SHAPES))
