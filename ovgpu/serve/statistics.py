"""Measurements of a served model: counts and times, for statistics, metrics and the status page."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from dataclasses import dataclass

from ovgpu.batching.gathering import BatchRun
from ovgpu.serve.errors import Status

TIMES = tuple([int(10 * 1.8**i) for i in range(33)])  # upper bounds of times in us, those of OpenVINO Model Server
SIZES = tuple([1 << i for i in range(13)])  # upper bounds of rows in a batch
RECENT = 20_000  # requests whose latencies are kept
REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")  # of failures, as Triton has them
REASON_OF = {
    Status.UNAVAILABLE: "REJECTED",
    Status.RESOURCE_EXHAUSTED: "REJECTED",
    Status.CANCELLED: "CANCELED",
    Status.INTERNAL: "BACKEND",
}


class Histogram:
    """Counts of values by upper bounds, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)


@dataclass
class Counts:
    """Calls of one method through one interface, such as gRPC."""

    succeeded: int = 0
    failed: int = 0


@dataclass
class Size:
    """Batches with the same number of rows, and the nanoseconds of their inferences."""

    count: int = 0
    nanoseconds: int = 0


class Statistics:
    """Measurements of one version of a model. Threads may add to them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.methods: dict[tuple[str, str], Counts] = defaultdict(Counts)  # by interface and method
        self.request_times: dict[str, Histogram] = defaultdict(lambda: Histogram(TIMES))  # in us, by interface
        self.waited = Histogram(TIMES)  # time of each inference in the queue, in us
        self.computed = Histogram(TIMES)  # time of each batch, in us
        self.rows = Histogram(SIZES)  # rows of each batch
        self.sizes: dict[int, Size] = defaultdict(Size)  # by number of rows
        self.succeeded = self.failed = 0  # numbers of inferences
        self.failures = Counter[str]()  # by reason
        self.nanoseconds = [0, 0]  # total times of inferences that succeeded, and that failed
        self.inference_nanoseconds = self.queue_nanoseconds = 0  # summed over inferences
        self.last_inference = 0  # time of the last success, in ms since 1970
        self.recent: deque[tuple[float, float]] = deque(maxlen=RECENT)  # (time.monotonic() at the end, seconds)
        self._waits: deque[tuple[float, float, int]] = deque(maxlen=RECENT)  # (time, seconds, inferences) of batches

    def add_batch(self, run: BatchRun) -> None:
        """Add a batch. It is the observer of a batcher."""
        with self.lock:
            for seconds in run.waited:
                self.waited.observe(1e6 * seconds)
            self._waits.append((time.monotonic(), sum(run.waited), len(run.waited)))
            self.computed.observe(1e6 * run.computed)
            self.rows.observe(run.rows)
            size = self.sizes[run.rows]
            size.count += 1
            size.nanoseconds += round(1e9 * run.computed)
            self.queue_nanoseconds += round(1e9 * sum(run.waited))
            self.inference_nanoseconds += round(1e9 * run.computed) * len(run.waited)

    def add_request(self, interface: str, method: str, status: Status, seconds: float) -> None:
        """Add a call, with its time from the arrival of the request to the response."""
        succeeded = status is Status.OK
        with self.lock:
            calls = self.methods[interface, method]
            self.request_times[interface].observe(1e6 * seconds)
            if succeeded:
                calls.succeeded += 1
                self.succeeded += 1
                self.last_inference = time.time_ns() // 1_000_000
                self.recent.append((time.monotonic(), seconds))
            else:
                calls.failed += 1
                self.failed += 1
                self.failures[REASON_OF.get(status, "OTHER")] += 1
            self.nanoseconds[not succeeded] += round(1e9 * seconds)

    def latencies(self, seconds: float) -> list[tuple[float, float]]:
        """Return (age, latency), in seconds, of requests that succeeded in the last ``seconds``."""
        now = time.monotonic()
        with self.lock:
            return [(now - end, latency) for end, latency in self.recent if now - end <= seconds]

    def mean_wait(self, seconds: float) -> float:
        """Return the mean time in the queue, in seconds, of inferences of the last ``seconds``; 0 without any."""
        begin = time.monotonic() - seconds
        with self.lock:
            waits = [(waited, count) for end, waited, count in self._waits if end >= begin]
        return sum(waited for waited, _ in waits) / max(sum(count for _, count in waits), 1)


def percentile(values: list[float], percent: float) -> float:
    """Return a percentile of values, which are sorted, or 0 if there are none."""
    return values[min(int(len(values) * percent / 100), len(values) - 1)] if values else 0.0
