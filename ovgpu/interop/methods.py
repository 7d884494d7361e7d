"""Methods of openvino's objects that take ovgpu's types, shapes, layouts and tensors.

A program that uses ovgpu gets objects of openvino, such as the model that `ovgpu.convert_model` returns, and calls
their methods with ovgpu's values. If ovgpu stands in openvino's place, the methods also return ovgpu's values, except
to openvino's own code and to ovgpu's. The signatures tell which methods take or return such values.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from functools import wraps
from typing import Any

from ovgpu._util.openvino_package import is_replaced
from ovgpu.interop.values import ENUMS, is_plain, openvino, tensor_to_ovgpu, to_openvino, to_ovgpu
from ovgpu.tensor import Tensor

VALUES = {"Dimension", "Layout", "OVAny", "PartialShape", "Shape", "Strides", "Tensor", "Type", *ENUMS}
"""Classes that ovgpu has too. openvino's own are left as they are, since programs hold objects of ovgpu's."""

_CONTAINERS = ("TensorVector", "object", "Any", "dict", "list", "Mapping", "Sequence")
_MENTIONED = re.compile(rf"\b({'|'.join([*VALUES, *_CONTAINERS])})\b")
_SPECIAL = ("__init__", "__getitem__", "__setitem__")
_OWN = ("openvino", "ovgpu")

_seen: set[type] = set()


def convert_methods() -> None:
    """Let the methods of all classes of openvino that have been imported take, and return, ovgpu's values."""
    bound = next(base for base in openvino.Node.__mro__ if base.__name__ == "pybind11_object")
    for cls in [openvino.Model, *_subclasses(bound)]:
        if cls in _seen or cls.__name__ in VALUES or cls.__module__.partition(".")[0] != "openvino":
            continue
        _seen.add(cls)
        for name, member in list(vars(cls).items()):
            if type(member) is property:
                if any(f is not None and _mentions_values(f) for f in (member.fget, member.fset)):
                    getter, setter = _converting(member.fget), _converting(member.fset)
                    setattr(cls, name, property(getter, setter, doc=member.__doc__))
            elif (name[0] != "_" or name in _SPECIAL) and inspect.isroutine(member) and _mentions_values(member):
                setattr(cls, name, _converting(member))


def _subclasses(cls: Any) -> Iterator[type]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _mentions_values(method: Any) -> bool:
    if inspect.isfunction(method):
        return _MENTIONED.search(str(inspect.signature(method))) is not None
    return any("->" in line and _MENTIONED.search(line) for line in (method.__doc__ or "").splitlines())


def _converting(method: Any) -> Any:
    if method is None:
        return None
    writes = method.__name__ == "evaluate"  # into the tensors of its first argument

    @wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        given, given_by_name = args, kwargs
        if not is_plain(args):
            args = tuple(map(to_openvino, args))
        if kwargs:
            kwargs = {key: to_openvino(value) for key, value in kwargs.items()}
        result: Any = method(self, *args, **kwargs)
        if writes:
            _take_results(next(iter([*given, *given_by_name.values()])), next(iter([*args, *kwargs.values()])))
        if not is_replaced() or sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] in _OWN:
            return result
        return to_ovgpu(result)

    return called


def _take_results(given: Any, written: Any) -> None:
    """Copy tensors that openvino has written back to the tensors of ovgpu that they were copied from."""
    if isinstance(given, (list, tuple)):
        for tensor, result in zip(given, written):
            if isinstance(tensor, Tensor):
                tensor.copy_from(tensor_to_ovgpu(result))
