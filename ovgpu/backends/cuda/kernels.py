"""CUDA kernels: compiled at first use by `compiler`, cached on disk by `kernel_cache`, loaded once per device."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from ovgpu.backends.cuda import compiler, driver_launch, errors, kernel_cache, rt, sources
from ovgpu.backends.cuda.compiler import Code, Target
from ovgpu.backends.cuda.driver_launch import DriverLaunch
from ovgpu.backends.cuda.kernel_cache import Binary

if TYPE_CHECKING:
    from concurrent.futures import Future

DEFAULT_SHARED_BYTES = 48 << 10  # per block, static and dynamic; a kernel must opt in to more
FLAGS = ("-std=c++17",)
# By default, NVRTC contracts a product and a sum into a fused multiply-add, which rounds once. NO_FMA_FLAGS prevent it
# where the last bit decides (which element is read, which box overlaps): results must match other implementations.
NO_FMA_FLAGS = (*FLAGS, "--fmad=false")
NO_FMA_FILES = frozenset(
    {
        "color.cu",
        "detectron.cu",
        "grid_sample.cu",
        "implicit_gemm.cu",
        "interpolate.cu",
        "nms.cu",
        "random.cu",
        "regions.cu",
        "roi_pooling.cu",
        "sampling.cu",
    }
)
CLUSTERS = (16, 8, 4, 2)  # sizes of clusters, in blocks
CACHED_KERNELS = 1 << 12  # maximum number of cached `Kernel` objects of files, and of cached modules
_refused: dict[tuple[str, int, int], None] = {}  # see `refused_clusters`
Device = tuple[int, int]  # the id of a CuPy module, which the emulator replaces, and a device's number


class Kernel:
    """A ``__global__`` function, called with grid, block and arguments.

    name      a C++ name expression (``softmax_rows<float, false, 4, 1>``), or the name of an ``extern "C"`` function
    where     the name of the kernel in error messages
    exported  whether it is an ``extern "C"`` function; see `compiler.Code`
    flags     the compiler's flags
    cooperative  whether it is launched cooperatively: all its blocks run at the same time
    """

    def __init__(
        self,
        name: str,
        source: str,
        where: str,
        *,
        exported: bool = False,
        flags: tuple[str, ...] = FLAGS,
        cooperative: bool = False,
    ) -> None:
        self.code = Code(source, name, flags, exported)
        self.name, self.where, self.cooperative = name, where, cooperative
        self._lock = threading.RLock()  # held while the next ones change
        self._compiling: dict[Device, Future[Binary]] = {}
        self._functions: dict[Device, Any] = {}
        self._shared_bytes: dict[Device, int] = {}  # of dynamic shared memory that the launches so far want
        self._allowed_bytes: dict[Device, int] = {}  # of dynamic shared memory that the driver allows
        self._clusters: dict[tuple[Device, int, int, int], bool] = {}  # by threads, shared memory, blocks: do they fit?

    def key(self) -> str:
        """Return the key of the kernel's machine code for the current device; see `kernel_cache`."""
        code = self.code
        return kernel_cache.key(code.source, code.name, code.flags, rt.cupy().cuda.Device().compute_capability)

    def binary(self) -> Binary:
        """Return the kernel's machine code for the current device, from the cache or compiled."""
        return kernel_cache.load(self.key(), kernel_cache.current()) or self._compiled(self._compile())

    def prepare(self, shared: int = 0) -> None:
        """Have the kernel compiled, if need be, for launches with ``shared`` bytes of dynamic shared memory.

        This does not wait for threads that compile; `function` does. The limit of shared memory never shrinks.
        Raises OpError if the kernel is already known not to compile.
        """
        kernel_cache.current().used[self] = None
        here = _here()
        if here in self._functions and shared <= self._allowed_bytes.get(here, 0):
            return
        with self._lock:
            self._shared_bytes[here] = max(shared, self._shared_bytes.get(here, 0))
            loaded = self._functions.get(here)
            if loaded is not None:
                self._allow(loaded, here)
                return
        compiling = self._start(here)
        if compiling is not None and compiling.done():
            self.function()

    def is_ready(self) -> bool:
        """Return whether `function` would not wait for a thread that compiles."""
        compiling = self._compiling.get(_here())
        return compiling is None or compiling.done()

    def finish(self) -> None:
        """Wait for a thread that compiles the kernel. `function` raises the error if it does not compile."""
        compiling = self._compiling.get(_here())
        if compiling is not None:
            compiling.exception()

    def function(self) -> Any:
        """Return CuPy's function on the current device. Raises OpError if the kernel does not compile."""
        here = _here()
        return self._functions.get(here) or self._wait(here)

    def _wait(self, here: Device) -> Any:
        """Load the kernel once it is compiled."""
        compiling = self._compiling.get(here) or self._start(here)
        if compiling is not None:
            try:
                self._load(self._compiled(compiling), here)
            finally:
                self._compiling.pop(here, None)  # if it has not compiled, the next call tries again
        return self._functions[here]

    def _start(self, here: Device) -> Future[Binary] | None:
        """Have the kernel compiled, or load it from the cache and return None."""
        with self._lock:
            compiling = self._compiling.get(here)
            if compiling is not None or here in self._functions:  # another thread was faster
                return compiling
            cached = kernel_cache.load(self.key(), kernel_cache.current())
            if cached is not None:
                with suppress(rt.cupy().cuda.driver.CUDADriverError):  # the driver may be older than the compiler
                    self._load(cached, here)
                    return None
            compiling = self._compiling[here] = self._compile()
            return compiling

    def _compile(self) -> Future[Binary]:
        store = kernel_cache.current()
        target = Target(rt.cupy(), rt.cupy().cuda.get_device_id(), store)
        return compiler.queue.submit(self.code, self.key(), target, store.threads or compiler.default_threads())

    def _compiled(self, compiling: Future[Binary]) -> Binary:
        with errors.compiling(self.where):
            return compiling.result()

    def _load(self, binary: Binary, here: Device) -> None:
        with self._lock:
            if here not in self._functions:  # another thread may have waited as well
                function = _module(rt.cupy(), here[1], binary.code).get_function(binary.symbol)
                self._allow(function, here)
                self._functions[here] = function

    def _allow(self, function: Any, here: Device) -> None:
        """Allow launches with the dynamic shared memory that is wanted."""
        shared = self._shared_bytes.get(here, 0)
        if shared > self._allowed_bytes.get(here, 0):
            driver = rt.cupy().cuda.driver
            static = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function.ptr)
            if static + shared > DEFAULT_SHARED_BYTES:
                driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
            self._allowed_bytes[here] = shared

    def resident(self, threads: int, shared: int) -> int:
        """Return the number of blocks that run at the same time on the current device, if nothing else uses it.

        A block has ``threads`` threads and ``shared`` bytes of dynamic shared memory.
        """
        self.prepare(shared)
        function, cuda = self.function(), rt.cupy().cuda
        blocks = cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(function.ptr, threads, shared)
        return int(blocks * cuda.Device().attributes["MultiProcessorCount"])

    def fits_cluster(self, block: tuple[int, ...], shared: int, cluster: int) -> bool:
        """Return whether the current device can run clusters of ``cluster`` blocks, each with ``shared`` bytes of
        dynamic shared memory. The driver is asked once per device, kernel and size."""
        self.prepare(shared)
        function, asked = self.function(), (_here(), prod(block), shared, cluster)
        with self._lock:
            if asked not in self._clusters:
                self._clusters[asked] = driver_launch.fits(function, block, shared, cluster)
            return self._clusters[asked]

    def refuse_cluster(self, block: tuple[int, ...], shared: int, cluster: int) -> None:
        """Note that such clusters do not fit on the current device."""
        with self._lock:
            self._clusters[_here(), prod(block), shared, cluster] = False
        _refused[self.name, cluster, shared] = None

    @cached_property
    def label(self) -> str:
        """The name and a hash of the source: kernels of the same name may compute different things."""
        return f"{self.name} {zlib.crc32(self.code.source.encode()):08x}"

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        shared_mem: int = 0,
        stream: Any = None,
        driver: DriverLaunch | None = None,
    ) -> None:
        """Launch the kernel, if possible with the attributes that ``driver`` has."""
        function = self.function()
        if driver is None or not driver(function, grid, block, args, shared_mem, stream):
            function(grid, block, args, shared_mem, stream, self.cooperative)


def refused_clusters() -> list[tuple[str, int, int]]:
    """Return the kernels of this process whose clusters did not fit on the device: their names, the blocks of a
    cluster, and the bytes of dynamic shared memory of each block."""
    return sorted(list(_refused))


def nothing() -> Kernel:
    """Return a kernel that does nothing."""
    text = '#include "common.cuh"\nextern "C" __global__ void nothing() {}'
    return Kernel("nothing", text, "a kernel that does nothing", exported=True)


def largest_cluster() -> int:
    """Return the maximum number of blocks of a cluster on the current device, with a multiprocessor for each block."""
    return _largest_cluster(_here())


@lru_cache
def _largest_cluster(here: Device) -> int:
    kernel, limit = nothing(), int(rt.cupy().cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"])
    shared = limit // 2 + 1024  # bytes, more than half of a multiprocessor's: two blocks do not fit on one
    return next((blocks for blocks in CLUSTERS if kernel.fits_cluster((32,), shared, blocks)), 1)


@lru_cache(CACHED_KERNELS)
def of_file(file: str, expression: str, cooperative: bool = False, prelude: str = "") -> Kernel:
    """Return the kernel ``expression`` of a file of ``cuda_kernels``, with ``prelude`` put before its source."""
    return Kernel(
        expression,
        prelude + sources.source(file),
        f"cuda_kernels/{file}, {expression},",
        flags=flags(file),
        cooperative=cooperative,
    )


def flags(file: str) -> tuple[str, ...]:
    """Return the compiler's flags for a file of ``cuda_kernels``."""
    return NO_FMA_FLAGS if file in NO_FMA_FILES else FLAGS


def _here() -> Device:
    """Return the CuPy module in use and the current device."""
    cupy = rt.cupy()
    return id(cupy), cupy.cuda.get_device_id()


@lru_cache(CACHED_KERNELS)
def _module(cupy: Any, device: int, code: bytes) -> Any:
    """Load machine code on ``device``, which is current. Return CuPy's module."""
    module = cupy.cuda.function.Module()
    module.load(code)
    return module
