"""Adapter `xp`: NumPy or CuPy under one set of names, for the `evaluate` methods of ops.

Names that both libraries share are passed through. Functions that differ are methods of the adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Adapter:
    """Array library ``module`` with ``run(body, inputs) -> outputs``, by which control-flow ops run a body Model."""

    def __init__(self, module: Any, run: Callable[[Any, Sequence[Any]], Sequence[Any]] | None = None) -> None:
        self.module = module
        self.run = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def asnumpy(self, x: Any) -> Any:
        """Return the array as a NumPy array on the host."""
        return np.asarray(x)

    def running(self, run: Callable[[Any, Sequence[Any]], Sequence[Any]]) -> Adapter:
        """Return an adapter of the same library with another ``run``."""
        return type(self)(self.module, run)


NUMPY = Adapter(np)
