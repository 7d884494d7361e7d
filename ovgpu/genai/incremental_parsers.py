"""Parsers of texts that are generated piece by piece, for a `TextParserStreamer`."""

from __future__ import annotations

from collections.abc import Sequence

from ovgpu.errors import Error
from ovgpu.genai.enums import StreamingStatus
from ovgpu.genai.parsers import Message


class IncrementalParser:
    """Base class of parsers of texts that are generated piece by piece. Subclasses override `parse` and `reset`."""

    _status = StreamingStatus.RUNNING

    def parse(self, delta_message: Message, delta_text: str, delta_tokens: Sequence[int] | None = None) -> str:
        """Take a piece of the text and its tokens, add parts to the message of the piece in place, and return what is
        left of the piece."""
        raise Error(f"{type(self).__name__} has no method parse")

    def reset(self) -> None:
        """Begin a new text."""
        raise Error(f"{type(self).__name__} has no method reset")

    def get_status(self) -> StreamingStatus:
        """Return whether the generation goes on."""
        return self._status

    def set_status(self, status: StreamingStatus) -> None:
        """Set whether the generation goes on."""
        if not isinstance(status, StreamingStatus):
            raise TypeError(f"the status is a StreamingStatus, not {status!r}")
        self._status = status


class ReasoningIncrementalParser(IncrementalParser):
    """Parser of the reasoning between two tags, whose pieces become ``reasoning_content``.

    The arguments are those of `ReasoningParser`. Text before the opening tag waits until that has come. With
    ``keep_original_content``, the rest of a piece that has both tags stays as it is.
    """

    def __init__(
        self,
        expect_open_tag: bool = True,
        keep_original_content: bool = True,
        open_tag: str = "<think>",
        close_tag: str = "</think>",
    ) -> None:
        self._expects, self._keeps = expect_open_tag, keep_original_content
        self._open, self._close = open_tag, close_tag
        self.reset()

    def reset(self) -> None:
        """Begin a new text."""
        self._waiting = ""  # text that may begin a tag
        self._inside, self._done = not self._expects, False

    def parse(self, delta_message: Message, delta_text: str, delta_tokens: Sequence[int] | None = None) -> str:
        """Take a piece of the text, see `IncrementalParser.parse`."""
        if self._done:
            return delta_text
        text = self._waiting + delta_text
        begin, end = (-1 if self._inside else text.find(self._open)), text.find(self._close)
        if not self._inside and begin < 0:
            self._waiting = text
            return ""
        if not self._inside and end <= begin:  # only the opening tag
            delta_message["reasoning_content"] = text[begin + len(self._open) :]
            self._waiting, self._inside = "", True
            return text if self._keeps else ""
        if end >= 0:
            first = 0 if self._inside else begin + len(self._open)
            delta_message["reasoning_content"] = text[first:end]
            delta_message["content"] = text[end + len(self._close) :]
            kept = text if self._inside else delta_text  # with both tags, openvino_genai leaves the piece as it came
            self._waiting, self._inside, self._done = "", False, True
            return kept if self._keeps else text[end + len(self._close) :]
        count = self._begun(text)
        delta_message["reasoning_content"] = text[: len(text) - count]
        self._waiting = text[len(text) - count :]
        return text[: len(text) - count] if self._keeps else ""

    def _begun(self, text: str) -> int:
        """Return how many characters at the end of a text may begin the closing tag."""
        lengths = range(min(len(text), len(self._close)), 0, -1)
        return next((n for n in lengths if self._close.startswith(text[len(text) - n :])), 0)


class DeepSeekR1ReasoningIncrementalParser(ReasoningIncrementalParser):
    """Parser of texts of DeepSeek-R1, which begin with the reasoning."""

    def __init__(self) -> None:
        super().__init__(expect_open_tag=False)


class Phi4ReasoningIncrementalParser(ReasoningIncrementalParser):
    """Parser of texts of Phi-4-reasoning."""

    def __init__(self) -> None:
        super().__init__()
