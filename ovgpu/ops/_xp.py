"""`xp`: NumPy or CuPy under one set of names, as ops' `evaluate` sees them.

Whatever both libraries spell alike is passed through; what they do not is a function of the adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Adapter:
    """The array library ``module``, plus ``run(body, inputs) -> outputs``: how control flow runs a body Model."""

    def __init__(self, module: Any, run: Callable[[Any, Sequence[Any]], Sequence[Any]] | None = None) -> None:
        self.module = module
        self.run = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def windows(self, x: Any, size: Sequence[int], step: Sequence[int]) -> Any:
        """Sliding windows over the last ``len(size)`` axes, ``step`` apart: a view with window axes appended."""
        n = len(size)
        spatial = [(d - w) // s + 1 for d, w, s in zip(x.shape[-n:], size, step)]
        strides = [a * s for a, s in zip(x.strides[-n:], step)]
        return self.module.lib.stride_tricks.as_strided(
            x, (*x.shape[:-n], *spatial, *size), (*x.strides[:-n], *strides, *x.strides[-n:]))


NUMPY = Adapter(np)
