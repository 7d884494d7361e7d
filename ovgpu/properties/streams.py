"""Properties of execution streams."""

from __future__ import annotations

from typing import Any, ClassVar

from ._property import Property, integer


class Num:
    """A number of streams, or one of the policies `Num.AUTO` and `Num.NUMA`."""

    AUTO: ClassVar[Num]
    NUMA: ClassVar[Num]

    def __init__(self, value: int = -1) -> None:
        self._value = integer(value)

    def to_integer(self) -> int:
        return self._value


Num.AUTO = Num(-1)
Num.NUMA = Num(-2)


def _streams(value: Any) -> int:
    return value.to_integer() if isinstance(value, Num) else integer(value)


num = Property("NUM_STREAMS", _streams)
