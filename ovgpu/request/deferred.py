"""Large results of a CUDA device: they stay there until they are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from ovgpu._util import host_memory
from ovgpu.backends.cuda import CudaBackend, transfer
from ovgpu.errors import Error, OpError, explain
from ovgpu.ops.base.op import Array
from ovgpu.request.pinned import StagedTensor, StagingBuffer
from ovgpu.tensor import Tensor
from ovgpu.types import Shape, Type

LARGE_BYTES = 1 << 20
"""Size of a result above which it is downloaded when it is read. A smaller one is downloaded by each inference: that
takes less time than the launch and the wait of a copy of its own."""


class Downloads:
    """Copies results of one output from the device. Raises OpError, located at the output, for what goes wrong."""

    def __init__(self, backend: CudaBackend, place: str) -> None:
        self._backend, self._place = backend, place

    def into(self, target: Array, source: Array) -> None:
        """Copy a contiguous device array into a contiguous host array of its shape and type."""
        with self.located():
            self._backend.fetch(source, target)

    def copy(self, source: Array, kind: Type) -> Array:
        """Return a contiguous device array as an array on the host, as `Tensor.data` shows it."""
        with self.located():
            target = host_memory.empty(source.shape, source.dtype)
        self.into(target, source)
        return target.view(kind.to_dtype())

    @contextmanager
    def located(self) -> Iterator[None]:
        """Raise errors in the block as OpError that names the output."""
        try:
            yield
        except (Error, MemoryError) as e:
            text = explain(e) if isinstance(e, MemoryError) else str(e)
            raise OpError(text).at("Result", self._place) from e


def fits_pinned(kind: Type, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor is small enough to lie in pinned memory."""
    return prod(shape) * kind.storage.itemsize <= transfer.POOLED


class ResultTensor(StagedTensor):
    """The request's own tensor of an output.

    A large result stays on the device until somebody asks for the tensor's memory, which is pinned unless it is too
    large for that. From then on inferences write to that memory: views of it, which the caller may have kept, show the
    new results. Small results are there after every inference.
    """

    __slots__ = ("_downloads", "_shown", "_unread")
    _downloads: Downloads
    _shown: bool
    """True once somebody has asked for the tensor's memory."""
    _unread: Array | None

    @classmethod
    def create(cls, staging: StagingBuffer, downloads: Downloads, kind: Type, shape: tuple[int, ...]) -> ResultTensor:
        """A tensor of zeros."""
        tensor = cls.__new__(cls)
        tensor._staging, tensor._downloads, tensor._shown, tensor._unread = staging, downloads, False, None
        tensor._hold(tensor._new(kind, Shape(shape)), kind, shape, owned=True)
        return tensor

    def settle(self) -> bool:
        """Take the kind of memory that suits the shape, without the elements. Return whether it is pinned, so that an
        inference downloads the result into it."""
        if self.pinned != self._to_pin(self._element_type, self._shape):
            memory = self._new(self._element_type, Shape(self._shape))
            self._hold(memory, self._element_type, self._shape, owned=True)
        return self.pinned

    def _to_pin(self, kind: Type, shape: tuple[int, ...]) -> bool:
        small = prod(shape) * kind.storage.itemsize <= LARGE_BYTES
        return small or (self._shown and fits_pinned(kind, shape))

    def _new(self, element_type: Type, shape: Shape) -> Array:
        if self._to_pin(element_type, tuple(shape)):
            return super()._new(element_type, shape)
        self.pinned = False
        return np.zeros(tuple(shape), element_type.storage)  # pages that nobody writes to take no memory

    @property
    def _buffer(self) -> Any:
        return _ARRAY.__get__(self)

    @property
    def _array(self) -> Any:
        if not self._shown:
            self._show()
        self._download()
        return self._buffer

    @_array.setter
    def _array(self, array: Array) -> None:
        _ARRAY.__set__(self, array)

    def _show(self) -> None:
        """Move to the memory that inferences write to from now on."""
        self._shown, elements = True, self._buffer
        try:
            with self._downloads.located():
                self.settle()
        except OpError:
            self._shown = False
            raise
        if elements is not self._buffer:
            np.copyto(self._buffer, elements)

    @property
    def unread(self) -> Array | None:
        """The device array that holds the elements; None if they are in the tensor's memory."""
        return self._unread

    def set_shape(self, shape: Any) -> None:
        self._download()  # the elements are those of the shape before
        super().set_shape(shape)

    def expect(self, device: Array | None) -> None:
        """Take a new result, which is in ``device``; None: in the tensor's memory."""
        self._unread = device
        if self._shown:
            self._download()

    def _download(self) -> None:
        if self._unread is not None:
            self._downloads.into(self._buffer, self._unread)
            self._unread = None


_ARRAY: Any = Tensor.__dict__["_array"]  # the attribute under the property
