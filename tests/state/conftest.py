"""Fixture with an operation that fails at run time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ovgpu.ops.base.op import Op, _registry, op


@pytest.fixture
def guard() -> Iterator[None]:
    """Register Guard, which returns its input, and fails if an element is above 5."""

    @op("Guard", "tests")
    class Guard(Op):
        def infer_specs(self, x: Any) -> Any:
            return (x,)

        def evaluate(self, xp: Any, x: Any) -> Any:
            if (x > 5).any():
                raise ValueError("above 5")
            return (x,)

    yield
    del _registry["Guard"]
