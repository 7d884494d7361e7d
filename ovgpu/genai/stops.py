"""Ends of texts: limits of tokens, stop tokens and stop strings."""

from __future__ import annotations

from collections.abc import Sequence

from ovgpu.errors import Error
from ovgpu.genai.enums import GenerationFinishReason
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.tokenizer import Tokenizer


class Stops:
    """Rules for the end of a text. ``window`` tokens at its end may become part of a stop string.

    Raises: Error for stop strings without a tokenizer.
    """

    def __init__(self, config: GenerationConfig, tokenizer: Tokenizer | None) -> None:
        ignored = (
            config.ignore_eos and not config.is_beam_search()
        )  # as in openvino_genai, whose beams end nevertheless
        self._ends = frozenset() if ignored else frozenset(config.stop_token_ids)
        self._strings = sorted(config.stop_strings)
        self._include = config.include_stop_str_in_output
        if self._strings and tokenizer is None:
            raise Error("stop_strings need a tokenizer")
        self._tokenizer = tokenizer
        self.window = 0
        for string in self._strings:
            assert tokenizer is not None
            self.window = max(self.window, tokenizer.encode(string, add_special_tokens=False).input_ids.shape[1])

    def is_end(self, token: int) -> bool:
        """Return whether a token ends the text."""
        return token in self._ends

    def check(self, tokens: Sequence[int], limit: int) -> tuple[GenerationFinishReason | None, int]:
        """Return why a text of these tokens ends, None if it goes on, and the number of tokens to cut off its end.

        A stop string ends the text if it is in the text of the last ``window`` tokens. Whole tokens are cut: those
        after the first ones whose text has all that stands before the stop string, without blanks at its end.
        """
        if tokens[-1] in self._ends:
            return GenerationFinishReason.STOP, 0
        if len(tokens) >= limit:
            return GenerationFinishReason.LENGTH, 0
        cut = self._cut(list(tokens[len(tokens) - self.window :])) if self.window <= len(tokens) else None
        return (None, 0) if cut is None else (GenerationFinishReason.STOP, cut)

    def _cut(self, last: list[int]) -> int | None:
        """Return how many of the last tokens a stop string cuts off, None if there is no stop string."""
        if not self._strings:
            return None
        assert self._tokenizer is not None
        text = self._tokenizer.decode(last)
        string = next((string for string in self._strings if string in text), None)
        if string is None:
            return None
        kept = text[: text.index(string) + len(string) * self._include].rstrip(" \n")
        if not kept:
            return len(last)
        decoded = (self._tokenizer.decode(last[: count + 1]) for count in range(len(last)))
        return next((len(last) - count - 1 for count, part in enumerate(decoded) if kept in part), 0)
