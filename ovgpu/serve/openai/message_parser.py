"""Class MessageParser: reasoning, answer and calls of tools in the text of a chat, which comes piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ovgpu.serve.openai.pieces import overlap
from ovgpu.serve.openai.tool_formats import Functions, ToolCall, ToolFormat

OPEN, CLOSE = "<think>", "</think>"

State = Callable[["MessageParser", "Part", bool], bool]
"""Function that takes what it can of the text that waits. It returns whether another state is to go on."""


@dataclass
class Part:
    """Part of a message."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)


class MessageParser:
    """Parser of one text. Text that may become a tag waits for the next piece, and a call for its end.

    A call that cannot be read, or is one of no function of ``functions``, stays text. With ``reasons``, the text may
    begin with reasoning; ``begun`` tells that the prompt ends with its opening tag. Calls beyond ``most`` are left
    out.
    """

    def __init__(
        self,
        tools: ToolFormat | None,
        functions: Functions,
        reasons: bool,
        begun: bool = False,
        most: int | None = None,
    ) -> None:
        self._tools, self._functions, self._left = tools, functions, most
        self._waiting = ""
        kind = MessageParser
        # Functions, as bound methods would be reference cycles
        self._next: State = kind._reasoning if begun else kind._opening if reasons else kind._answer
        self._blank = begun  # whether white space is left out: at the begin of reasoning, and behind it and a call

    def add(self, piece: str) -> Part:
        """Return what the text certainly has so far, since the last call."""
        return self._read(piece, False)

    def end(self) -> Part:
        """Return the rest of the text."""
        return self._read("", True)

    def _read(self, piece: str, ended: bool) -> Part:
        self._waiting += piece
        part = Part()
        while self._next(self, part, ended):
            pass
        return part

    # ---- states

    def _opening(self, part: Part, ended: bool) -> bool:
        text = self._waiting.lstrip()
        if text.startswith(OPEN):
            self._waiting, self._next, self._blank = text.removeprefix(OPEN), MessageParser._reasoning, True
            return True
        if OPEN.startswith(text) and not ended:
            return False
        self._next = MessageParser._answer
        return True

    def _reasoning(self, part: Part, ended: bool) -> bool:
        before, tag, rest = self._waiting.partition(CLOSE)
        kept = 0 if tag or ended else overlap(before, CLOSE)
        self._waiting = rest if tag else before[len(before) - kept :]
        part.reasoning += self._unblanked(before[: len(before) - kept])
        if tag:
            self._next, self._blank = MessageParser._answer, True
        return bool(tag)

    def _answer(self, part: Part, ended: bool) -> bool:
        if self._tools is None or not self._functions:
            self._write(part, self._waiting)
            self._waiting = ""
            return False
        if not self._tools.end:
            return self._beginning(part, ended)
        (begin,) = self._tools.begins
        before, tag, rest = self._waiting.partition(begin)
        kept = 0 if tag or ended else overlap(before, begin)
        self._write(part, before[: len(before) - kept])
        self._waiting = tag + rest if tag else before[len(before) - kept :]
        if tag:
            self._next = MessageParser._call
        return bool(tag)

    def _beginning(self, part: Part, ended: bool) -> bool:
        """Find out whether a text that has either calls or an answer begins like a call."""
        assert self._tools is not None
        text = self._waiting.lstrip()
        if any(text.startswith(begin) for begin in self._tools.begins):
            self._next = MessageParser._call
            return True
        if ended or not any(begin.startswith(text) for begin in self._tools.begins):
            self._tools = None
            return True
        return False

    def _call(self, part: Part, ended: bool) -> bool:
        assert self._tools is not None
        until = len(self._waiting)
        if self._tools.end:
            place = self._waiting.find(self._tools.end)
            until = place + len(self._tools.end) if place >= 0 else until
        if not ended and (not self._tools.end or place < 0):
            return False
        text, self._waiting = self._waiting[:until], self._waiting[until:]
        calls = self._tools.calls(text, self._functions)
        part.calls += calls[: self._left]
        if self._left is not None:
            self._left = max(self._left - len(calls), 0)
        if calls:
            self._blank = True
        else:
            self._write(part, text)
        self._next = MessageParser._answer
        return bool(self._waiting)

    def _write(self, part: Part, text: str) -> None:
        part.text += self._unblanked(text)

    def _unblanked(self, text: str) -> str:
        found = text.lstrip() if self._blank else text
        self._blank = self._blank and not found
        return found
