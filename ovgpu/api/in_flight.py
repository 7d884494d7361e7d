"""Asynchronous inferences, and how they end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ovgpu._util.claim import Claim
from ovgpu._util.polling import pause
from ovgpu.errors import Error
from ovgpu.request.session import Session
from ovgpu.request.started import Started
from ovgpu.runtime.state import Snapshot

if TYPE_CHECKING:
    from ovgpu.api.watchers import Watchers

LEAST_PAUSE = 2e-5  # seconds between two looks at the device by a thread that has no caller waiting for it


class InFlight:
    """Asynchronous inference. One of the ``watchers`` ends it. Without them, a device runs it, and it ends in the
    thread that waits for it.

    Its end is what follows the device's work: the session's state is set, the claim ``owner`` of ``party`` is released,
    and ``on_done`` is called with None or the error. If a signal handler raises meanwhile, the next call goes on.
    Several threads may wait.
    """

    __slots__ = (
        "_after",
        "_done",
        "_error",
        "_lock",
        "_on_done",
        "_owner",
        "_party",
        "_runner",
        "_session",
        "_started",
        "_watchers",
        "has_ended",
    )

    def __init__(
        self,
        session: Session,
        started: Started,
        owner: Claim,
        party: object,
        on_done: Callable[[BaseException | None], Any] | None,
        runner: Claim,
        watchers: Watchers | None,
    ) -> None:
        self._session, self._owner, self._party = session, owner, party
        self._started: Started | None = started
        self._on_done, self._runner, self._watchers = on_done, runner, watchers
        self._lock, self._done = threading.RLock(), threading.Lock()
        if watchers is not None:
            self._done.acquire()  # until the inference has ended
        self._after: Snapshot | None = None
        self._error: BaseException | None = None
        self.has_ended = False

    @property
    def is_watched(self) -> bool:
        """True if another thread than the one that waits ends the inference."""
        return self._watchers is not None

    def is_reached(self) -> bool:
        """Return whether `end` would not wait for the device."""
        started = self._started
        return started is None or started.completion is None or started.completion.is_reached()

    def has_run(self) -> bool:
        """Return whether the device has done its work, so that the inference can be cancelled no more."""
        started = self._started
        return started is not None and started.completion is not None and started.completion.is_reached()

    def end(self) -> None:
        """Wait for the device, or run the inference, and end it."""
        started = None
        try:
            with self._lock:
                started = self._started
                if started is None:
                    return
                if self._owner.is_of(self._party):
                    if self._after is None and self._error is None:
                        try:
                            self._after = self._session.finish(started)
                        except BaseException as e:
                            # Errors of inferences are of class Error. Signal handlers raise others in the main thread.
                            if not isinstance(e, Error) and threading.current_thread() is threading.main_thread():
                                raise
                            self._error = e
                    if self._after is not None:
                        self._session.state = self._after
                    self._owner.release(self._party)
                if self._on_done is not None:
                    self._on_done(self._error)
                self.has_ended = True
                self._started = self._on_done = self._after = None
        finally:
            del self, started  # an error's traceback holds this frame

    def end_watched(self) -> None:
        """End the inference, as one of its watchers. An error of ``on_done`` becomes the inference's."""
        try:
            if self._runner.take(self._party):
                self.end()
                self._done.release()
        except BaseException as e:
            self.drop(e)
        finally:
            del self  # an error's traceback holds this frame

    def drop(self, error: BaseException | None) -> None:
        """Let the threads that wait for an inference that will not end go on, and raise ``error``."""
        self._error, self.has_ended = error, True
        self._started = self._on_done = self._after = None
        if self._watchers is not None:
            self._done.release()

    def wait(self) -> None:
        """Wait until the inference has ended, and raise its error."""
        try:
            if not self.has_ended:
                if self._watchers is None:
                    self.end()
                elif self._watchers.can_end(self):
                    with self._done:
                        pass
            if self._error is not None:
                raise self._error
        finally:
            del self  # the error's traceback holds this frame

    def wait_for(self, seconds: float) -> bool:
        """Wait at most so long. Return whether the inference has ended."""
        began, deadline = time.monotonic(), time.monotonic() + seconds
        while not (self.is_reached() if self._watchers is None else self.has_ended):
            if time.monotonic() >= deadline:
                return False
            pause(began, LEAST_PAUSE)
        if self._watchers is None:
            self.end()
        return True


def first_to_end(inferences: Sequence[InFlight], least_pause: float = 0.0) -> InFlight:
    """Wait until the device has done the work of one of the inferences, and return that. There is at least one; others
    may be added meanwhile."""
    began = 0.0
    while True:
        for inference in list(inferences):
            if inference.is_reached():
                return inference
        began = began or time.monotonic()
        pause(began, least_pause)
