"""Reusable memory of single tensors, with one cached array per shape."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import prod
from typing import Any, Generic, TypeVar

from ovgpu.ops.base.op import Array
from ovgpu.runtime.backend import Backend, FreshMemory
from ovgpu.runtime.memory import capacity, reserve
from ovgpu.types import Type

CACHED_SHAPES = 16  # per block

T = TypeVar("T")


class Block(Generic[T]):
    """Memory of one tensor, which grows as needed. Until it grows, a shape gets the same array each time, so that
    steps bound to the array stay valid."""

    def __init__(
        self, allocate: Callable[[int], Any], dense: Callable[[Any, tuple[int, ...], Type], T], dynamic: bool
    ) -> None:
        self._allocate, self._dense, self._dynamic = allocate, dense, dynamic
        self._memory: Any = None
        self._size = 0
        self._arrays: OrderedDict[tuple[tuple[int, ...], Type], T] = OrderedDict()

    def array(self, shape: tuple[int, ...], dtype: Type) -> T:
        """Return the array of this shape and type, and grow the memory if needed."""
        array = self._arrays.get((shape, dtype))
        if array is None:
            self._reserve(prod(shape) * dtype.storage.itemsize)
            array = self._arrays[shape, dtype] = self._dense(self._memory, shape, dtype)
            if len(self._arrays) > CACHED_SHAPES:
                self._arrays.popitem(last=False)
        return array

    def _reserve(self, nbytes: int) -> None:
        if self._memory is None or nbytes > self._size:
            size = capacity(2 * nbytes if self._size else nbytes, self._dynamic)  # doubled: it will likely grow again
            self._arrays.clear()
            self._memory, self._size = reserve(self._allocate, size, nbytes)


class ReusedMemory(FreshMemory):
    """`binding.MemoryProvider` for programs whose results are copied before their next run: results of the same shape
    reuse the same array."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._blocks: dict[int, Block[Array]] = {}

    def output(self, index: int, shape: tuple[int, ...], dtype: Type) -> Array:
        if dtype is Type.string:
            return super().output(index, shape, dtype)
        if index not in self._blocks:
            self._blocks[index] = Block(self.backend.allocate, self.backend.dense, True)
        return self._blocks[index].array(shape, dtype)
