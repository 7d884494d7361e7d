"""Loading of kernels: once per device, with the shared memory that their launches need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend, kernels, rt
from ovgpu.backends.cuda.kernels import Kernel
from tests.emulator import cupy_emu as cp

FILL = (
    '#include "common.cuh"\nextern "C" __global__ void fill(float* out) { OVGPU_DYN_SHARED(float, values); '
    "values[threadIdx.x] = threadIdx.x; __syncthreads(); out[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x]; }"
)
LIMIT = 48 << 10


@pytest.fixture
def fill() -> Kernel:
    return Kernel("fill", FILL, "fill", exported=True)


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("static", "shared", "allowed"), [(0, LIMIT, 0), (64, LIMIT, LIMIT), (64, LIMIT - 64, 0), (0, LIMIT + 4, LIMIT + 4)]
)
def test_static_shared_memory_counts(
    static: int, shared: int, allowed: int, fill: Kernel, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cp.cuda.driver, "funcGetAttribute", lambda attribute, function: static)
    fill.prepare(shared)
    assert fill.function().max_shared == allowed


@pytest.mark.emulator
def test_the_shared_memory_limit_never_decreases(fill: Kernel, backend: CudaBackend) -> None:
    """A launch with more shared memory may have been recorded already."""
    for shared in (100 << 10, 60 << 10, 1 << 10):
        fill.prepare(shared)
        assert fill.function().max_shared == 100 << 10


def test_a_launch(fill: Kernel, backend: CudaBackend) -> None:
    out = cp.empty((32,), np.float32)
    fill.prepare(100 << 10)
    fill((1,), (32,), (out,), shared_mem=100 << 10, stream=backend.stream)
    backend.synchronize()
    np.testing.assert_array_equal(out.get(), np.arange(32)[::-1])


@pytest.mark.emulator
def test_each_device_has_its_own_function(fill: Kernel, backend: CudaBackend) -> None:
    with cp.devices(2):
        found: list[Any] = []
        for device in (0, 1, 0, 1):
            with cp.cuda.Device(device):
                found.append(fill.function())
    assert found[0] is found[2] is not found[1] is found[3]


def test_resident_blocks(fill: Kernel, backend: CudaBackend) -> None:
    """At least one block runs on each multiprocessor, and no more than the device holds."""
    processors = rt.cupy().cuda.Device().attributes["MultiProcessorCount"]
    assert processors <= fill.resident(1024, 0) <= 4 * processors


def test_exact_kernels_compile_without_contraction() -> None:
    """Products and sums of kernels whose last bits matter are rounded separately."""
    assert kernels.of_file("nms.cu", "name").code.flags == kernels.NO_FMA_FLAGS
    assert kernels.of_file("matmul.cu", "name").code.flags == kernels.FLAGS
