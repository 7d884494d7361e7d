"""Ctrl-C at a chosen point of a program."""
from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any, Self

import ovgpu

PACKAGE = str(Path(ovgpu.__file__).parent)


class Interruption:
    """Context that raises KeyboardInterrupt before the ``at``-th line of ovgpu that runs, and counts the lines."""

    def __init__(self, at: int) -> None:
        self.at, self.lines = at, 0

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
            self.lines += 1
            if self.lines == self.at:
                raise KeyboardInterrupt
        return self._line
