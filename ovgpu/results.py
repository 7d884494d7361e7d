"""OVDict: the results of an inference, by port, number or name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ovgpu.model import Output


class OVDict(Mapping[Any, Any]):
    """An immutable mapping of outputs to arrays; keys are ports, and also numbers and tensor names."""

    def __init__(self, results: dict[Output, Any]) -> None:
        self._results = results
        self._names: dict[str, Output] | None = None

    def __getitem__(self, key: Output | int | str) -> Any:
        if isinstance(key, Output):
            if key not in self._results:
                key = next((port for port in self._results if port.tensor_port is key), key)
            return self._results[key]
        if isinstance(key, str):
            if self._names is None:
                self._names = {name: port for port in self._results for name in port.get_names()}
            return self._results[self._names[key]]
        if isinstance(key, int):
            try:
                return list(self._results.values())[key]
            except IndexError:
                raise KeyError(key) from None
        raise TypeError(f"Unknown key type: {type(key)}")

    def __iter__(self) -> Iterator[Output]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        return repr(self._results)

    def names(self) -> tuple[set[str], ...]:
        """The tensor names of every output, in order."""
        return tuple(port.get_names() for port in self._results)

    def to_dict(self) -> dict[Output, Any]:
        return self._results

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self._results.values())
