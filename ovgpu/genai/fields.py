"""Fields of configurations: attributes that check the values assigned to them, as those of openvino_genai do."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any, ClassVar, Generic, Self, TypeVar, overload

import numpy as np

from ovgpu.errors import Error

UNLIMITED = 2**64 - 1  # default of sizes that limit something
T = TypeVar("T")
E = TypeVar("E", bound=Enum)


class Field(Generic[T]):
    """Attribute of a `Configuration` with values of one kind.

    `checked` returns the value to store. It raises TypeError for a value of another kind.
    """

    what = ""  # kind of values, for errors

    def __init__(self, default: T) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, config: None, owner: type) -> Self: ...
    @overload
    def __get__(self, config: Configuration, owner: type) -> T: ...
    def __get__(self, config: Configuration | None, owner: type) -> Any:
        return self if config is None else self.copied(config._values[self.name])

    def __set__(self, config: Configuration, value: T) -> None:
        try:
            config._values[self.name] = self.checked(value)
        except TypeError:
            raise TypeError(f"{self.name} must be {self.what}, not {value!r}") from None

    def copied(self, value: Any) -> Any:
        """Return the value that a program gets, which cannot change the stored one."""
        return value

    def checked(self, value: Any) -> Any:
        """Return the value of an assignment."""
        raise NotImplementedError

    def from_keyword(self, value: Any) -> Any:
        """Return the value of a keyword argument, which may differ from an assigned one."""
        return self.checked(value)

    def from_json(self, value: Any) -> Any:
        """Return the value of generation_config.json, or NotImplemented for one that has no effect."""
        return self.checked(value)


class Flag(Field[bool]):
    """Truth value."""

    what = "True or False"

    def checked(self, value: Any) -> bool:
        if value is None:
            return False
        if not hasattr(value, "__bool__"):
            raise TypeError
        return bool(value)

    def from_keyword(self, value: Any) -> bool:
        return self.from_json(value)

    def from_json(self, value: Any) -> bool:
        if not isinstance(value, (bool, np.bool_)):
            raise TypeError
        return bool(value)


class OptionalFlag(Field[bool | None]):
    """Truth value, or None, which no keyword can be."""

    what = "None, True or False"

    def checked(self, value: Any) -> bool | None:
        return None if value is None else Flag(False).checked(value)

    def from_keyword(self, value: Any) -> bool:
        return Flag(False).from_keyword(value)


class Integer(Field[int]):
    """Integer from ``low`` to ``high``. As a keyword, a float is cut to an integer, and -1 is the greatest size."""

    def __init__(self, default: int, low: int = 0, high: int = UNLIMITED) -> None:
        super().__init__(default)
        self.low, self.high = low, high
        self.what = f"an integer from {low} to {high}"

    def checked(self, value: Any) -> int:
        if not hasattr(value, "__index__") or not self.low <= int(value) <= self.high:
            raise TypeError
        return int(value)

    def from_keyword(self, value: Any) -> int:
        return self.from_json(value)

    def from_json(self, value: Any) -> int:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        if isinstance(value, (float, np.floating)) and np.isfinite(value):
            value = int(value)
        if self.low == 0 and isinstance(value, int) and value == -1:
            return self.high
        return self.checked(value)


class OptionalInteger(Field[int | None]):
    """Integer from 0 on, or None, which no keyword can be."""

    what = "None or an integer from 0 on"

    def checked(self, value: Any) -> int | None:
        return None if value is None else Integer(0).checked(value)

    def from_keyword(self, value: Any) -> int:
        return Integer(0).from_keyword(value)

    def from_json(self, value: Any) -> int:
        return Integer(0).from_json(value)


class Real(Field[float]):
    """Number, rounded to f32."""

    what = "a number"

    def checked(self, value: Any) -> float:
        if isinstance(value, str) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
            raise TypeError
        with np.errstate(over="ignore"):
            return float(np.float32(value))

    def from_keyword(self, value: Any) -> float:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        return self.checked(value)


class OptionalText(Field[str | None]):
    """String, or None, which no keyword can be."""

    what = "None or a string"

    def checked(self, value: Any) -> str | None:
        if not isinstance(value, str | None):
            raise TypeError
        return value

    def from_keyword(self, value: Any) -> str | None:
        if value is None:
            raise TypeError
        return self.checked(value)


class TextSet(Field[set[str]]):
    """Set of strings. A keyword may be a single string."""

    what = "a set of strings"

    def copied(self, value: Any) -> Any:
        return set(value)

    def checked(self, value: Any) -> frozenset[str]:
        if not isinstance(value, AbstractSet) or not all(isinstance(item, str) for item in value):
            raise TypeError
        return frozenset(value)

    def from_keyword(self, value: Any) -> frozenset[str]:
        return frozenset([value]) if isinstance(value, str) else self.checked(value)

    def from_json(self, value: Any) -> Any:
        return self.checked(frozenset(value)) if isinstance(value, list) else NotImplemented


class TokenSet(Field[set[int]]):
    """Set of integers."""

    what = "a set of integers"

    def copied(self, value: Any) -> Any:
        return set(value)

    def checked(self, value: Any) -> frozenset[int]:
        if not isinstance(value, AbstractSet):
            raise TypeError
        return frozenset(Integer(0, -(2**63), 2**63 - 1).checked(item) for item in value)


class Member(Field[E]):
    """Member of an enumeration, that of the default."""

    def __init__(self, default: E) -> None:
        super().__init__(default)
        self.what = f"a {type(default).__name__}"

    def checked(self, value: Any) -> E:
        if not isinstance(value, type(self.default)):
            raise TypeError
        return value


class Absent(Field[T]):
    """Field whose values this package does not support: only the default can be assigned."""

    def copied(self, value: Any) -> Any:
        return list(value) if isinstance(value, list) else value

    def checked(self, value: Any) -> T:
        if value != self.default:
            raise Error(f"ovgpu.genai does not support {self.name}: it must be {self.default!r}, not {value!r}")
        return self.default


class Configuration:
    """Object whose settings are `Field` attributes.

    Raises: TypeError for an assigned value of another type; RuntimeError for such a keyword, and for an unknown one.
    """

    __slots__ = ("_values",)
    _fields: ClassVar[dict[str, Field[Any]]] = {}

    def __init_subclass__(cls) -> None:
        cls._fields = cls._fields | {name: field for name, field in vars(cls).items() if isinstance(field, Field)}

    def __init__(self, **kwargs: Any) -> None:
        self._values = {name: field.default for name, field in self._fields.items()}
        self._set(kwargs)

    @classmethod
    def split(cls, config: Any, keywords: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Return the configuration of a pipeline, and the properties of its device.

        Without a ``config``, keywords with the names of fields make one. Raises: TypeError for a config of another
        class.
        """
        if config is None:
            own = {name: value for name, value in keywords.items() if name in cls._fields}
            return cls(**own), {name: value for name, value in keywords.items() if name not in own}
        if not isinstance(config, cls):
            raise TypeError(f"config must be a {cls.__qualname__}, not {config!r}")
        return config.copy(), dict(keywords)

    def copy(self) -> Self:
        """Return an independent copy."""
        config = type(self)()
        config._values.update(self._values)
        return config

    def _set(self, keywords: Mapping[str, Any]) -> None:
        """Set fields. If a keyword is refused, none is set."""
        values: dict[str, Any] = {}
        for name, value in keywords.items():
            field = self._fields.get(name)
            if field is None:
                raise Error(f"{type(self).__qualname__} has no field {name}, only {', '.join(self._fields)}")
            try:
                values[name] = field.from_keyword(value)
            except TypeError:
                raise Error(f"{name} must be {field.what}, not {value!r}") from None
        self._values.update(values)
