"""The ports of a compiled model, and finding one by number, tensor name or port."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from ovgpu.model import Output


class ConstOutput(Output):
    """An input or output of a compiled model: as it was when the model was compiled.

    It is equal to, and hashes like, the port of the model that was compiled, so either finds a result.
    """

    __slots__ = ("_hash", "source")

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
        return set(self._names)

    def set_names(self, names: Iterable[str]) -> None:
        raise TypeError("the names of a compiled model's ports cannot be changed")

    names = property(get_names, set_names)

    def __repr__(self) -> str:
        return f"<ConstOutput: {self.describe()}>"


class PortList(list[ConstOutput]):
    """The inputs, or the outputs, of a compiled model."""

    def __init__(self, ports: Sequence[Output], kind: str) -> None:
        super().__init__(map(ConstOutput, ports))
        self.kind = kind
        self._numbers: dict[Any, int] = {}
        for number, port in enumerate(self):
            self._numbers[port] = number
            self._numbers.update(dict.fromkeys(port.get_names(), number))
        for number, port in enumerate(self):  # an output is also known by what the graph calls its tensor
            tensor = port.tensor_port
            for key in (tensor, *tensor.get_names()):
                self._numbers.setdefault(key, number)

    def find(self, key: Any) -> int | None:
        """The number of the port that a tensor name or a port means, or None."""
        return self._numbers.get(key)

    def number(self, key: Any = None) -> int:
        """The number of the port that a number, a tensor name or a port means; of the only one without a key.

        Raises: RuntimeError if there is no such port, TypeError for a key of another kind.
        """
        if key is None:
            if len(self) != 1:
                raise RuntimeError(f"without a number this must be called on a model with exactly one {self.kind}, "
                                   f"the model has {len(self)}")
            return 0
        if isinstance(key, (str, Output)):
            found = self._numbers.get(key)
            if found is None:
                raise RuntimeError(f"Port for {_described(key)} was not found. The model has {self}")
            return found
        try:
            number = operator.index(key)
        except TypeError:
            raise TypeError(f"Unsupported key type: {type(key)} for {self.kind} {key!r}") from None
        if number < 0:
            raise TypeError(f"the number of an {self.kind} is not negative, got {number}")
        if number >= len(self):
            raise RuntimeError(f"{self.kind.capitalize()} port for index {number} was not found! "
                               f"The model has only {len(self)} {self.kind}s.")
        return number

    def index_number(self, index: Any) -> int:
        """`number` of what must be a number, or None for the only port."""
        if isinstance(index, (str, Output)):
            raise TypeError(f"an {self.kind} is meant by its number here, got {index!r}")
        return self.number(index)

    def port(self, key: Any = None) -> ConstOutput:
        """The port itself; see `number`."""
        return self[self.number(key)]

    def __str__(self) -> str:
        names = [min(port.get_names(), default=f"#{number}") for number, port in enumerate(self)]
        return f"{self.kind}s {', '.join(names)}" if names else f"no {self.kind}s"

    def listing(self) -> str:
        """The ports as `repr` of models and requests lists them."""
        return f"{self.kind}s[\n" + ",\n".join(map(repr, self)) + "\n]"


def _described(key: str | Output) -> str:
    return f"tensor name {key}" if isinstance(key, str) else f"{key!r}"
