"""Ctrl-C at a chosen point of a program."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Self

import ovgpu

PACKAGE = str(Path(ovgpu.__file__).parent)


class Interruption:
    """Context that raises KeyboardInterrupt before the ``at``-th line of ovgpu that runs.

    ``passed`` are the lines in the order in which they ran.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.passed: list[tuple[str, int]] = []

    @property
    def lines(self) -> int:
        """The number of lines that ran."""
        return len(self.passed)

    def __enter__(self) -> Self:
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        name = frame.f_code.co_filename
        return self._line if name.startswith(PACKAGE) or name == "<string>" else None  # or a generated function

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.passed.append((frame.f_code.co_filename, frame.f_lineno))
            if self.lines == self.at:
                raise KeyboardInterrupt
        return self._line

    def passes(self, times: int) -> list[int]:
        """Return where each line ran for the first ``times`` times, to be interrupted there; the first line is 1."""
        seen: Counter[tuple[str, int]] = Counter()
        found = []
        for at, line in enumerate(self.passed, 1):
            seen[line] += 1
            if seen[line] <= times:
                found.append(at)
        return found
