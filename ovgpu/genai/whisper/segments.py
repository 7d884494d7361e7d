"""Chunks of a transcription: the text between two times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

OPEN = -1.0  # end of a chunk without an end
FRAMES_PER_TIME = 2


@dataclass(frozen=True)
class Segment:
    """Tokens ``first`` to ``last`` of a window, and their times in seconds."""

    first: int
    last: int
    start: float
    end: float


@dataclass
class Segments:
    """Segments of a window, and the frame of it at which the next one begins."""

    found: list[Segment] = field(default_factory=list)
    next_frame: int = 0


def find_segments(
    tokens: Sequence[int], first_time: int, frames: int, precision: np.float32, offset: np.float32
) -> Segments:
    """Find the segments between times in the tokens of a window.

    ``first_time`` is the token of the time 0, ``precision`` the seconds between two tokens of times, ``offset`` the
    time of the window, and ``frames`` its length. The next window begins at the last time, unless a single time ends
    the text, or there is no whole segment: then all of the window is done.
    """
    segments = Segments()
    start = position = None

    def seconds(token: int) -> float:
        return float(np.float32(token - first_time) * precision + offset)

    for i, token in enumerate(tokens):
        if token < first_time:
            continue
        if start is None:
            start, position = token, i
        elif token != start:  # the same time twice is a begin, not an end
            assert position is not None
            segments.found.append(Segment(position + 1, i, seconds(start), seconds(token)))
            segments.next_frame = FRAMES_PER_TIME * (token - first_time)
            start = None
    if start is None or not segments.found:
        segments.next_frame = frames
    if start is not None and position is not None and position < len(tokens) - 1 and not segments.found:
        segments.found.append(Segment(position + 1, len(tokens), seconds(start), OPEN))
    return segments
