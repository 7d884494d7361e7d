"""Cache of compiled kernels on disk: in the folder CACHE_DIR, or next to CuPy's own cache in CUPY_CACHE_DIR.

The key of a kernel is its source with all headers, its name, the compiler's flags and the GPU's compute capability.
Paths and the compiler's version are not part of it: a folder may be filled on one machine and used on another. Several
processes may share a folder.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ovgpu._util.atomic_file import replacing
from ovgpu.backends.cuda import rt

DEFAULT_FOLDER = os.path.expanduser("~/.cupy/kernel_cache")
DIGEST_BYTES = 32  # at the beginning of a file: SHA-256 of the rest


@dataclass(frozen=True)
class Binary:
    """Machine code (a cubin) of one kernel, and the kernel's mangled name in it."""

    symbol: str
    code: bytes

    @staticmethod
    def parse(payload: bytes) -> Binary:
        """Return the kernel with this `payload`."""
        symbol, _, code = payload.partition(b"\0")
        return Binary(symbol.decode(errors="replace"), code)  # a wrong symbol is not found, and the kernel is compiled

    def payload(self) -> bytes:
        """Return the kernel as the bytes of a file."""
        return self.symbol.encode() + b"\0" + self.code


class Used(Protocol):
    """A kernel that requests launch; see `kernels.Kernel`."""

    def key(self) -> str:
        """Return the key of its machine code."""

    def binary(self) -> Binary:
        """Return its machine code."""

    def finish(self) -> None:
        """Wait for its compilation."""


class KernelStore:
    """Kernels of one compiled model.

    folder    the folder in which they are cached, "" for the default
    threads   the number of threads that compile them; 0 for the default, see `compiler.default_threads`
    used      the kernels that its requests launch: the keys, in the order of their first use
    imported  machine code that came with the model, by the names of `key`; it is not written to the folder
    """

    def __init__(self, folder: str = "", threads: int = 0) -> None:
        self.folder, self.threads = folder, threads
        self.used: dict[Used, None] = {}
        self.imported: Mapping[str, Binary] = {}


class Stores(threading.local):
    """Stack of the stores that this thread has entered. The last one is in use."""

    def __init__(self) -> None:
        self.entered: list[KernelStore] = [KernelStore()]


_stores = Stores()


def enter(store: KernelStore) -> None:
    """Make this thread use a store from now on."""
    _stores.entered.append(store)


def entered() -> int:
    """Return the depth of this thread's stack of stores, for `leave`."""
    return len(_stores.entered)


def leave(depth: int) -> None:
    """Restore this thread's stack of stores to a depth."""
    del _stores.entered[depth:]


def current() -> KernelStore:
    """Return the store that this thread uses."""
    return _stores.entered[-1]


def key(text: str, name: str, flags: Sequence[str], capability: str) -> str:
    """Return the name of the file for a kernel."""
    return _digest("\0".join((text, name, *flags, capability)).encode()).hex() + ".cubin"


def load(key: str, store: KernelStore) -> Binary | None:
    """Return the kernel of this key, None if it is neither imported nor cached, or its file is damaged."""
    if key in store.imported:
        return store.imported[key]
    cached = folder(store)
    payload = None if cached is None else read(cached / key)
    return None if payload is None else Binary.parse(payload)


def save(key: str, binary: Binary, store: KernelStore) -> None:
    """Cache a kernel. Warn if CACHE_DIR cannot be written: the next process compiles the kernel again."""
    cached = folder(store)
    if cached is None:
        return
    try:
        write(cached / key, binary.payload())
    except OSError as e:
        if store.folder:
            warnings.warn(f"CACHE_DIR {str(cached)!r} does not keep kernels: {e.strerror or e}", RuntimeWarning, 2)


def folder(store: KernelStore) -> Path | None:
    """Return the folder in which kernels are cached, None if they are not."""
    if store.folder:
        return Path(store.folder)
    return None if rt.replaced() else Path(os.environ.get("CUPY_CACHE_DIR") or DEFAULT_FOLDER, "ovgpu")


def read(path: Path) -> bytes | None:
    """Return the payload of a file, None if there is no such file or it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, payload = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    return payload if _digest(payload) == digest else None


def write(path: Path, payload: bytes) -> None:
    """Write bytes to a file, which other processes see only when it is complete. OSError if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, flush=False) as (file,):  # the digest detects a file that is incomplete
        file.write(_digest(payload) + payload)


def _digest(payload: bytes) -> bytes:
    from hashlib import sha256  # here, since it loads OpenSSL

    return sha256(payload).digest()
