"""Remote tensors and contexts of ovgpu for programs of openvino: they take and return openvino's values."""

from __future__ import annotations

from functools import wraps
from typing import Any, ClassVar

import openvino  # type: ignore[import-untyped]

import ovgpu
from ovgpu.interop.values import tensor_to_openvino, to_openvino, to_ovgpu


class Converted:
    """Wrapper of an object of ovgpu, whose methods take and return openvino's values.

    `isinstance` takes it for an object of openvino's class `stands_for`. It is none, because the constructor of that
    class wants a C++ object.
    """

    stands_for: ClassVar[Any]

    def __init__(self, own: Any) -> None:
        self._own = own

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self.stands_for

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._own, name)
        if not callable(value):
            return value_to_program(value)

        @wraps(value)
        def called(*args: Any, **kwargs: Any) -> Any:
            named = {key: value_from_program(each) for key, each in kwargs.items()}
            return value_to_program(value(*map(value_from_program, args), **named))

        return called

    def __repr__(self) -> str:
        return repr(self._own)


class RemoteTensor(Converted):
    """Tensor in a card's memory; see `ovgpu.RemoteTensor`."""

    stands_for = openvino.RemoteTensor


class RemoteContext(Converted):
    """Allocator of tensors on a card; see `ovgpu.RemoteContext`."""

    stands_for = openvino.RemoteContext


def value_to_program(value: Any) -> Any:
    """Return a value of ovgpu as one of openvino. Tensors share their memory, on a card as well."""
    if isinstance(value, ovgpu.Tensor):
        return RemoteTensor(value) if value.remote else tensor_to_openvino(value)
    return to_openvino(value)


def value_from_program(value: Any) -> Any:
    """Return a value of openvino, or an object of this module, as one of ovgpu. Tensors share their memory."""
    own = input_from_program(value)
    return to_ovgpu(value) if own is value else own


def input_from_program(value: Any) -> Any:
    """Return the ovgpu tensor in an object of this module, or any other value as it is, since requests take it."""
    own = value.__dict__.get("_own") if isinstance(value, (openvino.RemoteTensor, openvino.RemoteContext)) else None
    return value if own is None else own
