"""Copies between host and device through pinned memory, and in captured graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ovgpu.backends.cuda import rt
from ovgpu.ops.base.lazy import LazyConstant
from ovgpu.ops.base.op import Array
from ovgpu.runtime.backend import Transfer
from ovgpu.types.mapped import let_go

# On an H100's host, chunks of 1 to 32 MiB moved 7 to 11 GB/s to the card and 6 to 8 GB/s back, whatever their size.
CHUNK = 16 << 20  # bytes of each of the two staging buffers for uploads: one is filled while the other is copied
DOWNLOAD_CHUNK = 4 << 20  # bytes of each staging buffer for downloads
POOLED = 64 << 20  # bytes of the largest block in CuPy's pool, which rounds sizes up to powers of two and frees nothing
MAX_LENT = 256 << 20  # bytes of pinned memory in arrays that callers hold; it is lost to the rest of the machine
_lent: WeakValueDictionary[int, Array] = WeakValueDictionary()  # blocks of `fetch_pinned`


class PinnedCopy(Transfer):
    """A copy between pinned memory and the device. It keeps both arrays alive as long as a graph that contains it."""

    __slots__ = ("_arguments", "_copy", "device", "host")

    def __init__(self, host: Array, device: Array, upload: bool, stream: Any) -> None:
        runtime = rt.cupy().cuda.runtime
        self.host, self.device, self._copy = host, device, runtime.memcpyAsync
        on_host, on_device = host.ctypes.data, device.data.ptr
        self._arguments = (
            (on_device, on_host, host.nbytes, runtime.memcpyHostToDevice, stream.ptr)
            if upload
            else (on_host, on_device, host.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
        )

    def __call__(self) -> None:
        self._copy(*self._arguments)


def set_device(number: int) -> None:
    """Make a device current in a thread that shares copies."""
    rt.cupy().cuda.runtime.setDevice(number)


def pinned(nbytes: int) -> Array:
    """Return ``nbytes`` of pinned memory as uint8. The array owns it: large blocks are freed with it, others return to
    CuPy's pool."""
    cuda = rt.cupy().cuda
    if nbytes > POOLED:
        return np.frombuffer(cuda.PinnedMemoryPointer(cuda.PinnedMemory(nbytes), 0), np.uint8, nbytes)
    return np.frombuffer(cuda.alloc_pinned_memory(max(nbytes, 1)), np.uint8, nbytes)


def send(source: Array, target: Array, stream: Any) -> None:
    """Copy a host array into a contiguous device array of its shape and dtype, and wait."""
    upload(chunks([(0, source)], target.data, stream), source.nbytes, stream)


Chunk = tuple[Sequence[tuple[int, Array]], Callable[[Array], None]]
"""Part of an upload: pairs of an offset in pinned memory and bytes of the host that are copied to there, and the
function that is called with the pinned memory, and enqueues its copy."""


def upload(chunks: Iterable[Chunk], nbytes: int, stream: Any) -> None:
    """Upload chunks of at most `CHUNK` bytes, ``nbytes`` in all, and wait.

    While one chunk is copied to the device, the host fills the next one. Pages of files that were read are let go.
    """
    staging = _staging(nbytes, CHUNK)
    copied: list[Any] = [None] * len(staging)  # the event of each buffer's last copy
    with _draining(stream):
        for index, (parts, enqueue) in enumerate(chunks):
            slot = index % len(staging)
            if copied[slot] is not None:
                copied[slot].synchronize()
            end = 0
            for offset, part in parts:
                end = offset + part.size
                staging[slot][offset:end] = part
                let_go(part)
            enqueue(staging[slot][:end])
            copied[slot] = stream.record()


def chunks(values: Iterable[tuple[int, Array | LazyConstant]], target: Any, stream: Any) -> Iterator[Chunk]:
    """Yield the chunks of constants of the host, each with its byte offset from ``target``, in the order of their
    offsets. Lazy ones are computed one after the other."""
    first, parts = 0, list[tuple[int, Array]]()

    def chunk() -> Chunk:
        return parts, partial(enqueue_copy, target + first, stream)

    for begin, value in values:
        remaining = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        while remaining.size:
            if begin - first >= CHUNK:
                yield chunk()
                first, parts = begin, []
            part = remaining[: first + CHUNK - begin]
            parts.append((begin - first, part))
            remaining, begin = remaining[part.size :], begin + part.size
    if parts:
        yield chunk()


def enqueue_copy(target: Any, stream: Any, source: Array) -> None:
    """Enqueue a copy of pinned memory to the device address ``target``."""
    target.copy_from_host_async(source.ctypes.data, source.size, stream)


def fetch(source: Array, target: Array, stream: Any) -> None:
    """Copy a contiguous device array into a contiguous host array of its shape and dtype, and wait.

    Chunks go through pinned memory: while one is copied from the device, the host stores the previous one.
    """
    remaining = target.reshape(-1).view(np.uint8)
    staging = _staging(remaining.size, DOWNLOAD_CHUNK)
    pending: Any = None
    with _draining(stream):
        for index, begin in enumerate(range(0, remaining.size, DOWNLOAD_CHUNK)):
            destination = remaining[begin : begin + DOWNLOAD_CHUNK]
            chunk = staging[index % len(staging)][: destination.size]
            (source.data + begin).copy_to_host_async(chunk.ctypes.data, chunk.size, stream)
            copied = stream.record()
            _receive(pending)
            pending = copied, chunk, destination
        _receive(pending)


def fetch_pinned(source: Array, stream: Any) -> Array | None:
    """Return a contiguous device array in pinned memory, after waiting for its copy. Nothing is copied on the host.

    Return None if the array is too large for CuPy's pool, if callers hold `MAX_LENT` bytes of such arrays, or if no
    pinned memory is left.
    """
    if source.nbytes > POOLED or source.nbytes + sum(block.nbytes for block in _lent.values()) > MAX_LENT:
        return None
    try:
        block = pinned(source.nbytes)
    except rt.cupy().cuda.runtime.CUDARuntimeError:  # pageable memory may still be free
        return None
    target: Array = np.ndarray(source.shape, source.dtype, block)
    with _draining(stream):
        source.data.copy_to_host_async(target.ctypes.data, target.nbytes, stream)
    _lent[id(block)] = block
    return target


def _receive(pending: tuple[Any, Array, Array] | None) -> None:
    """Wait for a chunk, and copy it from its staging buffer to its destination."""
    if pending is not None:
        copied, chunk, destination = pending
        copied.synchronize()
        destination[...] = chunk


def _staging(nbytes: int, chunk: int) -> list[Array]:
    return [pinned(min(chunk, nbytes)) for _ in range(1 if nbytes <= chunk else 2)]


@contextmanager
def _draining(stream: Any) -> Iterator[None]:
    """Synchronize the stream at the end of the block, even after an error: only then may its staging buffers return to
    the pool, which lends them to others."""
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the first error is raised
            stream.synchronize()
        raise
    stream.synchronize()
