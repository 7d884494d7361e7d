"""Pauses of Python's garbage collector, for building a model and for capturing a CUDA graph."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager

from ovgpu._util.process_setting import ProcessSetting


def _restore(enabled: bool) -> None:
    if enabled:
        gc.enable()


_setting = ProcessSetting(gc.isenabled, gc.disable, _restore)


def paused() -> AbstractContextManager[None]:
    """Run the block without the garbage collector, in all threads. Compiling a model creates almost no garbage, but a
    third of its time may go into collecting. Objects that the collector destroys may invalidate a graph capture."""
    return _setting.changed()
