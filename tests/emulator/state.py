"""Errors, counters and settings shared by the emulator's parts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .toolchain import EmulatorError

__all__ = ["CUDARuntimeError", "CaptureError", "Counters", "EmulatorError", "counters", "thread_order"]

INVALID_VALUE = 1
NOT_READY = 600
ILLEGAL_ADDRESS = 700
LAUNCH_FAILURE = 719
COOPERATIVE_TOO_LARGE = 720
CAPTURE_UNSUPPORTED = 900
CAPTURE_UNJOINED = 904
CAPTURE_IMPLICIT = 906


class CUDARuntimeError(RuntimeError):
    """Error of the CUDA runtime for a wrong call or a faulty kernel; `status` is the cudaError_t."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class CaptureError(CUDARuntimeError):
    """A stream that is being captured was asked for work that cannot become part of a graph."""

    def __init__(self, message: str, status: int = CAPTURE_UNSUPPORTED) -> None:
        super().__init__(status, message)


@dataclass
class Counters:
    """Counts of the host's requests to the device; `launches` does not include work inside graphs."""

    launches: int = 0  # kernels, fills and library calls started one by one
    graph_launches: int = 0
    graph_nodes: int = 0  # nodes of the graphs launched
    graph_kernels: int = 0  # those nodes that are launches, not copies between host and device
    allocs: int = 0
    h2d_bytes: int = 0
    d2h_bytes: int = 0
    d2d_bytes: int = 0
    synchronizations: int = 0
    captured_loads: int = 0  # kernels first requested while capturing; a launch before the capture loads them

    def reset(self) -> None:
        for field in fields(self):
            setattr(self, field.name, 0)


counters = Counters()

_pending: list[str] = []


def report_later(message: str) -> None:
    """Make the next call to the device raise a fault that was found where nothing can be raised (a finalizer)."""
    _pending.append(message)


def raise_pending() -> None:
    """Raise the faults that `report_later` has recorded."""
    if _pending:
        messages = "; ".join(_pending)
        _pending.clear()
        raise CUDARuntimeError(ILLEGAL_ADDRESS, messages)


_order = 0


def current_thread_order() -> int:
    return _order


@contextlib.contextmanager
def thread_order(order: int | str) -> Iterator[None]:
    """Set the order of threads between two barriers within the block: "ascending", "descending" or a seed above 1.
    A kernel whose result depends on it lacks a barrier."""
    global _order
    previous = _order
    _order = {"ascending": 0, "descending": 1}[order] if isinstance(order, str) else order
    try:
        yield
    finally:
        _order = previous


ALL = -1
LANDINGS = (0, 1, 2, 3, 4)  # early, late, three seeds
_landing = 1


def current_landing() -> int:
    return _landing


@contextlib.contextmanager
def landing(when: int | str) -> Iterator[None]:
    """Set when asynchronous copies, and stores to other blocks of a cluster, land within the block: "early", as soon as
    they are issued; "late", when they are waited for, or when their block of threads ends; or at times drawn with a
    seed above 1. When an early launch begins, the launches before it have ended if the landing is "early" or an even
    seed. With "all", each kernel runs with all `LANDINGS`, and fails if its results differ."""
    global _landing
    previous = _landing
    _landing = {"early": 0, "late": 1, "all": ALL}[when] if isinstance(when, str) else when
    try:
        yield
    finally:
        _landing = previous


@dataclass(frozen=True)
class Reads:
    """Counts of the reads of each byte of the device array at ``address``, u32 [its shape, bytes of an element], and
    the names of the kernels that have its address."""

    address: int
    counts: np.ndarray[Any, np.dtype[np.uint32]]
    kernels: set[str]


_counted: tuple[Reads, ...] = ()


def current_reads() -> tuple[Reads, ...]:
    return _counted


@contextlib.contextmanager
def count_reads(*arrays: Any) -> Iterator[tuple[Reads, ...]]:
    """Count how often kernels that run within the block read each byte of contiguous device arrays. Yield the counts of
    each. These kernels are compiled anew, to tell their reads."""
    global _counted
    shapes = [(*array.shape, array.itemsize) for array in arrays]
    previous, _counted = (
        _counted,
        tuple([Reads(array.data.ptr, np.zeros(shape, np.uint32), set()) for array, shape in zip(arrays, shapes)]),
    )
    try:
        yield _counted
    finally:
        _counted = previous


_seconds = 60.0


def current_time_limit() -> float:
    return _seconds


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limit the processor time of a kernel within the block; a kernel that takes longer fails."""
    global _seconds
    previous, _seconds = _seconds, seconds
    try:
        yield
    finally:
        _seconds = previous
