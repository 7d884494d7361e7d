"""Dimension, Shape and PartialShape, with the interface of openvino's.

They are stricter where openvino silently makes up a number: a negative extent other than -1, a reversed range, an empty
or unparsable extent, or an index out of range raises.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex, overload

UNBOUNDED = 2**63 - 1  # the upper bound of a dimension without one, as in openvino


def _check_class(value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise TypeError(f"expected {expected.__name__}, got {type(value).__name__}")


class Dimension:
    """The extent of an axis, known or bounded: `Dimension(3)`, `Dimension(1, 8)`, `Dimension("3..")`, `Dimension()`.

    As a value, -1 means an unknown extent; as a bound, that there is no bound. The text "" means 0. A dimension is
    immutable except for its symbol.

    Raises: TypeError for an argument that is no int or str, RuntimeError for invalid text or bounds.
    """

    __slots__ = ("_max", "_min", "_symbol")
    _min: int
    _max: int
    _symbol: Any

    def __init__(
        self,
        dimension: SupportsIndex | str = -1,
        max_dimension: SupportsIndex | None = None,
        *,
        min_dimension: SupportsIndex | None = None,
    ) -> None:
        if isinstance(dimension, str):
            low, high = _parse_bounds(dimension)
        else:
            low = _extent(dimension if min_dimension is None else min_dimension)
            high = low if max_dimension is None else _extent(max_dimension)
        self._min = 0 if low in (-1, UNBOUNDED) else low
        self._max = UNBOUNDED if high == -1 else high
        if self._min > self._max:
            raise RuntimeError(f"Dimension bounds {low}..{high} are reversed")

    @staticmethod
    def dynamic() -> Dimension:
        """Return a dimension of any length."""
        return Dimension()

    @property
    def is_dynamic(self) -> bool:
        """True if the length is not known."""
        return self._min != self._max

    @property
    def is_static(self) -> bool:
        """True if the length is known."""
        return self._min == self._max

    @property
    def min_length(self) -> int:
        """The lower bound, 0 if there is none."""
        return self._min

    @property
    def max_length(self) -> int:
        """The upper bound, -1 if there is none."""
        return -1 if self._max == UNBOUNDED else self._max

    def get_min_length(self) -> int:
        """Return the smallest length."""
        return self.min_length

    def get_max_length(self) -> int:
        """Return the largest length, -1 if there is none."""
        return self.max_length

    def get_length(self) -> int:
        """Return the extent. RuntimeError if it is unknown."""
        if self._min != self._max:
            raise RuntimeError(f"Cannot get length of dynamic dimension {self}")
        return self._min

    def __len__(self) -> int:
        return self.get_length()

    def get_symbol(self) -> Any:
        """Return the symbol, None if there is none."""
        return getattr(self, "_symbol", None)

    def set_symbol(self, symbol: Any) -> None:
        """Set an `openvino.Symbol`. It has no effect in ovgpu."""
        self._symbol = symbol

    def has_symbol(self) -> bool:
        """Return whether the dimension has a symbol, which unknown lengths share if they are equal."""
        return self.get_symbol() is not None

    def compatible(self, dim: Dimension) -> bool:
        """Return whether some extent satisfies both."""
        _check_class(dim, Dimension)
        return max(self._min, dim._min) <= min(self._max, dim._max)

    def refines(self, dim: Dimension) -> bool:
        """Return whether every extent that satisfies this dimension satisfies `dim`."""
        _check_class(dim, Dimension)
        return dim._min <= self._min and self._max <= dim._max

    def relaxes(self, dim: Dimension) -> bool:
        """Return whether every extent that satisfies `dim` satisfies this dimension."""
        _check_class(dim, Dimension)
        return dim.refines(self)

    def same_scheme(self, dim: Dimension) -> bool:
        """Return whether both are dynamic, or both static and equal."""
        _check_class(dim, Dimension)
        return self == dim if self.is_static else dim.is_dynamic

    def merge(self, dim: Dimension) -> Dimension | None:
        """Return the intersection of two dimensions, None if it is empty."""
        low, high = max(self._min, dim._min), min(self._max, dim._max)
        return _interval(low, high) if low <= high else None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dimension):
            return self._min == other._min and self._max == other._max
        if type(other).__name__ == "Dimension":  # openvino's
            return str(self) == str(other)
        try:
            value = operator.index(other)  # type: ignore[arg-type]
        except TypeError:
            return NotImplemented
        low, high = (0, UNBOUNDED) if value == -1 else (value, value)
        return self._min == low and self._max == high

    def to_string(self) -> str:
        """Return the text that OpenVINO prints, such as ?, 3 or 1..8."""
        if self._min == self._max:
            return str(self._min)
        if self._min == 0 and self._max == UNBOUNDED:
            return "?"
        return f"{self._min or ''}..{'' if self._max == UNBOUNDED else self._max}"

    __str__ = to_string

    def __repr__(self) -> str:
        return f"<Dimension: {self}>"

    def __copy__(self) -> Dimension:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Dimension:
        return self


def _interval(low: int, high: int) -> Dimension:
    dimension = object.__new__(Dimension)
    dimension._min, dimension._max = low, high
    return dimension


def _extent(value: SupportsIndex) -> int:
    extent = operator.index(value)
    if extent > UNBOUNDED:
        raise TypeError(f"dimension {extent} does not fit into 64 bits")
    if extent < -1:
        raise RuntimeError(f"dimension {extent} is negative")
    return extent


def _parse_bounds(text: str) -> tuple[int, int]:
    if not text:
        return 0, 0
    match = re.fullmatch(r"(-1|\d+)|\?|(-1|\d*)\.\.(-1|\d*)", text.strip(), re.ASCII)
    if match is None:
        raise RuntimeError(f'Cannot parse dimension: "{text}"')
    exact, low, high = match.groups()
    if exact is not None:
        return _extent(int(exact)), _extent(int(exact))
    return _extent(int(low or -1)), _extent(int(high or -1))


def _dimension(value: object) -> Dimension:
    """Convert an element of a partial shape to a Dimension: an int, str or pair of bounds, as openvino does."""
    if isinstance(value, Dimension):
        return value
    if isinstance(value, str):
        return Dimension(value)
    if isinstance(value, (list, tuple)):
        if len(value) != 2:
            raise TypeError(f"a dynamic dimension is a pair (lower, upper), got {len(value)} elements")
        return Dimension(operator.index(value[0]), operator.index(value[1]))
    if not hasattr(value, "__index__"):
        raise TypeError(f"a dimension is an int, str, Dimension or pair (lower, upper), got {type(value).__name__}")
    return Dimension(value)


def _split_extents(text: str) -> list[str]:
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1].strip()
    fields = [field.strip() for field in text.split(",")] if text else []
    if "" in fields:
        raise RuntimeError(f'Cannot parse shape: "{text}" has an empty dimension')
    return fields


class _IntList(list[int]):
    """A list of non-negative ints that compares equal to tuples as well."""

    def __init__(self, values: Iterable[SupportsIndex] = ()) -> None:
        super().__init__(_natural(value) for value in values)

    def __setitem__(self, index: Any, value: Any, /) -> None:
        if isinstance(index, slice):
            raise TypeError(f"a {type(self).__name__} is assigned one element at a time")
        super().__setitem__(index, _natural(value))

    def __eq__(self, other: object) -> bool:
        return list.__eq__(self, list(other)) if isinstance(other, (list, tuple)) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other if isinstance(other, (list, tuple)) else NotImplemented


class Shape(_IntList):
    """A static shape: a list of non-negative ints that compares equal to tuples as well and prints as openvino's.

    Raises: TypeError for an argument that is no sequence of non-negative ints, RuntimeError for invalid text.
    """

    def __init__(self, axis_lengths: Iterable[SupportsIndex] | str = ()) -> None:
        if isinstance(axis_lengths, str):
            axis_lengths = [Dimension(field).get_length() for field in _split_extents(axis_lengths)]
        super().__init__(axis_lengths)

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> int: ...
    @overload
    def __getitem__(self, index: slice, /) -> Shape: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> int | Shape:
        return Shape(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any, /) -> None:
        super().__setitem__(index, value.get_length() if isinstance(value, Dimension) else value)

    def to_string(self) -> str:
        """Return the text that OpenVINO prints, such as [1,3]."""
        return f"[{','.join(map(str, self))}]"

    __str__ = to_string

    def __repr__(self) -> str:
        return f"<Shape: {self}>"


class Strides(_IntList):
    """Strides in bytes, one per axis."""

    def __str__(self) -> str:
        return ", ".join(map(str, self))

    def __repr__(self) -> str:
        return f"<Strides: ({self})>"


def _natural(value: SupportsIndex) -> int:
    integer = operator.index(value)
    if not 0 <= integer < 2**64:
        raise TypeError(f"expected a non-negative integer of at most 64 bits, got {integer}")
    return integer


class PartialShape:
    """A shape whose extents, or even rank, may be unknown.

    `PartialShape([1, -1, (2, 8), "..4"])`, `PartialShape("[1,?,2..8]")`, `PartialShape("...")`. Mutable.

    Raises: TypeError for elements that are no dimensions, RuntimeError for invalid text. Methods that need a known rank
    or extent raise RuntimeError if it is unknown, and for an index out of range.
    """

    __slots__ = ("_dims",)
    _dims: list[Dimension] | None

    def __init__(self, shape: PartialShape | Sequence[Any] | str) -> None:
        if isinstance(shape, PartialShape):
            self._dims = None if shape._dims is None else list(shape._dims)
        elif isinstance(shape, str):
            fields = _split_extents(shape)
            self._dims = None if fields == ["..."] else [Dimension(field) for field in fields]
        elif isinstance(shape, (list, tuple)):
            self._dims = [_dimension(item) for item in shape]
        else:
            raise TypeError(f"a PartialShape is a list, tuple, str or shape, got {type(shape).__name__}")

    @staticmethod
    def dynamic(rank: Dimension | SupportsIndex = -1) -> PartialShape:
        """Return a shape of unknown extents. Its rank is unknown as well unless a static `rank` is given."""
        if not isinstance(rank, Dimension):
            rank = Dimension(operator.index(rank))
        shape = PartialShape([Dimension()] * (rank.get_length() if rank.is_static else 0))
        if rank.is_dynamic:
            shape._dims = None
        return shape

    def _known(self) -> list[Dimension]:
        if self._dims is None:
            raise RuntimeError("the shape has no known rank")
        return self._dims

    @property
    def rank(self) -> Dimension:
        """Number of dimensions, as a Dimension."""
        return Dimension() if self._dims is None else Dimension(len(self._dims))

    @property
    def is_static(self) -> bool:
        """True if the rank and all dimensions are known."""
        return self._dims is not None and all(dim._min == dim._max for dim in self._dims)

    @property
    def is_dynamic(self) -> bool:
        """True if the rank or a dimension is dynamic."""
        return not self.is_static

    @property
    def all_non_negative(self) -> bool:
        """True if no dimension is below 0."""
        return True

    def to_shape(self) -> Shape:
        """Return the static shape. RuntimeError if an extent or the rank is unknown."""
        if not self.is_static:
            raise RuntimeError(f"to_shape was called on the dynamic shape {self}")
        return self.get_min_shape()

    get_shape = to_shape

    def get_min_shape(self) -> Shape:
        """Return the lower bounds; empty if the rank is unknown."""
        return Shape([dim._min for dim in self._dims or ()])

    def get_max_shape(self) -> Shape:
        """Return the upper bounds, 2**63 - 1 where there is none; empty if the rank is unknown."""
        return Shape([dim._max for dim in self._dims or ()])

    def get_dimension(self, index: SupportsIndex) -> Dimension:
        """Return the dimension of an axis."""
        return self[index]

    def compatible(self, shape: PartialShape) -> bool:
        """Return whether some shape satisfies both."""
        _check_class(shape, PartialShape)
        return self.merge(shape) is not None

    def merge(self, shape: PartialShape) -> PartialShape | None:
        """Return the intersection of two partial shapes, None if it is empty."""
        if self._dims is None or shape._dims is None:
            return PartialShape(shape if self._dims is None else self)
        if len(self._dims) != len(shape._dims):
            return None
        merged = [mine.merge(theirs) for mine, theirs in zip(self._dims, shape._dims)]
        return None if None in merged else PartialShape(merged)

    def refines(self, shape: PartialShape) -> bool:
        """Return whether every shape that satisfies this one satisfies `shape`."""
        _check_class(shape, PartialShape)
        if shape._dims is None:
            return True
        if self._dims is None or len(self._dims) != len(shape._dims):
            return False
        return all(mine.refines(theirs) for mine, theirs in zip(self._dims, shape._dims))

    def relaxes(self, shape: PartialShape) -> bool:
        """Return whether every shape that satisfies `shape` satisfies this one."""
        _check_class(shape, PartialShape)
        return shape.refines(self)

    def same_scheme(self, shape: PartialShape) -> bool:
        """Return whether the ranks are equal and `Dimension.same_scheme` holds for each pair of dimensions."""
        _check_class(shape, PartialShape)
        if self._dims is None or shape._dims is None:
            return self._dims is shape._dims
        if len(self._dims) != len(shape._dims):
            return False
        return all(mine.same_scheme(theirs) for mine, theirs in zip(self._dims, shape._dims))

    def _at(self, index: SupportsIndex) -> tuple[list[Dimension], int]:
        position, dims = operator.index(index), self._known()
        if not -len(dims) <= position < len(dims):
            raise RuntimeError(f"Accessing out-of-range dimension {position} of {self}")
        return dims, position

    @overload
    def __getitem__(self, index: SupportsIndex) -> Dimension: ...
    @overload
    def __getitem__(self, index: slice) -> PartialShape: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Dimension | PartialShape:
        if isinstance(index, slice):
            return PartialShape(self._known()[index])
        dims, position = self._at(index)
        return dims[position]

    def __setitem__(self, index: SupportsIndex, value: Any) -> None:
        dims, position = self._at(index)
        dims[position] = _dimension(value)

    def __iter__(self) -> Iterator[Dimension]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PartialShape):
            return self._dims == other._dims
        if type(other).__name__ == "PartialShape":  # openvino's
            return str(self) == str(other)
        return self._dims == list(other) if isinstance(other, (list, tuple)) else NotImplemented

    def to_string(self) -> str:
        """Return the text that OpenVINO prints, such as [?,3,224..448]."""
        return "[...]" if self._dims is None else f"[{','.join(map(str, self._dims))}]"

    __str__ = to_string

    def __repr__(self) -> str:
        return f"<PartialShape: {self}>"

    def __copy__(self) -> PartialShape:
        return PartialShape(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> PartialShape:
        return PartialShape(self)
