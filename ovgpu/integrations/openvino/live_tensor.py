"""Input tensors that a program may resize."""

from __future__ import annotations

from typing import Any

import openvino  # type: ignore[import-untyped]

import ovgpu
from ovgpu.integrations.openvino.remote import value_from_program


class LiveTensor(ovgpu.Tensor):
    """Tensor in the memory of an `openvino.Tensor` that a program holds.

    The program may give it another shape or other strings at any time, which may move its memory. Hence they are looked
    up at each use. Strings are copied then.
    """

    __slots__ = ("wrapped",)

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped
        self._element_type, self._owned = ovgpu.Type.parse(wrapped.get_element_type().get_type_name()), False

    @classmethod
    def copy_of(cls, tensor: Any) -> LiveTensor:
        """Return a copy of an `openvino.Tensor` in memory of openvino, which can grow."""
        copied = cls(openvino.Tensor(tensor.get_element_type(), tensor.get_shape()))
        if tensor.get_size():
            tensor.copy_to(copied.wrapped)
        return copied

    @property
    def _array(self) -> Any:
        return ovgpu.Tensor(self.wrapped, shared_memory=self._element_type is not ovgpu.Type.string)._array

    @property
    def _memory(self) -> Any:
        return self._array.reshape(-1)

    @property
    def _shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(self.wrapped.get_shape())

    def set_shape(self, shape: Any) -> None:
        self.wrapped.set_shape(list(ovgpu.Shape(shape)))


def live_value_from_program(value: Any) -> Any:
    """Return a value that a program sets for an input; see `value_from_program`."""
    return LiveTensor(value) if isinstance(value, openvino.Tensor) else value_from_program(value)
