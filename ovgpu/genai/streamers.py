"""Streamers: objects and functions that get a text while it is generated."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any

from ovgpu.errors import Error
from ovgpu.genai.enums import StreamingStatus
from ovgpu.genai.incremental_parsers import IncrementalParser
from ovgpu.genai.parsers import Message, concatenate
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
    _lengths: list[int]  # of the text up to each token; -1 if its last character is not complete, -2 if it is not known
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
        self._lengths += [-2] * len(tokens)
        text = self._text(len(self._tokens))
        if text.endswith("\n") and len(text) > self._printed:
            piece, tokens = text[self._printed :], self._tokens
            self._clear()
            return self._call(piece, tokens)
        if text.endswith(INCOMPLETE) or len(self._tokens) < DELAY:
            return StreamingStatus.RUNNING
        until = self._length(len(self._tokens) - DELAY)
        if until <= self._printed:
            return StreamingStatus.RUNNING
        tokens = self._tokens[bisect(self._lengths, self._printed) : bisect(self._lengths, until)]
        piece, self._printed = text[self._printed : until], until
        return self._call(piece, tokens)

    def end(self) -> None:
        """Pass the rest of the text on."""
        piece = self._text(len(self._tokens))[self._printed :]
        self._clear()
        self._call(piece, ())

    def _clear(self) -> None:
        self._tokens, self._lengths, self._printed = [], [], 0

    def _text(self, count: int) -> str:
        """Return the text of the first tokens."""
        text: str = self._tokenizer.decode(self._tokens[:count], **self._parameters)
        self._lengths[count - 1 : count] = [-1 if text.endswith(INCOMPLETE) else len(text)]
        return text

    def _length(self, position: int) -> int:
        """Return the length of the text up to a token; -1 if its last character is not complete."""
        if self._lengths[position] == -2:
            self._text(position + 1)
        return self._lengths[position]

    def _call(self, piece: str, tokens: Sequence[int]) -> StreamingStatus:
        """Pass on a piece of the text with its tokens, and return the answer."""
        if not piece:
            return StreamingStatus.RUNNING
        answer = self._callback(piece)
        if isinstance(answer, StreamingStatus):
            return answer
        if answer is None or isinstance(answer, (bool, int)):
            return StreamingStatus.STOP if answer else StreamingStatus.RUNNING
        raise Error(f"a streamer's function returns None, a bool or a StreamingStatus, not {answer!r}")


class TextParserStreamer(TextStreamer):
    """Streamer that parses pieces of the text. Subclasses override `write`, which gets the message of each piece.

    The parsers work one after the other on the piece that the former one left; a status of one that ends the generation
    leaves out the rest. Raises: TypeError for arguments of other types.
    """

    def __init__(self, tokenizer: Tokenizer, parsers: Sequence[IncrementalParser] = ()) -> None:
        super().__init__(tokenizer, lambda piece: None)
        if not all(isinstance(parser, IncrementalParser) for parser in parsers):
            raise TypeError(f"the parsers of a TextParserStreamer are IncrementalParsers, not {parsers!r}")
        self._parsers, self._message = list(parsers), Message(content="")

    def write(self, message: Any) -> StreamingStatus:
        """Take the message of a piece, and return whether the generation goes on."""
        raise Error(f"{type(self).__name__} has no method write")

    def get_parsed_message(self) -> Message:
        """Return the message of the text so far: pieces of text are joined."""
        return dict(self._message)

    def reset(self) -> None:
        """Begin a new text."""
        self._message = Message(content="")
        for parser in self._parsers:
            parser.reset()

    def _write(self, chunk: Sequence[int] | str) -> StreamingStatus:
        return self._call(chunk, ()) if isinstance(chunk, str) else super().write(chunk)

    def _call(self, piece: str, tokens: Sequence[int]) -> StreamingStatus:
        if not piece:
            return StreamingStatus.RUNNING
        message, status = Message(), StreamingStatus.RUNNING
        for parser in self._parsers:
            piece = parser.parse(message, piece, list(tokens))
            if not isinstance(piece, str):
                raise Error(f"parse of an IncrementalParser returns a str, not {piece!r}")
            status = parser.get_status()
            if status != StreamingStatus.RUNNING:
                break
        message["content"] = piece
        concatenate(self._message, message)
        answer = self.write(message)
        return answer if status == StreamingStatus.RUNNING else status


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
    write = streamer._write if isinstance(streamer, TextParserStreamer) else streamer.write
    status = write(tokens)
    if not isinstance(status, StreamingStatus):
        raise Error(f"write of a streamer returns a StreamingStatus, not {status!r}")
    return status
