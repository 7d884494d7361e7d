"""What tests of the runtime share."""
from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def freeze_objects() -> Iterator[None]:
    """Spare the garbage collector what earlier tests of this process hold: tests of leaks collect many times."""
    gc.collect()
    gc.freeze()
    yield
