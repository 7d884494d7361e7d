"""The debugging dials: OVGPU_DEBUG and OVGPU_STOP_AT, as environment variables and as context managers.

OVGPU_DEBUG=1 prints the device and the plan, 2 also every step with time and bytes, 3 also shapes and types,
4 also generated code. OVGPU_STOP_AT=<layer> ends an inference after that layer.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, TypeVar

from ovgpu.runtime.backend import Call
from ovgpu.runtime.profile import Profiler
from ovgpu.runtime.program import Step

T = TypeVar("T", int, str)


class Dial(Generic[T]):
    """A setting that an environment variable gives and ``with dial(value):`` overrides."""

    def __init__(self, name: str, default: T) -> None:
        self.name = name
        self._kind = type(default)
        text = os.environ.get(name, "")
        try:
            self.value: T = self._kind(text) if text else default
        except ValueError:
            raise RuntimeError(f"{name} must be {self._kind.__name__}, not {text!r}") from None
        self._before: list[T] = []

    def __call__(self, value: T) -> Dial[T]:
        self._before.append(self.value)
        self.value = value
        return self

    def __enter__(self) -> Dial[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.value = self._before.pop()


DEBUG: Dial[int] = Dial("OVGPU_DEBUG", 0)
STOP_AT: Dial[str] = Dial("OVGPU_STOP_AT", "")


def observer(profiler: Profiler | None) -> Callable[[Step, Sequence[Call]], None] | None:
    """Who runs the steps, or None if nobody wants to watch."""
    if DEBUG.value < 2 and not STOP_AT.value:
        return profiler

    def watch(step: Step, calls: Sequence[Call]) -> None:
        start = time.perf_counter()
        if profiler is not None:
            profiler(step, calls)
        else:
            for call in calls:
                call()
        if DEBUG.value >= 2:
            spent = (time.perf_counter() - start) * 1e6
            print(f"{spent:10.1f} us  {step.kind:7} {step.op.name:24} {step.name}", file=sys.stderr)

    return watch
