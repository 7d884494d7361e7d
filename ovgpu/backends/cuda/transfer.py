"""Between host and device: pinned memory, copies that a graph can hold, and constants in one slab."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ovgpu.backends.cuda import rt
from ovgpu.ops._op import Array
from ovgpu.runtime.backend import Transfer
from ovgpu.types.mapped import let_go

ALIGNMENT = 256  # bytes between the beginnings of constants: what kernels read in the widest words, and more
CHUNK = 16 << 20  # bytes of a staging buffer; there are two, one is filled while the other is copied


class PinnedCopy(Transfer):
    """A copy between pinned memory and the device. It holds both, so that they live as long as a graph with it."""

    __slots__ = ("_arguments", "_copy", "device", "host")

    def __init__(self, host: Array, device: Array, upload: bool, stream: Any) -> None:
        runtime = rt.cupy().cuda.runtime
        self.host, self.device, self._copy = host, device, runtime.memcpyAsync
        here, there = host.ctypes.data, device.data.ptr
        self._arguments = ((there, here, host.nbytes, runtime.memcpyHostToDevice, stream.ptr) if upload else
                           (here, there, host.nbytes, runtime.memcpyDeviceToHost, stream.ptr))

    def __call__(self) -> None:
        self._copy(*self._arguments)


def pinned(nbytes: int) -> Array:
    """Bytes of pinned memory; the array keeps them."""
    return np.frombuffer(rt.cupy().cuda.alloc_pinned_memory(max(nbytes, 1)), np.uint8, nbytes)


def slab(values: Sequence[Array], stream: Any) -> list[Array]:
    """Host arrays as device arrays in one block, uploaded by chunks through pinned memory; each is read once."""
    if not values:
        return []
    cupy = rt.cupy()
    ends = list(accumulate(-(-value.nbytes // ALIGNMENT) * ALIGNMENT for value in values))
    block = cupy.cuda.alloc(max(ends[-1], 1))
    staging = [pinned(min(CHUNK, ends[-1])) for _ in range(1 if ends[-1] <= CHUNK else 2)]
    copied: list[Any] = [None] * len(staging)  # the events of the last copies
    for number, (begin, parts) in enumerate(_chunks(values, [0, *ends])):
        turn = number % len(staging)
        if copied[turn] is not None:
            copied[turn].synchronize()
        end = 0
        for offset, part in parts:
            end = offset + part.size
            staging[turn][offset:end] = part
            let_go(part)
        (block + begin).copy_from_host_async(staging[turn].ctypes.data, end, stream)
        copied[turn] = stream.record()
    stream.synchronize()
    return [cupy.ndarray(value.shape, value.dtype, memptr=block + begin) for value, begin in zip(values, [0, *ends])]


def _chunks(values: Sequence[Array], begins: Sequence[int]) -> Iterator[tuple[int, list[tuple[int, Array]]]]:
    """(offset in the slab, [(offset in the chunk, bytes)]) of pieces of arrays that go together."""
    first, parts = 0, list[tuple[int, Array]]()
    for value, begin in zip(values, begins):
        rest = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        while rest.size:
            if begin - first >= CHUNK:
                yield first, parts
                first, parts = begin, []
            part = rest[: first + CHUNK - begin]
            parts.append((begin - first, part))
            rest, begin = rest[part.size :], begin + part.size
    if parts:
        yield first, parts
