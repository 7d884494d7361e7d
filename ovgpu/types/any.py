"""OVAny, a value in a wrapper, as runtime information and properties have it in OpenVINO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_BOOLEANS = {"YES": True, "TRUE": True, "1": True, "NO": False, "FALSE": False, "0": False}


class OVAny:
    """A value in a wrapper. It equals the bare value."""

    __slots__ = {"value": "Value that is held."}

    value: Any

    def __init__(self, value: Any) -> None:
        self.value = value.value if isinstance(value, OVAny) else value

    def get(self) -> Any:
        """Return the value."""
        return self.value

    def set(self, value: Any) -> None:
        """Replace the value."""
        self.value = value

    def astype(self, kind: type) -> Any:
        """Return the value as bool, int, float, str or dict. Raises RuntimeError if it cannot be converted."""
        if kind is dict and isinstance(self.value, dict):
            return self.value
        if kind is str:
            return text(self.value)
        if kind is bool:
            known = _BOOLEANS.get(str(self.value).upper())
            if known is not None and isinstance(self.value, (bool, str)):
                return known
        elif kind in (int, float) and type(self.value) in (int, float, str):
            try:
                return kind(self.value)
            except ValueError:
                pass
        raise RuntimeError(f"could not convert {self.value!r} to {kind.__name__}")

    def aslist(self, kind: type = str) -> list[Any]:
        """Return the value as a list of bool, int, float or str; a string is split at spaces."""
        values = self.value.split() if isinstance(self.value, str) else self.value
        values = values if isinstance(values, (list, tuple)) else [values]
        return [OVAny(value).astype(kind) for value in values]

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, OVAny) else other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __getitem__(self, key: Any) -> Any:
        return self.value[key]

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __repr__(self) -> str:
        return f"<OVAny {self.value!r}>"


def text(value: Any) -> str:
    """Return a value as IR files write it: YES and NO, lists with spaces between the elements."""
    if isinstance(value, bool):
        return "YES" if value else "NO"
    if isinstance(value, (list, tuple)):
        return " ".join(map(text, value))
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{text(item)}" for key, item in value.items()) + "}"
    return str(value)
