"""Staging buffers of a request's inputs and outputs: pinned host memory paired with device memory."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.runtime.backend import Backend
from ovgpu.runtime.blocks import Block
from ovgpu.tensor import Tensor
from ovgpu.types import Shape, Type


class HostDevicePair(NamedTuple):
    """Array on the host and one of the same shape and type on the device; the same array twice if there is only one."""

    host: Array
    device: Array


class StagingBuffer:
    """Pinned memory and device memory for one tensor. They grow together, because a copy step is bound to both."""

    def __init__(self, backend: Backend, dynamic: bool) -> None:
        # Bound methods would refer to the staging buffer, and only the garbage collector could free the cycle.
        self._block = Block(partial(_allocate, backend), partial(_dense, backend), dynamic)

    def pair(self, shape: tuple[int, ...], dtype: Type) -> HostDevicePair:
        """Return the host and device arrays of this shape and type."""
        return self._block.array(shape, dtype)


def _allocate(backend: Backend, nbytes: int) -> tuple[Any, Any]:
    return backend.pinned(nbytes), backend.allocate(nbytes)


def _dense(backend: Backend, memory: tuple[Any, Any], shape: tuple[int, ...], dtype: Type) -> HostDevicePair:
    return HostDevicePair(np.ndarray(shape, dtype.storage, memory[0]), backend.dense(memory[1], shape, dtype))


class StagedTensor(Tensor):
    """Tensor in the pinned memory of a staging buffer of its own. Subclasses may use other memory."""

    __slots__ = ("_staging", "pinned")
    _staging: StagingBuffer
    pinned: bool
    """True if the elements lie in the staging buffer's pinned memory."""

    @classmethod
    def of(cls, staging: StagingBuffer, dtype: Type, shape: tuple[int, ...]) -> StagedTensor:
        """Return a tensor of zeros; its type must be neither packed nor string."""
        tensor = cls.__new__(cls)
        tensor._staging = staging
        tensor._hold(tensor._new(dtype, Shape(shape)), dtype, shape, owned=True)
        return tensor

    def _new(self, element_type: Type, shape: Shape) -> Array:
        host, self.pinned = self._staging.pair(tuple(shape), element_type).host, True
        host.fill(0)
        return host

    def pair(self) -> HostDevicePair:
        """Return the tensor's pinned memory and the device memory paired with it, in the tensor's shape."""
        return self._staging.pair(self._shape, self._element_type)
