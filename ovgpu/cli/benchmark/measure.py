"""Measurement of inferences: their number, the total time and the latencies."""

from __future__ import annotations

import math
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
from ovgpu.api.in_flight import first_to_end
from ovgpu.api.infer_request import InferRequest
from ovgpu.cli._feed import Array, Feed

SEQUENCE_INFERENCES = 128  # of a stateful model before its state is reset, so that KV caches stay bounded
REFRESH_SECONDS = 0.1  # between updates of the progress bar
OnInference = Callable[[int], None]


@dataclass
class Limits:
    """Limits of a measurement: iterations, seconds, or whichever is reached first. 0 means no limit.

    ``rate`` is the largest rate in frames per second, 0 for no limit.
    """

    iterations: int = 0
    seconds: float = 0.0
    rate: float = 0.0

    def reached(self, iterations: int, seconds: float) -> bool:
        return bool((self.iterations and iterations >= self.iterations) or (self.seconds and seconds >= self.seconds))

    def fraction(self, iterations: int, seconds: float) -> float:
        return min(
            1.0,
            max(
                iterations / self.iterations if self.iterations else 0.0,
                seconds / self.seconds if self.seconds else 0.0,
            ),
        )

    def wait(self, frames: int, seconds: float) -> None:
        """Sleep until ``frames`` frames in ``seconds`` seconds are within the rate."""
        if self.rate > 0:
            time.sleep(max(0.0, frames / self.rate - seconds))


@dataclass
class Latencies:
    """Latencies in milliseconds."""

    latencies: list[float] = field(default_factory=list)

    def percentile(self, q: float) -> float:
        """Return the least latency that ``q`` percent of the inferences do not exceed, as benchmark_app does."""
        return float(sorted(self.latencies)[math.ceil(len(self.latencies) * q / 100) - 1])

    @property
    def average(self) -> float:
        return float(np.mean(self.latencies))


@dataclass
class Measurement(Latencies):
    """Result of a measurement, with latencies in the order of completion.

    ``prompts`` has the latencies of inferences that began a sequence with a prompt, ``latencies`` those of all others,
    and ``groups`` both by the index of the feed.
    """

    prompts: list[float] = field(default_factory=list)
    groups: dict[int, Latencies] = field(default_factory=dict)
    seconds: float = 0.0
    frames: int = 0

    @property
    def iterations(self) -> int:
        return len(self.latencies)

    @property
    def per_second(self) -> float:
        return self.iterations / self.seconds if self.seconds else 0.0

    @property
    def frames_per_second(self) -> float:
        return self.frames / self.seconds if self.seconds else 0.0

    def add(self, latency: float, group: int, frames: int, prompted: bool = False) -> None:
        (self.prompts if prompted else self.latencies).append(latency)
        self.groups.setdefault(group, Latencies()).latencies.append(latency)
        self.frames += frames


class Source:
    """Source of inputs from feeds that take turns. Several requests may share one, unless the model keeps a state.

    ``frames`` has the number of frames in each feed's inputs. Without ``fill``, a request keeps the inputs that it was
    given first.
    """

    def __init__(self, feeds: Sequence[Feed], frames: Sequence[int], stateful: bool, fill: bool) -> None:
        self.feeds, self.frames, self.stateful, self.fill = feeds, frames, stateful, fill
        self.count = self.group = 0
        self.groups: dict[InferRequest, int] = {}

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
        """Return the inputs of a request's next inference, None if it keeps its inputs. Set `group`, a feed's index."""
        if self.stateful and self.count == SEQUENCE_INFERENCES:
            self.restart(request)
        keeps = not self.fill and request in self.groups
        if not keeps:
            self.groups[request] = self.count % len(self.feeds)
        self.group = self.groups[request]
        self.count += 1
        return None if keeps else self.feeds[self.group].next()


def measure_sync(
    request: InferRequest, source: Source, limits: Limits, on_inference: OnInference | None = None
) -> Measurement:
    """Run inferences one after the other. ``on_inference(0)`` is called after each."""
    result = Measurement()
    start = time.perf_counter()
    with _progress(limits) as advance:
        while not limits.reached(result.iterations, time.perf_counter() - start):
            request.infer(source.next(request), share_inputs=True, share_outputs=True)
            result.add(request.latency, source.group, source.frames[source.group], source.prompted)
            if on_inference is not None:
                on_inference(0)
            elapsed = time.perf_counter() - start
            limits.wait(result.frames, elapsed)
            advance(result.iterations, elapsed)
    result.seconds = time.perf_counter() - start
    return result


def measure_async(
    requests: Sequence[InferRequest], sources: Sequence[Source], limits: Limits, on_inference: OnInference | None = None
) -> Measurement:
    """Keep all requests busy. After each inference, ``on_inference`` is called with the index of its request.

    Raises: the error of a failed inference.
    """
    result = Measurement()
    done: SimpleQueue[tuple[int, int, BaseException | None]] = SimpleQueue()
    idle, running, started, frames = list(range(len(requests))), list[int](), 0, 0

    def complete() -> None:
        if done.empty():
            in_flight = [each for index in running if (each := requests[index].in_flight) is not None]
            if in_flight:
                first_to_end(in_flight).end()  # calls `on_done`
        index, group, error = done.get()
        running.remove(index)
        if error is not None:
            raise error
        result.add(requests[index].latency, group, sources[index].frames[group])
        if on_inference is not None:
            on_inference(index)
        idle.append(index)

    def on_done(index: int, group: int, error: BaseException | None) -> None:
        done.put((index, group, error))

    start = time.perf_counter()
    with _progress(limits) as advance:
        while not limits.reached(started, time.perf_counter() - start):
            if not idle:
                complete()
            index = idle.pop(0)
            inputs = sources[index].next(requests[index])
            group = sources[index].group
            running.append(index)
            requests[index].start(inputs, True, partial(on_done, index, group), Claim(), None)
            started, frames = started + 1, frames + sources[index].frames[group]
            elapsed = time.perf_counter() - start
            limits.wait(frames, elapsed)
            advance(result.iterations, elapsed)
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
    """Show a progress bar on stderr if that is a terminal. Yield the function that advances it."""
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
