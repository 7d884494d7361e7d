"""Device arrays of other libraries: CuPy, torch, and any that supports DLPack or the CUDA array interface.

They are used without a copy, after the work that their owner has enqueued.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any

import numpy as np

from ovgpu.backends.cuda import current, rt
from ovgpu.backends.cuda.handles import borrowed_stream
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.errors import Error
from ovgpu.ops.base.op import Array


def adopt(owner: Any) -> Array:
    """Return a CuPy array in the memory of another library's array, which it keeps alive.

    Raises: Error for a dtype that CuPy does not have, or an array that its library refuses to export.
    """
    cupy = rt.cupy()
    if isinstance(owner, cupy.ndarray):
        return owner
    try:
        if hasattr(owner, "__dlpack__"):
            device = owner.__dlpack_device__()[1] if hasattr(owner, "__dlpack_device__") else cupy.cuda.get_device_id()
            with cupy.cuda.Device(device), current.Using(_import_stream(cupy, device)):
                return cupy.from_dlpack(owner)
        interface = owner.__cuda_array_interface__
        shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
        return _array(interface["data"][0], shape, interface.get("strides"), dtype, owner)
    except (BufferError, TypeError, ValueError, RuntimeError) as e:
        raise Error(f"an array of {type(owner).__module__}.{type(owner).__name__} cannot be used: {e}") from e


@cache
def _import_stream(cupy: Any, device: int) -> Any:
    """Return a stream of ``device``, which must be current. The stream runs no work.

    `from_dlpack` makes the current stream wait for the owner's stream. Without this one, the current stream would be
    the default stream, for which all other streams wait.
    """
    return cupy.cuda.Stream(non_blocking=True)


def borrowed(array: Array) -> Array:
    """Return an array in the same memory that does not keep the memory alive."""
    return _array(array.data.ptr, array.shape, array.strides, array.dtype, None, array.data.device_id)


def _array(
    address: int, shape: tuple[int, ...], strides: Any, dtype: np.dtype[Any], owner: Any, device: int = -1
) -> Array:
    cupy = rt.cupy()
    if 0 in shape:
        return empty(shape, dtype)
    span = (
        prod(shape) * dtype.itemsize
        if strides is None
        else dtype.itemsize + sum((n - 1) * abs(s) for n, s in zip(shape, strides))
    )
    memory = cupy.cuda.UnownedMemory(address, span, owner, device)
    return cupy.ndarray(shape, dtype, memptr=cupy.cuda.MemoryPointer(memory, 0), strides=strides)


class _Stream:
    """A stream by its handle, in the ``__cuda_stream__`` protocol of CUDA libraries."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def order(owner: Any, stream: Any) -> None:
    """Make a stream wait for the work on the array that this thread has enqueued through the owner's library."""
    cupy = rt.cupy()
    if isinstance(owner, cupy.ndarray):
        stream.wait_event(cupy.cuda.get_current_stream(owner.data.device_id).record())
    elif hasattr(owner, "__dlpack__"):
        owner.__dlpack__(stream=stream.ptr)
    elif (handle := owner.__cuda_array_interface__.get("stream")) is not None:
        stream.wait_event(cupy.cuda.Stream.from_external(_Stream(handle)).record())


class StreamWaiter:
    """A stream that waits for other streams, with a single event that is recorded again and again."""

    def __init__(self, stream: Any, device: int) -> None:
        self._stream, self._device = stream, device
        self._event: Any = None

    def order(self, owners: Sequence[Any]) -> None:
        """Make the stream wait for the work on several arrays; see the function `order`.

        CuPy arrays on the stream's device share one current stream, for which it waits once.
        """
        cupy, recorded = rt.cupy(), False
        for owner in owners:
            if not isinstance(owner, cupy.ndarray) or owner.data.device_id != self._device:
                order(owner, self._stream)
            elif not recorded:
                recorded = True
                if self._event is None:
                    with cupy.cuda.Device(self._device):
                        self._event = cupy.cuda.Event(disable_timing=True)
                self._event.record(cupy.cuda.get_current_stream(self._device))
                self._stream.wait_event(self._event)


@contextmanager
def _stream_after(*owners: Any) -> Iterator[Any]:
    """Lend a stream that waits for the work of the arrays' owners, and synchronize it at the end of the block."""
    with borrowed_stream() as stream:
        for owner in owners:
            if owner is not None:
                order(owner, stream)
        with current.Using(stream):
            yield stream
            stream.synchronize()


def to_host(array: Array, owner: Any) -> np.ndarray[Any, Any]:
    """Copy a device array to the host, after the work that its owner has enqueued."""
    with rt.cupy().cuda.Device(array.data.device_id), _stream_after(owner) as stream:
        host: np.ndarray[Any, Any] = array.get(stream=stream)
        return host


def to_device(host: np.ndarray[Any, Any], device: int) -> Array:
    """Copy a contiguous host array to the GPU number ``device``."""
    with rt.cupy().cuda.Device(device), _stream_after() as stream:
        array = empty(host.shape, host.dtype)
        array.set(host, stream=stream)
        return array


def copied(array: Array, owner: Any) -> Array:
    """Return a contiguous copy on the same device."""
    with rt.cupy().cuda.Device(array.data.device_id):
        target = empty(array.shape, array.dtype)
    copy(array, target, owner, None)
    return target


def copy(source: Array, target: Array, *owners: Any) -> None:
    """Copy between arrays of one shape and dtype on one device, after the work of ``owners``, and wait."""
    if target.size:
        with rt.cupy().cuda.Device(target.data.device_id), _stream_after(*owners) as stream:
            launcher = Launcher(stream, None)
            launcher.copy(source, target)
            for call in launcher.calls:
                call()


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an uninitialized array of any dtype; `cupy.empty` takes only dtypes that CuPy has kernels for."""
    cupy = rt.cupy()
    return cupy.ndarray(shape, dtype, memptr=cupy.cuda.alloc(max(prod(shape) * dtype.itemsize, 1)))


def zeros(shape: tuple[int, ...], dtype: np.dtype[Any], device: int) -> Array:
    """Return an array of zeros of any dtype on the GPU number ``device``."""
    with rt.cupy().cuda.Device(device), _stream_after() as stream:
        array = empty(shape, dtype)
        if array.nbytes:
            array.data.memset_async(0, array.nbytes, stream)
        return array


def overlap(a: Array, b: Array) -> bool:
    """Return whether the address ranges of two arrays overlap."""
    (first, last), (other_first, other_last) = _address_range(a), _address_range(b)
    return first < other_last and other_first < last


def _address_range(array: Array) -> tuple[int, int]:
    distances = [(n - 1) * s for n, s in zip(array.shape, array.strides)]
    begin = array.data.ptr + sum(r for r in distances if r < 0)
    return begin, (array.data.ptr + sum(r for r in distances if r > 0) + array.itemsize) if array.size else begin
