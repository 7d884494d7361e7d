"""Streams of tokens, whose pieces of text `record_wheel.py` records, and `test_streamers.py` compares."""

from __future__ import annotations

from random import Random
from typing import Any

TEXTS = ["To be, or not to be", "a\n\nb\n", "\n", "na\xefve \u2026 \u4e2d\u6587 \U0001f600!", "Hello, World!\nYes", ""]


def chunks() -> list[list[list[int]]]:
    """Return chunks of tokens of several streams: texts token by token, and random bytes in chunks of several."""
    from tests.genai.make_tokenizer import BYTES

    token_of = {byte: 3 + n for n, byte in enumerate(BYTES)}
    streams = [[[token_of[byte]] for byte in text.encode()] for text in TEXTS]
    random = Random(1)
    for _ in range(30):
        stream = [
            random.choices([2, *range(3, 70), *range(3, 211)], k=random.choice([0, 1, 1, 1, 2, 5])) for _ in range(12)
        ]
        streams.append(stream)
    return streams


def outcomes(streamer: Any, tokenizer: Any) -> list[list[list[str]]]:
    """Return the pieces of text that follow each chunk, and those that follow the end, for a class TextStreamer."""
    found = []
    for stream in chunks():
        pieces: list[str] = []
        writer = streamer(tokenizer, pieces.append)
        after = []
        for chunk in stream:
            writer.write(chunk)
            after.append(pieces[:])
            pieces.clear()
        writer.end()
        found.append([*after, pieces[:]])
    return found


def measures(metrics: Any) -> dict[str, Any]:
    """Return what the methods of a new PerfMetrics return, and the names of the raw values."""
    found = {name: getattr(metrics, name)() for name in dir(metrics) if name.startswith("get_")}
    pairs = {name: [value.mean, value.std] if hasattr(value, "mean") else value for name, value in found.items()}
    raw = {name: getattr(metrics.raw_metrics, name) for name in dir(metrics.raw_metrics) if not name.startswith("_")}
    return pairs | {name: value for name, value in raw.items() if not callable(value)}
