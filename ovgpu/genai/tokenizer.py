"""Classes Tokenizer and TokenizedInputs: tokens of texts, texts of tokens, and chat templates."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.chat_history import ChatHistory
from ovgpu.genai.chat_template import find_template, render
from ovgpu.genai.files import read_json, read_rt_info
from ovgpu.genai.token_files import Pair, Tokens, open_tokenizer, tokenizer_of_models
from ovgpu.tensor import Tensor

SPECIAL = ("bos", "eos", "pad")
TEMPLATE_TOKENS = ("unk_token", "sep_token", "cls_token", "mask_token")


class TokenizedInputs:
    """Tokens ``input_ids`` and ``attention_mask`` (0 for padding): tensors of i64 [batch, length].

    ``token_type_ids``, if known, is 1 for tokens of the second text of a pair.
    """

    def __init__(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> None:
        self.input_ids, self.attention_mask = _tensor(input_ids), _tensor(attention_mask)
        self.token_type_ids = None if token_type_ids is None else _tensor(token_type_ids)


class Tokenizer:
    """Tokenizer and chat template of a model.

    - ``Tokenizer(tokenizer_path, **properties)``: those of a folder. The tokenizer is that in tokenizer.json, which
      needs the package tokenizers, or else openvino_tokenizer.xml, which needs openvino and openvino_tokenizers.
    - ``Tokenizer(tokenizer_model, tokenizer_weights, detokenizer_model, detokenizer_weights, **properties)``: models of
      openvino_tokenizers in memory, as the texts of their XML, and tensors with the contents of their .bin files

    Properties, of openvino's CPU, have no effect.

    Raises: RuntimeError if there is no tokenizer, it cannot be read, or a package is missing; TypeError for other
    arguments.
    """

    def __init__(
        self,
        tokenizer_path: str | os.PathLike[str] | bytes = "",
        properties: Any = None,
        detokenizer_model: Any = None,
        detokenizer_weights: Any = None,
        **kwargs: Any,
    ) -> None:
        folder: Path | None = None
        if detokenizer_model is None and not hasattr(properties, "get_byte_size"):
            folder = Path(os.fsdecode(tokenizer_path))
            if not os.path.isdir(folder):
                raise Error(f"{folder} is no folder")
            self._file = open_tokenizer(folder)
            info = read_rt_info(folder / "openvino_tokenizer.xml")
        else:
            encoder = kwargs.get("tokenizer_model", tokenizer_path), kwargs.get("tokenizer_weights", properties)
            self._file, info = tokenizer_of_models(encoder, (detokenizer_model, detokenizer_weights))
        self._config = _read(folder, "tokenizer_config.json")
        self.padding_side = "left" if self._config.get("padding_side") == "left" else "right"
        self._template = self._original_template = find_template(folder, info)
        self._vocabulary: list[bytes] | None = None
        self._read_special_tokens(folder, info)

    # ---- tokens

    def encode(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[str]],
        prompts_2: Sequence[str] | bool | None = None,
        add_special_tokens: bool = True,
        pad_to_max_length: bool = False,
        max_length: int | None = None,
        padding_side: str | None = None,
        truncation: bool = False,
    ) -> TokenizedInputs:
        """Return the tokens of a text, of several, or of pairs, padded to the length of the longest row.

        Pairs are lists of two texts, or two lists, of which one may have a single text for all. ``truncation`` cuts
        rows to ``max_length``, the longer text of a pair first, and ``pad_to_max_length`` pads to at least that;
        without it, the model's own limit counts. ``padding_side`` is "left", "right", or None for that of the
        tokenizer.

        Raises: RuntimeError for another padding side, a length below 1, and padding to a length that is not known;
        TypeError for prompts that are no texts.
        """
        if isinstance(prompts_2, bool):  # encode(prompts, add_special_tokens)
            return self.encode(prompts, None, prompts_2, pad_to_max_length, max_length, padding_side, truncation)
        texts = self._texts(prompts, prompts_2)
        if padding_side not in (None, "left", "right"):
            raise Error(f"padding_side must be 'left' or 'right', not {padding_side!r}")
        limit = self._file.max_length if max_length is None else index(max_length)
        if limit is not None and limit < 1:
            raise Error(f"max_length must be greater than 0, not {limit}")
        if pad_to_max_length and limit is None:
            raise Error("pad_to_max_length needs max_length: the tokenizer has no limit of its own")
        rows = self._file.encode(texts, add_special_tokens, limit if truncation else None)
        right = (padding_side or self.padding_side) == "right"
        return self._padded(rows, limit or 0 if pad_to_max_length else 0, right)

    def decode(self, tokens: Any, skip_special_tokens: bool = True) -> Any:
        """Return the text of a list of tokens; a list of texts for several lists, or for a tensor [batch, length].

        Lists are padded to the longest, which shows if special tokens are kept.

        Raises: RuntimeError for a tensor of another type than i64 or of another rank; TypeError for other values.
        """
        if hasattr(tokens, "get_element_type") or hasattr(tokens, "element_type"):
            array = np.asarray(tokens.data)
            if array.dtype != np.int64 or array.ndim != 2:
                raise Error(f"tokens must be i64 [batch, length], not {array.dtype} {list(array.shape)}")
            return self._file.decode(array.tolist(), skip_special_tokens)
        if isinstance(tokens, (str, bytes)) or not isinstance(tokens, (Sequence, np.ndarray)):
            raise TypeError(f"decode needs tokens, or lists of them, not {tokens!r}")
        if len(tokens) and isinstance(tokens[0], (Sequence, np.ndarray)):
            rows = [[index(token) for token in row] for row in tokens]
            length = max(map(len, rows))
            rows = [row + [self.get_pad_token_id()] * (length - len(row)) for row in rows]
            return self._file.decode(rows, skip_special_tokens)
        return self._file.decode([[index(token) for token in tokens]], skip_special_tokens)[0]

    def supports_paired_input(self) -> bool:
        """Return whether `encode` takes pairs."""
        return self._file.pairs

    def get_vocab(self) -> dict[bytes, int]:
        """Return the tokens by their texts, which are parts of UTF-8."""
        return {text: token for token, text in enumerate(self._texts_of_tokens())}

    def get_vocab_vector(self) -> list[str]:
        """Return the text of each token. Bytes that are no UTF-8 become U+FFFD."""
        return [text.decode(errors="replace") for text in self._texts_of_tokens()]

    # ---- special tokens

    def get_bos_token(self) -> str:
        """Return the text of the token that begins a text; "" if there is none."""
        return self._special_texts["bos"]

    def get_bos_token_id(self) -> int:
        """Return the token that begins a text; -1 if there is none."""
        return self._special_ids["bos"]

    def get_eos_token(self) -> str:
        """Return the text of the token that ends a text; "" if there is none."""
        return self._special_texts["eos"]

    def get_eos_token_id(self) -> int:
        """Return the token that ends a text; -1 if there is none."""
        return self._special_ids["eos"]

    def get_pad_token(self) -> str:
        """Return the text of the token that fills rows up; "" if there is none."""
        return self._special_texts["pad"]

    def get_pad_token_id(self) -> int:
        """Return the token that fills rows up; -1 if there is none."""
        return self._special_ids["pad"]

    @property
    def special_token_ids(self) -> set[int]:
        """The special tokens, which have no text."""
        return self._file.special()

    # ---- chats

    def apply_chat_template(
        self,
        history: ChatHistory | Sequence[dict[str, Any]],
        add_generation_prompt: bool,
        chat_template: str = "",
        tools: Sequence[dict[str, Any]] | None = None,
        extra_context: dict[str, Any] | None = None,
    ) -> str:
        """Return the text of a chat, with the beginning of an answer if ``add_generation_prompt``.

        ``chat_template``, ``tools`` and ``extra_context`` replace those of the tokenizer and the history. Raises:
        RuntimeError if there is no template, it refuses the chat, its text is empty, or jinja2 is missing.
        """
        if not isinstance(history, ChatHistory):
            if any(not isinstance(message, dict) for message in history):
                raise TypeError(f"messages of a chat are dicts: {history!r}")
            history = ChatHistory(list(history))
        context = history.get_extra_context() if extra_context is None else extra_context
        return render(
            chat_template or self._template,
            history.get_messages(),
            add_generation_prompt,
            history.get_tools() if tools is None else tools,
            {**self._template_tokens(), **context},
        )

    def set_chat_template(self, chat_template: str) -> None:
        """Replace the chat template."""
        if not isinstance(chat_template, str):
            raise TypeError(f"a chat template is a string, not {chat_template!r}")
        self._template = self._original_template = chat_template

    def get_original_chat_template(self) -> str:
        """Return the chat template; "" if there is none."""
        return self._original_template

    @property
    def chat_template(self) -> str:
        """The chat template; "" if there is none."""
        return self._template

    @chat_template.setter
    def chat_template(self, chat_template: str) -> None:
        self.set_chat_template(chat_template)

    # ----

    def _texts(self, prompts: Any, prompts_2: Any) -> Sequence[str | Pair]:
        """Return the texts or pairs that `encode` gets."""
        if isinstance(prompts_2, str) or not isinstance(prompts_2, Sequence | None):
            raise TypeError(f"prompts_2 is a list of texts, not {prompts_2!r}")
        texts = [prompts] if isinstance(prompts, str) else prompts
        if not isinstance(texts, Sequence):
            raise TypeError(f"prompts are texts, not {prompts!r}")
        if prompts_2 is not None:
            count = max(len(texts), len(prompts_2))
            if {len(texts), len(prompts_2)} - {1, count} or not (texts and prompts_2):
                raise Error(f"there are {len(texts)} and {len(prompts_2)} texts: one may have 1 text, or both as many")
            texts = [(texts[i % len(texts)], prompts_2[i % len(prompts_2)]) for i in range(count)]
        texts = [text if isinstance(text, str) else tuple(text) for text in texts]
        pairs = [text for text in texts if isinstance(text, tuple)]
        flat = [part for text in texts for part in (text if isinstance(text, tuple) else (text,))]
        if any(not isinstance(part, str) for part in flat) or any(len(pair) != 2 for pair in pairs):
            raise TypeError(f"prompts are texts, or pairs of texts, not {prompts!r}")
        if pairs and len(pairs) != len(texts):
            raise TypeError("prompts are either texts or pairs of texts")
        if pairs and not self._file.pairs:
            raise Error("the tokenizer has one input, and no pairs")
        return texts

    def _padded(self, rows: Sequence[Tokens], least: int, right: bool) -> TokenizedInputs:
        length = max(least, *(len(row.ids) for row in rows), 0)
        ids = np.full((len(rows), length), max(self.get_pad_token_id(), 0), np.int64)
        mask, types = np.zeros_like(ids), np.zeros_like(ids)
        for i, row in enumerate(rows):
            count = len(row.ids)
            place = slice(0, count) if right else slice(length - count, length)
            ids[i, place], mask[i, place], types[i, place] = row.ids, 1, row.types
        return TokenizedInputs(Tensor(ids), Tensor(mask), Tensor(types))

    def _texts_of_tokens(self) -> list[bytes]:
        if self._vocabulary is None:
            self._vocabulary = self._file.vocabulary()
        return self._vocabulary

    def _read_special_tokens(self, folder: Path | None, info: Mapping[str, Any]) -> None:
        """Find the special tokens: in the model of the tokenizer, config.json, or by their texts."""
        config, texts = _read(folder, "config.json"), _read(folder, "special_tokens_map.json")
        self._special_ids: dict[str, int] = {}
        self._special_texts: dict[str, str] = {}
        for name in SPECIAL:
            ids = [_number(source.get(f"{name}_token_id")) for source in (info, config)]
            id_ = next((token for token in ids if token is not None), -1)
            text = _content(texts.get(f"{name}_token")) or _content(self._config.get(f"{name}_token"))
            self._special_ids[name], self._special_texts[name] = id_, text
        for name in SPECIAL:
            id_, text = self._special_ids[name], self._special_texts[name]
            if id_ == -1 and text:
                found = self._file.encode([text], False)[0].ids
                self._special_ids[name] = found[-1] if found else -1
            elif id_ != -1 and not text:
                self._special_texts[name] = self._file.decode([[id_]], False)[0]
        if self._special_ids["pad"] == -1:
            self._special_ids["pad"], self._special_texts["pad"] = self._special_ids["eos"], self._special_texts["eos"]

    def _template_tokens(self) -> dict[str, str]:
        """Return the special tokens that a chat template may name."""
        own = {f"{name}_token": text for name, text in self._special_texts.items()}
        return own | {name: text for name in TEMPLATE_TOKENS if (text := _content(self._config.get(name)))}


def _read(folder: Path | None, name: str) -> dict[str, Any]:
    """Return the object in a file of a folder, an empty one if there is none."""
    return {} if folder is None else read_json(folder / name)


def _tensor(value: Any) -> Tensor:
    return (
        value if isinstance(value, Tensor) else Tensor(value if hasattr(value, "get_byte_size") else np.asarray(value))
    )


def _content(token: Any) -> str:
    """Return the text of a special token in a file of transformers: a string, or an object with its content."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int) or (isinstance(value, str) and value.lstrip("-").isdigit()) else None
