"""Compilation of CUDA C++ for the host with g++; the loaded libraries are cached by content hash."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADERS = ("cuda_emu.h", "cuda_emu_types.h", "cuda_emu_math.h", "cuda_emu_ptx.h", "cuda_emu_cupy.h")

# Integer overflow wraps and `char` is signed as on a device; an index outside an array of known bounds traps.
FLAGS = (
    "-std=c++17", "-O1", "-fPIC", "-w", "-fno-strict-aliasing", "-fwrapv", "-fsigned-char",
    "-fsanitize=bounds", "-fsanitize-undefined-trap-on-error", "-ftls-model=initial-exec", "-fno-gnu-unique",
    "-fvisibility=hidden", "-fno-exceptions",
)  # fmt: skip
CONTRACTION = ("-ffp-contract=fast", "-fexpensive-optimizations")  # g++ contracts only with both
# Every access calls a function of cuda_emu_reads.cc.
COUNTING = (
    "-fsanitize=kernel-address", "--param=asan-instrumentation-with-call-threshold=0", "--param=asan-stack=0",
    "--param=asan-globals=0",
)  # fmt: skip
# The runtime has loaded the standard libraries into the process: linking a kernel without them takes half the time.
LINK_FLAGS = ("-shared", "-nostdlib", "-lgcc", "-Wl,-z,now")
RUNTIME_FLAGS = (
    "-std=c++17", "-O2", "-fPIC", "-shared", "-ftls-model=initial-exec", "-Wl,-z,defs,--no-as-needed", "-lm",
)  # fmt: skip


class EmulatorError(RuntimeError):
    """The emulator itself cannot go on: no compiler, or a kernel that does not compile."""


@functools.cache
def compiler() -> str:
    """Return the path of g++.

    Raises EmulatorError when it is not installed."""
    path = shutil.which("g++")
    if path:
        return path
    raise EmulatorError(
        "the CUDA emulator compiles kernels with g++, which is not installed; "
        "install it (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++)"
    )


@functools.cache
def cache_directory() -> Path:
    """Return `OVGPU_EMU_CACHE`, or a folder of this user below the temporary directory."""
    default = Path(tempfile.gettempdir()) / f"ovgpu-emulator-{os.getuid()}"
    path = Path(os.environ.get("OVGPU_EMU_CACHE", default))
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.stat().st_uid != os.getuid():
        raise EmulatorError(f"{path} belongs to another user; set OVGPU_EMU_CACHE")
    return path


@functools.cache
def _base_hash() -> str:
    """Return a hash of everything that a compiled object depends on besides its own source."""
    version = subprocess.run([compiler(), "-dumpfullversion", "-dumpmachine"], capture_output=True, text=True).stdout
    digest = hashlib.sha256(repr((version, FLAGS, LINK_FLAGS)).encode())
    for path in (*(HERE / name for name in HEADERS), *sorted((HERE / "include").iterdir())):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr((_base_hash(), parts)).encode()).hexdigest()[:32]


def _run(command: Sequence[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise EmulatorError(f"compilation failed:\n{result.stderr[:6000]}")


def _build(target: Path, command: Sequence[str]) -> Path:
    """Run `command ... -o <temporary>`, then move the result to `target`, so that no process sees half a file."""
    if not target.exists():
        temporary = target.with_name(f"{target.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            _run([*command, "-o", str(temporary)])
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    return target


@functools.cache
def runtime() -> ctypes.CDLL:
    """Return the scheduler (cuda_emu*.cc), loaded so that kernel libraries find its symbols.

    OVGPU_EMU_FLAGS adds compiler flags, such as -DOVGPU_EMU_UCONTEXT."""
    extra = os.environ.get("OVGPU_EMU_FLAGS", "").split()
    sources = [HERE / f"cuda_emu{part}.cc" for part in ("", "_faults", "_memory", "_reads")]
    texts = [path.read_text() for path in (*sources, HERE / "cuda_emu_worker.h", HERE / "cuda_emu_context.h")]
    target = cache_directory() / f"runtime-{_hash('runtime', RUNTIME_FLAGS, extra, texts)}.so"
    _build(target, [compiler(), *RUNTIME_FLAGS, *extra, f"-I{HERE}", *map(str, sources)])
    library = ctypes.CDLL(str(target), mode=ctypes.RTLD_GLOBAL)
    library.emu_reserve.restype = ctypes.c_void_p
    library.emu_reserve.argtypes = [ctypes.c_uint64]
    library.emu_commit.argtypes = library.emu_release.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    return library


def contraction_flags(options: Sequence[str]) -> tuple[str, ...]:
    """Return g++'s flags for a kernel with these options of NVRTC: a product and the following sum are rounded one by
    one; with OVGPU_EMU_FMA (pytest --fma) they are contracted, as by NVRTC, if the host's processor can."""
    if "--fmad=false" in options or not os.environ.get("OVGPU_EMU_FMA"):
        return ("-ffp-contract=off",)
    return (*CONTRACTION, "-mfma") if _needs_mfma() else CONTRACTION


@functools.cache
def _needs_mfma() -> bool:
    """Return whether this is an x86 processor with FMA, which g++ uses on request alone."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and bool(re.search(r"^flags\b.*\bfma\b", cpuinfo.read_text(), re.MULTILINE))


@functools.cache
def _precompiled_header(flags: tuple[str, ...]) -> Path:
    """Return a folder with cuda_emu_cupy.h.gch, which saves most of the time to compile a small kernel."""
    folder = cache_directory() / f"header-{_hash('header', flags)}"
    folder.mkdir(exist_ok=True)
    source = HERE / "cuda_emu_cupy.h"
    _build(folder / "prelude.h.gch", [compiler(), *flags, f"-I{HERE}", "-x", "c++-header", str(source)])
    return folder


_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def included_text(code: str, folders: Sequence[Path]) -> str:
    """Return `code` and every file it includes with quotes, each once; the cache key covers this text."""
    seen: set[Path] = set()
    texts = [code]

    def follow(text: str) -> None:
        for name in _INCLUDE.findall(text):
            for folder in folders:
                path = (folder / name).resolve()
                if path.is_file():
                    if path not in seen:
                        seen.add(path)
                        texts.append(path.read_text())
                        follow(texts[-1])
                    break

    follow(code)
    return "\n".join(texts)


def include_folders(options: Sequence[str]) -> list[Path]:
    """Return the folders named by -I options, then the folder that replaces the toolkit's headers."""
    named = [Path(option[2:]) for option in options if option.startswith("-I") and len(option) > 2]
    named += [Path(option.split("=", 1)[1]) for option in options if option.startswith("--include-path=")]
    return [*named, HERE / "include"]


def compile_library(code: str, options: Sequence[str] = (), counting: bool = False) -> ctypes.CDLL:
    """Compile `code`, which may use everything in cuda_emu.h, and load the library. With `counting`, launches can count
    its reads."""
    runtime()
    folders = include_folders(options)
    defines = [option for option in options if option.startswith(("-D", "-U"))]
    flags = (*FLAGS, *contraction_flags(options), *(COUNTING if counting else ()))
    key = _hash("kernel", included_text(code, folders), defines, flags)
    target = cache_directory() / f"{key}.so"
    if not target.exists():
        source = cache_directory() / f"{key}.{os.getpid()}.{os.urandom(4).hex()}.cc"
        source.write_text(code)
        header = ["-I" + str(_precompiled_header(flags)), f"-I{HERE}", "-include", "prelude.h"]
        paths = [f"-I{folder}" for folder in folders]
        try:
            _build(target, [compiler(), *flags, *header, *paths, *defines, str(source), *LINK_FLAGS])
        finally:
            source.unlink(missing_ok=True)
    try:
        return ctypes.CDLL(str(target))
    except OSError as error:
        raise EmulatorError(f"a kernel calls what is not there: {error}") from None
