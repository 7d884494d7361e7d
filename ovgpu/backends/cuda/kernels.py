"""CUDA kernels: compiled by NVRTC at first use, kept on disk by `kernel_cache`, loaded once per device."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from ovgpu.backends.cuda import errors, kernel_cache, rt, sources
from ovgpu.backends.cuda.kernel_cache import Binary

SHARED = 48 << 10  # bytes of shared memory, static and dynamic, that a block has without asking for more
FLAGS = ("-std=c++17",)
# NVRTC may join a product and the sum that follows it into one operation, which rounds once. It is told not to where
# the last bit decides (which element is meant, which box overlaps): results must be those of other implementations.
SEPARATE = (*FLAGS, "--fmad=false")
EXACT = frozenset({"color.cu", "detectron.cu", "grid_sample.cu", "interpolate.cu", "nms.cu", "random.cu", "regions.cu",
                   "roi_pooling.cu"})
CACHED = 1 << 12  # kernels of files, with and without a prelude


class Kernel:
    """A ``__global__`` function, called with grid, block and arguments.

    name      a C++ name expression (``softmax_rows<float, false, 4, 1>``), or the name of an ``extern "C"`` function
    where     which kernel it is, for messages
    exported  whether it is an ``extern "C"`` function
    flags     for the compiler
    """

    def __init__(self, name: str, source: str, where: str, *, exported: bool = False, flags: tuple[str, ...] = FLAGS,
                 cooperative: bool = False) -> None:
        self.name, self.source, self.where = name, source, where
        self.exported, self.flags, self.cooperative = exported, flags, cooperative
        self._functions: dict[tuple[int, int], Any] = {}  # by the module that is CuPy, and the device
        self._allowed: dict[tuple[int, int], int] = {}  # bytes of dynamic shared memory

    def function(self) -> Any:
        """CuPy's function on the current device. OpError if the kernel does not compile."""
        cupy = rt.cupy()
        key = (id(cupy), cupy.cuda.get_device_id())
        found = self._functions.get(key)
        if found is None:
            found = self._functions[key] = self._loaded(cupy)
        return found

    def _loaded(self, cupy: Any) -> Any:
        key = kernel_cache.key(self.source, self.name, self.flags, cupy.cuda.Device().compute_capability)
        kept = kernel_cache.load(key)
        if kept is not None:
            with suppress(cupy.cuda.driver.CUDADriverError):  # the driver may be older than what compiled it
                return _load(cupy, kept)
        with errors.compiling(self.where):
            code, symbols = compile(cupy, self.source, self.flags, () if self.exported else (self.name,))
        made = Binary(symbols.get(self.name, self.name), code)
        kernel_cache.save(key, made)
        return _load(cupy, made)

    def prepare(self, shared: int) -> None:
        """Load the kernel, and allow so many bytes of dynamic shared memory: never fewer than were allowed before."""
        function, cuda = self.function(), rt.cupy().cuda
        key = (id(rt.cupy()), cuda.get_device_id())
        if shared > self._allowed.get(key, 0):
            driver = cuda.driver
            static = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function.ptr)
            if static + shared > SHARED:
                driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
            self._allowed[key] = shared

    def resident(self, threads: int, shared: int) -> int:
        """Return the number of blocks that run at the same time on the current device, if nothing else uses it.

        ``threads`` and ``shared`` bytes of dynamic shared memory are those of a block.
        """
        self.prepare(shared)
        cuda = rt.cupy().cuda
        each = cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(self.function().ptr, threads, shared)
        return int(each * cuda.Device().attributes["MultiProcessorCount"])

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_mem: int = 0,
                 stream: Any = None) -> None:
        self.function()(grid, block, args, shared_mem, stream, self.cooperative)


@lru_cache(CACHED)
def of_file(file: str, expression: str, cooperative: bool = False, prelude: str = "") -> Kernel:
    """The kernel ``expression`` of a file of ``cuda_kernels`` behind a prelude."""
    return Kernel(expression, prelude + sources.source(file), f"cuda_kernels/{file}, {expression},",
                  flags=flags(file), cooperative=cooperative)


def flags(file: str) -> tuple[str, ...]:
    """The compiler's flags for a file of ``cuda_kernels``."""
    return SEPARATE if file in EXACT else FLAGS


def _load(cupy: Any, binary: Binary) -> Any:
    """CuPy's function of a kernel, on the current device."""
    module = cupy.cuda.function.Module()
    module.load(binary.code)
    return module.get_function(binary.symbol)


def compile(cupy: Any, source: str, flags: Sequence[str], names: Sequence[str],
            log: Any = None) -> tuple[bytes, dict[str, str]]:
    """Return machine code for the current device, and the mangled name of each name expression in it.

    Raises CuPy's CompileException with NVRTC's log if the source is wrong; otherwise the log is written to ``log``.

    CuPy knows where CUDA's headers are. Its own way to compile, `RawModule`, flushes denormal numbers to zero; OpenVINO
    keeps them.
    """
    options = cupy._core.core.assemble_cupy_compiler_options((*flags, f"-I{sources.folder()}"))
    code, symbols = cupy.cuda.compiler.compile_using_nvrtc(
        source, options, None, "kernel.cu", tuple(names), log, cache_in_memory=True)
    return code, symbols or {}
