"""Large results of a CUDA device, which stay on the device until they are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from ovgpu._util import host_memory
from ovgpu.backends.cuda import transfer
from ovgpu.errors import Error, OpError, explain
from ovgpu.ops.base.op import Array
from ovgpu.request.pinned import StagedTensor, StagingBuffer
from ovgpu.runtime.backend import RemoteBackend
from ovgpu.tensor import Tensor, basic_index
from ovgpu.types import Shape, Type

LARGE_BYTES = 1 << 20
"""Size above which a result is downloaded when it is read. Smaller results are downloaded by each inference, which
takes less time than launching a separate copy and waiting for it."""


class Downloads:
    """Download of the results of one output from the device. Errors are raised as OpError located at the output."""

    def __init__(self, backend: RemoteBackend, location: str) -> None:
        self._backend, self._location = backend, location

    def into(self, target: Array, source: Array) -> None:
        """Copy a contiguous device array into a contiguous host array of its shape and type."""
        with self.located():
            self._backend.fetch(source, target)

    def copy(self, source: Array, element_type: Type) -> Array:
        """Return a host copy of a contiguous device array, in the dtype of `Tensor.data`."""
        return self.part(source).view(element_type.to_dtype())

    def part(self, source: Array) -> Array:
        """Return a host copy of a part of a device array, in its dtype."""
        with self.located():
            if not source.flags.c_contiguous:
                copy: Array = self._backend.to_host(source)
                return copy
            pinned = self._backend.fetch_pinned(source) if source.nbytes > LARGE_BYTES else None
            if pinned is not None:
                return pinned
            target = host_memory.empty(source.shape, source.dtype)
        self.into(target, source)
        return target

    @contextmanager
    def located(self) -> Iterator[None]:
        """Raise errors of the block as OpError that names the output."""
        try:
            yield
        except (Error, MemoryError) as e:
            text = explain(e) if isinstance(e, MemoryError) else str(e)
            raise OpError(text).at("Result", self._location) from e


def fits_pinned(element_type: Type, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor is small enough for pinned memory."""
    return prod(shape) * element_type.storage.itemsize <= transfer.POOLED


class ResultTensor(StagedTensor):
    """Output tensor that belongs to the request.

    A large result stays on the device until the tensor's memory is first accessed. That memory is pinned unless it is
    too large. From the first access on, every inference writes to it, because the caller may hold views of it, which
    must show the new results. Small results are downloaded by every inference.
    """

    __slots__ = ("_downloads", "_exposed", "_unread")
    _downloads: Downloads
    _exposed: bool
    """True once the tensor's memory has been accessed."""
    _unread: Array | None

    @classmethod
    def create(
        cls, staging: StagingBuffer, downloads: Downloads, element_type: Type, shape: tuple[int, ...]
    ) -> ResultTensor:
        """Return a tensor of zeros of this type and shape."""
        tensor = cls.__new__(cls)
        tensor._staging, tensor._downloads, tensor._exposed, tensor._unread = staging, downloads, False, None
        tensor._hold(tensor._new(element_type, Shape(shape)), element_type, shape, owned=True)
        return tensor

    def choose_memory(self) -> bool:
        """Switch to pinned or pageable memory as the shape requires, without copying the elements.

        Return whether the memory is pinned, so that an inference downloads the result into it.
        """
        if self.pinned != self._should_pin(self._element_type, self._shape):
            memory = self._new(self._element_type, Shape(self._shape))
            self._hold(memory, self._element_type, self._shape, owned=True)
        return self.pinned

    def _should_pin(self, element_type: Type, shape: tuple[int, ...]) -> bool:
        small = prod(shape) * element_type.storage.itemsize <= LARGE_BYTES
        return small or (self._exposed and fits_pinned(element_type, shape))

    def _new(self, element_type: Type, shape: Shape) -> Array:
        if self._should_pin(element_type, tuple(shape)):
            return super()._new(element_type, shape)
        self.pinned = False
        return np.zeros(tuple(shape), element_type.storage)  # unwritten pages take no memory

    @property
    def _buffer(self) -> Any:
        return _ARRAY.__get__(self)

    @property
    def _array(self) -> Any:
        self.expose()
        self._download()
        return self._buffer

    @_array.setter
    def _array(self, array: Array) -> None:
        _ARRAY.__set__(self, array)

    def expose(self) -> None:
        """Note that the caller may hold views of the tensor's memory, which inferences write to from now on."""
        if not self._exposed:
            self._expose()

    def _expose(self) -> None:
        """Move the elements to the memory that inferences write to from now on."""
        self._exposed, elements = True, self._buffer
        try:
            with self._downloads.located():
                self.choose_memory()
        except OpError:
            self._exposed = False
            raise
        if elements is not self._buffer:
            np.copyto(self._buffer, elements)

    @property
    def unread(self) -> Array | None:
        """The device array that holds the elements; None if they are in the tensor's memory."""
        return self._unread

    def read(self, index: Any = ...) -> Array:
        if self._unread is None:  # a copy does not expose the memory
            return np.array(self._buffer[basic_index(index)])
        return self._downloads.part(self._unread[basic_index(index)])

    def set_shape(self, shape: Any) -> None:
        self._download()  # the unread elements have the old shape
        super().set_shape(shape)

    def set_result(self, device: Array | None) -> None:
        """Set a new result, which is in the array ``device``, or in the tensor's memory if that is None."""
        self._unread = device
        if self._exposed:
            self._download()

    def _download(self) -> None:
        if self._unread is not None:
            self._downloads.into(self._buffer, self._unread)
            self._unread = None


_ARRAY: Any = Tensor.__dict__["_array"]  # the slot of the base class, which the property overrides
buffer_of: Any = _ARRAY.__get__
"""`ResultTensor._buffer` as a function, which takes half the time."""
