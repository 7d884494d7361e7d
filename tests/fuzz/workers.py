"""Processes that answer one question after the other, watched: each answer has a limit of time and of memory."""
from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import resource
import signal
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from .corpus import Subject
from .inference import Outcome

CONTEXT = multiprocessing.get_context("fork")  # of a process that has neither inferred nor asked OpenVINO
START = 120.0  # seconds until a worker is ready
TAIL = 2000  # characters of what a worker said last
Answer = Callable[[Subject], Outcome]


@dataclass(frozen=True)
class Limits:
    """The time and the memory that a worker has for an answer."""

    seconds: float = 20
    megabytes: int = 6000


class Worker:
    """A process that answers with ``make(*args)``, made there. It is replaced when it ends, or has reached a limit."""

    def __init__(self, limits: Limits, make: Callable[..., Answer], *args: Any) -> None:
        self.limits, self.make, self.args = limits, make, args
        self.process: Any = None

    def ask(self, subject: Subject) -> Outcome:
        """Return how a subject ends."""
        self.send(subject)
        return self.receive()

    def send(self, subject: Subject) -> None:
        """Begin with a subject, whose outcome `receive` then returns."""
        if self.process is None:
            self._start()
        with contextlib.suppress(ConnectionError):  # of a process that has ended, which `receive` tells
            self.pipe.send(subject)

    def receive(self) -> Outcome:
        """Wait for the outcome."""
        try:
            if self.pipe.poll(self.limits.seconds):
                found: Outcome = self.pipe.recv()
                return found
        except (EOFError, ConnectionError):
            self.process.join()
            return self._lost("died", f"exit code {self.process.exitcode}")
        os.kill(self.process.pid, signal.SIGABRT)  # tells where all threads are
        self.process.join(10)
        return self._lost("hung", f"no answer in {self.limits.seconds} s")

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.output.close()
            self.process = None

    def _start(self) -> None:
        self.output = tempfile.TemporaryFile()
        self.pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_serve, daemon=True, args=(
            theirs, self.output.fileno(), self.limits, self.make, *self.args))
        self.process.start()
        theirs.close()
        if not self.pipe.poll(START):
            raise TimeoutError("a worker did not start")
        self.pipe.recv()

    def _lost(self, kind: str, text: str) -> Outcome:
        """Return the outcome of a process that is lost, and forget it."""
        self.output.seek(0)
        said = self.output.read()[-TAIL:].decode(errors="replace")
        self.close()
        return Outcome(kind, f"{text}\n{said}")


def _serve(pipe: Connection, output: int, limits: Limits, make: Callable[..., Answer], *args: Any) -> None:
    """Answer until nobody asks any more; the worker's own code."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable()
    warnings.simplefilter("ignore")
    os.environ["OVGPU_HOST_MEMORY"] = str(limits.megabytes << 18)  # a quarter, as a model is not alone in the process
    resource.setrlimit(resource.RLIMIT_DATA, (limits.megabytes << 20,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer = make(*args)
    pipe.send("ready")
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            subject, began = pipe.recv(), time.monotonic()
            pipe.send(replace(answer(subject), seconds=time.monotonic() - began))
