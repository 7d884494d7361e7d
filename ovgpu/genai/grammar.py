"""Restriction of a text to a grammar: which tokens may follow. The package llguidance (MIT) knows them."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import Any

import numpy as np

from ovgpu._util.extras import install_command
from ovgpu.errors import Error
from ovgpu.genai.lark import as_lark, from_ebnf
from ovgpu.genai.sampling import Array
from ovgpu.genai.structured_output import JSONSchema, Regex, StructuredOutputConfig
from ovgpu.genai.tokenizer import Tokenizer

# Where only one text can follow, llguidance would allow only the tokens that the tokenizer makes of it.
ANY_TOKENS = '%llguidance {"no_forcing": true}'
REASONS = {"NoExtensionBias": "no token of the vocabulary continues it"}


class Compiler:
    """Compiler of grammars for a tokenizer, and a model whose logits have ``vocabulary`` tokens.

    Raises: Error if llguidance is missing.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._package = _package()
        self.vocabulary = vocabulary
        self._tokens = _Tokens(tokenizer, vocabulary)
        self._tokenizers: dict[tuple[int, ...], Any] = {}  # by the tokens that end a text

    def compile(self, config: StructuredOutputConfig, ends: Collection[int]) -> CompiledGrammar:
        """Return the grammar of a text that tokens in ``ends`` end. Raises: Error for a faulty grammar."""
        key = tuple(sorted(end for end in ends if end < self.vocabulary))
        if key not in self._tokenizers:
            wrapper = self._package.TokenizerWrapper(self._tokens)
            self._tokenizers[key] = self._package.LLTokenizer(wrapper, eos_token=list(key) or None)
        matcher = self._package.LLMatcher(self._tokenizers[key], self.source(config), log_level=0)
        if matcher.is_error():
            raise Error(f"the grammar cannot be used: {matcher.get_error()}")
        return CompiledGrammar(matcher, self.vocabulary)

    @staticmethod
    def source(config: StructuredOutputConfig) -> str:
        """Return the text of a grammar for llguidance. Raises: Error if it cannot be read."""
        matcher = _package().LLMatcher
        if config.json_schema is not None:
            lark = as_lark(JSONSchema(config.json_schema))
        elif config.regex is not None:
            lark = as_lark(Regex(config.regex))
        elif config.grammar is not None:
            lark = from_ebnf(config.grammar)
        else:
            lark = as_lark(config.parts())
        return str(matcher.grammar_from_lark(f"{ANY_TOKENS}\n{lark}"))


class CompiledGrammar:
    """Grammar that texts can follow, each with a `Matcher` of its own."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    def matcher(self) -> Matcher:
        """Return a matcher for a new text."""
        return Matcher(self._matcher.deep_copy(), self._vocabulary)


class Matcher:
    """Position of a text in a grammar."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary
        self._ended = False

    def allowed(self) -> Array | None:
        """Return which tokens may follow, bool [vocabulary]; None if any may, as the text that the grammar describes
        is complete."""
        if self._ended:
            return None
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        mask: Array = np.unpackbits(bits, bitorder="little")[: self._vocabulary].astype(bool)
        return mask

    def accept(self, token: int) -> None:
        """Append a token to the text. Raises: Error if no token can follow it."""
        if not self._ended:
            self._ended = self._matcher.is_stopped() or not self._matcher.consume_token(token)
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = str(self._matcher.get_error()).strip().splitlines()[0]
            raise Error(f"the text cannot follow the grammar: {REASONS.get(reason, reason)}")


class _Tokens:
    """Tokenizer as llguidance needs it: the bytes of each token, and a function that returns the tokens of a text."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        texts = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        self.tokens = [b""] * vocabulary
        for text, token in texts:
            if token < vocabulary:
                self.tokens[token] = text
        self.special_token_ids = sorted(token for token in tokenizer.special_token_ids if token < vocabulary)
        self.bos_token_id = tokenizer.get_bos_token_id() if tokenizer.get_bos_token_id() >= 0 else None
        self.eos_token_id = max(tokenizer.get_eos_token_id(), 0)
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode()
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()
        return tokens


def _package() -> Any:
    try:
        return import_module("llguidance")
    except ImportError:
        raise Error(f"structured output needs the package llguidance: {install_command('grammar')}") from None
