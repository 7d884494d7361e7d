"""The CUDA backend on the emulated device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ovgpu import devices
from ovgpu.backends.cuda import CudaBackend, rt
from tests.emulator import blas_emu, cupy_emu


@pytest.fixture(scope="module")
def emulated() -> Iterator[str]:
    """A device name: the CUDA backend bound to the emulator. Other tests do not see the device."""
    rt.bind(cupy_emu, blas_emu)
    devices.register_backend("EMULATED", CudaBackend)
    yield "EMULATED"
    devices.unregister_backend("EMULATED")
    rt.bind(None, None)


@pytest.fixture(scope="module")
def backend(emulated: str) -> CudaBackend:
    """A backend on the emulated device, to record kernels with."""
    return CudaBackend()
