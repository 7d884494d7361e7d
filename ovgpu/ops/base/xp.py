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

    def asnumpy(self, x: Any) -> Any:
        """The array on the host."""
        return np.asarray(x)

    def running(self, run: Callable[[Any, Sequence[Any]], Sequence[Any]]) -> Adapter:
        """The same library with another ``run``."""
        return type(self)(self.module, run)


NUMPY = Adapter(np)
