"""Values that cross between openvino and ovgpu: element types, properties, tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino  # type: ignore[import-untyped]
from openvino import properties

import ovgpu

ENUMS: dict[str, Any] = {
    name: value for module in (properties, properties.hint, properties.log, properties.device)
    for name, value in vars(module).items() if isinstance(value, type) and hasattr(value, "__members__")
}
"""The enums of property values in openvino, by class name."""


def to_openvino_type(kind: ovgpu.Type) -> openvino.Type:
    """Return openvino's element type of the same name."""
    return getattr(openvino.Type, kind.get_type_name())


# ---- properties

def property_to_ovgpu(value: Any) -> Any:
    """Return a property's value for ovgpu: enums and types by name, and what an OVAny holds."""
    if isinstance(value, openvino.OVAny):
        value = value.value
    if isinstance(value, openvino.Type):
        return value.get_type_name()
    if type(value).__name__ in ENUMS:
        return value.name
    if isinstance(value, Mapping):
        return properties_to_ovgpu(value)
    return value


def properties_to_ovgpu(config: Any) -> dict[str, Any]:
    """Return properties that are given as a mapping, as a pair, or as None."""
    if isinstance(config, tuple):
        config = [config]
    return {str(key): property_to_ovgpu(value) for key, value in dict(config or {}).items()}


def property_to_openvino(value: Any) -> Any:
    """Return a value that ovgpu gives for a property, with openvino's enums and types."""
    if isinstance(value, ovgpu.Type):
        return to_openvino_type(value)
    enum = ENUMS.get(type(value).__name__)
    return value if enum is None else getattr(enum, value.name)


# ---- tensors

def tensor_to_ovgpu(value: Any) -> Any:
    """Return an `openvino.Tensor` as a Tensor that shares its memory, copied only for strings. Other values stay."""
    return ovgpu.Tensor(value, shared_memory=_is_shareable(value)) if isinstance(value, openvino.Tensor) else value


def tensor_to_openvino(tensor: ovgpu.Tensor) -> Any:
    """Return a Tensor as an `openvino.Tensor` that shares its memory, copied only for strings and for memory that is
    read-only or not contiguous. A tensor in a device's memory stays as it is."""
    if isinstance(tensor, ovgpu.RemoteTensor) and tensor.remote:
        return tensor
    if tensor.element_type == ovgpu.Type.string:
        return openvino.Tensor(tensor.str_data)
    array = tensor.data
    if not (array.flags.c_contiguous and array.flags.writeable):
        array = np.array(array, order="C")
    return openvino.Tensor(array.reshape(-1) if array.ndim == 0 else array, openvino.Shape(list(tensor.shape)),
                           to_openvino_type(tensor.element_type))


def _is_shareable(tensor: Any) -> bool:
    return bool(tensor.get_element_type() != openvino.Type.string and tensor.data.flags.writeable)
