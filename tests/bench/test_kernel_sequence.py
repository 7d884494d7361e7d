"""Estimates of consecutive launches: when bytes that one requests early arrive."""

from __future__ import annotations

from typing import Any

import pytest

from bench.kernels.launches import Launch, LibraryCall
from bench.kernels.sequence import Estimate, overlap

CALL = LibraryCall("cuBLAS")


def early(**times: float) -> Estimate:
    """Return the estimate of an early launch that takes a quarter of a multiprocessor, and 1 s for being one."""
    code: Any = None
    launch = Launch("kernel", "", code, (1,), 32, 0, 0, early=True)
    return Estimate(launch, empty=1, **{"share": 0.25, **times})


def hidden(*estimates: Estimate) -> list[float]:
    return [found.hidden for found in overlap(estimates, arriving=1)]


def test_bytes_arrive_before_the_main_loop() -> None:
    """They do while the kernel is launched, and on its path to the loop; and no more than are requested, or needed."""
    assert hidden(early(start=4, head=3, bytes=10, ahead=8)) == [4]
    assert hidden(early(start=4, head=3, bytes=10, ahead=2)) == [2]
    assert hidden(early(start=4, head=3, bytes=1, ahead=8)) == [1]


def test_memory_is_idle_in_the_launch_before() -> None:
    """It is for 1 s of launch, 5 s of the path, and 2 s in which instructions take longer than bytes."""
    before = early(start=5, bytes=4, instructions=6)
    assert hidden(before, early(bytes=50, ahead=50))[1] == 1 + 5 + 2 + 1


def test_idle_time_is_used_once() -> None:
    first, second, third = early(start=9), early(bytes=50, ahead=4), early(bytes=50, ahead=50)
    assert hidden(first, second, third) == [0, 4, 10 - 4 + 1 + 1]


@pytest.mark.parametrize("before", [Estimate(CALL, empty=3), early(start=5, share=0.8)])
def test_launches_that_nothing_overlaps(before: Estimate) -> None:
    """A library's call lets no launch begin early; another launch leaves no room."""
    assert hidden(before, early(bytes=50, ahead=50))[1] == 1


def test_calls_of_libraries_request_nothing() -> None:
    found = [*overlap([early(start=5), Estimate(CALL, empty=3, bytes=7)], arriving=1)]
    assert found[1].hidden == 0 and found[1].seconds == 10


def test_bytes_arrive_in_a_part_of_the_idle_time() -> None:
    first, second = overlap([early(start=9), early(bytes=50, ahead=50)], arriving=0.5)
    assert (first.hidden, second.hidden) == (0, (9 + 1 + 1) / 2)


def test_shorter_times_of_work_that_barriers_expose() -> None:
    times = {"bytes": 4.0, "instructions": 6.0, "tensor": 1.0, "latency": 2.0}
    assert Estimate(CALL, empty=1, **times).seconds == 1 + 6
    assert Estimate(CALL, empty=1, exposed=0.5, **times).seconds == 1 + 6 + 0.5 * 5
