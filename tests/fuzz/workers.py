"""Watched worker processes, whose answers have limits of time and memory."""

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

CONTEXT = multiprocessing.get_context("fork")  # safe, because the parent neither infers nor calls OpenVINO
START_SECONDS = 120.0  # until a worker is ready
OUTPUT_CHARACTERS = 2000  # characters of a worker's last output
Answer = Callable[[Subject], Outcome]


@dataclass(frozen=True)
class Limits:
    """The time and the memory that a worker has for an answer."""

    seconds: float = 20
    megabytes: int = 6000


class Worker:
    """A process that calls the function made by ``make(*args)`` in it. It is replaced if it ends or reaches a limit."""

    def __init__(self, limits: Limits, make: Callable[..., Answer], *args: Any) -> None:
        self.limits, self.make, self.args = limits, make, args
        self.process: Any = None

    def ask(self, subject: Subject) -> Outcome:
        """Return the outcome of a subject."""
        self.send(subject)
        return self.receive()

    def send(self, subject: Subject) -> None:
        """Send a subject, whose outcome `receive` then returns."""
        if self.process is None:
            self._start()
        with contextlib.suppress(ConnectionError):  # the process has ended, which `receive` reports
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
        os.kill(self.process.pid, signal.SIGABRT)  # faulthandler prints the stacks of all threads
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
        self.process = CONTEXT.Process(
            target=_serve, daemon=True, args=(theirs, self.output.fileno(), self.limits, self.make, *self.args)
        )
        self.process.start()
        theirs.close()
        if not self.pipe.poll(START_SECONDS):
            raise TimeoutError("a worker did not start")
        self.pipe.recv()

    def _lost(self, kind: str, text: str) -> Outcome:
        """Return the outcome of a process that is lost, and forget it."""
        self.output.seek(0)
        printed = self.output.read()[-OUTPUT_CHARACTERS:].decode(errors="replace")
        self.close()
        return Outcome(kind, f"{text}\n{printed}")


def _serve(pipe: Connection, output: int, limits: Limits, make: Callable[..., Answer], *args: Any) -> None:
    """Answer in the worker until the pipe is closed."""
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
