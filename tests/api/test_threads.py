"""Threads of asynchronous inferences: their start while signal handlers raise, and the end of the process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu
from ovgpu._util import threads
from ovgpu.api.watchers import Watchers

from . import nets
from .sides import compiled

X = np.full((2, 3), -1, np.float32)
SECONDS = 20
ROOT = Path(ovgpu.__file__).parent.parent
pytestmark = pytest.mark.timeout(60)

Use = tuple[Callable[[], None], Callable[[], bool]]


def use_of_request(called: list[int]) -> Use:
    """Return the start of an inference with a callback, and a function that waits for it."""
    request = compiled(ovgpu, nets.one()).create_infer_request()
    request.set_callback(called.append, 1)
    return lambda: request.start_async(X), lambda: request.wait_for(SECONDS * 1000)


def use_of_queue(called: list[int]) -> Use:
    """Return the start of an inference of a queue, and a function that waits until its request is idle."""
    queue = ovgpu.AsyncInferQueue(compiled(ovgpu, nets.one()), 1)
    queue.set_callback(lambda request, item: called.append(1))

    def wait() -> bool:
        waiting = threading.Thread(target=queue.wait_all, daemon=True)
        waiting.start()
        waiting.join(SECONDS)
        return not waiting.is_alive()

    return lambda: queue.start_async(X), wait


@pytest.mark.parametrize("use_of", [use_of_request, use_of_queue])
def test_interrupted_locks(use_of: Callable[[list[int]], Use], monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that raises where Python code has just taken a lock of `threading` leaves nothing busy."""
    taken, main, entries = threading.Condition.__enter__, threading.get_ident(), 0

    def interrupted(condition: threading.Condition) -> Any:
        nonlocal entries
        result = taken(condition)
        if threading.get_ident() == main:
            entries += 1
            if entries == at:
                raise KeyboardInterrupt
        return result

    for at in range(1, 20):
        called: list[int] = []
        start, wait = use_of(called)
        entries = 0
        with monkeypatch.context() as patch:
            patch.setattr(threading.Condition, "__enter__", interrupted)
            with suppress(KeyboardInterrupt):
                start()
        if entries < at:
            break
        wait()
        called.clear()
        start()
        assert wait() and called == [1], f"after entry {at}"
    else:
        raise AssertionError("there is no end")


def test_a_start_that_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inference has not started if no thread has, and the request is idle."""
    called: list[int] = []
    start, wait = use_of_request(called)
    for error in (KeyboardInterrupt, RuntimeError):

        def fail(function: Any, name: str, error: type[BaseException] = error) -> None:
            raise error("no thread")

        with monkeypatch.context() as patch, pytest.raises(error, match="no thread"):
            patch.setattr(threads, "start", fail)
            start()
    start()
    assert wait() and called == [1]


@pytest.mark.parametrize("interrupted", ["_take_role", "_wake"])
def test_a_wake_that_is_interrupted(interrupted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parked thread that is not woken looks for a role when its time is over."""
    called: list[int] = []
    start, wait = use_of_request(called)
    start()
    assert wait()
    main, method = threading.current_thread(), getattr(Watchers, interrupted)

    def raising(*args: Any) -> Any:
        result = method(*args)
        if threading.current_thread() is main:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Watchers, interrupted, raising)
        start()
    wait()
    called.clear()
    start()
    assert wait() and called == [1]


def test_errors_of_a_thread_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        threads.start(print, "name")


def run(code: str) -> str:
    """Run a program with a compiled model ``model`` and an input ``x``. Return what it prints."""
    program = """
        import threading
        import numpy as np
        import ovgpu as ov
        from tests.api import nets
        from tests.api.sides import compiled
        model, x = compiled(ov, nets.one()), np.ones((2, 3), np.float32)
    """
    text = textwrap.dedent(program) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=50, cwd=ROOT, check=False
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def test_threads_that_outlive_the_main_thread() -> None:
    """They may use a queue and a request, which start threads then."""
    assert (
        run("""
        queue, request, seen = ov.AsyncInferQueue(model, 2), model.create_infer_request(), []
        queue.set_callback(lambda request, item: seen.append(item))
        request.set_callback(seen.append, "request")

        def use():
            threading.main_thread().join()
            for n in range(4):
                queue.start_async(x, n)
            queue.wait_all()
            request.start_async(x)
            request.wait()
            print(sorted(seen, key=str))

        threading.Thread(target=use).start()
    """)
        == "[0, 1, 2, 3, 'request']\n"
    )


def test_inferences_that_run_at_exit() -> None:
    """They end, and call back, before the interpreter exits."""
    printed = run("""
        import time
        queue, request = ov.AsyncInferQueue(model, 2), model.create_infer_request()
        queue.set_callback(lambda request, item: (time.sleep(0.2), print("queue", flush=True)))
        request.set_callback(lambda item: (time.sleep(0.2), print("request", flush=True)))
        queue.start_async(x)
        request.start_async(x)
    """)
    assert sorted(printed.split()) == ["queue", "request"]
