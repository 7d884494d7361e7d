"""Class QueuedHandler: a log that never blocks the server, even if nobody reads it."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from ovgpu.serve import log_settings
from ovgpu.serve.calls import access

MAX_LINES = 4096  # that wait to be written; others are dropped
GATHER_SECONDS = 0.02  # in which lines are gathered: the writing thread takes the GIL once for all of them
CLOSE_SECONDS = 1.0  # for the lines that wait when the log is closed
STDOUT, STDERR = 1, 2

dropped_elsewhere = Counter[str]()
"""Lines that other processes of the server have dropped, by log."""


class QueuedHandler(logging.Handler):
    """Handler that writes lines to a file descriptor, on a thread of its own.

    Lines that find the queue full, or cannot be written, are dropped. When lines can be written again, ``notice`` is
    written before them; its %d is the number of lines that were dropped since the last notice.
    """

    def __init__(self, descriptor: int, notice: str) -> None:
        super().__init__()
        self._descriptor, self._notice = descriptor, notice
        self._refused = 0  # lines that were dropped by the threads that log
        self._unwritten = 0  # lines that were dropped by the thread that writes
        self._noticed = 0  # value of `dropped` at the last notice
        self._lines = SimpleQueue[bytes | None]()  # None ends the thread
        # A thread that is no daemon, or a stream of Python with its lock, would keep the process from ending.
        self._thread = threading.Thread(target=self._write_all, name="ovgpu-log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Number of lines that were dropped."""
        return self._refused + self._unwritten

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line of a record, or drop it."""
        if self._lines.qsize() >= MAX_LINES:
            self._refused += 1
        else:
            self._lines.put(self._line(record))

    def close(self) -> None:
        """Wait for a short time until the lines are written."""
        self._lines.put(None)
        self._thread.join(CLOSE_SECONDS)
        super().close()

    def _line(self, record: logging.LogRecord) -> bytes:
        return self.format(record).encode(errors="replace") + b"\n"

    def _write_all(self) -> None:
        ended = False
        while not ended:
            lines = [self._lines.get()]
            if lines[-1] is not None:
                time.sleep(GATHER_SECONDS)
            while not self._lines.empty():
                lines.append(self._lines.get())
            ended = None in lines
            self._write([line for line in lines if line is not None])

    def _write(self, lines: list[bytes]) -> None:
        new = self.dropped - self._noticed
        if new:
            values = {"msg": self._notice, "args": (new,), "levelname": "WARNING", "levelno": logging.WARNING}
            lines.insert(0, self._line(logging.makeLogRecord(values)))
        self._noticed += new
        for line in lines:
            left = memoryview(line)
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:
                    select.select([], [self._descriptor], [])
                except OSError:  # nobody will read it, or the disk is full
                    self._unwritten += 1
                    break


@contextmanager
def logging_to_queues(calls: bool) -> Iterator[None]:
    """Write messages to stderr and, with ``calls``, the access log to stdout, while the block runs.

    Warnings of other packages are messages, too: no package writes to stderr itself.
    """
    messages = QueuedHandler(STDERR, "%d lines of this log were dropped")
    messages.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    messages.addFilter(log_settings.settings)
    handlers = [(logging.getLogger(), messages)]
    logging.getLogger("ovgpu.serve").setLevel(logging.INFO)
    access.propagate = False
    access.setLevel(logging.INFO if calls else logging.CRITICAL)
    if calls:
        handlers.append((access, QueuedHandler(STDOUT, '{"dropped": %d}')))
    logging.captureWarnings(True)
    for logger, handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for logger, handler in handlers:
            logger.removeHandler(handler)
            handler.close()


def dropped_lines() -> Iterator[tuple[str, int]]:
    """Return (log, number of lines that were dropped) of each log."""
    for name, logger in (("messages", logging.getLogger()), ("calls", access)):
        for handler in logger.handlers:
            if isinstance(handler, QueuedHandler):
                yield name, handler.dropped + dropped_elsewhere[name]
