"""Ends of inferences, which CUDA events show: a device works, or fails, and other libraries capture graphs."""

from __future__ import annotations

import signal
import time
from typing import Any

import numpy as np
import pytest

from ovgpu._util import polling
from ovgpu.backends.cuda import completion
from ovgpu.backends.cuda.completion import CAPTURE_UNSUPPORTED, NOT_READY, EventCompletion
from tests.emulator import cupy_emu as cp

from .test_direct_calls import X, Y, two, warm

ILLEGAL_ADDRESS = 700


@pytest.fixture
def ended(emulated: str) -> EventCompletion:
    """Return the completion of some work."""
    made = EventCompletion(cp.cuda.Stream(non_blocking=True))
    made.begin()
    made.end()
    return made


@pytest.fixture
def request_(compiled: Any) -> Any:
    """Return a warm request, whose next inference is launched."""
    request = compiled(two()).create_infer_request()
    warm(request)
    request.start_async([X, Y])
    request.wait()
    return request


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the seconds of the pauses, which take no time."""
    made: list[float] = []
    monkeypatch.setattr(polling.time, "sleep", made.append)
    return made


def answers(request: Any, *statuses: int) -> None:
    """Let the event of the request's last inference answer these statuses before it has ended."""
    request._session._completion._ended.answers = list(statuses)


def test_a_device_that_works(ended: EventCompletion, pauses: list[float]) -> None:
    ended._ended.answers = [NOT_READY] * 5
    assert not ended.is_reached()
    ended.wait()
    assert len(pauses) == 4 and ended.is_reached()
    ended.wait()
    assert len(pauses) == 4 and ended.seconds() >= 0


def test_another_library_captures(ended: EventCompletion, pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its capture prohibits queries for a while, which says nothing of the event. A thread that waits within a capture
    of its own gets the error at last."""
    ended._ended.answers = [CAPTURE_UNSUPPORTED, NOT_READY, CAPTURE_UNSUPPORTED]
    assert not ended.is_reached()
    ended.wait()
    assert len(pauses) == 2 and ended.is_reached()
    monkeypatch.setattr(completion, "CAPTURE_SECONDS", 0.0)
    ended._ended.answers = [NOT_READY, CAPTURE_UNSUPPORTED, CAPTURE_UNSUPPORTED]
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="900"):
        ended.wait()


def test_a_device_that_fails(request_: Any) -> None:
    request_.start_async([2 * X, Y])
    answers(request_, NOT_READY, CAPTURE_UNSUPPORTED, ILLEGAL_ADDRESS)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the device failed: cudaError 700"):
            request_.wait()
    answers(request_)
    request_.start_async([2 * X, Y])
    request_.wait()
    np.testing.assert_array_equal(request_.results[0], 2 * X + Y)


def test_a_signal_leaves_the_wait(request_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt comes while the device works, and the inference goes on."""
    sleep, slept = time.sleep, 0

    def interrupted(seconds: float) -> None:
        nonlocal slept
        slept += 1
        if slept == 3:
            signal.raise_signal(signal.SIGINT)
        sleep(seconds)

    request_.start_async([2 * X, Y])
    answers(request_, *[NOT_READY] * 1000)
    monkeypatch.setattr(polling.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        request_.wait()
    assert slept == 3 and request_.in_flight is not None and not request_.wait_for(0)
    with pytest.raises(RuntimeError, match="busy"):
        request_.query_state()
    answers(request_)
    request_.wait()
    np.testing.assert_array_equal(request_.results[0], 2 * X + Y)


def test_pauses_grow(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread lets others run in the first millisecond, and sleeps for a fraction of the time since then."""
    for now, least, expected in [(0.0005, 0, 0), (0.0005, 2e-5, 2e-5), (0.01, 2e-5, 0.0002), (9, 0, polling.MAX_PAUSE)]:
        monkeypatch.setattr(polling.time, "monotonic", lambda now=now: now)
        polling.pause(0.0, least)
        assert pauses.pop() == pytest.approx(expected)


def test_an_event_that_cannot_be_made(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inference runs in the general way then."""

    def fail(*args: Any) -> None:
        raise cp.cuda.runtime.CUDARuntimeError(2, "cudaErrorMemoryAllocation")

    request = compiled(two()).create_infer_request()
    warm(request)
    with monkeypatch.context() as patch:
        patch.setattr(EventCompletion, "__init__", fail)
        request.start_async([X, Y])
        request.wait()
    np.testing.assert_array_equal(request.results[0], X + Y)
