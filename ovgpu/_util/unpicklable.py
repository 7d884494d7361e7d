"""Objects that hold memory, threads or locks, and so cannot be copied or pickled."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class Unpicklable:
    """Base class of an object that neither `copy` nor `pickle` takes, with the error that openvino's objects raise."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"cannot pickle '{type(self).__name__}' object")
