"""Short turns of threads that run Python code, while one of them computes for long."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager

from ovgpu._util.process_setting import ProcessSetting

SECONDS = 1e-4
"""A thread's turn while others wait. By default it is 5 ms, which each wake-up of another thread may have to wait."""

_setting = ProcessSetting(sys.getswitchinterval, lambda: sys.setswitchinterval(SECONDS), sys.setswitchinterval)


def short_turns() -> AbstractContextManager[None]:
    """Run the block with turns of `SECONDS`, in all threads."""
    return _setting.changed()
