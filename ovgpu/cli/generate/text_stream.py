"""Text of generated tokens, as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


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
