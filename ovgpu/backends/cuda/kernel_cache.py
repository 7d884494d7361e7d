"""Compiled kernels on disk: in the folder that CACHE_DIR names, or beside CuPy's own, which CUPY_CACHE_DIR names.

The key of a kernel is its source with all headers, its name, the compiler's flags and the card's compute capability.
Paths and the compiler's version do not count: a folder may be made on one machine and used on another. Several
processes may share a folder.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ovgpu._util.atomic_file import replacing
from ovgpu.backends.cuda import rt

USUAL = os.path.expanduser("~/.cupy/kernel_cache")
DIGEST = 32  # bytes at the beginning of a file, which tell whether the rest is as it was written


@dataclass(frozen=True)
class Binary:
    """Machine code (a cubin) with one kernel, and the kernel's name in it, which C++ has mangled."""

    symbol: str
    code: bytes


class Folders(threading.local):
    """Where this thread keeps what it compiles: the last of them, "" for CuPy's own."""

    def __init__(self) -> None:
        self.entered: list[str] = [""]


_folders = Folders()


def enter(folder: str) -> None:
    """From here on, this thread keeps kernels in a folder."""
    _folders.entered.append(folder)


def entered() -> int:
    """The number of folders that this thread has entered."""
    return len(_folders.entered)


def leave(number: int) -> None:
    """From here on, it keeps them where it did when it had entered so many."""
    del _folders.entered[number:]


def key(text: str, name: str, flags: Sequence[str], capability: str) -> str:
    """The name of the file for a kernel."""
    return _digest("\0".join((text, name, *flags, capability)).encode()).hex() + ".cubin"


def load(key: str) -> Binary | None:
    """The kernel of this key; None if it is not kept, or damaged."""
    folder = _folder()
    payload = None if folder is None else read(folder / key)
    if payload is None:
        return None
    symbol, _, code = payload.partition(b"\0")
    return Binary(symbol.decode(), code)


def save(key: str, binary: Binary) -> None:
    """Keep a kernel. A warning where CACHE_DIR cannot be written: the kernel is compiled again in the next process."""
    folder = _folder()
    if folder is None:
        return
    try:
        write(folder / key, binary.symbol.encode() + b"\0" + binary.code)
    except OSError as e:
        if _folders.entered[-1]:
            warnings.warn(f"CACHE_DIR {str(folder)!r} does not keep kernels: {e.strerror or e}", RuntimeWarning, 2)


def _folder() -> Path | None:
    folder = _folders.entered[-1]
    if folder:
        return Path(folder)
    return None if rt.replaced() else Path(os.environ.get("CUPY_CACHE_DIR") or USUAL, "ovgpu")


def read(path: Path) -> bytes | None:
    """What a file keeps; None if there is none, or it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, payload = data[:DIGEST], data[DIGEST:]
    return payload if _digest(payload) == digest else None


def write(path: Path, payload: bytes) -> None:
    """Keep bytes in a file, which others see once it is complete. OSError where that is not possible."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, flush=False) as (file,):  # the digest tells a file that the disk has lost a part of
        file.write(_digest(payload) + payload)


def _digest(payload: bytes) -> bytes:
    from hashlib import sha256  # which loads OpenSSL

    return sha256(payload).digest()
