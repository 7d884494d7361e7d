"""The openvino package, to which ovgpu hands over what is not its own. ovgpu works without it."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

HINT = "pip install ovgpu[openvino]"
PLAIN = "_ovgpu_plain"  # attribute of an openvino.Core whose devices are not replaced


@cache
def package() -> ModuleType | None:
    """Return the openvino package, imported at the first call; None if it is not installed."""
    try:
        found = import_module("openvino")
    except ModuleNotFoundError as e:
        if e.name != "openvino":
            raise
        return None
    return None if found.__name__ == "ovgpu" else found  # a program may use ovgpu by openvino's name


def required(what: str) -> ModuleType:
    """Return the openvino package. Raises ImportError that says ``what`` needs it if it is not installed."""
    found = package()
    if found is None:
        raise ImportError(f"{what} needs openvino: {HINT}")
    return found


def own_core() -> Any:
    """Return an `openvino.Core` whose devices are openvino's own, whichever of them `ovgpu.install` replaced."""
    core = required("openvino's devices").Core()
    core.__dict__[PLAIN] = True
    return core


def owns(value: Any) -> bool:
    """Return whether a value is an object of the openvino package, which is not imported for it."""
    return any(cls.__module__.partition(".")[0] == "openvino" for cls in type(value).__mro__)


class Shared(type):
    """Class of a class whose instances include those of openvino's class of that name."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return type.__instancecheck__(cls, instance) or any(
            kind.__name__ == cls.__name__ and kind.__module__.partition(".")[0] == "openvino"
            for kind in type(instance).__mro__
        )
