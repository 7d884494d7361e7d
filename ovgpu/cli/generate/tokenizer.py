"""Tokenizer of a model's folder: tokens of a prompt, the text of generated tokens, and the chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from ovgpu._util.extras import install_command
from ovgpu.cli.generate.settings import read_json

INSTALL = install_command("tokenizers")
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer in tokenizer.json, without padding and truncation.

    Raises: ValueError if there is no such file, it cannot be read, or the package tokenizers is missing.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(
            f"{folder} has no tokenizer.json. transformers writes it: "
            f"AutoTokenizer.from_pretrained(NAME).save_pretrained({str(folder)!r})"
        )
    try:
        tokenizers: Any = import_module("tokenizers")
    except ImportError:
        raise ValueError(f"generate needs the package tokenizers: {INSTALL}") from None
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as e:  # the package raises no narrower type
        raise ValueError(f"{path} cannot be read: {e}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


class TextStream:
    """Text of tokens that come one by one after a prompt; special tokens have no text.

    Tokens are not decoded one by one, because decoders strip spaces from the first token, and a character may consist
    of several tokens. A piece of text is what a token adds to the text of the tokens before it. Text is held back while
    it ends in U+FFFD, which stands for an incomplete character.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._decode: Callable[[list[int]], str] = tokenizer.decode
        self._tokens = list(prompt)  # the prompt, later the tokens of the last piece; after them, those held back
        self._known = self._decode(self._tokens)
        self._written = len(self._tokens)

    def add(self, token: int) -> str:
        """Return the text that is complete with this token, often ""."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        return "" if text.endswith(INCOMPLETE) else self._advance(text)

    def finish(self) -> str:
        """Return the text that was held back."""
        return self._advance(self._decode(self._tokens))

    def _advance(self, text: str) -> str:
        piece = text[len(self._known) :]
        if piece:
            self._tokens = self._tokens[self._written :]
            self._known, self._written = self._decode(self._tokens), len(self._tokens)
        return piece


def chat_prompt(folder: Path, message: str, system: str | None = None) -> str:
    """Return the text of a chat with one message of the user, up to the answer, by the chat template of a folder.

    The template is rendered in jinja2's sandbox with the functions that transformers provides. Raises: ValueError if
    there is no template, it refuses the chat, or jinja2 is missing.
    """
    config = read_json(folder / "tokenizer_config.json")
    template = _template(folder, config)
    try:
        sandbox: Any = import_module("jinja2.sandbox")
    except ImportError:
        raise ValueError(f"--chat needs the package jinja2: {INSTALL}") from None
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": datetime.now().strftime}
    messages = [{"role": "user", "content": message}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    tokens = {
        name: token.get("content") if isinstance(token, dict) else token
        for name in SPECIAL_TOKENS
        if (token := config.get(name)) is not None
    }
    try:
        text = environment.from_string(template).render(
            messages=messages, tools=None, documents=None, add_generation_prompt=True, **tokens
        )
    except import_module("jinja2").TemplateError as e:
        raise ValueError(f"the chat template of {folder} fails: {e}") from None
    return str(text)


def _template(folder: Path, config: dict[str, Any]) -> str:
    """Return the chat template of a folder. Raises ValueError if there is none."""
    path, template = folder / "chat_template.jinja", config.get("chat_template")
    if path.is_file():
        template = path.read_text(encoding="utf-8")
    elif isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default") or next(iter(named.values()), None)
    if not isinstance(template, str):
        raise ValueError(
            f"{folder} has no chat template, neither chat_template.jinja nor chat_template in "
            "tokenizer_config.json: the model may not be made for chats; leave out --chat"
        )
    # transformers adds the statement {% generation %} to jinja2, which marks the model's own messages.
    return re.sub(
        r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})",
        lambda match: f"{match[1]}{'endif' if match[2] else 'if true'}{match[3]}",
        template,
    )


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> str:
    """Raise the error of a template that refuses the messages."""
    raise import_module("jinja2").TemplateError(message)
