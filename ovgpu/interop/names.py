"""Names of the openvino package that ovgpu leaves to it, such as `ovgpu.opset13`, `ovgpu.frontend`, `ovgpu.Symbol`.

Programs can always import them, and openvino is imported when one of their names is used first. Functions and classes
of openvino then also take ovgpu's types, shapes, layouts and tensors. Without openvino, every such name is a
placeholder, which can be subclassed, and raises ImportError when it is called.
"""

from __future__ import annotations

import sys
from abc import ABCMeta
from collections.abc import Callable, Sequence
from functools import cache, wraps
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ovgpu._util import openvino_package

OPSETS = tuple(f"opset{version}" for version in range(1, 18))

MODULES = frozenset(
    {
        "_offline_transformations",
        "_pyopenvino",
        "experimental",
        "frontend",
        "op",
        *OPSETS,
        "package_utils",
        "tools",
        "torch",
    }
)
"""Modules of openvino that ovgpu has under the same names, with all their submodules."""

IMPORTED = ("ovgpu.torch",)
"""Modules that do something when they are imported: this one registers the backend of `torch.compile`."""

SUBMODULES = ("passes.", "preprocess.", "utils.")
"""Packages of both openvino and ovgpu. Their modules that ovgpu lacks are openvino's."""

NAMES = frozenset(
    {
        "AxisSet",
        "AxisVector",
        "Coordinate",
        "CoordinateDiff",
        "DiscreteTypeInfo",
        "Extension",
        "OpExtension",
        "Symbol",
        "TensorVector",
        "VAContext",
        "VASurfaceTensor",
        "convert_model",
        "shutdown",
    }
)
"""Names in the openvino package itself."""


class Finder:
    """Import finder of the modules of ovgpu that are openvino's. Python asks it after all others."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        first, _, inner = rest.partition(".")
        if package != "ovgpu" or not (first in MODULES or rest.startswith(SUBMODULES)) or (inner and not _exists(name)):
            return None
        return ModuleSpec(name, _Loader(), is_package=True)  # type: ignore[arg-type]


def _exists(module: str) -> bool:
    """Return whether openvino has a counterpart of a module. Without openvino, every module is assumed to exist."""
    try:
        return openvino_package.package() is None or isinstance(openvino_module(module), ModuleType)
    except ImportError:
        return False


class _Loader:
    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create it."""

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in IMPORTED and openvino_package.package() is not None:
            openvino_module(module.__name__)
        module.__doc__ = f"Module {_openvino_name(module.__name__)}, which is imported when it is used."
        module.__getattr__ = names_of(module.__name__)  # type: ignore[method-assign]


def names_of(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of an ovgpu module, which takes names from openvino's module of the same name."""

    def getattr_of_module(name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = attribute(module, name)
        setattr(sys.modules[module], name, value)
        return value

    return getattr_of_module


def attribute(module: str, name: str) -> Any:
    """Return a name of openvino's counterpart of an ovgpu module, or a placeholder if openvino is not installed.

    Raises: AttributeError if openvino has no such name, ImportError if it has no such module.
    """
    if openvino_package.package() is None:
        return placeholder(module, name)
    value = getattr(openvino_module(module), name)
    if isinstance(value, ModuleType):
        return import_module(f"{module}.{name}")
    return converting(value) if callable(value) else value


def openvino_module(module: str) -> ModuleType:
    """Return openvino's counterpart of an ovgpu module. openvino must be installed."""
    counterpart = openvino_package.required(module)
    name = _openvino_name(module)
    for part in name.split(".")[1:]:
        if not hasattr(counterpart, part):
            openvino_package.import_own(f"{counterpart.__name__}.{part}")
        counterpart = getattr(counterpart, part)
    _convert_methods(name)
    return counterpart


@cache
def _convert_methods(module: str) -> None:
    """Convert the methods of the classes that came with a module of openvino."""
    from ovgpu.interop.methods import convert_methods

    convert_methods()


def _openvino_name(module: str) -> str:
    return "openvino" + module.removeprefix("ovgpu")


# ---- with openvino: functions and classes that take ovgpu's values


@cache
def converting(value: Any) -> Any:
    """Return a function or class of openvino that is called with ovgpu's types, shapes, layouts and tensors as well.

    A class stays a class, and openvino's own objects are its instances.
    """
    if isinstance(value, type):
        unchanged = isinstance(value, ABCMeta) or issubclass(value, BaseException) or hasattr(value, "__members__")
        return value if unchanged else _converting_class(value)
    return _converting_function(value)


def _converting_function(function: Callable[..., Any]) -> Callable[..., Any]:
    from ovgpu.interop.graphs import build, has_models, has_ports, transform
    from ovgpu.interop.values import to_openvino, to_ovgpu

    # convert_model imports openvino's types when it is called, and compares arguments with them.
    imports = getattr(function, "__module__", "").startswith("openvino.tools")

    @wraps(function, updated=())
    def converted(*args: Any, **kwargs: Any) -> Any:
        values = *args, *kwargs.values()
        if has_ports(values):
            return build(function, args, kwargs)
        if has_models(values):
            return transform(function, args, kwargs)
        passed, named = tuple(map(to_openvino, args)), {key: to_openvino(arg) for key, arg in kwargs.items()}
        if not imports:
            result = function(*passed, **named)
        else:
            with openvino_package.own_names():
                result = function(*passed, **named)
        if not openvino_package.is_replaced():
            return result
        same = (mine for mine, theirs in zip(values, (*passed, *named.values())) if result is theirs)
        return next(same, to_ovgpu(result))

    return converted


def _converting_class(cls: type) -> type:
    construct = _converting_function(cls)

    class Converting(type(cls)):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return construct(*args, **kwargs) if self is made else super().__call__(*args, **kwargs)

        def __instancecheck__(self, instance: object) -> bool:
            return isinstance(instance, cls) if self is made else super().__instancecheck__(instance)

        def __subclasscheck__(self, subclass: type) -> bool:
            return issubclass(subclass, cls) if self is made else super().__subclasscheck__(subclass)

        def __eq__(self, other: object) -> bool:
            return other is self or (self is made and other is cls)

        def __hash__(self) -> int:
            return hash(cls) if self is made else super().__hash__()

    made: type = Converting(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__})
    return made


# ---- without openvino


class _Missing(type):
    """Metaclass of the placeholders, so that programs can subclass them."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise _error(cls)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _error(cls)


def _error(cls: type) -> ImportError:
    base = next(base for base in cls.__mro__ if base.__module__.startswith("ovgpu"))
    return ImportError(f"{base.__module__}.{base.__name__} needs openvino: {openvino_package.HINT}")


@cache
def placeholder(module: str, name: str) -> type:
    """Return a class that stands for a function or class of openvino, and raises ImportError when it is used."""
    return _Missing(name, (), {"__module__": module})
