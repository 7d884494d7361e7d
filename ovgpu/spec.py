"""Specs of tensors in shape inference: element type, shape and, where known, value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgpu.symbolic import Int, Sym, Table
from ovgpu.types import UNBOUNDED, Dimension, PartialShape, Type

Shape = tuple[Int, ...] | None  # None: even the rank is unknown


@dataclass(frozen=True, slots=True)
class Spec:
    """Element type, shape and, where known, value of a tensor in shape inference.

    ``shape`` is None when the rank is unknown. ``value`` is the tensor itself if it is constant (an ndarray of
    the type's storage dtype), or an object array of Ints if it is a small integer tensor of shape arithmetic.
    """

    type: Type
    shape: Shape
    value: np.ndarray[Any, Any] | None = None

    @property
    def rank(self) -> int | None:
        """Number of dimensions, None if it is unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def symbolic(self) -> bool:
        """True if the value is an object array of Ints. (An object array of strings is a constant.)"""
        return self.value is not None and self.value.dtype == object and self.type != Type.string

    @property
    def constant(self) -> np.ndarray[Any, Any] | None:
        """The value if all its elements are known now, else None."""
        if self.value is None or not self.symbolic:
            return self.value
        flat = self.value.ravel()
        return None if any(isinstance(v, Sym) for v in flat) else self.value.astype(np.int64)

    def ints(self) -> list[Int] | None:
        """Return the elements of an integer tensor as a flat list of Ints, or None if they are unknown."""
        if self.value is None:
            return None
        values = self.value.ravel()
        if values.dtype.names:  # packed types: the stored codes are the numbers
            values = values.view(np.uint8)
        return [v if isinstance(v, Sym) else int(v) for v in values.tolist()]

    @property
    def partial_shape(self) -> PartialShape:
        """Shape with OpenVINO's dimensions."""
        if self.shape is None:
            return PartialShape.dynamic()
        return PartialShape([d if not isinstance(d, Sym) else _dimension(d) for d in self.shape])


def _dimension(sym: Sym) -> Dimension:
    hi = -1 if sym.hi is None or sym.hi > UNBOUNDED else sym.hi
    return Dimension(min(max(sym.lo, 0), UNBOUNDED), hi)


def dims_of(shape: PartialShape, table: Table, *key: Any) -> Shape:
    """Return the extents of a declared shape: ints, and a symbol ``dim(*key, axis)`` for each dynamic one."""
    if shape.rank.is_dynamic:
        return None
    return tuple(
        d.get_length()
        if d.is_static
        else table.atom("dim", *key, i, lo=d.min_length, hi=None if d.max_length < 0 else d.max_length)
        for i, d in enumerate(shape)
    )
