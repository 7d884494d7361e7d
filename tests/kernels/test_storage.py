"""Small types on the device: this project's kernels move and decode dtypes that CuPy has no kernels for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.harness.ir import Net, Port
from tests.ops.base.test_storage import SMALL, check_moves, constant, parameter


@pytest.mark.parametrize("source", [parameter, constant], ids=["parameter", "constant"])
@pytest.mark.parametrize("kind", SMALL)
def test_moves(kind: str, source: Callable[[Net, str], Port], emulated: str) -> None:
    check_moves(kind, source, emulated)
