"""Threads that end asynchronous inferences, and so call their callbacks."""

from __future__ import annotations

import threading
import time
from typing import Any

from ovgpu._util import threads
from ovgpu.api.in_flight import LEAST_PAUSE, InFlight, first_to_end

PATIENCE = 2e-3
"""Seconds after which another thread takes over from a callback."""
LINGER = 0.05
"""Seconds that a thread waits for another role, before it ends. The interpreter waits for that when it exits."""


class Watchers:
    """Threads that end the inferences of a request, or of a queue.

    One thread, the watcher, waits for the device, ends the inference, and so on: switching threads takes much longer
    than a small callback. A callback of a queue may also take long, or wait for another one. So while it runs and more
    inferences are to be ended, another thread is on standby, and becomes the watcher after `PATIENCE`. After such a
    callback, the watcher hands over before it calls the next one. A request ends its inferences ``one_by_one``.

    A signal handler may raise between any two lines of `put`, in the main thread. So the main thread gives roles to
    threads that wait only for a time, and that look for a role when it is over. A new thread looks for one itself.
    """

    def __init__(self, name: str, *, one_by_one: bool) -> None:
        self._name, self._one_by_one = name, one_by_one
        self._lock = threading.Lock()
        self._inferences: list[InFlight] = []  # in the order of starts
        self._watcher: Any = None  # the thread's own lock, which it sleeps on
        self._standby: Any = None
        self._parked: list[Any] = []
        self._callback_began = 0.0  # of the watcher's callback; 0 if it is in none
        self._hands_over = False
        self._ending: dict[int, InFlight] = {}  # by the id of the thread that ends it

    def put(self, inference: InFlight) -> None:
        """Let a thread end the inference. Raises: RuntimeError if there is none, and none can be started."""
        self._inferences.append(inference)
        if self._is_vacant():
            with self._lock:
                found = self._wake()
            if not found:
                self._start_thread()

    def can_end(self, inference: InFlight) -> bool:
        """Return whether the inference ends if this thread waits. It does not if this thread would have to end it."""
        ending = self._ending.get(threading.get_ident())
        return ending is None or (ending is not inference and not self._one_by_one)

    def _is_vacant(self) -> bool:
        """Return whether another thread has something to do."""
        if not self._inferences or self._watcher is None:
            return bool(self._inferences)
        return bool(self._callback_began) and self._standby is None and not self._one_by_one

    def _wake(self) -> bool:
        """Let a parked thread take the role that is vacant. Return False if no thread is parked. Needs the lock."""
        if not self._parked:
            return False
        thread = self._parked.pop()
        self._take_role(thread)
        thread.release()
        return True

    def _start_thread(self) -> None:
        """Start a thread, which takes the role that is vacant. If that is impossible, the watcher goes on alone."""
        try:
            threads.start(self._work, self._name)
        except RuntimeError:  # as at the end of the process
            if self._watcher is None and not self._ending:
                raise

    def _take_role(self, thread: Any) -> bool:
        """Give the thread a role if one is vacant. Return whether it has one. Needs the lock."""
        if thread is not self._watcher and self._is_vacant():
            if self._watcher is None:
                self._watcher = thread
            else:
                self._standby = thread
        return thread is self._watcher or thread is self._standby

    def _work(self) -> None:
        me = threading.Lock()
        while self._await_role(me):
            if self._watcher is me:
                self._end_next(me)
            else:
                time.sleep(PATIENCE)
                self._stand_by(me)

    def _await_role(self, me: Any) -> bool:
        """Return whether the thread has a role, after waiting for one."""
        with self._lock:
            if self._take_role(me):
                return True
            me.acquire(blocking=False)  # it is free if the thread was woken when its time was over
            self._parked.append(me)
        me.acquire(timeout=LINGER)
        with self._lock:
            if me in self._parked:
                self._parked.remove(me)
            return self._take_role(me)

    def _end_next(self, me: Any) -> None:
        """End the next inference, as the watcher."""
        with self._lock:
            if not self._inferences:
                self._watcher = None
                self._take_role(me)  # `put` may have added one, and seen the watcher
                return
        candidates = self._inferences[:1] if self._one_by_one else self._inferences
        inference = first_to_end(candidates, LEAST_PAUSE)
        began, thread = time.monotonic(), threading.get_ident()
        with self._lock:
            self._inferences.remove(inference)
            self._ending[thread] = inference
            self._watcher, self._callback_began = (None, 0.0) if self._hands_over else (me, began)
            found = not self._is_vacant() or self._wake()
        if not found:
            self._start_thread()
        inference.end_watched()
        del self._ending[thread], inference, candidates  # an error's traceback holds this frame
        with self._lock:
            self._hands_over = not self._one_by_one and time.monotonic() - began > PATIENCE
            if self._watcher is me:
                self._callback_began = 0.0

    def _stand_by(self, me: Any) -> None:
        """Take over from a callback that lasts, or go, if nothing is to be done."""
        with self._lock:
            if not self._inferences:
                self._standby = None
            elif self._callback_began and time.monotonic() - self._callback_began > PATIENCE:
                self._watcher, self._standby, self._callback_began = me, None, 0.0
