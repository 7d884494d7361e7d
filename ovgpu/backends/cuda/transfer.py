"""Between host and device: pinned memory, copies that a graph can hold, and constants in one slab."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import Any

import numpy as np

from ovgpu.backends.cuda import rt
from ovgpu.ops.base.op import Array
from ovgpu.runtime.backend import Transfer
from ovgpu.types.mapped import let_go

ALIGNMENT = 256  # bytes between the beginnings of constants: what kernels read in the widest words, and more
CHUNK = 16 << 20  # bytes of a staging buffer for uploads; there are two, one is filled while the other is copied
DOWNLOAD_CHUNK = 4 << 20  # bytes, likewise
POOLED = 64 << 20  # bytes; CuPy's pool of pinned memory rounds sizes up to powers of two, and frees nothing


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
    """Bytes of pinned memory; the array keeps them. Large blocks are freed when it goes, others return to a pool."""
    cuda = rt.cupy().cuda
    if nbytes > POOLED:
        return np.frombuffer(cuda.PinnedMemoryPointer(cuda.PinnedMemory(nbytes), 0), np.uint8, nbytes)
    return np.frombuffer(cuda.alloc_pinned_memory(max(nbytes, 1)), np.uint8, nbytes)


def slab(values: Sequence[Array], stream: Any) -> list[Array]:
    """Host arrays as device arrays in one block; each is read once."""
    if not values:
        return []
    cupy = rt.cupy()
    begins = [0, *accumulate(-(-value.nbytes // ALIGNMENT) * ALIGNMENT for value in values)]
    block = cupy.cuda.alloc(max(begins[-1], 1))
    _upload(values, begins, block, stream)
    return [cupy.ndarray(value.shape, value.dtype, memptr=block + begin) for value, begin in zip(values, begins)]


def send(source: Array, target: Array, stream: Any) -> None:
    """Copy a host array into a contiguous device array of its shape and type, and wait for that."""
    _upload([source], [0, source.nbytes], target.data, stream)


def _upload(values: Sequence[Array], begins: Sequence[int], target: Any, stream: Any) -> None:
    """Copy host arrays to places behind an address of the device, by chunks through pinned memory: while one is copied
    to the device, the host fills the next one. ``begins`` are their places, and the end of the last one."""
    staging = _staging(begins[-1], CHUNK)
    copied: list[Any] = [None] * len(staging)  # the events of the last copies
    with _drained(stream):
        for number, (begin, parts) in enumerate(_chunks(values, begins)):
            slot = number % len(staging)
            if copied[slot] is not None:
                copied[slot].synchronize()
            end = 0
            for offset, part in parts:
                end = offset + part.size
                staging[slot][offset:end] = part
                let_go(part)
            (target + begin).copy_from_host_async(staging[slot].ctypes.data, end, stream)
            copied[slot] = stream.record()


def fetch(source: Array, target: Array, stream: Any) -> None:
    """Copy a contiguous device array into a contiguous host array of its shape and type, by chunks through pinned
    memory: while one is copied from the device, the host takes the one before."""
    rest = target.reshape(-1).view(np.uint8)
    staging = _staging(rest.size, DOWNLOAD_CHUNK)
    arriving: Any = None
    with _drained(stream):
        for number, begin in enumerate(range(0, rest.size, DOWNLOAD_CHUNK)):
            wanted = rest[begin : begin + DOWNLOAD_CHUNK]
            chunk = staging[number % len(staging)][: wanted.size]
            (source.data + begin).copy_to_host_async(chunk.ctypes.data, chunk.size, stream)
            copied = stream.record()
            _take(arriving)
            arriving = copied, chunk, wanted
        _take(arriving)


def _take(arriving: tuple[Any, Array, Array] | None) -> None:
    """Wait for a chunk, and copy it to where it is wanted."""
    if arriving is not None:
        copied, chunk, wanted = arriving
        copied.synchronize()
        wanted[...] = chunk


def _staging(nbytes: int, chunk: int) -> list[Array]:
    return [pinned(min(chunk, nbytes)) for _ in range(1 if nbytes <= chunk else 2)]


@contextmanager
def _drained(stream: Any) -> Iterator[None]:
    """At the end of the block, also after an error, nothing on the stream reads or writes its staging buffers: they
    return to a pool that gives them to others."""
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the first error counts
            stream.synchronize()
        raise
    stream.synchronize()


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
