"""OVDict: the results of an inference, by port, number or name."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from ovgpu.model import Output


class OVDict(Mapping[Any, Any]):
    """An immutable mapping of outputs to arrays, in the model's order.

    Its keys are ports, of the compiled model or of the model that was compiled; numbers and tensor names are
    understood as well. KeyError for one that there is not, TypeError for a key of another kind.
    """

    __slots__ = ("__weakref__", "_dict", "_names")

    def __init__(self, results: dict[Any, Any]) -> None:
        self._dict = results
        self._names: tuple[set[str], ...] | None = None

    def __getitem__(self, key: Output | int | str) -> Any:
        if isinstance(key, Output):
            return self._dict[key]
        if isinstance(key, int):
            try:
                return list(self._dict.values())[key]
            except IndexError:
                raise KeyError(key) from None
        if isinstance(key, str):
            for names, value in zip(self.names(), self._dict.values()):
                if key in names:
                    return value
            raise KeyError(key)
        raise TypeError(f"Unknown key type: {type(key)}")

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dict)

    def __len__(self) -> int:
        return len(self._dict)

    def __repr__(self) -> str:
        return repr(self._dict)

    def keys(self) -> KeysView[Any]:
        return self._dict.keys()

    def values(self) -> ValuesView[Any]:
        return self._dict.values()

    def items(self) -> ItemsView[Any, Any]:
        return self._dict.items()

    def names(self) -> tuple[set[str], ...]:
        """The tensor names of every output, in order; an empty set if it has none."""
        if self._names is None:
            self._names = tuple(port.get_names() for port in self._dict)
        return self._names

    def to_dict(self) -> dict[Any, Any]:
        """The dict by ports; changes of it are changes here."""
        return self._dict

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self._dict.values())
