"""Runtime information: named values, nested as dicts, that a model, its nodes and its ports carry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from ovgpu.types import OVAny


class RTMap(MutableMapping[str, Any]):
    """Mapping from names to values. Items are returned as `OVAny`, nested ones as dicts of them; `plain` unwraps all.

    Changes of such a dict do not reach the map, as in OpenVINO.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = {}
        if values:  # most nodes and ports have none
            self.update(values)

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        return {inner: value[inner] for inner in value} if isinstance(value, RTMap) else OVAny(value)

    def __setitem__(self, key: str, value: Any) -> None:
        value = value.value if isinstance(value, OVAny) else value
        self._values[key] = RTMap(value) if isinstance(value, Mapping) else value

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def nested(self, key: str) -> RTMap | None:
        """Return the nested map under a key, which is created if there is nothing; None for another value."""
        value = self._values.setdefault(key, RTMap())
        return value if isinstance(value, RTMap) else None

    def plain(self) -> dict[str, Any]:
        """Return a copy as nested dicts without wrappers."""
        items = self._values.items()
        return {key: value.plain() if isinstance(value, RTMap) else value for key, value in items}

    def copy(self) -> RTMap:
        """Return a shallow copy."""
        return RTMap(self.plain())

    def __copy__(self) -> RTMap:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> RTMap:
        return self.copy()

    def __repr__(self) -> str:
        return f"<RTMap {self.plain()}>"
