"""Arrays of other libraries in device memory: CuPy's, torch's, and whatever speaks DLPack or the CUDA array
interface. They are used where they are, after the work that their owner has enqueued."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any

import numpy as np

from ovgpu.backends.cuda import rt
from ovgpu.backends.cuda.handles import borrowed_stream
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.errors import Error
from ovgpu.ops.base.op import Array


def adopt(owner: Any) -> Array:
    """A CuPy array in the memory of another library's array, which it keeps alive.

    Raises: Error for a type that CuPy does not have, or an array that its library does not hand out.
    """
    cupy = rt.cupy()
    if isinstance(owner, cupy.ndarray):
        return owner
    try:
        if hasattr(owner, "__dlpack__"):
            number = owner.__dlpack_device__()[1] if hasattr(owner, "__dlpack_device__") else cupy.cuda.get_device_id()
            with cupy.cuda.Device(number), _waiting(cupy, number):
                return cupy.from_dlpack(owner)
        given = owner.__cuda_array_interface__
        shape, dtype = tuple(given["shape"]), np.dtype(given["typestr"])
        return _array(given["data"][0], shape, given.get("strides"), dtype, owner)
    except (BufferError, TypeError, ValueError, RuntimeError) as e:
        raise Error(f"an array of {type(owner).__module__}.{type(owner).__name__} cannot be used: {e}") from e


@cache
def _waiting(cupy: Any, device: int) -> Any:
    """A stream of the current device, whose number is ``device``, that no work is given: `from_dlpack` has the current
    one wait for the owner's, and that would be the default stream, on which everything waits."""
    return cupy.cuda.Stream(non_blocking=True)


def borrowed(array: Array) -> Array:
    """An array in the same memory that does not keep it alive."""
    return _array(array.data.ptr, array.shape, array.strides, array.dtype, None, array.data.device_id)


def _array(address: int, shape: tuple[int, ...], strides: Any, dtype: np.dtype[Any], owner: Any,
           device: int = -1) -> Array:
    cupy = rt.cupy()
    if 0 in shape:
        return empty(shape, dtype)
    span = prod(shape) * dtype.itemsize if strides is None else dtype.itemsize + sum(
        (n - 1) * abs(s) for n, s in zip(shape, strides))
    memory = cupy.cuda.UnownedMemory(address, span, owner, device)
    return cupy.ndarray(shape, dtype, memptr=cupy.cuda.MemoryPointer(memory, 0), strides=strides)


class _Stream:
    """A stream by its number, as CUDA libraries hand them to each other."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._number


def order(owner: Any, stream: Any) -> None:
    """Has a stream wait for the work that the owner's library has enqueued on the array, from this thread."""
    cupy = rt.cupy()
    if isinstance(owner, cupy.ndarray):
        stream.wait_event(cupy.cuda.get_current_stream(owner.data.device_id).record())
    elif hasattr(owner, "__dlpack__"):
        owner.__dlpack__(stream=stream.ptr)
    elif (number := owner.__cuda_array_interface__.get("stream")) is not None:
        stream.wait_event(cupy.cuda.Stream.from_external(_Stream(number)).record())


class Waiting:
    """Has one stream wait for others, by one event after the other."""

    def __init__(self, stream: Any, device: int) -> None:
        self._stream, self._device = stream, device
        self._event: Any = None

    def order(self, owners: Sequence[Any]) -> None:
        """As `order` for several arrays: arrays of CuPy on the stream's device have one current stream."""
        cupy, waits = rt.cupy(), False
        for owner in owners:
            if not isinstance(owner, cupy.ndarray) or owner.data.device_id != self._device:
                order(owner, self._stream)
            elif not waits:
                waits = True
                if self._event is None:
                    with cupy.cuda.Device(self._device):
                        self._event = cupy.cuda.Event(disable_timing=True)
                self._event.record(cupy.cuda.get_current_stream(self._device))
                self._stream.wait_event(self._event)


@contextmanager
def _work(*owners: Any) -> Iterator[Any]:
    """A stream for work that begins after what the owners of arrays have enqueued, and is done at the end."""
    with borrowed_stream() as stream:
        for owner in owners:
            if owner is not None:
                order(owner, stream)
        with stream:
            yield stream
            stream.synchronize()


def to_host(array: Array, owner: Any) -> np.ndarray[Any, Any]:
    """A copy on the host."""
    with rt.cupy().cuda.Device(array.data.device_id), _work(owner) as stream:
        host: np.ndarray[Any, Any] = array.get(stream=stream)
        return host


def to_device(host: np.ndarray[Any, Any], device: int) -> Array:
    """A copy of a contiguous host array on the device."""
    with rt.cupy().cuda.Device(device), _work() as stream:
        array = empty(host.shape, host.dtype)
        array.set(host, stream=stream)
        return array


def copied(array: Array, owner: Any) -> Array:
    """A contiguous copy on the same device."""
    with rt.cupy().cuda.Device(array.data.device_id):
        target = empty(array.shape, array.dtype)
    copy(array, target, owner, None)
    return target


def copy(source: Array, target: Array, *owners: Any) -> None:
    """Copies between arrays of one shape and type on one device."""
    if target.size:
        with rt.cupy().cuda.Device(target.data.device_id), _work(*owners) as stream:
            launcher = Launcher(stream, None)
            launcher.copy(source, target)
            for call in launcher.calls:
                call()


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array of any dtype: CuPy's own have kernels for few."""
    cupy = rt.cupy()
    return cupy.ndarray(shape, dtype, memptr=cupy.cuda.alloc(max(prod(shape) * dtype.itemsize, 1)))


def zeros(shape: tuple[int, ...], dtype: np.dtype[Any], device: int) -> Array:
    """An array of zeros of any dtype."""
    with rt.cupy().cuda.Device(device), _work() as stream:
        array = empty(shape, dtype)
        if array.nbytes:
            array.data.memset_async(0, array.nbytes, stream)
        return array


def overlap(a: Array, b: Array) -> bool:
    """Whether two arrays may have memory in common."""
    (first, last), (other_first, other_last) = _span(a), _span(b)
    return first < other_last and other_first < last


def _span(array: Array) -> tuple[int, int]:
    reach = [(n - 1) * s for n, s in zip(array.shape, array.strides)]
    begin = array.data.ptr + sum(r for r in reach if r < 0)
    return begin, (array.data.ptr + sum(r for r in reach if r > 0) + array.itemsize) if array.size else begin
