"""Load on a server of texts over OpenAI's protocol: streams of completions, which are due at times that are planned.

    python -m tests.harness.servers.text_load --url 127.0.0.1:8000 --model llama --texts 100 --rate 2

prints a summary as JSON. With a rate the loop is open: requests are due at the times of a Poisson process, however long
the answers take, and times count from when a request was due, so that time in queues is part of them. Without a rate
the loop is closed: so many texts run at any time, and when one has ended, the next begins. Prompts are random tokens,
and end of sequence is ignored, so that the number of tokens is known; other servers take these fields, too.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

from tests.harness.servers.load import OK, percentile


@dataclass(frozen=True)
class TextLoad:
    """Completions of a model: ``texts`` of them, with a number of tokens of the prompt and of new tokens in a range.

    ``rate`` is in texts per second. None means a closed loop with ``concurrent`` texts at any time. ``timeout`` is in
    seconds.
    """

    model: str
    texts: int = 100
    rate: float | None = None
    concurrent: int = 16
    prompt: tuple[int, int] = (32, 256)
    new: tuple[int, int] = (16, 48)
    vocabulary: int = 32000
    seed: int = 0
    timeout: float = 600.0

    def requests(self) -> list[dict[str, Any]]:
        """Return the bodies of the requests."""
        random = np.random.default_rng(self.seed)
        draw = lambda least, most: int(random.integers(least, most + 1))
        return [
            self.body(random.integers(3, self.vocabulary, draw(*self.prompt)).tolist(), draw(*self.new))
            for _ in range(self.texts)
        ]

    def body(self, prompt: list[int], new: int) -> dict[str, Any]:
        """Return the body of a request."""
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": new,
            "temperature": 0,
            "ignore_eos": True,
            **stream,
        }

    def due(self) -> list[float]:
        """Return when requests are due, in seconds from the start. In a closed loop, that is at once."""
        random = np.random.default_rng(self.seed + 1)
        gaps = np.zeros(self.texts) if self.rate is None else random.exponential(1 / self.rate, self.texts)
        times: list[float] = np.cumsum(gaps).tolist()
        return times


@dataclass
class TextRecord:
    """A text: when it was due, was sent, had its first and its last token, and ended, in seconds since the load began.

    ``status`` is OK, a status of HTTP, or the name of an exception or of an error in the stream, and ``error`` its
    text. ``tokens`` is what the server says.
    """

    due: float
    start: float = 0.0
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    status: str = ""
    error: str = ""
    pieces: list[str] = field(default_factory=list, repr=False)


async def drive(url: str, load: TextLoad) -> list[TextRecord]:
    """Put a load on the server at HOST:PORT, and return the records of all texts, in the order of their times."""
    requests, due = load.requests(), load.due()
    waiting = iter(range(load.texts))
    records = [TextRecord(planned) for planned in due]
    timeout = aiohttp.ClientTimeout(total=load.timeout)
    async with aiohttp.ClientSession(
        f"http://{url}", connector=aiohttp.TCPConnector(limit=0), timeout=timeout
    ) as session:
        gc.collect()
        began = time.perf_counter()

        async def run(number: int) -> None:
            record, now = records[number], time.perf_counter() - began
            if load.rate is None:
                record.due = now
            await asyncio.sleep(max(record.due - now, 0))
            record.start = time.perf_counter() - began
            try:
                await _send(session, requests[number], record, began)
            except Exception as error:  # of the connection, or of a stream that is not whole
                record.status, record.error = type(error).__name__, str(error)

        async def run_in_turn() -> None:
            for number in waiting:
                await run(number)

        tasks = [run_in_turn() for _ in range(load.concurrent)] if load.rate is None else map(run, waiting)
        await asyncio.gather(*tasks)
    return records


async def _send(session: aiohttp.ClientSession, request: dict[str, Any], record: TextRecord, began: float) -> None:
    """Send a request, and write down what comes and when."""
    async with session.post("/v1/completions", json=request) as response:
        if response.status != 200:
            record.status, record.error = str(response.status), await response.text()
            return
        async for line in response.content:
            data = line.removeprefix(b"data: ").strip()
            if data == b"[DONE]":
                record.status = OK
            elif data:
                _read(json.loads(data), record, time.perf_counter() - began)
    if not record.status:
        raise RuntimeError("the stream did not end")


def _read(event: dict[str, Any], record: TextRecord, now: float) -> None:
    if "error" in event:
        raise RuntimeError(event["error"]["message"])
    if event["choices"]:
        record.first, record.last = record.first or now, now
        record.pieces.append(event["choices"][0]["text"])
    elif event.get("usage"):
        record.tokens = event["usage"]["completion_tokens"]


def summary(records: Sequence[TextRecord]) -> dict[str, Any]:
    """Return counts, and of texts that succeeded tokens per second and percentiles of times in milliseconds.

    TTFT counts from when a text was due to its first piece, TPOT between its tokens. ``late_p99_ms`` is the time from
    when requests were due until they were sent: if it is not small, the client was at its limit.
    """
    good = [record for record in records if record.status == OK]
    span = max((record.last for record in good), default=0.0) - min((record.due for record in good), default=0.0)
    tokens = sum(record.tokens for record in good)
    return {
        "count": len(records),
        "errors": dict(Counter(record.status for record in records if record.status != OK)),
        "tokens": tokens,
        "tokens_per_second": tokens / span if span else 0.0,
        **_percentiles("ttft", [record.first - record.due for record in good]),
        **_percentiles("tpot", [(r.last - r.first) / (r.tokens - 1) for r in good if r.tokens > 1]),
        "late_p99_ms": percentile([record.start - record.due for record in records], 99),
    }


def _percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    return {f"{name}_p{p}_ms": percentile(seconds, p) for p in (50, 99)}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--url", required=True, help="HOST:PORT")
    found.add_argument("--model", required=True)
    found.add_argument("--texts", type=int, default=TextLoad.texts, help="(100)")
    found.add_argument("--rate", type=float, help="texts per second; without it, the loop is closed")
    found.add_argument("--concurrent", type=int, default=TextLoad.concurrent, help="texts of a closed loop (16)")
    for name in ("prompt", "new"):
        default = getattr(TextLoad, name)
        found.add_argument(
            f"--{name}", type=int, nargs=2, default=default, metavar=("LEAST", "MOST"), help=f"{default}"
        )
    found.add_argument("--vocabulary", type=int, default=TextLoad.vocabulary, help="tokens are less than this (32000)")
    found.add_argument("--seed", type=int, default=0, help="of prompts, and of the times at which they are due")
    return found


def main() -> None:
    """Run the command line."""
    given = parser().parse_args()
    load = TextLoad(
        given.model,
        given.texts,
        given.rate,
        given.concurrent,
        tuple(given.prompt),
        tuple(given.new),
        given.vocabulary,
        given.seed,
    )
    records = asyncio.run(drive(given.url, load))
    messages = sorted({record.error for record in records if record.error})[:10]
    json.dump(summary(records) | {"messages": messages}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
