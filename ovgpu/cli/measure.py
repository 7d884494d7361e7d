"""Measurement of inferences: their number, the total time and the latencies."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ovgpu._util.claim import Claim
from ovgpu.api.infer_request import InferRequest
from ovgpu.cli._inputs import Array, Feed

SEQUENCE_INFERENCES = 128  # of a stateful model before its state is reset, so that KV caches stay bounded
REFRESH_SECONDS = 0.1  # between updates of the progress bar


@dataclass
class Limits:
    """Limits of a measurement: iterations, seconds, or whichever is reached first. 0 means no limit."""

    iterations: int = 0
    seconds: float = 0.0

    def reached(self, iterations: int, seconds: float) -> bool:
        return bool((self.iterations and iterations >= self.iterations)
                    or (self.seconds and seconds >= self.seconds))

    def fraction(self, iterations: int, seconds: float) -> float:
        return min(1.0, max(iterations / self.iterations if self.iterations else 0.0,
                            seconds / self.seconds if self.seconds else 0.0))


@dataclass
class Measurement:
    """Result of a measurement. Latencies are in milliseconds, in the order of completion: ``prompts`` are those of
    inferences that began a sequence with a prompt, ``latencies`` all others."""

    latencies: list[float] = field(default_factory=list)
    prompts: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def iterations(self) -> int:
        return len(self.latencies)

    @property
    def per_second(self) -> float:
        return self.iterations / self.seconds if self.seconds else 0.0

    def percentile(self, q: float) -> float:
        return float(np.percentile(self.latencies, q))

    @property
    def average(self) -> float:
        return float(np.mean(self.latencies))


class Source:
    """Source of a request's inputs. `next` returns None if the request keeps its current inputs."""

    def __init__(self, feeds: Sequence[Feed], stateful: bool, fill: bool) -> None:
        self.feeds, self.stateful = feeds, stateful
        self.fill = fill or len(feeds) > 1 or any(feed.length for feed in feeds)
        self.count = 0

    def restart(self, request: InferRequest) -> None:
        """Begin a new sequence."""
        request.reset_state()
        self.count = 0
        for feed in self.feeds:
            feed.restart()

    @property
    def prompted(self) -> bool:
        """True if the last inputs were a prompt."""
        return self.count == 1 and any(feed.prompt for feed in self.feeds)

    def next(self, request: InferRequest) -> dict[int, Array] | None:
        if self.stateful and self.count == SEQUENCE_INFERENCES:
            self.restart(request)
        self.count += 1
        if not self.fill and self.count > 1:
            return None
        return self.feeds[(self.count - 1) % len(self.feeds)].next()


def measure_sync(request: InferRequest, source: Source, limits: Limits,
                 on_inference: Callable[[int], None] | None = None) -> Measurement:
    """Run inferences one after the other. ``on_inference(0)`` is called after each."""
    result = Measurement()
    start = time.perf_counter()
    with _progress(limits) as advance:
        while not limits.reached(result.iterations, time.perf_counter() - start):
            request.infer(source.next(request), share_inputs=True, share_outputs=True)
            (result.prompts if source.prompted else result.latencies).append(request.latency)
            if on_inference is not None:
                on_inference(0)
            advance(result.iterations, time.perf_counter() - start)
    result.seconds = time.perf_counter() - start
    return result


def measure_async(requests: Sequence[InferRequest], sources: Sequence[Source], limits: Limits,
                  on_inference: Callable[[int], None] | None = None) -> Measurement:
    """Run as many inferences at a time as there are requests. ``on_inference`` is called with the index of the
    request after each inference. Raises the error of a failed inference."""
    result = Measurement()
    done: SimpleQueue[tuple[int, BaseException | None]] = SimpleQueue()
    idle, started = list(range(len(requests))), 0

    def complete() -> None:
        number, error = done.get()
        if error is not None:
            raise error
        result.latencies.append(requests[number].latency)
        if on_inference is not None:
            on_inference(number)
        idle.append(number)

    def on_done(number: int, error: BaseException | None) -> None:
        done.put((number, error))

    start = time.perf_counter()
    with _progress(limits) as advance:
        while not limits.reached(started, time.perf_counter() - start):
            if not idle:
                complete()
            number = idle.pop(0)
            inputs = sources[number].next(requests[number])
            requests[number].start(inputs, True, partial(on_done, number), Claim())
            started += 1
            advance(result.iterations, time.perf_counter() - start)
        while result.iterations < started:
            complete()
    result.seconds = time.perf_counter() - start
    return result


def peak_memory() -> int:
    """Return the peak host memory of this process in bytes; 0 if the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@contextmanager
def _progress(limits: Limits) -> Iterator[Callable[[int, float], None]]:
    """Show a progress bar on stderr if that is a terminal. Yields the function that advances it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda iterations, seconds: None
        return
    columns = (TextColumn("  {task.fields[iterations]} iterations"), BarColumn(None), TimeElapsedColumn())
    last = 0.0
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("", total=1.0, iterations=0)

        def advance(iterations: int, seconds: float) -> None:
            nonlocal last
            if seconds - last >= REFRESH_SECONDS:
                last = seconds
                done = limits.fraction(iterations, seconds)
                progress.update(task, completed=done, iterations=iterations, refresh=True)

        yield advance
