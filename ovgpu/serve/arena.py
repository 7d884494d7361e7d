"""Class Arena: shared memory of two processes, in which one of them allocates blocks."""

from __future__ import annotations

import mmap
import os
from bisect import insort

ALIGNMENT = 64  # bytes: blocks begin at multiples of it


class Arena:
    """Memory of a file without a name, which vanishes when no process has it open. Blocks are allocated first fit.

    Only the process that writes into the memory allocates. All methods are called on one thread.
    """

    def __init__(self, file: int) -> None:
        """``file`` is a descriptor of `memory_file`, which is closed."""
        size = os.fstat(file).st_size
        self.memory = mmap.mmap(file, size)
        os.close(file)
        self._free = [(0, size)]  # (begin, end) of free parts, in order

    @property
    def free(self) -> int:
        """Number of bytes that are free."""
        return sum(end - begin for begin, end in self._free)

    def allocate(self, size: int) -> int | None:
        """Return the offset of a new block of ``size`` bytes, or None if there is no room for it."""
        size = _aligned(size)
        for i, (begin, end) in enumerate(self._free):
            if end - begin >= size:
                self._free[i : i + 1] = [(begin + size, end)] if end - begin > size else []
                return begin
        return None

    def release(self, begin: int, size: int) -> None:
        """Free a block."""
        end = begin + _aligned(size)
        for part in [part for part in self._free if part[1] == begin or part[0] == end]:
            self._free.remove(part)
            begin, end = min(begin, part[0]), max(end, part[1])
        insort(self._free, (begin, end))


def memory_file(size: int) -> int:
    """Return the descriptor of a file of ``size`` bytes in memory, without a name."""
    file = os.memfd_create("ovgpu-arrays")
    os.ftruncate(file, size)
    return file


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
