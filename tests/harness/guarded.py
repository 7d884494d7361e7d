"""A judge in a separate process, which survives crashes of OpenVINO's plugin on random cases."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

from .judge import Expected, Judge, Oracle, Refused, Value

T = TypeVar("T")


def ask(question: Callable[..., T], *arguments: Any) -> T:
    """Return the answer of a function that calls OpenVINO. Raise `Refused` also if OpenVINO ends its process."""
    try:
        return process().submit(answered, question, *arguments).result()
    except BrokenProcessPool:
        process.cache_clear()
        raise Refused("OpenVINO ended its process") from None


@functools.cache
def process() -> ProcessPoolExecutor:
    """Return the process that calls OpenVINO; a new one starts after a crash."""
    started = ProcessPoolExecutor(1, get_context("spawn"))
    atexit.register(started.shutdown)
    return started


def answered(question: Callable[..., T], *arguments: Any) -> T:
    """Call a function of OpenVINO in the other process; raise only errors that can be pickled."""
    try:
        return question(*arguments)
    except RuntimeError as error:  # OpenVINO's exceptions do not survive pickling
        raise Refused(str(error)) from None


def expect(xml: bytes, weights: bytes, oracle: Oracle, inputs: Sequence[Value]) -> list[Expected]:
    """Return the outputs that `Judge` expects of one inference."""
    return Judge(xml, weights, oracle).expect(inputs)
