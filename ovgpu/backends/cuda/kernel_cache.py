"""Where compiled kernels are kept: in the folder that CACHE_DIR names, or where CuPy keeps them by itself.

CuPy names every kernel by what it is compiled from, with which options and compiler, and for which architecture; it
asks for what is kept by that name before it compiles. Several processes may share a folder.
"""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

from ovgpu.backends.cuda import rt
from ovgpu.replacement import Replacement

DIGEST = 32  # bytes at the beginning of a file, which tell whether the rest is as it was written


class Folders(threading.local):
    """Where this thread keeps what it compiles: the last of them, "" for CuPy's own."""

    def __init__(self) -> None:
        self.entered: list[str] = [""]


_folders = Folders()


def enter(folder: str) -> None:
    """From here on, this thread keeps kernels in a folder; `install` has been called if there is one."""
    _folders.entered.append(folder)


def leave() -> None:
    """From here on, it keeps them where it did before."""
    _folders.entered.pop()


def install() -> None:
    """Has CuPy ask and tell `Kernels`."""
    compiler = rt.cupy().cuda.compiler
    if not hasattr(compiler, "_set_kernel_cache_backend"):
        warnings.warn("this CuPy cannot be told where to keep kernels: instead of CACHE_DIR, set the environment "
                      "variable CUPY_CACHE_DIR", RuntimeWarning, 3)
    elif not isinstance(compiler._kernel_cache_backend, Kernels):
        compiler._set_kernel_cache_backend(Kernels(compiler._kernel_cache_backend))


class Kernels:
    """What CuPy asks and tells; ``other`` is its own cache."""

    def __init__(self, other: Any) -> None:
        self.other = other

    def load(self, name: str) -> bytes | None:
        folder = _folders.entered[-1]
        return read(Path(folder, name)) if folder else self.other.load(name)

    def save(self, name: str, payload: bytes, source: str) -> None:
        folder = _folders.entered[-1]
        if folder:
            write(Path(folder, name), payload)
        else:
            self.other.save(name, payload, source)


def read(path: Path) -> bytes | None:
    """What a file keeps; None if there is none, or it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, payload = data[:DIGEST], data[DIGEST:]
    return payload if _digest(payload) == digest else None


def write(path: Path, payload: bytes) -> None:
    """Keeps bytes in a file, which others see once it is complete. A warning where that is not possible: then they are
    compiled again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with Replacement(path) as new:
            new.file.write(_digest(payload) + payload)
            new.complete = True
    except OSError as e:
        warnings.warn(f"CACHE_DIR {str(path.parent)!r} does not keep kernels: {e.strerror or e}", RuntimeWarning, 2)


def _digest(payload: bytes) -> bytes:
    from hashlib import sha256  # which loads OpenSSL

    return sha256(payload).digest()
