"""Adapter `xp`: NumPy or CuPy under one set of names, for the `evaluate` methods of ops.

Names that both libraries share are passed through. Functions that differ are methods of the adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ovgpu.errors import OpError

RunBody = Callable[[Any, Sequence[Any]], Sequence[Any]]
"""A function ``(body, inputs) -> outputs`` that runs a body Model."""


def _no_bodies(body: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    raise OpError("a body can be run only within an inference")


class Adapter:
    """Array library ``module``, with the function by which control-flow ops run a body."""

    def __init__(self, module: Any, run: RunBody = _no_bodies) -> None:
        self.module = module
        self.run = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def asnumpy(self, x: Any) -> Any:
        """Return the array as a NumPy array on the host."""
        return np.asarray(x)

    def running(self, run: RunBody) -> Adapter:
        """Return an adapter of the same library with another ``run``."""
        return type(self)(self.module, run)


NUMPY = Adapter(np)

Namespace = Any  # the array functions that ops call: of an `Adapter`, of NumPy itself, or of `trace`'s stand-in
