"""Ctrl-C while the program ``ovgpu`` imports its modules ends it at once, without a traceback.

Importing this module is enough. Programs other than ``ovgpu`` and ``python -m ovgpu`` keep their handler. An exception
hook would not do, because extension modules turn KeyboardInterrupt into ImportError.
"""

from __future__ import annotations

import signal
import sys
from os.path import basename, splitext

_is_module = ("-m", "ovgpu") in zip(sys.orig_argv, sys.orig_argv[1:])
_is_script = splitext(basename(sys.argv[0] if sys.argv else ""))[0] == "ovgpu"
_replaced = (_is_module or _is_script) and signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _replaced:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_again() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, once all modules are imported."""
    if _replaced:
        signal.signal(signal.SIGINT, signal.default_int_handler)
