"""Class Turns: generations of a pipeline, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ovgpu.errors import Error


class Turns:
    """Turns of threads that share a pipeline."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = 0  # that has its turn

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Return a context in which no other thread generates. Raises: Error in a streamer of the pipeline."""
        if self._thread == threading.get_ident():
            raise Error("a streamer cannot call generate() of the pipeline that calls it")
        with self._lock:
            self._thread = threading.get_ident()
            try:
                yield
            finally:
                self._thread = 0
