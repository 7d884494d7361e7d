"""Large arrays in host memory, with an error before allocation if the machine does not have enough memory.

An operating system overcommits memory: an array takes memory only when it is written to, and a process that writes to
more than the machine has is killed. Linux reports the free memory; on other systems only NumPy refuses arrays. Where
Linux reports too little (it does not count ZFS's cache), set the environment variable OVGPU_HOST_MEMORY to the free
bytes.
"""

from __future__ import annotations

import mmap
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from math import prod
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

Array = np.ndarray[Any, Any]

LARGE_BYTES = 1 << 28  # smallest array that is checked; reading the free memory takes some 50 us
GROUPS = Path("/sys/fs/cgroup")

_sizes: dict[int, int] = {}  # bytes of the live large arrays by id; finalizers change it at any time
_array_ids = count()


def empty(shape: Sequence[int], dtype: Any) -> Array:
    """Return `numpy.empty(shape, dtype)`. Raise MemoryError if the host does not have enough memory."""
    return _allocate(np.empty, shape, dtype)


def zeros(shape: Sequence[int], dtype: Any) -> Array:
    """Return `numpy.zeros(shape, dtype)`. Raise MemoryError if the host does not have enough memory."""
    return _allocate(np.zeros, shape, dtype)


def _allocate(make: Callable[[Sequence[int], Any], Array], shape: Sequence[int], dtype: Any) -> Array:
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    require(nbytes)
    array = make(shape, dtype)
    if nbytes >= LARGE_BYTES:
        array_id = next(_array_ids)
        _sizes[array_id] = nbytes
        finalize(array, _sizes.pop, array_id).atexit = False
    return array


def require(nbytes: int) -> None:
    """Raise MemoryError if the host does not have ``nbytes`` free. Arrays that were not written to yet count as used.

    Requests of less than `LARGE_BYTES` are not checked.
    """
    free = free_bytes() if nbytes >= LARGE_BYTES else None
    if free is not None:
        free -= max(0, sum(list(_sizes.values())) - resident_bytes())
        if nbytes > free:
            raise MemoryError(f"out of memory: {nbytes:,} bytes were asked for, the host has {max(0, free):,}")


def free_bytes() -> int | None:
    """Return the free bytes of the machine, including swap, or of its control groups if these have less.

    Return None if neither is known.
    """
    declared = _declared_bytes()
    if declared is not None:
        return declared
    with suppress(OSError, KeyError, ValueError):
        sizes = _table(Path("/proc/meminfo"))
        swap = sizes["SwapFree:"] << 10
        return min([(sizes["MemAvailable:"] << 10) + swap, *_remaining_in_groups(swap)])
    return None


def _declared_bytes() -> int | None:
    """Return the number in OVGPU_HOST_MEMORY, or None. Other text is ignored with a warning."""
    declared = os.environ.get("OVGPU_HOST_MEMORY", "")
    if declared and not declared.isdecimal():
        warnings.warn(f"OVGPU_HOST_MEMORY is a number of bytes: {declared!r} is ignored", RuntimeWarning, stacklevel=2)
    return int(declared) if declared.isdecimal() else None


def _remaining_in_groups(swap: int) -> Iterator[int]:
    """Yield the free bytes of each control group (version 2) that limits this process.

    ``swap`` is the free swap space of the machine in bytes.
    """
    with suppress(OSError, ValueError):
        path = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"), "")
        group = GROUPS / path.strip("/")
        for folder in (group, *group.parents):
            remaining = _remaining(folder, "memory")
            if remaining is not None:
                swap_remaining = _remaining(folder, "memory.swap")
                files = _table(folder / "memory.stat").get("inactive_file", 0)
                yield remaining + files + (swap if swap_remaining is None else min(swap, swap_remaining))


def _remaining(folder: Path, resource: str) -> int | None:
    """Return the free bytes of a resource in a control group, or None if the group has no limit."""
    limit = folder / f"{resource}.max"
    maximum = limit.read_text().strip() if limit.exists() else "max"
    return None if maximum == "max" else int(maximum) - int((folder / f"{resource}.current").read_text())


def _table(file: Path) -> dict[str, int]:
    """Return the numbers in a file by name; its lines have a name and a number each."""
    rows = (line.split() for line in file.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}


def resident_bytes() -> int:
    """Return the bytes of this process that are in memory, or 0 if the system does not tell."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    return 0


_declared_bytes()  # warns of a wrong setting at once: few programs have arrays so large that they read it later
