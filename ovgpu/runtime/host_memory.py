"""Memory of the host in large blocks, refused before they are made where the machine does not have it.

An operating system promises more than there is: a block takes memory when it is written to, and the process that
writes to the last one is killed. Linux tells how much is left; elsewhere blocks are refused by NumPy alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

LARGE_BYTES = 1 << 28  # of blocks that are counted; asking Linux takes some 50 us
PAGE_BYTES = 4096
GROUPS = Path("/sys/fs/cgroup")

_blocks: dict[int, int] = {}  # sizes of the large blocks that are alive; finalizers change it at any time
_numbers = count()


def allocate(nbytes: int) -> Any:
    """An array of bytes. MemoryError if the host does not have as much."""
    if nbytes < LARGE_BYTES:
        return np.empty(nbytes, np.uint8)
    require(nbytes)
    block, number = np.empty(nbytes, np.uint8), next(_numbers)
    _blocks[number] = nbytes
    finalize(block, _blocks.pop, number).atexit = False
    return block


def require(nbytes: int) -> None:
    """Raise MemoryError if the host does not have so many bytes more, beside the blocks that were not written to yet.
    Few bytes are not looked into."""
    free = free_bytes() if nbytes >= LARGE_BYTES else None
    if free is not None:
        free -= max(0, sum(list(_blocks.values())) - _resident_bytes())
        if nbytes > free:
            raise MemoryError(f"out of memory: {nbytes:,} bytes were asked for, the host has {max(0, free):,}")


def free_bytes() -> int | None:
    """Bytes that the machine has available, or the control groups of this process if these have less; None where
    nothing tells."""
    with suppress(OSError):
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        if found is not None:
            return min(int(found[1]) << 10, *_left_in_groups(), 1 << 62)
    return None


def _left_in_groups() -> Iterator[int]:
    """Bytes left in each control group, of version 2, that limits this process."""
    with suppress(OSError, ValueError):
        path = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"), "")
        group = GROUPS / path.strip("/")
        for folder in (group, *group.parents):
            limit = folder / "memory.max"
            if limit.exists() and (most := limit.read_text().strip()) != "max":
                files = re.search(r"^inactive_file (\d+)", (folder / "memory.stat").read_text(), re.MULTILINE)
                used = int((folder / "memory.current").read_text())
                yield int(most) - used + (int(files[1]) if files else 0)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
