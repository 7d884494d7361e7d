"""CUDA kernels: compiled by NVRTC at first use, cached on disk by `kernel_cache`, loaded once per device."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from ovgpu.backends.cuda import early_launch, errors, kernel_cache, rt, sources
from ovgpu.backends.cuda.kernel_cache import Binary

DEFAULT_SHARED_BYTES = 48 << 10  # of a block, static and dynamic, without opting in to more
FLAGS = ("-std=c++17",)
# By default, NVRTC contracts a product and a sum into a fused multiply-add, which rounds once. NO_FMA_FLAGS prevent it
# where the last bit decides (which element is read, which box overlaps): results must match other implementations.
NO_FMA_FLAGS = (*FLAGS, "--fmad=false")
NO_FMA_FILES = frozenset({"color.cu", "detectron.cu", "grid_sample.cu", "interpolate.cu", "nms.cu", "random.cu",
                          "regions.cu", "roi_pooling.cu"})
CACHED_KERNELS = 1 << 12  # `Kernel` objects of files, with and without a prelude


class Kernel:
    """A ``__global__`` function, called with grid, block and arguments.

    name      a C++ name expression (``softmax_rows<float, false, 4, 1>``), or the name of an ``extern "C"`` function
    where     the kernel as error messages call it
    exported  whether it is an ``extern "C"`` function
    flags     the compiler's flags
    cooperative  whether it is launched cooperatively: all its blocks run at the same time
    """

    def __init__(self, name: str, source: str, where: str, *, exported: bool = False, flags: tuple[str, ...] = FLAGS,
                 cooperative: bool = False) -> None:
        self.name, self.source, self.where = name, source, where
        self.exported, self.flags, self.cooperative = exported, flags, cooperative
        self._functions: dict[tuple[int, int], Any] = {}  # by the CuPy module in use and the device
        self._shared_bytes: dict[tuple[int, int], int] = {}  # dynamic, allowed so far; same keys

    def function(self) -> Any:
        """Return CuPy's function on the current device. OpError if the kernel does not compile."""
        cupy = rt.cupy()
        key = (id(cupy), cupy.cuda.get_device_id())
        found = self._functions.get(key)
        if found is None:
            found = self._functions[key] = self._find_or_compile(cupy)
        return found

    def key(self) -> str:
        """Return the key of the kernel's machine code for the current device; see `kernel_cache`."""
        return kernel_cache.key(self.source, self.name, self.flags, rt.cupy().cuda.Device().compute_capability)

    def binary(self) -> Binary:
        """Return the kernel's machine code for the current device, from the cache or compiled."""
        return kernel_cache.load(self.key()) or self._compile(rt.cupy())

    def _find_or_compile(self, cupy: Any) -> Any:
        cached = kernel_cache.load(self.key())
        if cached is not None:
            with suppress(cupy.cuda.driver.CUDADriverError):  # the driver may be older than the compiler
                return _load(cupy, cached)
        return _load(cupy, self._compile(cupy))

    def _compile(self, cupy: Any) -> Binary:
        with errors.compiling(self.where):
            code, symbols = compile(cupy, self.source, self.flags, () if self.exported else (self.name,))
        compiled = Binary(symbols.get(self.name, self.name), code)
        kernel_cache.save(self.key(), compiled)
        return compiled

    def prepare(self, shared: int) -> None:
        """Load the kernel for launches with ``shared`` bytes of dynamic shared memory. The limit never shrinks."""
        kernel_cache.mark_used(self)
        function, cuda = self.function(), rt.cupy().cuda
        key = (id(rt.cupy()), cuda.get_device_id())
        if shared > self._shared_bytes.get(key, 0):
            driver = cuda.driver
            static = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function.ptr)
            if static + shared > DEFAULT_SHARED_BYTES:
                driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
            self._shared_bytes[key] = shared

    def resident(self, threads: int, shared: int) -> int:
        """Return the number of blocks that run at the same time on the current device, if nothing else uses it.

        A block has ``threads`` threads and ``shared`` bytes of dynamic shared memory.
        """
        self.prepare(shared)
        cuda = rt.cupy().cuda
        blocks = cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(self.function().ptr, threads, shared)
        return int(blocks * cuda.Device().attributes["MultiProcessorCount"])

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_mem: int = 0,
                 stream: Any = None, early: bool = False) -> None:
        """Launch the kernel; if ``early``, it may begin before the launches before it have ended (`early_launch`)."""
        if not early or not early_launch.launch(self.function(), grid, block, args, shared_mem, stream):
            self.function()(grid, block, args, shared_mem, stream, self.cooperative)


@lru_cache(CACHED_KERNELS)
def of_file(file: str, expression: str, cooperative: bool = False, prelude: str = "") -> Kernel:
    """Return the kernel ``expression`` of a file of ``cuda_kernels``, with ``prelude`` put before its source."""
    return Kernel(expression, prelude + sources.source(file), f"cuda_kernels/{file}, {expression},",
                  flags=flags(file), cooperative=cooperative)


def flags(file: str) -> tuple[str, ...]:
    """Return the compiler's flags for a file of ``cuda_kernels``."""
    return NO_FMA_FLAGS if file in NO_FMA_FILES else FLAGS


def _load(cupy: Any, binary: Binary) -> Any:
    """Load a kernel as CuPy's function on the current device."""
    module = cupy.cuda.function.Module()
    module.load(binary.code)
    return module.get_function(binary.symbol)


def compile(cupy: Any, source: str, flags: Sequence[str], names: Sequence[str],
            log: Any = None) -> tuple[bytes, dict[str, str]]:
    """Return machine code for the current device, and the mangled name of each name expression in it.

    Raises CuPy's CompileException with NVRTC's log if the source is wrong; otherwise the log is written to ``log``.

    CuPy finds CUDA's headers. Its `RawModule` is not used, since it flushes denormal numbers to zero; OpenVINO does
    not.
    """
    options = cupy._core.core.assemble_cupy_compiler_options((*flags, f"-I{sources.folder()}"))
    code, symbols = cupy.cuda.compiler.compile_using_nvrtc(
        source, options, None, "kernel.cu", tuple(names), log, cache_in_memory=True)
    return code, symbols or {}
