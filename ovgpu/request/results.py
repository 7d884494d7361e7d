"""Class OVDict: the results of an inference by port, index or name."""

from __future__ import annotations

import threading
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any

import numpy as np

from ovgpu._util.openvino_package import owns
from ovgpu.model import Output
from ovgpu.types import Type


class Deferred:
    """Result that is downloaded, by ``fetch``, when it is first read. Threads may read it at the same time."""

    __slots__ = ("__weakref__", "_fetch", "_lock", "_value")

    def __init__(self, fetch: Callable[[], Any]) -> None:
        self._fetch: Callable[[], Any] | None = fetch
        self._value: Any = None
        self._lock = threading.Lock()

    def get(self) -> Any:
        """Return the result. If ``fetch`` raises, its error is passed on, and the next call tries again."""
        with self._lock:
            if self._fetch is not None:
                self._value = self._fetch()
                self._fetch = None
            return self._value


def as_numbers(value: Any, element_type: Type) -> Any:
    """Return a result in the storage dtype of its element type, such as bfloat16 of ml_dtypes, instead of the dtype of
    `Tensor.data`. Packed types, strings and arrays on a device stay as they are."""
    if element_type.packed or element_type is Type.string or element_type.storage == element_type.to_dtype():
        return value
    if isinstance(value, Deferred):
        return Deferred(lambda: value.get().view(element_type.storage))
    return value.view(element_type.storage) if isinstance(value, np.ndarray) else value


Array = np.ndarray[Any, Any]


class OutputKeys:
    """The outputs of a model, which the results of all its inferences have as keys."""

    __slots__ = ("_names", "ports")

    def __init__(self, ports: Sequence[Output]) -> None:
        self.ports = tuple(ports)
        self._names: tuple[set[str], ...] | None = None

    def names(self) -> tuple[set[str], ...]:
        """Return the set of tensor names of each output."""
        if self._names is None:
            self._names = tuple(port.get_names() for port in self.ports)
        return self._names


class OVDict(Mapping[Any, Array]):
    """Immutable mapping of outputs to arrays, in the model's order.

    Its keys are ports of the compiled model. Look-ups also accept ports of the model that was compiled, output indices
    and tensor names; they raise KeyError for a key that does not exist and TypeError for a key of another kind. Large
    results of a CUDA device are downloaded when they are first read.
    """

    __slots__ = ("__dict__", "__weakref__", "_keys", "_results", "_values", "_views")
    _results: dict[Any, Any] | None

    def __init__(self, results: dict[Any, Any] | OutputKeys, values: Sequence[Any] = (), views: bool = False) -> None:
        """Make a mapping of the results by port.

        Requests give the keys and ``values`` of a dict that is made later, as hashes of ports take time; with ``views``
        of arrays that they keep.
        """
        self._values, self._views = values, views
        if isinstance(results, OutputKeys):
            self._keys, self._results = results, None
        else:
            self._keys, self._results = OutputKeys(list(results)), results

    @property
    def _dict(self) -> dict[Any, Any]:
        """The results by port."""
        if self._results is None:
            values = [array.view() for array in self._values] if self._views else self._values
            # If several threads make it, all get the dict of the first one.
            self._results = self.__dict__.setdefault("_made", dict(zip(self._keys.ports, values)))
            self._values = ()  # the caller may remove results from the dict
        return self._results

    def __getitem__(self, key: Output | int | str) -> Array:
        array: Array = self._value(self._port(key))
        return array

    def __contains__(self, key: object) -> bool:
        try:
            self._port(key)
        except KeyError:
            return False
        return True

    def _port(self, key: Any) -> Any:
        """Return the key of ``_dict`` for a port, index or tensor name."""
        if isinstance(key, Output):
            if key in self._dict:
                return key
            names = key.get_names() if owns(key) else ()
            match = next((port for name in names for port in self._dict if name in port.get_names()), None)
            if match is None:
                raise KeyError(key)
            return match
        if isinstance(key, int):
            try:
                return list(self._dict)[key]
            except IndexError:
                raise KeyError(key) from None
        if isinstance(key, str):
            for names, port in zip(self._keys.names(), self._keys.ports):
                if key in names and port in self._dict:
                    return port
            raise KeyError(key)
        raise TypeError(f"Unknown key type: {type(key)}")

    def _value(self, port: Any) -> Any:
        value = self._dict[port]
        if isinstance(value, Deferred):
            value = self._dict[port] = value.get()
        return value

    def _fetched(self) -> dict[Any, Any]:
        """Download all results and return the dict by ports."""
        for port in self._dict:
            self._value(port)
        return self._dict

    def __reduce__(self) -> tuple[Any, ...]:
        return OVDict, (self._fetched(),)  # locks cannot be copied or pickled

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dict)

    def __len__(self) -> int:
        return len(self._dict)

    def __repr__(self) -> str:
        return repr(self._fetched())

    def keys(self) -> KeysView[Any]:
        return self._dict.keys()

    def values(self) -> ValuesView[Array]:
        return self._fetched().values()

    def items(self) -> ItemsView[Any, Array]:
        return self._fetched().items()

    def names(self) -> tuple[set[str], ...]:
        """Return the set of tensor names of each output, in order; an empty set for an output without names."""
        return tuple([port.get_names() for port in self._dict])

    def to_dict(self) -> dict[Any, Array]:
        """Return the dict by ports, not a copy: changes to it change the OVDict."""
        return self._fetched()

    def to_tuple(self) -> tuple[Array, ...]:
        """Return the arrays of all outputs, in order."""
        values = tuple(self._values)
        if self._results is None and not self._views and not any([isinstance(x, Deferred) for x in values]):
            return values  # without the dict, which takes ten times as long
        return tuple(self._fetched().values())
