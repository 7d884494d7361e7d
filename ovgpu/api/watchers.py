"""Threads that end inferences in flight as soon as the device has done its work, and so call their callbacks."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

from ovgpu.api.in_flight import InFlight, first_to_end

PATIENCE = 2e-3
"""Seconds after which another thread takes over from a callback."""
LINGER = 0.05
"""Seconds that a thread waits for another role, before it goes back to the pool."""


class Watchers:
    """Threads that end the inferences of a queue. At most ``count`` callbacks run at a time.

    One thread, the watcher, waits for the device, ends the inference, and so on: switching threads takes much longer
    than a small callback. A callback may also take long, or wait for another one. So while a callback runs and more
    inferences are to be ended, another thread is on standby, and becomes the watcher after `PATIENCE`. After such a
    callback, the watcher hands over before it calls the next one.

    Roles are given with the lock held. A signal handler may raise between any two lines of `put`: a thread that was
    woken then without a role ends.
    """

    def __init__(self, count: int) -> None:
        self._count = count + 2
        self._pool: Any = None
        self._lock = threading.Lock()
        self._inferences: list[InFlight] = []  # in the order of starts
        self._watcher: Any = None  # the thread's own lock, which it sleeps on
        self._standby: Any = None
        self._parked: list[Any] = []
        self._callback_began = 0.0  # of the watcher's callback; 0 if it is in none
        self._hands_over = False

    def put(self, inference: InFlight) -> None:
        """Let a thread end the inference."""
        self._inferences.append(inference)
        if self._watcher is None or (self._callback_began and self._standby is None):
            with self._lock:
                if self._watcher is None:
                    self._watcher = self._thread()
                elif self._callback_began and self._standby is None:
                    self._standby = self._thread()
        inference.is_watched = True

    def _thread(self) -> Any:
        """Return a thread, which runs as soon as the lock is released, and must have a role by then."""
        if self._parked:
            thread = self._parked.pop()
            thread.release()
            return thread
        from concurrent.futures import ThreadPoolExecutor  # slow to import: it imports logging

        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="ovgpu-callbacks")
        thread = threading.Lock()
        thread.acquire()
        self._pool.submit(self._work, thread)
        return thread

    def _work(self, me: Any) -> None:
        while self._await_role(me):
            if self._watcher is me:
                self._end_next(me)
            else:
                time.sleep(PATIENCE)
                self._stand_by(me)

    def _await_role(self, me: Any) -> bool:
        """Return whether the thread has a role, after waiting for one."""
        with self._lock:
            if me is self._watcher or me is self._standby:
                return True
            me.acquire(blocking=False)  # it is free if the thread was woken when its time was over
            self._parked.append(me)
        me.acquire(timeout=LINGER)
        with self._lock:
            if me in self._parked:
                self._parked.remove(me)
            return me is self._watcher or me is self._standby

    def _end_next(self, me: Any) -> None:
        """End the next inference, as the watcher."""
        with self._lock:
            inference = first_to_end(self._inferences)
            if inference is None:
                self._watcher = None
                if self._inferences:  # `put` has added one, and may have seen the watcher
                    self._watcher = me
                return
        inference.wait_for_device()
        began = time.monotonic()
        with self._lock:
            self._callback_began = began
            if len(self._inferences) > 1:
                with suppress(RuntimeError):  # no thread can be started, as at the end of the process: go on alone
                    if self._hands_over:
                        self._watcher, self._callback_began = self._thread(), 0.0
                    elif self._standby is None:
                        self._standby = self._thread()
            self._inferences.remove(inference)
        inference.end()
        with self._lock:
            self._hands_over = time.monotonic() - began > PATIENCE
            if self._watcher is me:
                self._callback_began = 0.0

    def _stand_by(self, me: Any) -> None:
        """Take over from a callback that lasts, or go, if nothing is to be done."""
        with self._lock:
            if not self._inferences:
                self._standby = None
            elif self._callback_began and time.monotonic() - self._callback_began > PATIENCE:
                self._watcher, self._standby, self._callback_began = me, None, 0.0
