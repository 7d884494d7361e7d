"""A judge that survives OpenVINO: random cases lead its plugin where it crashes, so it answers from another process."""
from __future__ import annotations

import atexit
import functools
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from .judge import Expected, Judge, Oracle, Refused, Value


def expect(xml: bytes, weights: bytes, oracle: Oracle, inputs: Sequence[Value]) -> list[Expected]:
    """What `Judge` expects; `Refused` also where the process of OpenVINO ends on the way."""
    try:
        return process().submit(judged, xml, weights, oracle, inputs).result()
    except BrokenProcessPool:
        process.cache_clear()
        raise Refused("OpenVINO ended its process") from None


@functools.cache
def process() -> ProcessPoolExecutor:
    """The process that asks OpenVINO, one after the other crashes."""
    started = ProcessPoolExecutor(1, get_context("spawn"))
    atexit.register(started.shutdown)
    return started


def judged(xml: bytes, weights: bytes, oracle: Oracle, inputs: Sequence[Value]) -> list[Expected]:
    try:
        return Judge(xml, weights, oracle).expect(inputs)
    except RuntimeError as error:  # OpenVINO's own do not survive pickling
        raise Refused(str(error)) from None
