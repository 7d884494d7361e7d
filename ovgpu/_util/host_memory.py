"""Large arrays in the host's memory, refused before they are made where the machine does not have it.

An operating system promises more memory than it has: an array takes memory only when it is written to, and a process
that writes to more than there is gets killed. Linux reports how much is left; on other systems only NumPy refuses
arrays. Where Linux reports too little (it does not count ZFS's cache), the environment variable OVGPU_HOST_MEMORY gives
the number of bytes.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from math import prod
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

from ovgpu.errors import Error

Array = np.ndarray[Any, Any]

LARGE_BYTES = 1 << 28  # of arrays that are counted; asking Linux takes some 50 us
GROUPS = Path("/sys/fs/cgroup")

_sizes: dict[int, int] = {}  # bytes of the large arrays that are alive; finalizers change it at any time
_numbers = count()


def empty(shape: Sequence[int], kind: Any) -> Array:
    """Return `numpy.empty`. MemoryError if the host does not have as much memory."""
    return _made(np.empty, shape, kind)


def zeros(shape: Sequence[int], kind: Any) -> Array:
    """Return `numpy.zeros`. MemoryError likewise."""
    return _made(np.zeros, shape, kind)


def _made(make: Callable[[Sequence[int], Any], Array], shape: Sequence[int], kind: Any) -> Array:
    nbytes = prod(shape) * np.dtype(kind).itemsize
    require(nbytes)
    array = make(shape, kind)
    if nbytes >= LARGE_BYTES:
        number = next(_numbers)
        _sizes[number] = nbytes
        finalize(array, _sizes.pop, number).atexit = False
    return array


def require(nbytes: int) -> None:
    """Raise MemoryError if the host does not have ``nbytes`` more. Arrays that were not written to yet count as used.

    Requests of less than `LARGE_BYTES` are not checked.
    """
    free = free_bytes() if nbytes >= LARGE_BYTES else None
    if free is not None:
        free -= max(0, sum(list(_sizes.values())) - _resident_bytes())
        if nbytes > free:
            raise MemoryError(f"out of memory: {nbytes:,} bytes were asked for, the host has {max(0, free):,}")


def free_bytes() -> int | None:
    """Return the bytes that the machine has left, swap space included, or its control groups if these have less.

    None where neither is known. Error if OVGPU_HOST_MEMORY is not a number.
    """
    told = os.environ.get("OVGPU_HOST_MEMORY", "")
    if told:
        if not told.isdecimal():
            raise Error(f"OVGPU_HOST_MEMORY must be a number of bytes, not {told!r}")
        return int(told)
    with suppress(OSError, KeyError, ValueError):
        sizes = _table(Path("/proc/meminfo"))
        swap = sizes["SwapFree:"] << 10
        return min([(sizes["MemAvailable:"] << 10) + swap, *_left_in_groups(swap)])
    return None


def _left_in_groups(swap: int) -> Iterator[int]:
    """Yield the bytes left in each control group (version 2) that limits this process. The machine has ``swap`` bytes
    of swap space left."""
    with suppress(OSError, ValueError):
        path = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"), "")
        group = GROUPS / path.strip("/")
        for folder in (group, *group.parents):
            left = _left(folder, "memory")
            if left is not None:
                swapped = _left(folder, "memory.swap")
                files = _table(folder / "memory.stat").get("inactive_file", 0)
                yield left + files + (swap if swapped is None else min(swap, swapped))


def _left(folder: Path, resource: str) -> int | None:
    """Return the bytes that a group has left of a resource, or None where it has no limit."""
    limit = folder / f"{resource}.max"
    most = limit.read_text().strip() if limit.exists() else "max"
    return None if most == "max" else int(most) - int((folder / f"{resource}.current").read_text())


def _table(file: Path) -> dict[str, int]:
    """Read a file whose lines have a name and a number each."""
    rows = (line.split() for line in file.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}


def _resident_bytes() -> int:
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    return 0
