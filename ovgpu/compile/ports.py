"""Ports of a compiled model, and the look-up of a port by index, tensor name or port."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from ovgpu._util.attributes import settable
from ovgpu._util.openvino_package import owns
from ovgpu.model import Output


class ConstOutput(Output):
    """Input or output of a compiled model, as it was when the model was compiled.

    It equals the port of the model that was compiled, and has its hash, so that either one finds a result.
    """

    __slots__ = {"_hash": "", "source": "Port of the model that was compiled."}

    def __init__(self, source: Output) -> None:
        super().__init__(source.node, source.index)
        self.source = source
        self.spec = source.spec
        self._names = source.get_names()
        self._hash = hash(source)

    def __eq__(self, other: object) -> bool:
        return self is other or self.source is (other.source if isinstance(other, ConstOutput) else other)

    def __hash__(self) -> int:
        return self._hash

    def get_names(self) -> set[str]:
        """Return the tensor names."""
        return set(self._names)

    def set_names(self, names: Iterable[str]) -> None:
        raise TypeError("the names of a compiled model's ports cannot be changed")

    names = settable(get_names, set_names)

    def __repr__(self) -> str:
        return f"<ConstOutput: {self.describe()}>"


class PortList(list[ConstOutput]):
    """List of the inputs or of the outputs of a compiled model."""

    def __init__(self, ports: Sequence[Output], kind: str) -> None:
        super().__init__(map(ConstOutput, ports))
        self.kind = kind
        self._indices: dict[Any, int] = {}
        for index, port in enumerate(self):
            self._indices[port] = index
            self._indices.update(dict.fromkeys(port.get_names(), index))
        for index, port in enumerate(self):  # an output is also found by the tensor that it returns
            tensor = port.tensor_port
            for key in (tensor, *tensor.get_names()):
                self._indices.setdefault(key, index)

    def find(self, key: Any) -> int | None:
        """Return the index of the port with a tensor name, or equal to a port; None if there is no such port.

        A port of openvino stands for the port of the same name.
        """
        index = self._indices.get(key)
        if index is None and owns(key):
            index = next((self._indices[name] for name in key.get_names() if name in self._indices), None)
        return index

    def index_of(self, key: Any = None) -> int:
        """Return the index of the port for an index, a tensor name or a port; 0 without a key if there is only one.

        Raises: RuntimeError if there is no such port, TypeError for a key of another kind.
        """
        if key is None:
            if len(self) != 1:
                raise RuntimeError(
                    f"without a number this must be called on a model with exactly one {self.kind}, "
                    f"the model has {len(self)}"
                )
            return 0
        if isinstance(key, (str, Output)):
            index = self.find(key)
            if index is None:
                raise RuntimeError(f"Port for {_described(key)} was not found. The model has {self}")
            return index
        try:
            index = operator.index(key)
        except TypeError:
            raise TypeError(f"Unsupported key type: {type(key)} for {self.kind} {key!r}") from None
        if index < 0:
            raise TypeError(f"the number of an {self.kind} is not negative, got {index}")
        if index >= len(self):
            raise RuntimeError(
                f"{self.kind.capitalize()} port for index {index} was not found! "
                f"The model has only {len(self)} {self.kind}s."
            )
        return index

    def checked_index(self, index: Any) -> int:
        """Return `index_of` an index; None stands for the only port. Raise TypeError for a name or a port."""
        if isinstance(index, (str, Output)):
            raise TypeError(f"an {self.kind} is meant by its number here, got {index!r}")
        return self.index_of(index)

    def port(self, key: Any = None) -> ConstOutput:
        """Return the port for a key; see `index_of`."""
        return self[self.index_of(key)]

    def __str__(self) -> str:
        names = [min(port.get_names(), default=f"#{index}") for index, port in enumerate(self)]
        return f"{self.kind}s {', '.join(names)}" if names else f"no {self.kind}s"

    def listing(self) -> str:
        """Return the list of ports in the `repr` of models and requests."""
        return f"{self.kind}s[\n" + ",\n".join(map(repr, self)) + "\n]"


def _described(key: str | Output) -> str:
    return f"tensor name {key}" if isinstance(key, str) else f"{key!r}"
