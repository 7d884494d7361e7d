"""Tensor of a model's graph, as openvino describes it."""

from __future__ import annotations

import math
import typing

from ovgpu._util.attributes import attribute, settable
from ovgpu.model.rt_info import RTMap
from ovgpu.types import PartialShape, Shape, Type

if typing.TYPE_CHECKING:
    from ovgpu.model.node import Output


class DescriptorTensor:
    """Names, element type and shape of the tensor at a port. Changes of the names are changes of the port's."""

    __slots__ = ("_port",)

    def __init__(self, port: Output) -> None:
        self._port = port

    def get_names(self) -> set[str]:
        return self._port.get_names()

    def set_names(self, names: set[str]) -> None:
        self._port.set_names(names)

    names = settable(get_names, set_names)

    def add_names(self, names: set[str]) -> None:
        self._port.add_names(names)

    def get_any_name(self) -> str:
        """Return the alphabetically first name. Raises RuntimeError if there is none."""
        return self._port.get_any_name()

    any_name = attribute(get_any_name)

    def get_element_type(self) -> Type:
        return self._port.get_element_type()

    element_type = attribute(get_element_type)

    def get_partial_shape(self) -> PartialShape:
        return self._port.get_partial_shape()

    partial_shape = attribute(get_partial_shape)

    def get_shape(self) -> Shape:
        """Return the shape. Raises RuntimeError if it is not static."""
        return self._port.get_shape()

    shape = attribute(get_shape)

    @property
    def size(self) -> int:
        """The number of bytes. Raises RuntimeError if the shape is not static."""
        return -(-math.prod(self.get_shape()) * self.get_element_type().bitwidth // 8)

    def get_rt_info(self) -> RTMap:
        return self._port.get_rt_info()

    rt_info = attribute(get_rt_info)

    def __repr__(self) -> str:
        return f"<DescriptorTensor: {self._port.describe()}>"
