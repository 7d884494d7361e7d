"""Attributes that a method computes, with the type that the method returns.

    def get_shape(self) -> Shape: ...

    shape = attribute(get_shape)

At run time they are properties. From a plain `property(get_shape)`, a type checker would infer Any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    T = TypeVar("T")

    class attribute(Generic[T]):
        def __init__(self, get: Callable[[Any], T]) -> None: ...
        def __get__(self, instance: object, owner: type | None = None) -> T: ...

    class settable(attribute[T]):
        def __init__(self, get: Callable[[Any], T], set: Callable[[Any, Any], None]) -> None: ...
        def __set__(self, instance: object, value: Any) -> None: ...

else:
    attribute = settable = property
