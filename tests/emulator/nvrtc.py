"""Compilation of kernels by NVRTC to real cubins, without a GPU: code that a device rejects fails here.

The options, their order and the headers are those of the CUDA backend on a device: the backend's own function
compiles through the installed CuPy. Only the architecture is set here."""

from __future__ import annotations

import contextlib
import functools
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from ovgpu.backends.cuda import compiler, kernels

from .toolchain import HERE, cache_directory

KERNELS = HERE.parents[1] / "cuda_kernels"
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
AMPERE = ARCHITECTURES[1:]  # architectures that have the instructions of ptx.cuh
NEWEST = ("sm_90",)  # for tests of a few instances; the table of all instances covers each architecture


class NvrtcError(RuntimeError):
    """NVRTC is missing, or has rejected a kernel; the message holds its log."""


@dataclass(frozen=True)
class Usage:
    """Resource usage of one kernel, as ptxas reports it; spills, stack and shared memory in bytes."""

    registers: int
    spill_stores: int = 0
    spill_loads: int = 0
    stack: int = 0
    shared: int = 0


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture, the lowered name per name expression, and each kernel's resource usage."""

    architecture: str
    code: bytes
    log: str
    lowered: dict[str, str] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)  # by lowered name


def is_available() -> bool:
    try:
        _cupy()
    except NvrtcError:
        return False
    return True


def version() -> tuple[int, int]:
    """Return NVRTC's version. Raises NvrtcError if it is not installed."""
    major, minor = _cupy().cuda.nvrtc.getVersion()
    return major, minor


@functools.cache
def _cupy() -> Any:
    """Return the installed CuPy, after it has found NVRTC and CUDA's headers.

    Raises NvrtcError if CuPy or NVRTC is not installed."""
    try:
        import cupy

        headers = _bundled_headers(cupy.cuda.nvrtc.getVersion())
    except Exception as e:
        raise NvrtcError(f'NVRTC and CuPy are not installed: pip install ".[test]" ({e})') from e
    if headers:  # CuPy caches the folder that it finds
        with patch("cuda.pathfinder.find_nvidia_header_directory", lambda library: headers):
            cupy._core.core.assemble_cupy_compiler_options(())
    return cupy


def _bundled_headers(version: tuple[int, int]) -> str:
    """Return the folder of cuda_fp16.h and the other headers bundled with NVRTC since 13.3; "" if CuPy finds them."""
    from cuda.bindings import nvrtc

    if not hasattr(nvrtc, "nvrtcInstallBundledHeaders") or version < (13, 3):
        return ""
    folder = cache_directory() / "nvrtc-headers-{}.{}".format(*version)
    error, log = nvrtc.nvrtcInstallBundledHeaders(str(folder).encode(), 0)
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise NvrtcError(f"nvrtcInstallBundledHeaders: {(log or b'').decode()}")
    return str(folder)


@contextlib.contextmanager
def targeting(architecture: str) -> Iterator[Any]:
    """Yield the installed CuPy, which compiles for this architecture within the block, and asks no device for it."""
    cupy, options = _cupy(), (f"-arch={architecture}", "cubin")
    with patch.object(cupy.cuda.compiler, "_get_arch_for_options_for_nvrtc", lambda arch: options):
        yield cupy


def compile_source(
    code: str,
    architecture: str = "sm_90",
    name_expressions: Sequence[str] = (),
    flags: Sequence[str] = kernels.FLAGS,
    name: str = "kernel.cu",
) -> Cubin:
    """Compile CUDA C++ to a cubin as the CUDA backend does, with the given `flags`.

    Raises NvrtcError with the compiler's log; `name` is for the message."""
    log = io.StringIO()
    with targeting(architecture) as cupy:
        try:
            binary, lowered = compiler.compile(cupy, code, (*flags, "--ptxas-options=-v"), tuple(name_expressions), log)
        except cupy.cuda.compiler.CompileException as e:
            raise NvrtcError(f"{name} does not compile for {architecture}:\n{str(e)[:6000]}") from None
    return Cubin(architecture, binary, log.getvalue(), lowered, parse_usage(log.getvalue()))


def compile_file(
    file: str, architecture: str = "sm_90", name_expressions: Sequence[str] = (), prelude: str = ""
) -> Cubin:
    """Compile a file of cuda_kernels/ with its flags, see `compile_source`."""
    code = prelude + (KERNELS / file).read_text()
    return compile_source(code, architecture, name_expressions, kernels.flags(file), file)


def compile_elementwise(source: str, architecture: str = "sm_90") -> Cubin:
    """Compile one of the `sources` of an emulated ElementwiseKernel against the headers of the installed CuPy."""
    headers = ("complex.cuh", "carray.cuh", "atomics.cuh", "math_constants.h", "float16.cuh", "bfloat16.cuh")
    prelude = "".join(f"#include <cupy/{name}>\n" for name in headers)
    return compile_source(f'{prelude}#line 1 "kernel.cu"\n{source}', architecture)


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse_usage(log: str) -> dict[str, Usage]:
    """Return registers, spills and static shared memory per kernel, from the log of --ptxas-options=-v."""
    usage = {}
    for part in re.split(r"(?=Compiling entry function)", log):
        entry, used = _ENTRY.search(part), _USED.search(part)
        if entry and used:
            stack, stores, loads = map(int, match.groups()) if (match := _SPILLS.search(part)) else (0, 0, 0)
            shared = int(match[1]) if (match := _SHARED.search(part)) else 0
            usage[entry[1]] = Usage(int(used[1]), stores, loads, stack, shared)
    return usage
