"""Streamer of the command: writes the text to stdout as it comes, and records tokens and times."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Sequence
from typing import Any

from ovgpu.cli.generate.text_stream import TextStream
from ovgpu.genai.enums import StreamingStatus
from ovgpu.genai.streamers import StreamerBase
from ovgpu.genai.tokenizer import Tokenizer


class Recorder(StreamerBase):
    """Tokens of a generation, the text that they add to the prompt, and the seconds that each of them took.

    The seconds of the first token include the prompt. ``reason`` says why the generation ended: "end" (a token in
    ``ends``, which has no text) or, if the caller sets it, "length", "context" or "interrupted".
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], ends: Collection[int], status: Any) -> None:
        """``status`` is shown until the text begins."""
        self.prompt = len(prompt)
        self.tokens: list[int] = []
        self.seconds: list[float] = []
        self.text = self.reason = ""
        self._ends, self._status = ends, status
        self._stream = TextStream(tokenizer, prompt)
        self._last = time.perf_counter()

    def write(self, token: int | Sequence[int]) -> StreamingStatus:
        """Record the tokens, and write what they add to the text."""
        for one in token if isinstance(token, Sequence) else [token]:
            now = time.perf_counter()
            self.tokens.append(one)
            self.seconds.append(now - self._last)
            self._last = now
            if one in self._ends:
                self.reason = "end"
            else:
                self._write(self._stream.add(one))
        return StreamingStatus.RUNNING

    def end(self) -> None:
        """Do nothing: `finish` ends the text, also after an error."""

    def finish(self) -> None:
        """Write the rest of the text, and a newline."""
        self._write(self._stream.finish())
        if self.text and not self.text.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()

    def _write(self, piece: str) -> None:
        if piece:
            self._status.stop()
            self.text += piece
            sys.stdout.write(piece)
            sys.stdout.flush()
