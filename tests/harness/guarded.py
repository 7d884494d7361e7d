"""A judge that survives OpenVINO: random cases lead its plugin where it crashes, so it answers from another process."""
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


def ask(question: Callable[..., T], *given: Any) -> T:
    """What a function answers that asks OpenVINO; `Refused` also where the process of OpenVINO ends on the way."""
    try:
        return process().submit(answered, question, *given).result()
    except BrokenProcessPool:
        process.cache_clear()
        raise Refused("OpenVINO ended its process") from None


@functools.cache
def process() -> ProcessPoolExecutor:
    """The process that asks OpenVINO, one after the other crashes."""
    started = ProcessPoolExecutor(1, get_context("spawn"))
    atexit.register(started.shutdown)
    return started


def answered(question: Callable[..., T], *given: Any) -> T:
    try:
        return question(*given)
    except RuntimeError as error:  # OpenVINO's own do not survive pickling
        raise Refused(str(error)) from None


def expect(xml: bytes, weights: bytes, oracle: Oracle, inputs: Sequence[Value]) -> list[Expected]:
    """What `Judge` expects of one inference."""
    return Judge(xml, weights, oracle).expect(inputs)
