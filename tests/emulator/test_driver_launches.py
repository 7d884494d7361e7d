"""Launches through the driver: what a kernel that begins early may touch before it waits, and clusters of blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend, driver_launch, rt
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.activation.activation import Relu
from ovgpu.ops.fused._product_mma import Input, launch
from ovgpu.types import Type
from tests.kernels.forms import ORDERS
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


def function(name: str, source: str = SOURCE) -> Any:
    folder = Path(__file__).parents[2] / "cuda_kernels"
    options = ("-std=c++17", f"-I{folder}")
    code, symbols = cupy_emu.cuda.compiler.compile_using_nvrtc(source, options, None, "k.cu", (name,))
    module = cupy_emu.cuda.function.Module()
    module.load(code)
    return module.get_function(symbols[name])


def run(wait: int, captured: bool) -> np.ndarray[Any, Any]:
    """Return 3 (2 x + 1) + 1 for x = 0, 1, .. by two launches, the second of which is early."""
    x, table = cupy_emu.asarray(np.arange(N, dtype=np.float32)), cupy_emu.asarray(np.ones(N, np.float32))
    middle, out = cupy_emu.empty((N,), np.float32), cupy_emu.empty((N,), np.float32)
    first, second = function(f"scale<{GOOD}>"), function(f"scale<{wait}>")
    stream, struct = cupy_emu.cuda.Stream(), np.zeros(1, np.dtype((np.void, 8)))

    def launches() -> None:
        for call, source, target, factor in ((first, x, middle, 2), (second, middle, out, 3)):
            arguments = source, table, target, np.float32(factor), np.int32(N), struct
            driver_launch.DriverLaunch(True)(call, (3,), (128,), arguments, 0, stream)

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
    assert driver_launch.begins_early(90) and not driver_launch.begins_early(89)
    monkeypatch.setenv(driver_launch.SWITCH, "0")
    assert not driver_launch.begins_early(90)
    monkeypatch.delenv(driver_launch.SWITCH)
    for version in (12020, 12030):
        monkeypatch.setattr(driver_emu, "cuDriverGetVersion", lambda v=version: (driver_emu.CUresult.CUDA_SUCCESS, v))
        assert driver_launch.begins_early(90) is (version == 12030)
    monkeypatch.delattr(cupy_emu, "driver")
    assert not driver_launch.begins_early(90)


def test_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that refuses once is not asked again: kernels are launched in order."""
    monkeypatch.setattr(driver_launch, "_refused", [])
    monkeypatch.setattr(driver_emu, "cuLaunchKernelEx", lambda *launch: (driver_emu.CUresult.CUDA_ERROR_INVALID_VALUE,))
    backend = CudaBackend()
    with backend.active():
        with pytest.warns(RuntimeWarning, match="CUDA_ERROR_INVALID_VALUE"):
            multiply(backend, packed(Type.u4, 40, 256), 1, (40, 2))
        multiply(backend, packed(Type.u4, 40, 256), 1, (40, 2))
    assert not driver_launch.begins_early(90)


def test_early_kernels_prefer_shared_memory() -> None:
    """Kernels that prefer other divisions of a multiprocessor's memory would not run on it at the same time."""
    stream, x = cupy_emu.cuda.Stream(), cupy_emu.zeros(128, np.float32)
    arguments = x, x, x, np.float32(1), np.int32(128), np.zeros(1, np.dtype((np.void, 8)))
    for early, wanted in ((False, -1), (True, 100)):
        call = function(f"scale<{GOOD}>")
        assert driver_launch.DriverLaunch(early)(call, (1,), (128,), arguments, 0, stream) is early
        assert call.carveout == wanted
    stream.synchronize()


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
        launcher.kernel("copy.cu", "copy_dense", (1,), (32,), (x, y, np.int64(y.nbytes)))
    assert ["driver" in call.keywords for call in launcher.calls] == [early, early, early, False]


# ---- clusters

EXCHANGE = """
#include "cluster.cuh"

// out = sums of the elements that blocks of a cluster have in x, and 1000 times the number of the cluster
template <int WAITS, int RANKS>
__global__ void exchange(const float* x, float* out, int blocks) {
  OVGPU_DYN_SHARED(uint4, shared);
  ExpectedStores* const stores = reinterpret_cast<ExpectedStores*>(shared);
  uint4* const received = shared + 1;
  const int own = threadIdx.x, at = blockIdx.x * blockDim.x + own;
  if (own == 0) stores->expect(blocks * blockDim.x * sizeof(uint4));
  arrive_at_cluster();
  if (WAITS & 1) wait_for_cluster();
  for (int to = 0; to < blocks + RANKS; to++) {
    stores->store(received + rank_in_cluster() * blockDim.x + own, make_uint4(__float_as_uint(x[at]), 0, 0, 0), to);
  }
  if (WAITS & 2) stores->wait();
  float sum = 1000.f * number_of_cluster();
  for (int from = 0; from < blocks; from++) sum += __uint_as_float(received[from * blockDim.x + own].x);
  out[at] = sum;
}
"""
THREADS, CLUSTERS = 64, 3


def exchanged(cluster: int, waits: int = 3, ranks: int = 0, blocks: int = 0) -> np.ndarray[Any, Any]:
    """Return the results of clusters of so many blocks; ``blocks``: of the launch, by default three clusters."""
    x = cupy_emu.asarray(np.arange(CLUSTERS * cluster * THREADS, dtype=np.float32))
    out, stream = cupy_emu.empty(x.shape, np.float32), cupy_emu.cuda.Stream()
    run = function(f"exchange<{waits}, {ranks}>", EXCHANGE)
    grid = (blocks or CLUSTERS * cluster,)
    shared = 16 + 16 * cluster * THREADS
    driver_launch.DriverLaunch(False, cluster)(run, grid, (THREADS,), (x, out, np.int32(cluster)), shared, stream)
    stream.synchronize()
    return out.get()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("cluster", [2, 5, 8, 16])
def test_clusters(cluster: int, order: Any) -> None:
    with cupy_emu.thread_order(order):
        x = np.arange(CLUSTERS * cluster * THREADS, dtype=np.float32).reshape(CLUSTERS, cluster, THREADS)
        wanted = x.sum(1, keepdims=True) + 1000 * np.arange(CLUSTERS).reshape(-1, 1, 1)
        np.testing.assert_array_equal(exchanged(cluster).reshape(x.shape), np.broadcast_to(wanted, x.shape))


@pytest.mark.parametrize(("waits", "ranks", "message"), [
    (2, 0, "waits for what no thread of the cluster does"), (3, 1, "block 2 of a cluster of 2"),
    (1, 0, "shared memory of a block that has ended")])
def test_faulty_clusters(waits: int, ranks: int, message: str) -> None:
    """A block stores before another one expects it, to one that there is not, or to one that does not wait."""
    with pytest.raises(CUDARuntimeError, match=message):
        exchanged(2, waits, ranks)


@pytest.mark.parametrize(("cluster", "blocks"), [(2, 5), (32, 96)])
def test_grids_of_no_clusters(cluster: int, blocks: int) -> None:
    with pytest.raises(cupy_emu.cuda.driver.CUDADriverError, match="912"):
        exchanged(cluster, blocks=blocks)


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
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    extents = attribute.value.clusterDim
    extents.x, extents.y, extents.z = 5, 1, 1
    assert bytes(attribute.value.pad)[:12] == np.array([5, 1, 1], np.uint32).tobytes()
    assert int(attribute.id) == driver_emu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    assert callable(driver.cuFuncSetAttribute)
    for name in ("CUfunction_attribute", "CUshared_carveout"):
        assert all(int(getattr(getattr(driver, name), member.name)) == member for member in getattr(driver_emu, name))
    assert int(driver.CUfunction(7)) == 7 and driver.CUresult.CUDA_SUCCESS == driver_emu.CUresult.CUDA_SUCCESS
