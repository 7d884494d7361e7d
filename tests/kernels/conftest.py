"""The CUDA backend on the emulated device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ovgpu as ov
from ovgpu.backends.cuda import CudaBackend


@pytest.fixture(scope="module")
def backend(emulated: str) -> Iterator[CudaBackend]:
    """Yield a backend on the emulated device that records kernels. Arrays are made and read on its stream."""
    found = CudaBackend()
    with found.active():
        yield found


@pytest.fixture
def compiled(emulated: str) -> Callable[[Any], Any]:
    """Return a function that compiles an IR for the emulated device."""
    core = ov.Core()
    return lambda ir: core.compile_model(core.read_model(*ir), emulated)
