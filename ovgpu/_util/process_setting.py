"""Process-wide settings that blocks of code change temporarily, in several threads at the same time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class ProcessSetting(Generic[T]):
    """Setting of the process that is changed while any thread is in a `changed` block.

    ``read`` returns the value. ``change`` sets the value for the blocks. ``restore``, called when the last block has
    ended, sets the value from before the first one. Calling one of the three twice must do no harm. A forked process is
    outside all blocks, because their threads do not run in it. Settings live as long as the process.
    """

    def __init__(self, read: Callable[[], T], change: Callable[[], object], restore: Callable[[T], object]) -> None:
        self._read, self._change, self._restore = read, change, restore
        self._lock = threading.Lock()
        self._blocks: set[object] = set()
        self._before: list[T] = []  # one value, from the first block on
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    @contextmanager
    def changed(self) -> Iterator[None]:
        """Run the block with the setting changed. It is also restored if a signal handler raises at any point."""
        block = object()
        try:
            with self._lock:
                if not self._blocks:
                    self._before = [self._read()]
                self._blocks.add(block)
                self._change()
            yield
            self._end(block)
        except BaseException:
            self._end(block)
            raise

    def _forked(self) -> None:
        self._lock = threading.Lock()
        if self._blocks:
            self._restore(self._before[0])
            self._blocks.clear()

    def _end(self, block: object) -> None:
        with self._lock:
            if block in self._blocks:
                if len(self._blocks) == 1:
                    self._restore(self._before[0])
                self._blocks.remove(block)
