"""Compiles kernels with NVRTC to real cubins, which needs no GPU: what a device rejects fails here."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .toolchain import HERE, cache_directory

KERNELS = HERE.parents[1] / "cuda_kernels"
ARCHITECTURES = ("sm_80", "sm_90")
NEWEST = ARCHITECTURES[-1:]  # for tests of a few instances: the table of all of them has each


class NvrtcError(RuntimeError):
    """NVRTC is missing, or has rejected a kernel; the message holds its log."""


@dataclass(frozen=True)
class Usage:
    """What ptxas reports for one kernel."""

    registers: int
    spill_stores: int = 0
    spill_loads: int = 0
    stack: int = 0
    shared: int = 0


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture, the lowered name per name expression, and each kernel's needs."""

    architecture: str
    code: bytes
    log: str
    lowered: dict[str, str] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)  # by lowered name


def _wheel_files() -> list[Path]:
    for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        return [Path(str(file.locate())) for file in files]
    return []


@functools.cache
def library() -> ctypes.CDLL:
    """libnvrtc of the nvidia-cuda-nvrtc wheel, or the system's.

    Raises NvrtcError when there is none."""
    found = [path for path in _wheel_files() if re.fullmatch(r"libnvrtc\.so\.\d+", path.name)]
    for name in [*map(str, found), "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]:
        try:
            nvrtc = ctypes.CDLL(name)
        except OSError:
            continue
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        return nvrtc
    raise NvrtcError("NVRTC is not installed: pip install nvidia-cuda-nvrtc")


def is_available() -> bool:
    try:
        library()
    except NvrtcError:
        return False
    return True


def _check(result: int, what: str) -> None:
    if result:
        raise NvrtcError(f"{what}: {library().nvrtcGetErrorString(result).decode()}")


def version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
    return major.value, minor.value


@functools.cache
def toolkit_headers() -> tuple[str, ...]:
    """Folders with cuda_fp16.h and its kin: NVRTC bundles them since 13.3, else an installed toolkit's."""
    install = getattr(library(), "nvrtcInstallBundledHeaders", None)
    if install is not None:
        folder = cache_directory() / "nvrtc-headers-{}.{}".format(*version())
        log = ctypes.c_char_p()
        if install(str(folder).encode(), 0, ctypes.byref(log)):
            raise NvrtcError(f"nvrtcInstallBundledHeaders: {(log.value or b'').decode()}")
        return (str(folder), str(folder / "cccl"))
    roots = [Path(os.environ[name]) for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)]
    roots += [path.parents[1] for path in _wheel_files() if path.name.startswith("libnvrtc.so")]
    roots += [Path("/", "usr", "local", "cuda")]
    for root in roots:
        if (root / "include" / "cuda_fp16.h").is_file():
            return (str(root / "include"), str(root / "include" / "cccl"))
    raise NvrtcError("cuda_fp16.h is not installed: pip install nvidia-cuda-runtime, or set CUDA_PATH")


def _text(program: ctypes.c_void_p, name: str) -> bytes:
    """The result of a pair of NVRTC functions nvrtcGet<name>Size and nvrtcGet<name>."""
    size = ctypes.c_size_t()
    _check(getattr(library(), f"nvrtcGet{name}Size")(program, ctypes.byref(size)), name)
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(library(), f"nvrtcGet{name}")(program, buffer), name)
    return buffer.raw


def compile_source(
    code: str,
    architecture: str = "sm_90",
    name_expressions: Sequence[str] = (),
    options: Sequence[str] = (),
    name: str = "kernel.cu",
) -> Cubin:
    """Compiles CUDA C++ to a cubin, with cuda_kernels/ in the include path.

    Raises NvrtcError with the compiler's log."""
    nvrtc = library()
    program = ctypes.c_void_p()
    _check(
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), code.encode(), name.encode(), 0, None, None),
        "nvrtcCreateProgram",
    )
    try:
        for expression in name_expressions:
            _check(nvrtc.nvrtcAddNameExpression(program, expression.encode()), "nvrtcAddNameExpression")
        flags = [f"--gpu-architecture={architecture}", "-std=c++17", "--ptxas-options=-v", f"-I{KERNELS}"]
        flags += [f"-I{folder}" for folder in toolkit_headers()]
        flags += options
        array = (ctypes.c_char_p * len(flags))(*[flag.encode() for flag in flags])
        result = nvrtc.nvrtcCompileProgram(program, len(flags), array)
        log = _text(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if result:
            raise NvrtcError(f"{name} does not compile for {architecture}:\n{log[:6000]}")
        lowered = {}
        for expression in name_expressions:
            pointer = ctypes.c_char_p()
            _check(
                nvrtc.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(pointer)),
                f"nvrtcGetLoweredName({expression})",
            )
            lowered[expression] = (pointer.value or b"").decode()
        return Cubin(architecture, _text(program, "CUBIN"), log, lowered, parse_usage(log))
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def compile_file(
    path: Path | str,
    architecture: str = "sm_90",
    name_expressions: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Cubin:
    """compile_source for a file of cuda_kernels/, or for any path."""
    path = KERNELS / path
    return compile_source(path.read_text(), architecture, name_expressions, options, path.name)


def compile_elementwise(source: str, architecture: str = "sm_90", options: Sequence[str] = ()) -> Cubin:
    """Compiles one of an emulated ElementwiseKernel's `sources` against the headers of the installed CuPy.

    Raises NvrtcError when CuPy is not installed."""
    spec = importlib.util.find_spec("cupy")
    if spec is None or spec.origin is None:
        raise NvrtcError(
            "compiling an ElementwiseKernel for a device needs CuPy's headers: pip install cupy-cuda13x"
        )
    headers = ("complex.cuh", "carray.cuh", "atomics.cuh", "math_constants.h", "float16.cuh", "bfloat16.cuh")
    prelude = "".join(f"#include <cupy/{name}>\n" for name in headers)
    include = f"-I{Path(spec.origin).parent / '_core' / 'include'}"
    return compile_source(f'{prelude}#line 1 "kernel.cu"\n{source}', architecture, (), (include, *options))


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse_usage(log: str) -> dict[str, Usage]:
    """Registers, spills and static shared memory per kernel, from the log of --ptxas-options=-v."""
    usage = {}
    for part in re.split(r"(?=Compiling entry function)", log):
        entry, used = _ENTRY.search(part), _USED.search(part)
        if entry and used:
            stack, stores, loads = map(int, match.groups()) if (match := _SPILLS.search(part)) else (0, 0, 0)
            shared = int(match[1]) if (match := _SHARED.search(part)) else 0
            usage[entry[1]] = Usage(int(used[1]), stores, loads, stack, shared)
    return usage
