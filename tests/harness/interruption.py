"""Ctrl-C at a chosen point of a program."""

from __future__ import annotations

import dis
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Self

import ovgpu

PACKAGE = str(Path(ovgpu.__file__).parent)
LOAD_CONST = dis.opmap["LOAD_CONST"]


def _ends_with(frame: FrameType) -> bool:
    """Return whether a ``with`` block is about to end: `__exit__` is called with None three times.

    A signal handler never runs there: Python looks for signals after calls, at loops and where functions begin.
    """
    code, at = frame.f_code, frame.f_lasti
    instructions = [(code.co_code[i], code.co_code[i + 1]) for i in range(at, min(at + 6, len(code.co_code)), 2)]
    return len(instructions) == 3 and all(op == LOAD_CONST and code.co_consts[n] is None for op, n in instructions)


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
        if event == "line" and not _ends_with(frame):
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
