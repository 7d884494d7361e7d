"""Translation of the exceptions of CUDA and its libraries into ovgpu's."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from ovgpu.backends.cuda import current, kernel_cache, rt
from ovgpu.backends.cuda.kernel_cache import KernelStore
from ovgpu.errors import DeviceError, OpError

# Numbers of cudaError_t and CUresult, which agree.
MEMORY_ALLOCATION = 2
# After one of these, every CUDA call of the process fails: an uncorrectable error of memory or NVLink, illegal address,
# timeout, destroyed context, assertion, hardware stack, illegal instruction, misaligned address, invalid address space,
# invalid program counter, launch failure.
STICKY = {214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719}
MAX_LOG_LINES = 12  # of a compiler's log in an error message


class OutOfMemory(DeviceError, MemoryError):
    """There is not enough memory on the device."""


def explained(error: BaseException) -> str | None:
    """Return an error message for an exception of CUDA's libraries, None for any other."""
    cuda = rt.cupy().cuda
    status = getattr(error, "status", None)
    of_cuda = isinstance(error, (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError))
    if isinstance(error, cuda.memory.OutOfMemoryError) or (of_cuda and status == MEMORY_ALLOCATION):
        return out_of_memory(str(error))
    if isinstance(error, cuda.compiler.CompileException):
        return f"a kernel does not compile:\n{_log(error)}"
    if of_cuda and status in STICKY:
        return (
            f"the device failed: {error}. This process cannot use CUDA any more, it has to be started anew; with "
            "CUDA_LAUNCH_BLOCKING=1 and OVGPU_DEBUG=2 the step named is the one that fails"
        )
    if of_cuda:
        return f"CUDA refused: {error}"
    if type(error).__name__ in ("cuBLASError", "cuBLASLtError"):  # by name: their modules are optional
        return f"cuBLAS refused: {error}"
    if type(error).__name__ == "CuFFTError":
        return f"cuFFT refused: {error}"
    return None


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise the block's CUDA errors as DeviceError, or as OutOfMemory if memory is lacking."""
    try:
        yield
    except Exception as e:
        _raise_translated(e)
        raise


def _raise_translated(error: BaseException) -> None:
    """Raise the `_translation` of an error, if it has one."""
    translation = _translation(error)
    try:
        if translation is not None:
            raise translation from error
    finally:
        del translation, error  # the traceback holds this frame, which would keep the error and all its arrays alive


def _translation(error: BaseException) -> DeviceError | None:
    text = explained(error)
    if text is None:
        return None
    return OutOfMemory(text) if text.startswith("out of memory") else DeviceError(text)


class Active:
    """Make a device and a stream current in this thread, so that CuPy allocates and computes on them in the block.

    Kernels of the block belong to the store ``kernels``; CUDA's errors are `translated`. It is no generator: from
    Python 3.13 on, contextlib keeps an error alive that a generator replaces, and with it all arrays of the frames that
    the error has passed.
    """

    __slots__ = ("_depth", "_device", "_kernels", "_store_depth", "_stream")

    def __init__(self, device: int, stream: Any, kernels: KernelStore) -> None:
        self._device, self._stream, self._kernels = device, stream, kernels

    def __enter__(self) -> None:
        self._depth, self._store_depth = current.depth(), kernel_cache.entered()
        try:
            current.switch(self._device, self._stream)
            kernel_cache.enter(self._kernels)
        except BaseException as e:
            self.__exit__(type(e), e, e.__traceback__)
            raise

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure: BaseException | None = None
        try:
            kernel_cache.leave(self._store_depth)
            try:
                current.restore(self._depth)
            except Exception as e:
                failure = e
            if error is not None:  # the first error is raised
                _raise_translated(error)
            elif failure is not None:
                _raise_translated(failure)
                raise failure
        finally:
            del error, failure, trace  # the traceback holds this frame


@contextlib.contextmanager
def compiling(kernel: str) -> Iterator[None]:
    """Raise the block's compile errors as OpError that names the kernel."""
    try:
        yield
    except rt.cupy().cuda.compiler.CompileException as e:
        raise OpError(f"{kernel} does not compile:\n{_log(e)}") from e


def _log(error: Exception) -> str:
    """Return the first lines of the compiler's log."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    more = [f"... and {len(lines) - MAX_LOG_LINES} lines more"] if len(lines) > MAX_LOG_LINES else []
    if any("cannot open source file" in line for line in lines):
        more.append(f"If it is one of CUDA's headers: {rt.INSTALL}")
    return "\n".join(lines[:MAX_LOG_LINES] + more)


def out_of_memory(message: str) -> str:
    """Return the text of an error: the requested size, or ``message``, and how much memory the device has."""
    asked = re.search(r"allocating ([\d,]+) bytes", message)
    text = f"{asked[1]} bytes were asked for" if asked else message
    with contextlib.suppress(Exception):
        free, total = rt.cupy().cuda.runtime.memGetInfo()
        reserved = rt.cupy().get_default_memory_pool().total_bytes()
        text += f", {free:,} of the device's {total:,} are free, {reserved:,} are held by this process"
    return f"out of memory: {text}"
