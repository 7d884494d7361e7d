"""Asynchronous inferences that run on a device without a thread of the host."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from ovgpu._util.claim import Claim
from ovgpu.errors import Error
from ovgpu.request.session import Session
from ovgpu.request.started import Started
from ovgpu.runtime.state import Snapshot

MAX_PAUSE = 1e-3  # seconds between two looks at the device


class InFlight:
    """Inference that a device runs, and that ends in the thread that waits for it.

    Its end is what follows the device's work: the session's state is set, the claim ``owner`` of ``party`` is released,
    and ``on_done`` is called with None or the error. If a signal handler raises meanwhile, the next call goes on.
    Several threads may wait.
    """

    __slots__ = (
        "_after",
        "_caller",
        "_error",
        "_lock",
        "_on_done",
        "_owner",
        "_party",
        "_session",
        "_started",
        "is_watched",
    )

    def __init__(
        self,
        session: Session,
        started: Started,
        owner: Claim,
        party: object,
        on_done: Callable[[BaseException | None], Any] | None,
    ) -> None:
        self._session, self._owner, self._party, self._lock = session, owner, party, threading.RLock()
        self._started: Started | None = started
        self._on_done = on_done
        self._after: Snapshot | None = None
        self._error: BaseException | None = None
        self._caller = 0  # the thread that is in `on_done`
        self.is_watched = False
        """True if a thread ends the inference in any case."""

    @property
    def has_ended(self) -> bool:
        return self._started is None

    def is_reached(self) -> bool:
        """Return whether the device has done its work, so that `end` does not wait for it."""
        started = self._started
        return started is None or started.completion is None or started.completion.is_reached()

    def wait_for_device(self) -> None:
        """Wait until the device has done its work, or has failed: `end` records the error."""
        started = self._started
        if started is not None and started.completion is not None:
            with suppress(Exception):
                started.completion.wait()

    def end(self) -> None:
        """Wait for the inference, and end it."""
        with self._lock:
            started = self._started
            if started is None or self._caller == threading.get_ident():  # ended, or the callback waits for its own
                return
            if self._after is None and self._error is None:
                self._after, self._error = _outcome(self._session, started)
            if self._after is not None:
                self._session.state = self._after
            self._owner.release(self._party)
            if self._on_done is not None:
                try:
                    self._caller = threading.get_ident()
                    self._on_done(self._error)
                except BaseException:
                    self._caller = 0
                    raise
            self._started = self._on_done = None

    def result(self) -> None:
        """Wait for the inference, end it, and raise its error."""
        self.end()
        try:
            if self._error is not None:
                raise self._error
        finally:
            del self  # the error's traceback holds this frame

    def wait_for(self, seconds: float) -> bool:
        """Wait at most so long. Return whether the inference has ended."""
        deadline, pause = time.monotonic() + seconds, 2e-5
        while not self.is_reached():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, MAX_PAUSE)
        self.end()
        return True


def _outcome(session: Session, started: Started) -> tuple[Snapshot | None, BaseException | None]:
    """Return the values of the variables after an inference, or its error."""
    try:
        return session.finish(started), None
    except BaseException as e:
        # Errors of an inference are of class Error. Others are raised by signal handlers, in the main thread.
        if not isinstance(e, Error) and threading.current_thread() is threading.main_thread():
            raise
        return None, e


def first_to_end(inferences: Iterable[InFlight]) -> InFlight | None:
    """Return the first inference whose work the device has done, else the first one at all; None if there is none."""
    first = None
    for inference in inferences:
        if inference.is_reached():
            return inference
        first = first or inference
    return first
