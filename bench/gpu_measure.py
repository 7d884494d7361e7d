"""Timing on a device: events, host clocks, and the bandwidth of a copy, with which others are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

BATCH_SECONDS = 1e-3  # the least work between two events, whose clock ticks about every microsecond


class Timer(Protocol):
    """Marks on a stream of work, and the time between two of them."""

    def mark(self) -> Any: ...
    def seconds(self, start: Any, end: Any) -> float: ...
    def synchronize(self) -> None: ...


class Events:
    """CuPy's CUDA events on a stream."""

    def __init__(self, cupy: Any, stream: Any) -> None:
        self.cupy, self.stream = cupy, stream

    def mark(self) -> Any:
        return self.stream.record(self.cupy.cuda.Event())

    def seconds(self, start: Any, end: Any) -> float:
        return float(self.cupy.cuda.get_elapsed_time(start, end)) / 1e3

    def synchronize(self) -> None:
        self.stream.synchronize()


class HostClock:
    """`Timer` of a device whose work is done when the call that starts it returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def synchronize(self) -> None:
        pass


class Flush:
    """Function that overwrites the second-level cache, so that the next launch reads from device memory."""

    def __init__(self, cupy: Any, stream: Any) -> None:
        self.runtime, self.stream = cupy.cuda.runtime, stream
        self.size = 2 * properties(cupy)["l2CacheSize"]
        self.memory = cupy.cuda.alloc(self.size)

    def __call__(self) -> None:
        self.runtime.memsetAsync(self.memory.ptr, 1, self.size, self.stream.ptr)


def device_seconds(
    launch: Callable[[], object],
    timer: Timer,
    seconds: float,
    least: int = 5,
    flush: Callable[[], object] | None = None,
) -> list[float]:
    """Return samples of the device time of one launch in seconds, taken for about ``seconds``.

    Without ``flush`` a sample is the mean over enough launches in a row to fill `BATCH_SECONDS`, which includes the
    host's time if that is longer. With ``flush``, which runs before each launch, a sample is one launch.
    """
    for _ in range(3):
        launch()
    timer.synchronize()
    count = 1
    if flush is None:
        start = timer.mark()
        launch()
        end = timer.mark()
        timer.synchronize()
        count = max(1, min(1000, round(BATCH_SECONDS / max(timer.seconds(start, end), 1e-9))))
    samples: list[float] = []
    until = time.perf_counter() + seconds
    while len(samples) < least or time.perf_counter() < until:
        if flush is not None:
            flush()
        start = timer.mark()
        for _ in range(count):
            launch()
        end = timer.mark()
        timer.synchronize()
        samples.append(timer.seconds(start, end) / count)
    return samples


def host_seconds(run: Callable[[], object], seconds: float, least: int) -> list[float]:
    """Return the wall-clock times in seconds of calls of ``run``, which waits for its results."""
    samples: list[float] = []
    until = time.perf_counter() + seconds
    while len(samples) < least or time.perf_counter() < until:
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return samples


def captured(stream: Any, *calls: Callable[[], object]) -> Any:
    """Return the graph of some calls. The capture ends even if they raise."""
    stream.begin_capture()
    try:
        for call in calls:
            call()
    except BaseException:
        with suppress(Exception):  # the capture is invalid
            stream.end_capture()
        raise
    return stream.end_capture()


def summary(rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return microseconds: the median over the rounds of their medians, its spread, and quantiles of all samples."""
    medians = [statistics.median(samples) * 1e6 for samples in rounds]
    everything = np.concatenate([np.asarray(samples) for samples in rounds]) * 1e6
    low, high = np.percentile(everything, [10, 90])
    return {
        "us": statistics.median(medians),
        "rounds_us": [round(m, 3) for m in medians],
        "p10_us": float(low),
        "p90_us": float(high),
        "samples": int(everything.size),
    }


def copy_bandwidth(cupy: Any, stream: Any, size: int, seconds: float) -> float:
    """Return the bytes per second, read and written, of a copy of ``size`` bytes in device memory."""
    source, target = cupy.cuda.alloc(size), cupy.cuda.alloc(size)
    runtime = cupy.cuda.runtime
    runtime.memsetAsync(source.ptr, 7, size, stream.ptr)

    def copy() -> None:
        runtime.memcpyAsync(target.ptr, source.ptr, size, runtime.memcpyDeviceToDevice, stream.ptr)

    return 2 * size / statistics.median(device_seconds(copy, Events(cupy, stream), seconds))


def properties(cupy: Any) -> dict[str, Any]:
    """Return the properties of the first device."""
    found: dict[str, Any] = cupy.cuda.runtime.getDeviceProperties(0)
    return found


def describe(cupy: Any) -> dict[str, Any]:
    """Describe the device and its software."""
    found = properties(cupy)
    name = found["name"]
    return {
        "name": name.decode() if isinstance(name, bytes) else str(name),
        "compute_capability": f"{found['major']}.{found['minor']}",
        "multiprocessors": found["multiProcessorCount"],
        "l2_bytes": found["l2CacheSize"],
        "memory_bytes": found["totalGlobalMem"],
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "runtime": cupy.cuda.runtime.runtimeGetVersion(),
        "cupy": cupy.__version__,
    }


def clocks() -> dict[str, Any]:
    """Return clocks, power and temperature at this moment, if NVML is available."""
    try:
        import pynvml

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        return {
            "sm_mhz": pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM),
            "memory_mhz": pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_MEM),
            "watts": pynvml.nvmlDeviceGetPowerUsage(device) / 1e3,
            "celsius": pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU),
        }
    except Exception as error:  # NVML is missing or not allowed
        return {"unknown": f"{type(error).__name__}: {error}"}
