"""The openvino package, which does what ovgpu itself does not implement. ovgpu works without it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from ovgpu._util.extras import install_command

HINT = install_command("openvino")
PLAIN = "_ovgpu_plain"  # attribute of an openvino.Core whose devices are not replaced


_lock = threading.RLock()
_hidden: dict[str, ModuleType] = {}
"""openvino's own modules by name, while ovgpu stands for them in `sys.modules`."""


@cache
def package() -> ModuleType | None:
    """Return the openvino package, imported at the first call; None if it is not installed."""
    try:
        module = import_own("openvino")
        return import_own("openvino") if is_replaced() else module  # OVGPU_REPLACE=1 replaces it at its first import
    except ModuleNotFoundError as e:
        if e.name != "openvino":
            raise
        return None


def import_own(name: str) -> ModuleType:
    """Import a module of openvino itself, also in a program that uses ovgpu by openvino's name."""
    with own_names():
        return import_module(name)


def is_replaced() -> bool:
    """Return whether openvino's name stands for ovgpu."""
    module = sys.modules.get("openvino")
    return module is not None and module is sys.modules.get("ovgpu")


@contextmanager
def own_names() -> Iterator[None]:
    """Give openvino's modules their names back during the block, if ovgpu has the names. Other threads that import
    openvino meanwhile get openvino's modules, too."""
    if not is_replaced():
        yield
        return
    with _lock:
        replaced, finders = _take(), list(sys.meta_path)
        sys.modules.update(_hidden)
        sys.meta_path[:] = [finder for finder in finders if not getattr(finder, "replaces_openvino", False)]
        try:
            yield
        finally:
            _hidden.update(_take())
            sys.modules.update(replaced)
            sys.meta_path[:] = finders


def _take() -> dict[str, ModuleType]:
    """Remove openvino and its modules from the imported ones, and return them by name."""
    modules = list(sys.modules)  # other threads may import meanwhile
    names = [name for name in modules if name.partition(".")[0] == "openvino"]
    return {name: sys.modules.pop(name) for name in names}


def hide() -> None:
    """Import openvino, if it is installed, and free its names for ovgpu."""
    with _lock:
        package()
        _hidden.update(_take())


def required(what: str) -> ModuleType:
    """Return the openvino package. Raises ImportError that says ``what`` needs it if it is not installed."""
    module = package()
    if module is None:
        raise ImportError(f"{what} needs openvino: {HINT}")
    return module


def own_core() -> Any:
    """Return an `openvino.Core` whose devices are openvino's own, even if `ovgpu.install` has replaced some of them."""
    core = required("openvino's devices").Core()
    core.__dict__[PLAIN] = True
    return core


def owns(value: Any) -> bool:
    """Return whether a value is an object of the openvino package. This does not import openvino."""
    return any(cls.__module__.partition(".")[0] == "openvino" for cls in type(value).__mro__)


class Shared(type):
    """Metaclass of a class whose instances include those of openvino's class with the same name."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return type.__instancecheck__(cls, instance) or any(
            base.__name__ == cls.__name__ and base.__module__.partition(".")[0] == "openvino"
            for base in type(instance).__mro__
        )
