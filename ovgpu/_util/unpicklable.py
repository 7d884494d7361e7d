"""Objects that hold memory, threads or locks, and so cannot be copied or pickled."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class Unpicklable:
    """Base class of objects that cannot be copied or pickled. They raise the same error as openvino's objects."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"cannot pickle '{type(self).__name__}' object")
