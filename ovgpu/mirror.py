"""Memory of a request's inputs and outputs where the device has memory of its own: pinned, and on the device."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ovgpu.ops._op import Array
from ovgpu.runtime.backend import Backend
from ovgpu.runtime.memory import capacity, reserve
from ovgpu.tensor import Tensor
from ovgpu.types import Shape, Type

KEPT = 16  # shapes


class Block:
    """Memory for one tensor, which grows as needed. A shape has the same array each time, until it grows: steps are
    bound to arrays."""

    def __init__(self, allocate: Callable[[int], Any], dense: Callable[[Any, tuple[int, ...], Type], Array],
                 dynamic: bool) -> None:
        self._allocate, self._dense, self._dynamic = allocate, dense, dynamic
        self._memory: Any = None
        self._size = 0
        self._arrays: OrderedDict[tuple[tuple[int, ...], Type], Array] = OrderedDict()

    def array(self, shape: tuple[int, ...], kind: Type) -> Array:
        """The array of this shape and type."""
        found = self._arrays.get((shape, kind))
        if found is None:
            self._reserve(prod(shape) * kind.storage.itemsize)
            found = self._arrays[shape, kind] = self._dense(self._memory, shape, kind)
            if len(self._arrays) > KEPT:
                self._arrays.popitem(last=False)
        return found

    def _reserve(self, nbytes: int) -> None:
        if self._memory is None or nbytes > self._size:
            size = capacity(2 * nbytes if self._size else nbytes, self._dynamic)  # what has grown will grow again
            self._memory, self._size = reserve(self._allocate, size, nbytes)
            self._arrays.clear()


class Pair(NamedTuple):
    """An array on the host and one of its shape and type on the device; the same one twice if there is no other."""

    host: Array
    device: Array


class Mirror:
    """Two blocks for one tensor, on either side."""

    def __init__(self, backend: Backend, dynamic: bool) -> None:
        self._host = Block(backend.pinned, _array, dynamic)
        self._device = Block(backend.allocate, backend.dense, dynamic)

    def pair(self, shape: tuple[int, ...], kind: Type) -> Pair:
        """The arrays of this shape and type."""
        return Pair(self._host.array(shape, kind), self._device.array(shape, kind))


def _array(memory: Array, shape: tuple[int, ...], kind: Type) -> Array:
    return np.ndarray(shape, kind.storage, memory)


class MirroredTensor(Tensor):
    """A tensor in the pinned memory of a mirror, the only one there."""

    __slots__ = ("_mirror",)
    _mirror: Mirror

    @classmethod
    def of(cls, mirror: Mirror, kind: Type, shape: tuple[int, ...]) -> MirroredTensor:
        """Zeros of a type that is neither packed nor string."""
        tensor = cls.__new__(cls)
        tensor._mirror = mirror
        tensor._hold(tensor._new(kind, Shape(shape)), kind, shape, owned=True)
        return tensor

    def _new(self, element_type: Type, shape: Shape) -> Array:
        host = self._mirror.pair(tuple(shape), element_type).host
        host.fill(0)
        return host

    def pair(self) -> Pair:
        """The tensor's memory, and that on the device, in its shape."""
        return self._mirror.pair(self._shape, self._element_type)
