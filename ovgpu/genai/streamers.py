"""Streamers: objects and functions that get a text while it is generated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any

from ovgpu.errors import Error
from ovgpu.genai.enums import StreamingStatus
from ovgpu.genai.tokenizer import Tokenizer

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # end of a text whose last character is not complete
DELAY = 3  # tokens whose text may still change


class StreamerBase:
    """Base class of streamers, which get tokens. Subclasses override both methods."""

    def write(self, token: int | Sequence[int]) -> StreamingStatus:
        """Take new tokens, and return whether the generation goes on."""
        raise Error(f"{type(self).__name__} has no method write")

    def end(self) -> None:
        """Take the end of the text."""
        raise Error(f"{type(self).__name__} has no method end")


class TextStreamer(StreamerBase):
    """Streamer that calls ``callback`` with pieces of the text.

    A piece is passed on when two further tokens have come, as these may change the end of the text, or with a newline.
    The callback returns a `StreamingStatus`, or True to stop; None and False go on. ``detokenization_params`` are
    keywords of `Tokenizer.decode`.

    Raises: TypeError for arguments of other types.
    """

    _tokens: list[int]  # since the last newline
    _lengths: list[int | None]  # of the text up to each token, where it was needed
    _printed: int  # length of the text that was passed on

    def __init__(
        self,
        tokenizer: Tokenizer,
        callback: Callable[[str], Any],
        detokenization_params: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(tokenizer, Tokenizer) or not callable(callback):
            raise TypeError("TextStreamer needs a Tokenizer and a function")
        self._tokenizer, self._callback = tokenizer, callback
        self._parameters = dict(detokenization_params or {})
        self._clear()

    def write(self, token: int | Sequence[int]) -> StreamingStatus:
        """Take a token or several, and return what the callback answers to their text."""
        tokens = [index(item) for item in (token if isinstance(token, Sequence) else [token])]
        if not tokens:
            return StreamingStatus.RUNNING
        self._tokens += tokens
        self._lengths += [None] * len(tokens)
        text = self._text(len(self._tokens))
        if text.endswith("\n") and len(text) > self._printed:
            piece = text[self._printed :]
            self._clear()
            return self._call(piece)
        if text.endswith(INCOMPLETE) or len(self._tokens) < DELAY:
            return StreamingStatus.RUNNING
        until = self._length(len(self._tokens) - DELAY)
        if until <= self._printed:
            return StreamingStatus.RUNNING
        piece, self._printed = text[self._printed : until], until
        return self._call(piece)

    def end(self) -> None:
        """Pass the rest of the text on."""
        piece = self._text(len(self._tokens))[self._printed :]
        self._clear()
        self._call(piece)

    def _clear(self) -> None:
        self._tokens, self._lengths, self._printed = [], [], 0

    def _text(self, count: int) -> str:
        """Return the text of the first tokens."""
        text: str = self._tokenizer.decode(self._tokens[:count], **self._parameters)
        self._lengths[count - 1 : count] = [-1 if text.endswith(INCOMPLETE) else len(text)]
        return text

    def _length(self, position: int) -> int:
        """Return the length of the text up to a token; -1 if its last character is not complete."""
        if self._lengths[position] is None:
            self._text(position + 1)
        length = self._lengths[position]
        assert length is not None
        return length

    def _call(self, piece: str) -> StreamingStatus:
        if not piece:
            return StreamingStatus.RUNNING
        answer = self._callback(piece)
        if isinstance(answer, StreamingStatus):
            return answer
        if answer is None or isinstance(answer, (bool, int)):
            return StreamingStatus.STOP if answer else StreamingStatus.RUNNING
        raise Error(f"a streamer's function returns None, a bool or a StreamingStatus, not {answer!r}")


def as_streamer(streamer: Any, tokenizer: Tokenizer | None) -> StreamerBase | None:
    """Return the streamer for an argument of generate(): None, a `StreamerBase`, or a function that gets texts.

    Raises: TypeError for other arguments.
    """
    if streamer is None or isinstance(streamer, StreamerBase):
        return streamer
    if not callable(streamer):
        raise TypeError(f"a streamer is a function of a text, or a StreamerBase, not {streamer!r}")
    if tokenizer is None:
        raise Error("a function as streamer needs a tokenizer")
    return TextStreamer(tokenizer, streamer)


def write_tokens(streamer: StreamerBase, tokens: list[int]) -> StreamingStatus:
    """Write tokens, and return the answer. Raises: Error for an answer that is no `StreamingStatus`."""
    status = streamer.write(tokens)
    if not isinstance(status, StreamingStatus):
        raise Error(f"write of a streamer returns a StreamingStatus, not {status!r}")
    return status
