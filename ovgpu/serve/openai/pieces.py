"""Pieces of a text, from tokens that come one by one."""

from __future__ import annotations

from collections.abc import Sequence

from ovgpu.genai.streamers import INCOMPLETE
from ovgpu.genai.tokenizer import Tokenizer

LONGEST = 32  # tokens that are decoded again for each new one
KEPT = 8  # of them, those that stay
INCOMPLETE_CHARACTERS = 3  # that may stand for the beginning of a character: bytes that are no UTF-8


class Pieces:
    """Pieces of the text of tokens. Characters that are not complete wait for the next token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []  # the last ones
        self._taken = 0  # characters of their text

    def add(self, tokens: Sequence[int]) -> str:
        """Return the text that follows when ``tokens`` are added."""
        self._tokens += tokens
        text = self._text(self._tokens)
        complete = len(text)
        while len(text) - complete < INCOMPLETE_CHARACTERS and text[:complete].endswith(INCOMPLETE):
            complete -= 1
        piece = self._take(text, complete)
        if len(self._tokens) > LONGEST and complete == len(text):
            last = self._tokens[-KEPT:]
            kept = self._text(last)
            if kept and text.endswith(kept):
                self._tokens, self._taken = last, len(kept)
        return piece

    def end(self) -> str:
        """Return the rest of the text."""
        text = self._text(self._tokens)
        return self._take(text, len(text))

    def _take(self, text: str, until: int) -> str:
        begin, self._taken = self._taken, max(self._taken, until)
        return text[begin:until]

    def _text(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(tokens) if tokens else ""
        return text


class StopStrings:
    """Search for strings that end a text. What may become one of them waits for the next piece."""

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        """``include`` keeps the stop string as the end of the text."""
        self._stops, self._include = stops, include
        self._waiting = ""
        self.found = False

    def add(self, piece: str) -> str:
        """Return the text that cannot belong to a stop string, up to the first one."""
        text = self._waiting + piece
        places = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            place, stop = min(places, key=lambda found: (found[0], len(found[1])))
            self.found, self._waiting = True, ""
            return text[: place + len(stop) * self._include]
        wait = max((overlap(text, stop) for stop in self._stops), default=0)
        self._waiting = text[len(text) - wait :]
        return text[: len(text) - wait]

    def end(self) -> str:
        """Return the text that waits."""
        waiting, self._waiting = self._waiting, ""
        return waiting


def overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of a text are the beginning of a stop string, but not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((count for count in range(longest, 0, -1) if text.endswith(stop[:count])), 0)
