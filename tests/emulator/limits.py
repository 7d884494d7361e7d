"""Limits of registers and shared memory of a block, on the architectures that CUDA 13 compiles for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

REGISTERS = 1 << 16  # of a block, on all of them
# Bytes that a block may ask for (CUDA C++ Programming Guide, technical specifications per compute capability).
SHARED = {
    "sm_75": 64 << 10,
    "sm_80": 163 << 10,
    "sm_86": 99 << 10,
    "sm_89": 99 << 10,
    "sm_90": 227 << 10,
    "sm_100": 227 << 10,
    "sm_120": 99 << 10,
}


@dataclass(frozen=True)
class Usage:
    """A kernel's registers per thread, bytes that a thread spills, and bytes of static shared memory."""

    registers: int
    spilled: int
    shared: int


@dataclass(frozen=True)
class Block:
    """The largest block that a kernel was launched with: number of threads, and bytes of dynamic shared memory."""

    threads: int
    shared: int

    def __or__(self, other: Block) -> Block:
        return Block(max(self.threads, other.threads), max(self.shared, other.shared))

    def excess(self, usage: Usage, architecture: str) -> Iterator[str]:
        """Yield the resources of which the block needs more than the architecture has."""
        # Registers are allocated for four warps at a time, in multiples of eight per thread.
        registers = -(-self.threads // 128) * 128 * -(-usage.registers // 8) * 8
        if registers > REGISTERS:
            yield f"{self.threads} threads of {usage.registers} registers"
        shared = usage.shared + self.shared
        if shared > SHARED[architecture]:
            yield f"{usage.shared} + {self.shared} bytes of shared memory"
