"""Tensors of single items that one input reads as a batch: OpenVINO's batched tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.compile.ports import ConstOutput
from ovgpu.errors import Error
from ovgpu.tensor import Tensor
from ovgpu.types import Dimension, pack

_NOWHERE = np.empty(0)  # memory that no `Replay` matches


class BatchedTensor(Tensor):
    """Tensors of a batch's items. They are gathered at each inference, so that programs may change them in between.

    Its array is on the host. `DeviceInput` gathers the items on a device instead.
    """

    __slots__ = ("_port", "items")

    def __init__(self, items: Sequence[Tensor], port: ConstOutput) -> None:
        """Raises: Error if the batch is not the first dimension of the input's layout, or the items do not fit it."""
        _check_layout(len(items), port)
        self.items, self._port = list(items), port
        self._element_type = items[0].element_type
        _check_items(items, port)

    @property
    def _shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The shape of the batch. Raises: Error if the program has given the items shapes that do not fit."""
        _check_items(self.items, self._port)
        return (len(self.items), *self.items[0]._shape[1:])

    @property
    def remote(self) -> bool:
        return any(item.remote for item in self.items)

    @property
    def _buffer(self) -> Any:
        return _NOWHERE

    @property
    def _array(self) -> Any:
        _check_items(self.items, self._port)
        gathered = np.concatenate([item.array for item in self.items])
        return pack(gathered, self._element_type) if self._element_type.packed else gathered


NAME = "[Parameter] set_input_tensors/set_tensors"


def _check_layout(count: int, port: ConstOutput) -> None:
    """Raise Error unless the first dimension of an input is a batch of ``count`` items."""
    place = f"({port.node.source_location})"
    layout, shape = port.node.get_layout(), port.partial_shape
    if not layout.has_name("N"):
        raise Error(
            f"{NAME} can be used only for inputs with N(batch) dimension 'layout' defined. Current layout is "
            f"{layout} {place}"
        )
    axis = layout.get_index_by_name("N")
    if axis != 0:
        raise Error(f"{NAME} is not currently supported for batch dimension index {axis} != 0 {place}")
    if shape.rank.is_static and not shape[0].compatible(Dimension(count)):
        raise Error(f"{NAME}: the input shape {shape} does not match the number of tensors, {count} {place}")


def _check_items(items: Sequence[Tensor], port: ConstOutput) -> None:
    """Raise Error unless all tensors have the same type and shape, and hold one item each."""
    first, place = items[0], f"({port.node.source_location})"
    for item in items:
        if not item.shape or item.shape[0] != 1:
            raise Error(f"{NAME}: tensors are to be one item of the batch each, got shape {item.shape} {place}")
        if item.element_type is not first.element_type or item.shape != first.shape:
            raise Error(
                f"{NAME}: tensors of {item.element_type.type_name} {item.shape} and "
                f"{first.element_type.type_name} {first.shape} are no batch {place}"
            )
