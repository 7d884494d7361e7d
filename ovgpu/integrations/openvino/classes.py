"""openvino's own classes for objects of ovgpu.

An object of ovgpu that a program gets is a real instance of `openvino.CompiledModel`, `InferRequest` or
`AsyncInferQueue`, so that ``type(x)`` is that class, its constructor takes it, and programs may subclass the class. The
C++ object in it is a stand-in of Parameters and Results alone. The methods of these classes are replaced. If an object
has a *facade* in its dictionary, a replaced method calls the facade's method, else openvino's method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any
from weakref import ref

FACADE = "_ovgpu"  # key of the facade in the object's dictionary
SPECIAL = ("__call__", "__len__", "__iter__", "__getitem__", "__repr__")

_patched: set[Any] = set()


def facade_of(value: Any) -> Any:
    """Return the facade in an object of one of openvino's classes, or None for an object of openvino itself."""
    return getattr(value, "__dict__", {}).get(FACADE)


def expose(facade: Any) -> Any:
    """Return a facade as an object of openvino's class ``facade.stands_for``."""
    shown = facade.stands_for(facade.stand_in())
    _give(shown, facade)
    return shown


def _give(shown: Any, facade: Any) -> None:
    """Give a facade to an object of openvino's class, by which programs see it."""
    shown.__dict__[FACADE] = facade
    facade.shown = ref(shown)


def patch(facades: Iterable[Any]) -> None:
    """Replace the methods of the classes that ``facades``, also classes, stand for.

    They stay replaced, also after `ovgpu.uninstall`, because objects with facades may still be in use.
    """
    for facade in facades:
        cls = facade.stands_for
        if cls in _patched:
            continue
        _patched.add(cls)
        cls.__init__ = _constructor(cls.__init__, facade)
        for name in [*(n for n in dir(facade) if n[0] != "_"), *(n for n in SPECIAL if n in vars(facade))]:
            original = getattr(cls, name, None)
            if isinstance(getattr(facade, name), property):
                setattr(cls, name, _property(name, original))
            elif original is not None and callable(original):
                setattr(cls, name, _method(name, original))


def _constructor(original: Callable[..., None], facade: Any) -> Callable[..., None]:
    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        values = [*args, *kwargs.values()]
        own = facade_of(values[0]) if values else None
        if own is None:
            original(self, *args, **kwargs)
            return
        made = facade.made_from(own, *values[1:])
        original(self, made.stand_in())
        _give(self, made)

    return __init__


def _method(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        facade = self.__dict__.get(FACADE)
        if facade is None:
            return original(self, *args, **kwargs)
        return getattr(facade, name)(*args, **kwargs)

    return method


def _property(name: str, original: Any) -> property:
    def get(self: Any) -> Any:
        facade = self.__dict__.get(FACADE)
        return original.__get__(self) if facade is None else getattr(facade, name)

    return property(get, doc=getattr(original, "__doc__", None))
