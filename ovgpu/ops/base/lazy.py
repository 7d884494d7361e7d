"""Constants that are computed only when they are uploaded or read, so that the host does not hold them twice.

They have an array's interface: ``shape``, ``dtype``, ``ndim``, ``size``, ``nbytes``, `reshape` and ``__array__``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array, Op
from ovgpu.ops.base.xp import NUMPY
from ovgpu.types.mapped import let_go, memory_of


class LazyConstant(ABC):
    """Constant that is computed from arrays of the host, its ``sources``."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * int(self.dtype.itemsize)

    @property
    @abstractmethod
    def key(self) -> tuple[Any, ...]:
        """Key that is equal for constants that are computed alike from the same memory."""

    @abstractmethod
    def sources(self) -> Iterator[Array]:
        """Yield the arrays of the host."""

    @abstractmethod
    def compute(self) -> Array:
        """Return the constant as an array, and let go of the sources."""

    def reshape(self, *shape: Any) -> Array | LazyConstant:
        return self.compute().reshape(*shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.compute().astype(dtype or self.dtype, copy=False)


class Converted(LazyConstant):
    """Array in another type of ``dtype``: the result of ``op``, an elementwise conversion."""

    def __init__(self, source: Array, op: Op, dtype: np.dtype[Any]) -> None:
        self.source, self.op, self.dtype, self.shape = source, op, dtype, source.shape

    @property
    def key(self) -> tuple[Any, ...]:
        return type(self.op), self.dtype, memory_of(self.source)

    def sources(self) -> Iterator[Array]:
        yield self.source

    def reshape(self, *shape: Any) -> Converted:
        return Converted(self.source.reshape(*shape), self.op, self.dtype)

    def compute(self) -> Array:
        (result,) = self.op.evaluate(NUMPY, self.source)
        let_go(self.source)
        return np.asarray(result, self.dtype)


class Joined(LazyConstant):
    """Concatenation along an axis of arrays and lazy constants of one type."""

    def __init__(self, parts: Sequence[Array | LazyConstant], axis: int) -> None:
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        self.parts, self.axis = tuple(parts), axis
        self.shape, self.dtype = tuple(shape), parts[0].dtype

    @property
    def key(self) -> tuple[Any, ...]:
        return self.axis, *map(key_of, self.parts)

    @property
    def is_in_order(self) -> bool:
        """True if the parts follow each other in memory."""
        return prod(self.shape[: self.axis]) == 1

    def sources(self) -> Iterator[Array]:
        for part in self.parts:
            yield from sources_of(part)

    def compute(self) -> Array:
        joined = np.concatenate([np.asarray(part) for part in self.parts], self.axis)
        for source in self.sources():
            let_go(source)
        return joined


def sources_of(value: Array | LazyConstant) -> Iterator[Array]:
    """Yield the arrays of the host that a constant comes from, or itself."""
    if isinstance(value, LazyConstant):
        yield from value.sources()
    else:
        yield value


def key_of(value: Array | LazyConstant) -> Any:
    """Return a key that is equal for constants of the same elements in the same memory."""
    return value.key if isinstance(value, LazyConstant) else memory_of(value)
