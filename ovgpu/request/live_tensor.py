"""Input tensors in the memory of openvino's tensors, which their programs may resize."""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.tensor import Tensor
from ovgpu.types import Shape, Type


class LiveTensor(Tensor):
    """Tensor in the memory of an `openvino.Tensor` that a program holds.

    The program may give it another shape or other strings at any time, which may move its memory. Hence its shape and
    memory are looked up at each use. Strings are copied at each use.
    """

    __slots__ = ("wrapped",)

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped
        self._element_type, self._owned = Type.parse(wrapped.get_element_type().get_type_name()), False

    @classmethod
    def copy_of(cls, tensor: Any) -> LiveTensor:
        """Return a copy of an `openvino.Tensor` in memory of openvino, which can grow."""
        copied = cls(type(tensor)(tensor.get_element_type(), tensor.get_shape()))
        if tensor.get_size():
            tensor.copy_to(copied.wrapped)
        return copied

    @property
    def _array(self) -> Any:
        if self._element_type is Type.string:
            return Tensor(self.wrapped)._array
        array: Array = self.wrapped.data
        return array if self._element_type.packed else array.view(self._element_type.storage)

    @property
    def _memory(self) -> Any:
        return self._array.reshape(-1)

    @property
    def _shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(self.wrapped.get_shape())

    def set_shape(self, shape: Any) -> None:
        self.wrapped.set_shape(list(Shape(shape)))

    def write(self, array: Array) -> None:
        if self._element_type is Type.string:
            self.wrapped.bytes_data = array.astype(np.bytes_)
            return
        if self._shape != array.shape:
            self.set_shape(array.shape)
        np.copyto(self._array, array, casting="unsafe")
