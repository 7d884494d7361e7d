"""Launches that may begin before the ones before them have ended: what a kernel may touch before it waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend, early_launch, rt
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.activation.activation import Relu
from ovgpu.ops.fused._product_mma import Input, launch
from ovgpu.types import Type
from tests.kernels.test_product_mma import multiply, packed

from . import blas_emu, cupy_emu, driver_emu
from .state import CUDARuntimeError

SOURCE = """
#include "ptx.cuh"

// out = a x + table, where the kernel may read the table before it waits
template <int WAIT>
__global__ void scale(const float* x, const float* table, float* out, float a, int n, const int2 unused) {
  start_next_launch();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float value = WAIT == 1 && i < n ? a * x[i] : 0.f;
  const float t = i < n ? table[i] : 0.f;
  if (WAIT == 2 && i % 2) return;
  if (WAIT) wait_for_launches();
  if (WAIT != 1 && i < n) value = a * x[i];
  if (i < n) out[i] = value + t;
}
"""
GOOD, READS_EARLY, SOME_THREADS, NEVER = 3, 1, 2, 0
N = 300


@pytest.fixture(autouse=True)
def emulator() -> Any:
    with rt.replacing(cupy_emu, blas_emu, False):
        yield


def function(wait: int) -> Any:
    folder = Path(__file__).parents[2] / "cuda_kernels"
    name, options = f"scale<{wait}>", ("-std=c++17", f"-I{folder}")
    code, symbols = cupy_emu.cuda.compiler.compile_using_nvrtc(SOURCE, options, None, "k.cu", (name,))
    module = cupy_emu.cuda.function.Module()
    module.load(code)
    return module.get_function(symbols[name])


def run(wait: int, captured: bool) -> np.ndarray[Any, Any]:
    """Return 3 (2 x + 1) + 1 for x = 0, 1, .. by two launches, the second of which is early."""
    x, table = cupy_emu.asarray(np.arange(N, dtype=np.float32)), cupy_emu.asarray(np.ones(N, np.float32))
    middle, out = cupy_emu.empty((N,), np.float32), cupy_emu.empty((N,), np.float32)
    first, second = function(GOOD), function(wait)
    stream, struct = cupy_emu.cuda.Stream(), np.zeros(1, np.dtype((np.void, 8)))

    def launches() -> None:
        for call, source, target, factor in ((first, x, middle, 2), (second, middle, out, 3)):
            arguments = source, table, target, np.float32(factor), np.int32(N), struct
            early_launch.EarlyLaunch()(call, (3,), (128,), arguments, 0, stream)

    if captured:
        stream.begin_capture()
        launches()
        stream.end_capture().launch(stream)
    else:
        launches()
    stream.synchronize()
    return out.get()


@pytest.mark.parametrize("captured", [False, True])
def test_kernels_that_wait(captured: bool) -> None:
    for _ in range(2):  # at first, nothing but the middle array has been written
        np.testing.assert_array_equal(run(GOOD, captured), 6 * np.arange(N) + 4)


@pytest.mark.parametrize("captured", [False, True])
def test_reads_before_the_wait(captured: bool) -> None:
    assert np.isnan(run(READS_EARLY, captured)[:128]).all()


@pytest.mark.parametrize(("wait", "message"), [(NEVER, "does not wait"), (SOME_THREADS, "divergent")])
def test_kernels_that_do_not_wait(wait: int, message: str) -> None:
    with pytest.raises(CUDARuntimeError, match=message):
        run(wait, False)


def test_support(monkeypatch: pytest.MonkeyPatch) -> None:
    assert early_launch.is_supported(90) and not early_launch.is_supported(89)
    monkeypatch.setenv(early_launch.SWITCH, "0")
    assert not early_launch.is_supported(90)
    monkeypatch.delenv(early_launch.SWITCH)
    for version in (12020, 12030):
        monkeypatch.setattr(driver_emu, "cuDriverGetVersion", lambda v=version: (driver_emu.CUresult.CUDA_SUCCESS, v))
        assert early_launch.is_supported(90) is (version == 12030)
    monkeypatch.delattr(cupy_emu, "driver")
    assert not early_launch.is_supported(90)


def test_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that refuses once is not asked again: kernels are launched in order."""
    monkeypatch.setattr(early_launch, "_refused", [])
    monkeypatch.setattr(driver_emu, "cuLaunchKernelEx", lambda *launch: (driver_emu.CUresult.CUDA_ERROR_INVALID_VALUE,))
    backend = CudaBackend()
    with backend.active():
        with pytest.warns(RuntimeWarning, match="CUDA_ERROR_INVALID_VALUE"):
            multiply(backend, packed(Type.u4, 40, 256), 1, (40, 2))
        multiply(backend, packed(Type.u4, 40, 256), 1, (40, 2))
    assert not early_launch.is_supported(90)


@pytest.mark.parametrize(("capability", "early"), [(80, False), (89, False), (90, True), (120, True)])
def test_kernels_that_begin_early(capability: int, early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launcher, "capability", capability)
    backend = CudaBackend()
    with backend.active():
        launcher = Launcher(backend.stream, backend.blas)
        x, y = cupy_emu.zeros((1, 256), np.float16), cupy_emu.zeros((1, 40), np.float16)
        weights = [cupy_emu.zeros((40, 256), np.uint8), None, None]
        assert launch(launcher, packed(Type.u8, 40, 256), Input((x,)), y, weights)
        launcher.copy(x[:, :40], y)
        launcher.elementwise(Relu(), [y], y)
    assert ["early" in call.keywords for call in launcher.calls] == [early, False, early]


def test_names_are_those_of_the_bindings() -> None:
    """The arguments are packed for cuda.bindings.driver, whose objects take the same names."""
    from cuda.bindings import driver

    real, emulated = driver.CUlaunchConfig(), driver_emu.CUlaunchConfig()
    assert all(hasattr(real, name) for name in vars(emulated))
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    real.attrs, real.numAttrs, real.hStream = [attribute], 1, 5
    assert real.attrs[0].value.programmaticStreamSerializationAllowed == 1 and int(real.hStream) == 5
    assert int(attribute.id) == driver_emu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert int(driver.CUfunction(7)) == 7 and driver.CUresult.CUDA_SUCCESS == driver_emu.CUresult.CUDA_SUCCESS
