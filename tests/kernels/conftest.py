"""The CUDA backend on the emulated device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ovgpu.core
from ovgpu.backends.cuda import CudaBackend, rt
from tests.emulator import blas_emu, cupy_emu


@pytest.fixture(scope="session")
def emulated() -> Iterator[str]:
    """A device name: the CUDA backend bound to the emulator."""
    rt.bind(cupy_emu, blas_emu)
    ovgpu.core.register_backend("EMULATED", CudaBackend)
    yield "EMULATED"
    rt.bind(None, None)


@pytest.fixture(scope="session")
def backend(emulated: str) -> CudaBackend:
    """A backend on the emulated device, to record kernels with."""
    return CudaBackend()
