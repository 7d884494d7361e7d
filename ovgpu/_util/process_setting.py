"""Settings of the whole process that blocks of code change for a while, several of them at the same time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class ProcessSetting(Generic[T]):
    """A setting of the process that is changed while any thread is in a `changed` block.

    ``reads`` returns its value, ``changes`` sets the one that holds in the blocks, ``restores`` sets the value from
    before the first of them when the last one has ended. Calling one of the three twice must do no harm. A forked
    process is outside all blocks, whose threads may not be there. Settings live as long as the process.
    """

    def __init__(self, reads: Callable[[], T], changes: Callable[[], object], restores: Callable[[T], object]) -> None:
        self._reads, self._changes, self._restores = reads, changes, restores
        self._lock = threading.Lock()
        self._blocks: set[object] = set()
        self._before: list[T] = []  # one value, once a block has begun
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    @contextmanager
    def changed(self) -> Iterator[None]:
        """Run the block with the setting changed. It is restored also if a signal's handler raises, at any point."""
        block = object()
        try:
            with self._lock:
                if not self._blocks:
                    self._before = [self._reads()]
                self._blocks.add(block)
                self._changes()
            yield
            self._end(block)
        except BaseException:
            self._end(block)
            raise

    def _forked(self) -> None:
        self._lock = threading.Lock()
        if self._blocks:
            self._restores(self._before[0])
            self._blocks.clear()

    def _end(self, block: object) -> None:
        with self._lock:
            if block in self._blocks:
                if len(self._blocks) == 1:
                    self._restores(self._before[0])
                self._blocks.remove(block)
