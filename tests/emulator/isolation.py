"""Calls of functions in separate processes, which protect the tests from faults injected into kernels.

A fresh Python process, started at the first use and then reused, imports the functions and forks for each call."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120.0


@dataclass(frozen=True)
class Outcome:
    """Outcome of a call: `kind` is "returned", "raised", "died" (of a signal) or "timed out"; `value` is its result,
    or the traceback and output."""

    kind: str
    value: Any = None

    def result(self) -> Any:
        """Return the value of a call that returned. Raise AssertionError for any other outcome."""
        assert self.kind == "returned", f"{self.kind}:\n{self.value}"
        return self.value


def call(function: Callable[..., Any], *args: Any, seconds: float = SECONDS) -> Outcome:
    """Call a function of a module in a separate process; arguments and result must be picklable."""
    server = _server()
    pickle.dump((function.__module__, function.__qualname__, args, seconds), server.stdin)  # type: ignore[arg-type]
    server.stdin.flush()  # type: ignore[union-attr]
    outcome: Outcome = pickle.load(server.stdout)  # type: ignore[arg-type]
    return outcome


def isolated(test: Callable[..., None]) -> Callable[..., None]:
    """Decorate a test to run in a separate process; it fails if that process dies."""
    parameters = test.__code__.co_varnames[: test.__code__.co_argcount]

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        call(test, *(arguments[name] for name in parameters)).result()

    return run


@functools.cache
def _server() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", f"from {__name__} import _serve; _serve()"]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


# ---- in the other process --------------------------------------------------------------------------------
def _find(module: str, name: str) -> Callable[..., Any]:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return getattr(found, "__wrapped__", found)


def _call_forked(function: Callable[..., Any], args: tuple[Any, ...], seconds: float) -> Outcome:
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as output, open(reader, "rb") as answer:
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            try:
                data = pickle.dumps(Outcome("returned", function(*args)))
            except BaseException:
                data = pickle.dumps(Outcome("raised", traceback.format_exc()[-20_000:]))
            with open(writer, "wb") as pipe:
                pipe.write(data)
            os._exit(0)
        os.close(writer)
        ready, _, _ = select.select([answer], [], [], seconds)
        data = answer.read() if ready else b""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # and any processes that it started, such as a compiler
        _, status = os.waitpid(child, 0)
        if data:
            result: Outcome = pickle.loads(data)
            return result
        output.seek(0)
        printed = output.read()[-20_000:].decode(errors="replace")
        if not ready:
            return Outcome("timed out", f"no end after {seconds} s\n{printed}")
        return Outcome("died", f"{signal.Signals(os.WTERMSIG(status)).name}\n{printed}")


def _serve() -> None:
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            module, name, args, seconds = pickle.load(requests)
        except EOFError:
            return
        try:
            outcome = _call_forked(_find(module, name), args, seconds)
        except Exception:
            outcome = Outcome("raised", traceback.format_exc())
        pickle.dump(outcome, answers)
        answers.flush()
