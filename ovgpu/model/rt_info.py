"""Runtime information: named values, nested as dicts, that a model, its nodes and its ports carry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

_BOOLEANS = {"YES": True, "TRUE": True, "1": True, "NO": False, "FALSE": False, "0": False}


class OVAny:
    """Value of runtime information in a wrapper, as in OpenVINO. It equals the bare value."""

    __slots__ = ("value",)

    value: Any

    def __init__(self, value: Any) -> None:
        self.value = value.value if isinstance(value, OVAny) else value

    def get(self) -> Any:
        return self.value

    def set(self, value: Any) -> None:
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


class RTMap(MutableMapping[str, Any]):
    """Mapping from names to values. Items are returned as `OVAny`, nested ones as `RTMap`; `plain` unwraps all."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = {}
        if values:  # most nodes and ports have none
            self.update(values)

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        return value if isinstance(value, RTMap) else OVAny(value)

    def __setitem__(self, key: str, value: Any) -> None:
        value = value.value if isinstance(value, OVAny) else value
        self._values[key] = RTMap(value) if isinstance(value, Mapping) else value

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def plain(self) -> dict[str, Any]:
        """Return a copy as nested dicts without wrappers."""
        items = self._values.items()
        return {key: value.plain() if isinstance(value, RTMap) else value for key, value in items}

    def copy(self) -> RTMap:
        return RTMap(self.plain())

    def __copy__(self) -> RTMap:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> RTMap:
        return self.copy()

    def __repr__(self) -> str:
        return f"<RTMap {self.plain()}>"


def text(value: Any) -> str:
    """Return a value as IR files write it: YES and NO, lists with spaces between the elements."""
    if isinstance(value, bool):
        return "YES" if value else "NO"
    if isinstance(value, (list, tuple)):
        return " ".join(map(text, value))
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{text(item)}" for key, item in value.items()) + "}"
    return str(value)
