"""Pauses between two looks at a device that works."""

from __future__ import annotations

import time

SPINNING = 1e-3  # seconds
MAX_PAUSE = 1e-3  # seconds


def pause(since: float, least: float = 0.0) -> None:
    """Sleep for 2% of the time since ``since`` (`time.monotonic`), but at least ``least`` and at most `MAX_PAUSE`.

    In the first millisecond that is ``least``: with 0, the thread only lets others run. A signal handler runs at once.
    """
    waited = time.monotonic() - since
    time.sleep(least if waited < SPINNING else min(max(waited / 50, least), MAX_PAUSE))
