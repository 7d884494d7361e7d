"""Base classes of the package's properties and enumerations, and converters of their values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from enum import Enum
from typing import Any

from ovgpu.types import OVAny, Type


class Property(str):
    """A configuration key that can be called: `enable_profiling(True)` returns the pair ("PERF_COUNT", OVAny(True)).

    Called without a value, it returns the key.

    Raises: TypeError for a value of a wrong type or out of range, or if the property is read-only.
    """

    _convert: Callable[[Any], Any] | None

    def __new__(cls, key: str, convert: Callable[[Any], Any] | None = None) -> Property:  # noqa: PYI034
        self = super().__new__(cls, key)
        self._convert = convert
        return self

    def __call__(self, *values: Any) -> Any:
        if not values:
            return str(self)
        if self._convert is None:
            raise TypeError(f"the property {self} is read-only")
        if len(values) != 1:
            raise TypeError(f"the property {self} takes one value, got {len(values)}")
        try:
            return str(self), OVAny(self._convert(values[0]))
        except TypeError as error:
            raise TypeError(f"the property {self}: {error}") from None


class PropertyEnum(Enum):
    """An enumeration like openvino's: ordered and convertible to int, but not equal to an int."""

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__
    __hash__ = __int__

    def _other(self, other: object) -> int:
        if type(self) is not type(other):
            raise TypeError("Expected an enumeration of matching type!")
        return int(other)

    def __lt__(self, other: object) -> bool:
        return int(self) < self._other(other)

    def __le__(self, other: object) -> bool:
        return int(self) <= self._other(other)

    def __gt__(self, other: object) -> bool:
        return int(self) > self._other(other)

    def __ge__(self, other: object) -> bool:
        return int(self) >= self._other(other)


def instance(expected: type) -> Callable[[Any], Any]:
    """Return a converter that accepts only instances of a class, and raises TypeError for others."""

    def convert(value: Any) -> Any:
        if not isinstance(value, expected):
            raise TypeError(f"expected {expected.__name__}, got {type(value).__name__}")
        return value

    return convert


def model_or_none(value: Any) -> Any:
    """Accept a model of ovgpu or of openvino, or None. TypeError for others."""
    if value is not None and not hasattr(value, "get_ordered_ops"):
        raise TypeError(f"expected Model, got {type(value).__name__}")
    return value


def boolean(value: Any) -> bool:
    """Convert a value with a `__bool__` method to bool. TypeError for others, such as str."""
    if not hasattr(value, "__bool__"):
        raise TypeError(f"expected bool, got {type(value).__name__}")
    return bool(value)


def _integer(low: int, high: int) -> Callable[[Any], int]:
    """Return a converter to an integer of low..high - 1, which raises TypeError for other values."""

    def convert(value: Any) -> int:
        converted = operator.index(value)
        if not low <= converted < high:
            raise TypeError(f"{converted} is not in {low}..{high - 1}")
        return converted

    return convert


integer = _integer(-(2**31), 2**31)
unsigned = _integer(0, 2**32)
size = _integer(0, 2**64)


def real(value: Any) -> float:
    """Convert a number to float. TypeError for a str."""
    if isinstance(value, str):
        raise TypeError("expected float, got str")
    return float(value)


text = instance(str)
precision = instance(Type)
