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
from .isolation import call
from .state import LANDINGS, CUDARuntimeError

SOURCE = """
#include "ptx.cuh"

enum Access { GOOD, READS, WRITES, SOME_THREADS, NEVER, LAST_BLOCK };

// out = a x + table, where the kernel may read the table before it waits
template <Access ACCESS>
__global__ void scale(const float* x, const float* table, float* out, float a, int n, const int2 unused) {
  start_next_launch();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const bool reads = ACCESS == READS || (ACCESS == LAST_BLOCK && blockIdx.x == gridDim.x - 1);
  float value = reads && i < n ? a * x[i] : 0.f;
  const float t = i < n ? table[i] : 0.f;
  if (ACCESS == SOME_THREADS && i % 2) return;
  if (ACCESS == WRITES && i < n) out[i] = 0.f;
  if (ACCESS != NEVER) wait_for_launches();
  if (i < n && ACCESS != NEVER) out[i] = (reads ? value : a * x[i]) + t;
}
"""
N = 300


@pytest.fixture(autouse=True)
def emulator() -> Any:
    with rt.replacing(cupy_emu, blas_emu, False):
        yield


def function(name: str, source: str = SOURCE) -> Any:
    folder = Path(__file__).parents[2] / "cuda_kernels"
    options = ("-std=c++17", f"-I{folder}")
    names = () if 'extern "C"' in source else (name,)
    code, symbols = cupy_emu.cuda.compiler.compile_using_nvrtc(source, options, None, "k.cu", names)
    module = cupy_emu.cuda.function.Module()
    module.load(code)
    return module.get_function((symbols or {}).get(name, name))


def early(name: str, x: Any, table: Any, out: Any, factor: float, stream: Any) -> None:
    """Launch a kernel early that computes ``factor x + table``."""
    arguments = x, table, out, np.float32(factor), np.int32(N), np.zeros(1, np.dtype((np.void, 8)))
    driver_launch.DriverLaunch(True)(function(f"scale<{name}>"), (3,), (128,), arguments, 0, stream)


def numbers() -> Any:
    return cupy_emu.asarray(np.arange(N, dtype=np.float32))


def run(access: str, captured: bool = False, target: str = "out") -> np.ndarray[Any, Any]:
    """Return 3 (2 x + 1) + 1 for x = 0, 1, .. by two launches, the second of which may access memory before it waits.
    It writes to ``target``: "out", "middle" in place, "x" or "table"."""
    arrays = {
        "x": numbers(),
        "table": cupy_emu.asarray(np.ones(N, np.float32)),
        "middle": cupy_emu.empty((N,), np.float32),
        "out": cupy_emu.empty((N,), np.float32),
    }
    stream = cupy_emu.cuda.Stream()
    function("scale<GOOD>"), function(f"scale<{access}>")

    def launches() -> None:
        early("GOOD", arrays["x"], arrays["table"], arrays["middle"], 2, stream)
        early(access, arrays["middle"], arrays["table"], arrays[target], 3, stream)

    if captured:
        stream.begin_capture()
        launches()
        stream.end_capture().launch(stream)
    else:
        launches()
    stream.synchronize()
    return arrays[target].get()  # type: ignore[no-any-return]


@pytest.mark.parametrize("target", ["out", "middle", "x"])
@pytest.mark.parametrize("captured", [False, True])
def test_kernels_that_wait(captured: bool, target: str) -> None:
    for _ in range(2):  # at first, nothing but the middle array has been written
        np.testing.assert_array_equal(run("GOOD", captured, target), 6 * np.arange(N) + 4)


def raised(function: Any, *arguments: Any) -> str:
    """Return the error that a function raises in a separate process, which a fault of a kernel cannot harm."""
    found = call(function, *arguments)
    assert found.kind == "raised", found
    return str(found.value)


def run_in_order(access: str, captured: bool, target: str, order: Any) -> None:
    with rt.replacing(cupy_emu, blas_emu, False), cupy_emu.thread_order(order):
        run(access, captured, target)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("access", "target", "message"),
    [
        ("READS", "out", "write"),
        ("LAST_BLOCK", "out", "write"),  # what the launch before writes
        ("WRITES", "middle", "write"),
        ("WRITES", "x", "read"),
        ("WRITES", "table", "read"),  # what the launch before reads
    ],
)
def test_accesses_before_the_wait(access: str, target: str, message: str, order: Any) -> None:
    for captured in (False, True):
        text = raised(run_in_order, access, captured, target, order)
        assert f"before the wait for earlier launches, which may still {message} this memory" in text


def test_writes_before_the_wait_to_memory_that_nothing_accesses() -> None:
    np.testing.assert_array_equal(run("WRITES"), 6 * np.arange(N) + 4)


def test_reads_before_the_wait_of_memory_that_is_only_read() -> None:
    """The second kernel reads x before it waits, as the first may still do."""
    x, table, stream = numbers(), cupy_emu.zeros(N, np.float32), cupy_emu.cuda.Stream()
    outs = [cupy_emu.empty((N,), np.float32) for _ in range(2)]
    for out in outs:
        early("READS", x, table, out, 2, stream)
    np.testing.assert_array_equal(outs[1].get(), 2 * np.arange(N))


@pytest.mark.parametrize("work", ["elementwise", "library", "launch"])
def test_results_of_other_kernels(work: str) -> None:
    """Kernels of libraries and of CuPy begin when all before them have ended, but may be in flight themselves when an
    early launch begins."""
    assert "before the wait for earlier launches" in raised(read_results, work)


def test_results_of_copies() -> None:
    """A copy has ended when an early launch begins."""
    np.testing.assert_array_equal(read_results("copy"), 2 * np.arange(N))


def read_results(work: str) -> np.ndarray[Any, Any]:
    """Return 2 x for x = 0, 1, .., where an early launch reads x, the result of some work, before it waits."""
    with rt.replacing(cupy_emu, blas_emu, False):
        return _read_results(work)


def _read_results(work: str) -> np.ndarray[Any, Any]:
    x, y, table = numbers(), numbers(), cupy_emu.zeros(N, np.float32)
    stream = cupy_emu.cuda.Stream()
    with stream:
        early("GOOD", x, table, y, 2, stream)
        if work == "copy":
            y.data.copy_from_device_async(x.data, x.nbytes, stream)
        elif work == "elementwise":
            cupy_emu.add(x, x, out=y)
        elif work == "library":
            backend = CudaBackend()
            backend.stream.synchronize()
            with backend.active():
                launcher = Launcher(backend.stream, backend.blas)
                assert launcher.gemm(x[:256].reshape(16, 16), x[:256].reshape(16, 16), y[:256].reshape(16, 16))
                for recorded in launcher.calls:
                    recorded()
        else:
            arguments = x, table, y, np.float32(1), np.int32(N), np.zeros(1, "V8")
            function("scale<GOOD>")((3,), (128,), arguments, 0, stream)
        out = cupy_emu.empty((N,), np.float32)
        early("READS", y, table, out, 2, stream)
        return out.get()  # type: ignore[no-any-return]


STRUCTS = """
#include "ptx.cuh"
struct Target { int number; float* out; };
extern "C" __global__ void write(Target target) { target.out[threadIdx.x] = 2.f * threadIdx.x; }
extern "C" __global__ void reverse(const float* x, float* out) {
  OVGPU_SHARED(float, staged, [64]);
  staged[threadIdx.x] = threadIdx.x;
  wait_for_launches();
  out[threadIdx.x] = staged[63 - threadIdx.x] + x[threadIdx.x];
}
"""


def written_through_a_struct(order: Any = "ascending") -> np.ndarray[Any, Any]:
    """Return 2 x + 1, where a launch writes 2 x through a pointer in a struct, and an early one reads it too early."""
    with rt.replacing(cupy_emu, blas_emu, False):
        x, table, out = cupy_emu.zeros(N, np.float32), cupy_emu.zeros(N, np.float32), cupy_emu.zeros(N, np.float32)
        stream = cupy_emu.cuda.Stream()
        target = np.array([(0, x.data.ptr)], np.dtype([("number", "i4"), ("out", "u8")], align=True))
        function("write", STRUCTS)((1,), (64,), (target.view(np.void),), 0, stream)
        early("READS", x, table, out, 1, stream)
        return out.get()  # type: ignore[no-any-return]


def test_pointers_in_structs() -> None:
    assert "before the wait for earlier launches" in raised(written_through_a_struct)


def test_a_wait_is_no_barrier() -> None:
    """A kernel that takes the wait for a barrier of its block fails where the launches before it have ended."""
    x, y, stream = cupy_emu.zeros(N, np.float32), cupy_emu.zeros(N, np.float32), cupy_emu.cuda.Stream()
    launch = driver_launch.DriverLaunch(True)
    early("GOOD", y, y, x, 1, stream)
    with cupy_emu.landing("late"):
        launch(function("reverse", STRUCTS), (1,), (64,), (x, y), 0, stream)
    np.testing.assert_array_equal(y.get()[:64], np.arange(64)[::-1])
    with cupy_emu.landing("early"):
        launch(function("reverse", STRUCTS), (1,), (64,), (x, y), 0, stream)
    assert not np.array_equal(y.get()[:64], np.arange(64)[::-1])


def test_kernels_that_do_not_wait() -> None:
    """Launches after one that does not wait would not wait for those before it."""
    with pytest.raises(CUDARuntimeError, match="does not wait for the launches before it"):
        run("NEVER")
    with cupy_emu.landing("late"), pytest.raises(CUDARuntimeError, match="divergent"):
        run("SOME_THREADS")


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


@pytest.mark.parametrize(("status", "everywhere"), [("INVALID_VALUE", False), ("NOT_SUPPORTED", True)])
def test_refusals(status: str, everywhere: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An early launch that the driver refuses is launched in order from then on. Without support, so are all others."""
    monkeypatch.setattr(driver_launch, "_in_order", set())
    monkeypatch.setattr(driver_launch, "_unsupported", [])
    launch, refused = driver_emu.cuLaunchKernelEx, []

    def refusing(config: Any, function: int, *rest: Any) -> Any:
        early = any(int(a.id) == 6 for a in config.attrs)
        if early and (not refused or function in refused):
            refused.append(function)
            return (driver_emu.CUresult[f"CUDA_ERROR_{status}"],)
        return launch(config, function, *rest)

    monkeypatch.setattr(driver_emu, "cuLaunchKernelEx", refusing)
    backend = CudaBackend()
    with backend.active():
        with pytest.warns(RuntimeWarning, match=f"CUDA_ERROR_{status}"):
            multiply(backend, packed(Type.u4, 40, 256), 1, (40, 2))
        multiply(backend, packed(Type.u4, 40, 256), 1, (40, 2))
        multiply(backend, packed(Type.u8, 40, 256), 1, (40, 2))
    assert len(refused) == 1 and driver_launch.begins_early(90) is not everywhere


def test_early_kernels_prefer_shared_memory() -> None:
    """Kernels that prefer other divisions of a multiprocessor's memory would not run on it at the same time."""
    stream, x = cupy_emu.cuda.Stream(), cupy_emu.zeros(128, np.float32)
    arguments = x, x, x, np.float32(1), np.int32(128), np.zeros(1, np.dtype((np.void, 8)))
    for early, wanted in ((False, -1), (True, 100)):
        call = function("scale<GOOD>")
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
template <int WAITS, int RANKS, SharedMemory MEMORY, bool COPIES>
__global__ void exchange(const float* x, float* out, int blocks) {
  OVGPU_DYN_SHARED(uint4, shared);
  ExpectedStores* const stores = reinterpret_cast<ExpectedStores*>(shared);
  uint4* const received = shared + 1;
  const int own = threadIdx.x, at = blockIdx.x * blockDim.x + own;
  if (COPIES) copy_async(received + own, x + blockIdx.x * blockDim.x, true);
  if (COPIES && WAITS & 4) wait_copies();
  __syncthreads();
  if (own == 0) stores->expect(blocks * blockDim.x * sizeof(uint4));
  if (!(WAITS & 8)) arrive_at_cluster<MEMORY>();
  if (WAITS & 16) arrive_at_cluster<MEMORY>();
  if (WAITS & 32) stores->expect(blocks * blockDim.x * sizeof(uint4));
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


def exchanged(
    cluster: int, waits: int = 3, ranks: int = 0, blocks: int = 0, memory: str = "UNTOUCHED", copies: bool = False
) -> np.ndarray[Any, Any]:
    """Return the results of clusters of so many blocks; ``blocks``: of the launch, by default three clusters."""
    x = cupy_emu.asarray(np.arange(CLUSTERS * cluster * THREADS, dtype=np.float32))
    out, stream = cupy_emu.empty(x.shape, np.float32), cupy_emu.cuda.Stream()
    run = function(f"exchange<{waits}, {ranks}, {memory}, {str(copies).lower()}>", EXCHANGE)
    grid = (blocks or CLUSTERS * cluster,)
    shared = 16 + 16 * cluster * THREADS
    launch = driver_launch.DriverLaunch(False, driver_launch.Clusters(cluster))
    launch(run, grid, (THREADS,), (x, out, np.int32(cluster)), shared, stream)
    stream.synchronize()
    return out.get()


def sums(cluster: int) -> np.ndarray[Any, Any]:
    x = np.arange(CLUSTERS * cluster * THREADS, dtype=np.float32).reshape(CLUSTERS, cluster, THREADS)
    wanted = x.sum(1, keepdims=True) + 1000 * np.arange(CLUSTERS).reshape(-1, 1, 1)
    return np.broadcast_to(wanted, x.shape).reshape(-1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("landing", LANDINGS)
@pytest.mark.parametrize("cluster", [2, 5, 8, 16])
def test_clusters(cluster: int, landing: Any, order: Any) -> None:
    with cupy_emu.thread_order(order), cupy_emu.landing(landing):
        np.testing.assert_array_equal(exchanged(cluster), sums(cluster))
        np.testing.assert_array_equal(exchanged(cluster, 7, memory="REUSED", copies=True), sums(cluster))


@pytest.mark.parametrize(
    ("waits", "ranks", "message"),
    [
        (2, 0, "does not expect it yet"),
        (3, 1, "block 2 of a cluster of 2"),
        (1, 0, "block ends while a store"),
        (3 + 8, 0, "without an arrival"),
        (3 + 16, 0, "a second arrival"),
        (3 + 32, 0, "expected after the arrival"),
    ],
)
def test_faulty_clusters(waits: int, ranks: int, message: str) -> None:
    """A block stores before another one expects it, to one that there is not, or to one that does not wait. A thread
    waits for the cluster without arriving, arrives twice, or expects stores after it has arrived."""
    with cupy_emu.landing("late"), pytest.raises(CUDARuntimeError, match=message):
        exchanged(2, waits, ranks)


def test_stores_to_memory_that_has_been_used() -> None:
    with pytest.raises(CUDARuntimeError, match="block 0 of the cluster used before an arrival that releases nothing"):
        exchanged(2, 7, copies=True)


@pytest.mark.parametrize("order", ORDERS)
def test_stores_to_memory_that_copies_are_on_their_way_to(order: Any) -> None:
    """This is noticed unless copies land at once. Their results would overwrite the stores."""
    with cupy_emu.thread_order(order):
        for landing in ("late", 2, 3):
            with cupy_emu.landing(landing), pytest.raises(CUDARuntimeError, match=r"was on its way|releases nothing"):
                exchanged(2, 3, memory="REUSED", copies=True)


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
    assert "(func, CUlaunchConfig config" in driver.cuOccupancyMaxActiveClusters.__doc__
    assert int(driver.CUfunction(7)) == 7 and driver.CUresult.CUDA_SUCCESS == driver_emu.CUresult.CUDA_SUCCESS
