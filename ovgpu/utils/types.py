"""Conversion of Python types and NumPy's dtypes to element types, and back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ovgpu.exceptions import OVTypeError
from ovgpu.interop.names import names_of
from ovgpu.types import Type

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
NumericData: TypeAlias = int | float | Array
NumericType: TypeAlias = type | np.dtype[Any]
ScalarData: TypeAlias = int | float
TensorShape: TypeAlias = list[int]

log = logging.getLogger(__name__)

_TYPES = {
    np.dtype(element_type.to_dtype()): element_type
    for element_type in (
        Type.boolean,
        Type.f16,
        Type.f32,
        Type.f64,
        Type.i8,
        Type.i16,
        Type.i32,
        Type.i64,
        Type.u8,
        Type.u16,
        Type.u32,
        Type.u64,
    )
}

__getattr__ = names_of(__name__)  # functions that make nodes


def get_element_type(data_type: Any) -> Type:
    """Return the element type of a Python type or a dtype. int and float have 32 bits, with a warning in the log.

    Raises: OVTypeError if there is none.
    """
    if data_type is int or data_type is float:
        log.warning("The type %s has no width: it is taken as 32 bits", data_type.__name__)
        return Type.i32 if data_type is int else Type.f32
    if data_type in (str, bytes, np.str_, np.bytes_):
        return Type.string
    element_type = _TYPES.get(np.dtype(data_type)) if isinstance(data_type, (type, np.dtype)) else None
    if element_type is None:
        raise OVTypeError(f"there is no element type for {data_type!r}")
    return element_type


def get_element_type_str(data_type: Any) -> str:
    """Return the name of an element type, see `get_element_type`."""
    return get_element_type(data_type).get_type_name()


def get_numpy_ctype(openvino_type: Type) -> type:
    """Return the scalar type of an element type: bool, a type of NumPy, or str; uint16 for bf16.

    Raises: OVTypeError for types without one.
    """
    if openvino_type == Type.bf16:
        return np.uint16
    if openvino_type == Type.string:
        return str
    if openvino_type == Type.boolean:
        return bool
    if openvino_type not in _TYPES.values():
        raise OVTypeError(f"there is no scalar type for {openvino_type!r}")
    return Type(openvino_type).to_dtype().type


def get_dtype(openvino_type: Type) -> np.dtype[Any]:
    """Return the dtype of `get_numpy_ctype`."""
    return np.dtype(get_numpy_ctype(openvino_type))


def get_ndarray(data: NumericData) -> Array:
    """Return a number, a list or an array as an array."""
    return data if isinstance(data, np.ndarray) else np.array(data)


def get_shape(data: NumericData) -> Sequence[int]:
    """Return the shape of an array, the length of a list, or [] for a number."""
    if isinstance(data, np.ndarray):
        return tuple(data.shape)
    return [len(data)] if isinstance(data, list) else []
