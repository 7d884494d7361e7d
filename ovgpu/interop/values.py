"""Values that cross between openvino and ovgpu: element types, shapes, properties, tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from ovgpu._util.openvino_package import required
from ovgpu.tensor import Tensor
from ovgpu.types import TF32, Dimension, Layout, OVAny, PartialShape, Shape, Strides, Type

openvino: Any = required(__name__)
preprocess, properties = openvino.preprocess, openvino.properties

ENUMS: dict[str, Any] = {
    name: value
    for module in (
        properties,
        properties.hint,
        properties.log,
        properties.device,
        properties.intel_auto,
        properties.intel_cpu,
        preprocess,
    )
    for name, value in vars(module).items()
    if isinstance(value, type) and hasattr(value, "__members__")
}
"""openvino's enums of properties and of preprocessing, by class name."""


def to_openvino_type(element_type: Type) -> Any:
    """Return openvino's element type of the same name; for TF32, which it does not have, f32."""
    return openvino.Type.f32 if element_type is TF32 else getattr(openvino.Type, element_type.get_type_name())


PLAIN = frozenset({bool, bytes, complex, float, int, str, type(None)})


def is_plain(values: Sequence[Any]) -> bool:
    """Return whether a list holds only numbers, texts and None, which openvino takes as they are. It may be long."""
    return all(cls in PLAIN or issubclass(cls, np.generic) for cls in set(map(type, values)))


def to_openvino(value: Any) -> Any:
    """Return openvino's own object for a type, shape, layout, tensor or enum of ovgpu, also in lists, tuples and dicts.
    Other values stay as they are. Tensors are copied: openvino may keep their memory, as Constants do."""
    if isinstance(value, (Shape, Strides)):
        return getattr(openvino, type(value).__name__)(list(value))
    if type(value) in (list, tuple):
        return value if is_plain(value) else type(value)(map(to_openvino, value))
    if type(value) is dict:
        return {to_openvino(key): to_openvino(item) for key, item in value.items()}
    if isinstance(value, Type):
        return to_openvino_type(value)
    if isinstance(value, Dimension):
        return openvino.Dimension(value.min_length, value.max_length)
    if isinstance(value, (PartialShape, Layout)):
        return getattr(openvino, type(value).__name__)(str(value))
    if isinstance(value, Tensor):
        return _copied(value)
    if isinstance(value, OVAny):
        return openvino.OVAny(value.value)
    return property_to_openvino(value)


def to_ovgpu(value: Any) -> Any:
    """Return ovgpu's own object for a type, shape, layout, dimension or tensor of openvino, also in lists, tuples and
    dicts. Other values stay as they are."""
    if type(value) in (list, tuple):
        return value if is_plain(value) else type(value)(map(to_ovgpu, value))
    if type(value) is dict:
        return {key: to_ovgpu(item) for key, item in value.items()}
    if isinstance(value, openvino.Type):
        return Type.parse(value.get_type_name())
    if isinstance(value, openvino.Shape):
        return Shape(list(value))
    if isinstance(value, openvino.Dimension):
        return Dimension(value.get_min_length(), value.get_max_length())
    if isinstance(value, openvino.PartialShape):
        return PartialShape(str(value))
    if isinstance(value, openvino.Layout):
        return Layout(value.to_string())
    return tensor_to_ovgpu(value)


# ---- properties


def property_to_ovgpu(value: Any) -> Any:
    """Convert a property's value for ovgpu: enums and types to their names, an OVAny to the value in it."""
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
    """Convert properties for ovgpu to a dict. They are given as a mapping, a pair or None."""
    if isinstance(config, tuple):
        config = [config]
    return {str(key): property_to_ovgpu(value) for key, value in dict(config or {}).items()}


def property_to_openvino(value: Any) -> Any:
    """Convert a property's value from ovgpu: enums and types become openvino's."""
    if isinstance(value, Type):
        return to_openvino_type(value)
    enum = ENUMS.get(type(value).__name__) if isinstance(value, Enum) else None
    return value if enum is None else getattr(enum, value.name)


# ---- tensors


def tensor_to_ovgpu(value: Any) -> Any:
    """Return an `openvino.Tensor` as a Tensor that shares its memory, except for strings. Other values stay."""
    return Tensor(value, shared_memory=_is_shareable(value)) if isinstance(value, openvino.Tensor) else value


def tensor_to_openvino(tensor: Tensor) -> Any:
    """Return a Tensor as an `openvino.Tensor` that shares its memory, copied only for strings and for memory that is
    read-only or not contiguous. A tensor in a device's memory stays as it is."""
    if tensor.remote:
        return tensor
    if tensor.element_type == Type.string:
        return openvino.Tensor(tensor.str_data)
    array = tensor.data
    if not (array.flags.c_contiguous and array.flags.writeable):
        array = np.array(array, order="C")
    return openvino.Tensor(
        array.reshape(-1) if array.ndim == 0 else array,
        openvino.Shape(list(tensor.shape)),
        to_openvino_type(tensor.element_type),
    )


def _copied(tensor: Tensor) -> Any:
    """Return a Tensor as an `openvino.Tensor` with memory of its own. A tensor in a device's memory stays as it is."""
    shared = tensor_to_openvino(tensor)
    if tensor.remote or tensor.element_type == Type.string:
        return shared
    copied = openvino.Tensor(shared.get_element_type(), shared.get_shape())
    if shared.get_size():
        shared.copy_to(copied)
    return copied


def _is_shareable(tensor: Any) -> bool:
    return bool(tensor.get_element_type() != openvino.Type.string and tensor.data.flags.writeable)
