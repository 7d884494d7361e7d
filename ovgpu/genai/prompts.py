"""Prompts of a generation: the tokens of texts, chats and tensors."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.chat_history import ChatHistory
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.metrics import microseconds_since
from ovgpu.genai.tokenizer import TokenizedInputs, Tokenizer


@dataclass
class Prompts:
    """Tokens of the prompts, and what the tokenizer and the chat template took, in microseconds."""

    rows: list[list[int]] = field(default_factory=list)
    templates: list[float] = field(default_factory=list)
    tokenizations: list[float] = field(default_factory=list)


def prompts_of_texts(
    inputs: Any, config: GenerationConfig, tokenizer: Tokenizer, add_special_tokens: bool = False
) -> Prompts:
    """Return the tokens of texts or of a chat. ``add_special_tokens`` adds those of the tokenizer to those of the chat
    template.

    Raises: Error for a chat without a message or without its template.
    """
    prompts = Prompts()
    if isinstance(inputs, ChatHistory):
        if not inputs:
            raise Error("the ChatHistory has no message")
        if not config.apply_chat_template:
            raise Error("a ChatHistory needs apply_chat_template=True")
        chats: list[Any] = [inputs]
    else:
        texts = [inputs] if isinstance(inputs, str) else inputs
        plain = not (config.apply_chat_template and tokenizer.chat_template)
        chats = [text if plain else ChatHistory([{"role": "user", "content": text}]) for text in texts]
    for chat in chats:
        begin, is_chat = time.perf_counter(), isinstance(chat, ChatHistory)
        if is_chat:
            chat = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
            prompts.templates.append(microseconds_since(begin))
            begin = time.perf_counter()
        ids = tokenizer.encode(chat, add_special_tokens=add_special_tokens or not is_chat).input_ids
        prompts.rows.append(ids.data[0].tolist())
        prompts.tokenizations.append(microseconds_since(begin))
    return prompts


def is_texts(inputs: Any) -> bool:
    """Return whether the inputs are texts or a chat, and not tokens."""
    if isinstance(inputs, (str, ChatHistory)):
        return True
    return isinstance(inputs, (list, tuple)) and all(isinstance(text, str) for text in inputs)


def prompts_of_tokens(inputs: Any) -> Prompts:
    """Return the tokens of each row of a tensor [batch, length], i64, or of TokenizedInputs, without padding.

    Raises: TypeError for other inputs, Error for tensors of another type or rank.
    """
    mask = None
    tokens = inputs
    if isinstance(inputs, TokenizedInputs):
        tokens, mask = inputs.input_ids, np.asarray(inputs.attention_mask.data)
    if not hasattr(tokens, "get_element_type"):
        raise TypeError(f"generate takes texts, a ChatHistory, a Tensor or TokenizedInputs, not {inputs!r}")
    ids = np.asarray(tokens.data)
    if ids.dtype != np.int64 or ids.ndim != 2:
        raise Error(f"tokens must be i64 [batch, length], not {ids.dtype} {list(ids.shape)}")
    if mask is None:
        mask = np.ones_like(ids)
    if mask.shape != ids.shape:
        raise Error(f"attention_mask has the shape {list(mask.shape)}, not {list(ids.shape)}")
    return Prompts([row[kept == 1].tolist() for row, kept in zip(ids, mask)])
