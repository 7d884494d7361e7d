"""Pauses of Python's garbage collector: while a model is made, and while a CUDA graph is captured."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager

from ovgpu._util.process_setting import ProcessSetting


def _restore(enabled: bool) -> None:
    if enabled:
        gc.enable()


_setting = ProcessSetting(gc.isenabled, gc.disable, _restore)


def paused() -> AbstractContextManager[None]:
    """Run the block without the collector, in all threads. Almost all that compiling a model makes stays, while
    collecting takes up to a third of its time; and what the collector destroys may end a capture."""
    return _setting.changed()
