"""Memory of a request's inputs and outputs where the device has memory of its own: pinned, and on the device."""

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
    """An array on the host and one of its shape and type on the device; the same one twice if there is no other."""

    host: Array
    device: Array


class StagingBuffer:
    """Memory for one tensor on either side, which grows together: a copy between them is bound to both."""

    def __init__(self, backend: Backend, dynamic: bool) -> None:
        # Not by methods: they would hold the staging buffer, and all would wait for the collector.
        self._block = Block(partial(_allocate, backend), partial(_dense, backend), dynamic)

    def pair(self, shape: tuple[int, ...], kind: Type) -> HostDevicePair:
        """The arrays of this shape and type."""
        return self._block.array(shape, kind)


def _allocate(backend: Backend, nbytes: int) -> tuple[Any, Any]:
    return backend.pinned(nbytes), backend.allocate(nbytes)


def _dense(backend: Backend, memory: tuple[Any, Any], shape: tuple[int, ...], kind: Type) -> HostDevicePair:
    return HostDevicePair(np.ndarray(shape, kind.storage, memory[0]), backend.dense(memory[1], shape, kind))


class StagedTensor(Tensor):
    """A tensor in the pinned memory of a staging buffer, the only one there. Subclasses may take other memory."""

    __slots__ = ("_staging", "pinned")
    _staging: StagingBuffer
    pinned: bool
    """True if the elements lie in the staging buffer's pinned memory."""

    @classmethod
    def of(cls, staging: StagingBuffer, kind: Type, shape: tuple[int, ...]) -> StagedTensor:
        """Zeros of a type that is neither packed nor string."""
        tensor = cls.__new__(cls)
        tensor._staging = staging
        tensor._hold(tensor._new(kind, Shape(shape)), kind, shape, owned=True)
        return tensor

    def _new(self, element_type: Type, shape: Shape) -> Array:
        host, self.pinned = self._staging.pair(tuple(shape), element_type).host, True
        host.fill(0)
        return host

    def pair(self) -> HostDevicePair:
        """The tensor's pinned memory, and that on the device, in its shape."""
        return self._staging.pair(self._shape, self._element_type)
