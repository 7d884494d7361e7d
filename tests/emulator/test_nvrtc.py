"""The NVRTC gate: real compilation for each architecture without a GPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from . import cupy_emu as cp
from . import nvrtc
from .test_kernels import CODE


@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_the_same_source_compiles_for_devices(architecture: str) -> None:
    names = ("softmax<float>", "softmax<__half>", "softmax<__nv_bfloat16>")
    cubin = nvrtc.compile_source(CODE, architecture, names)
    assert cubin.code[:4] == b"\x7fELF"
    assert set(cubin.lowered) == set(names)
    for kernel in (*cubin.lowered.values(), "matmul"):
        usage = cubin.usage[kernel]
        assert 0 < usage.registers <= 255 and usage.spill_stores == usage.spill_loads == 0
    assert cubin.usage["matmul"].shared >= 2 * 16 * 17 * 4


def test_common_header_compiles() -> None:
    code = """#include "common.cuh"
    extern "C" __global__ void kernel(unsigned* arrived, __half* y) {
      OVGPU_DYN_SHARED(float, row);
      row[threadIdx.x] = 1.f;
      ovgpu_grid_barrier(arrived, 0);
      y[threadIdx.x] = __float2half(row[threadIdx.x]);
    }"""
    assert "kernel" in nvrtc.compile_source(code).usage


def test_what_a_device_rejects() -> None:
    """g++ knows INFINITY, NVRTC does not."""
    with pytest.raises(nvrtc.NvrtcError, match=r'broken.cu does not compile for sm_90:\n.*"INFINITY" is undefined'):
        nvrtc.compile_source('extern "C" __global__ void kernel(float* y) { *y = INFINITY; }', name="broken.cu")
    with pytest.raises(nvrtc.NvrtcError, match="missing"):
        nvrtc.compile_source("__global__ void f() {}", name_expressions=("missing<int>",))


def test_usage_of_a_log() -> None:
    log = """ptxas info    : Compiling entry function 'first' for 'sm_80'
ptxas info    : Function properties for first
    24 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 128 bytes smem, 368 bytes cmem[0]
ptxas info    : Compiling entry function 'second' for 'sm_80'
ptxas info    : Used 8 registers, 356 bytes cmem[0]
"""
    assert nvrtc.parse_usage(log) == {
        "first": nvrtc.Usage(40, spill_stores=4, spill_loads=8, stack=24, shared=128),
        "second": nvrtc.Usage(8),
    }


@pytest.mark.drawn(4)
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_elementwise_kernels_compile_for_devices(architecture: str) -> None:
    pytest.importorskip("cupy", reason="needs the headers of the installed CuPy")
    kernel = cp.ElementwiseKernel(
        "T x, raw U table, float32 a",
        "T y, bool b",
        "y = T(erf(float(x)) * a + table[i % 2]); b = isnan(x)",
        "mixed",
    )
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        x = cp.zeros((4, 6), dtype)
        kernel(x[:, ::2], cp.zeros(2, np.int32), 2)
    assert len(kernel.sources) == 3
    for source in kernel.sources:
        assert "mixed" in nvrtc.compile_elementwise(source, architecture).usage


def test_elementwise_kernels_that_a_device_rejects() -> None:
    pytest.importorskip("cupy", reason="needs the headers of the installed CuPy")
    kernel = cp.ElementwiseKernel("T x", "T y", "y = x < 0 ? INFINITY : x", "broken")
    kernel(cp.zeros(3, np.float32))
    with pytest.raises(nvrtc.NvrtcError, match='"INFINITY" is undefined'):
        nvrtc.compile_elementwise(kernel.sources[0])
