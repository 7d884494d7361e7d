"""What CUDA and its libraries raise, in ovgpu's words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from ovgpu.backends.cuda import kernel_cache, rt
from ovgpu.errors import DeviceError, OpError

OUT_OF_MEMORY = 2
# cudaError_t and CUresult, which agree: after one of these, every call of the process fails. An uncorrectable error
# of memory or NVLink; illegal address, timeout, destroyed context, assertion, hardware stack, illegal instruction,
# misaligned address, invalid address space, invalid program counter, launch failure.
STICKY = {214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719}
LINES = 12  # of a compiler's log


class OutOfMemory(DeviceError, MemoryError):
    """There is not enough memory on the device."""


def explained(error: BaseException) -> str | None:
    """What went wrong, if this is an exception of CUDA's libraries."""
    cuda = rt.cupy().cuda
    status = getattr(error, "status", None)
    of_cuda = isinstance(error, (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError))
    if isinstance(error, cuda.memory.OutOfMemoryError) or (of_cuda and status == OUT_OF_MEMORY):
        return out_of_memory(str(error))
    if isinstance(error, cuda.compiler.CompileException):
        return f"a kernel does not compile:\n{_log(error)}"
    if of_cuda and status in STICKY:
        return (f"the device failed: {error}. This process cannot use CUDA any more, it has to be started anew; with "
                "CUDA_LAUNCH_BLOCKING=1 and OVGPU_DEBUG=2 the step named is the one that fails")
    if of_cuda:
        return f"CUDA refused: {error}"
    if type(error).__name__ in ("cuBLASError", "cuBLASLtError"):  # of modules that need not be there
        return f"cuBLAS refused: {error}"
    if type(error).__name__ == "CuFFTError":
        return f"cuFFT refused: {error}"
    return None


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """What CUDA raises in the block becomes DeviceError, OutOfMemory where that is it."""
    try:
        yield
    except Exception as e:
        _raise_translated(e)
        raise


def _raise_translated(error: BaseException) -> None:
    """Raise the `_translation` of an error, if it has one."""
    found = _translation(error)
    try:
        if found is not None:
            raise found from error
    finally:
        del found, error  # this frame is in the traceback: it would keep the error, and that what was bound


def _translation(error: BaseException) -> DeviceError | None:
    text = explained(error)
    if text is None:
        return None
    return OutOfMemory(text) if text.startswith("out of memory") else DeviceError(text)


@contextlib.contextmanager
def active(device: Any, stream: Any, folder: str = "") -> Iterator[None]:
    """Within the block a device and a stream are this thread's current ones: what CuPy allocates and computes is
    theirs, and what it compiles is kept in ``folder``. What CUDA raises in it is `translated`."""
    error: BaseException | None = None
    folders = kernel_cache.entered()
    try:
        with device, stream:
            try:
                kernel_cache.enter(folder)
                yield
                kernel_cache.leave(folders)
            except BaseException as e:
                error = e
                raise
    except BaseException as e:
        kernel_cache.leave(folders)
        error = error or e  # leaving the device may fail as well: the first error counts
    try:
        if error is not None:
            _raise_translated(error)
            raise error
    finally:
        del error  # this frame is in its traceback


@contextlib.contextmanager
def compiling(kernel: str) -> Iterator[None]:
    """What the compiler says in the block becomes OpError that names the kernel."""
    try:
        yield
    except rt.cupy().cuda.compiler.CompileException as e:
        raise OpError(f"{kernel} does not compile:\n{_log(e)}") from e


def _log(error: Exception) -> str:
    """The first lines of what the compiler says."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    more = [f"... and {len(lines) - LINES} lines more"] if len(lines) > LINES else []
    if any("cannot open source file" in line for line in lines):
        more.append(f"If it is one of CUDA's headers: {rt.INSTALL}")
    return "\n".join(lines[:LINES] + more)


def out_of_memory(message: str) -> str:
    """Return the text of an error: CuPy's message, or another one, and how much memory the device has."""
    asked = re.search(r"allocating ([\d,]+) bytes", message)
    text = f"{asked[1]} bytes were asked for" if asked else message
    with contextlib.suppress(Exception):
        free, total = rt.cupy().cuda.runtime.memGetInfo()
        held = rt.cupy().get_default_memory_pool().total_bytes()
        text += f", {free:,} of the device's {total:,} are free, {held:,} are held by this process"
    return f"out of memory: {text}"
