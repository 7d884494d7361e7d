"""Memory-mapped files, whose pages are read on demand, and released when they have been copied."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from ovgpu.errors import ModelError

Array = np.ndarray[Any, Any]


class MappedFile(mmap.mmap):
    """A file that is mapped into memory for reading."""

    path: Path
    status: os.stat_result
    """Size and modification time of the file at the time of mapping."""

    def check(self) -> None:
        """Raise ModelError if the file has changed since it was mapped.

        Reading pages beyond the end of a truncated file kills the process. A file that was replaced or removed counts
        as unchanged: the mapping keeps the old one alive.
        """
        size = self.size()
        try:
            now = self.path.stat()
            rewritten = os.path.samestat(now, self.status) and now.st_mtime_ns != self.status.st_mtime_ns
        except OSError:  # it has been removed
            rewritten = False
        if rewritten or size != self.status.st_size:
            sizes = "" if size == self.status.st_size else f", from {self.status.st_size} to {size} bytes"
            raise ModelError(f"{self.path.name} has changed since the model was read{sizes}: read the model again")


def map_file(path: Path) -> Array:
    """Map a file into memory, and return its bytes as uint8. OSError if it cannot be read."""
    if path.exists() and not path.is_file():  # checked first, since opening a pipe waits for its writer
        raise OSError(errno.EINVAL, "it is not a regular file")
    with path.open("rb") as opened:
        status = os.fstat(opened.fileno())
        if status.st_size == 0:
            return np.empty(0, np.uint8)
        file = MappedFile(opened.fileno(), status.st_size, access=mmap.ACCESS_READ)
        file.path, file.status = path, status
        return np.frombuffer(file, np.uint8)


def memory_of(array: Array) -> Any:
    """Return a key that is equal for arrays of the same elements in the same memory."""
    # Types of ml_dtypes have the same name `dtype.str` if they have the same size.
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype


def check_unchanged(arrays: Iterable[Array]) -> None:
    """Raise ModelError if one of the arrays lies in a mapped file that has changed since it was mapped."""
    files = {file for array in arrays if (file := _file(array)) is not None}
    for file in files:
        file.check()


def let_go(array: Array) -> int:
    """Release the memory pages that an array of a mapped file covers entirely, and return their bytes.

    The system reads them again on the next access. Other arrays are left alone.
    """
    file = _file(array)
    if file is None or not hasattr(file, "madvise"):
        return 0
    origin = byte_bounds(np.frombuffer(file, np.uint8))[0]
    begin, end = (address - origin for address in byte_bounds(array))
    begin, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if begin >= end:
        return 0
    file.madvise(mmap.MADV_DONTNEED, begin, end - begin)
    return end - begin


def _file(array: Array) -> MappedFile | None:
    """Return the mapped file in which an array lies, or None."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    file = base.obj if isinstance(base, memoryview) else None
    return file if isinstance(file, MappedFile) else None
