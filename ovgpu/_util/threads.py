"""Start of threads by code that signal handlers may interrupt."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from threading import Thread
from typing import Any


def start(function: Callable[[], Any], name: str) -> None:
    """Start a thread, which the interpreter waits for before it exits.

    If a signal handler raises meanwhile, the thread may have been started. `Thread.start` alone would not do: a handler
    that raises in its `Condition` leaves that taken, and the new thread waits for it forever. So another thread, in
    which no handler runs, calls it. Raises: RuntimeError if no thread can be started.
    """
    done, errors = _thread.allocate_lock(), list[BaseException]()
    done.acquire()
    _thread.start_new_thread(_start, (function, name, done, errors))
    done.acquire()  # else the interpreter might exit before there is a thread to wait for
    if errors:
        raise errors.pop()


def _start(function: Callable[[], Any], name: str, done: _thread.LockType, errors: list[BaseException]) -> None:
    try:
        Thread(target=function, name=name, daemon=False).start()  # the default for `daemon` registers this thread
    except BaseException as e:
        errors.append(e)
    finally:
        done.release()
