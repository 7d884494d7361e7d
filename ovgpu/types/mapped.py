"""Files whose bytes are read when they are needed, and let go of when they have been copied."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

Array = np.ndarray[Any, Any]


class MappedFile(mmap.mmap):
    """A file mapped to memory, to be read only."""


def map_file(path: Path) -> Array:
    """The bytes of a file. OSError if it cannot be read."""
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:
            return np.empty(0, np.uint8)
        return np.frombuffer(MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def let_go(array: Array) -> int:
    """Gives back the memory of the pages that lie in an array of a mapped file, and returns its bytes: who reads the
    array later, has the system read them again. Other arrays stay as they are."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    file = base.obj if isinstance(base, memoryview) else None
    if not isinstance(file, MappedFile) or not hasattr(file, "madvise"):
        return 0
    origin = byte_bounds(np.frombuffer(file, np.uint8))[0]
    first, last = (address - origin for address in byte_bounds(array))
    first, last = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, last // mmap.PAGESIZE * mmap.PAGESIZE
    if first >= last:
        return 0
    file.madvise(mmap.MADV_DONTNEED, first, last - first)
    return last - first
