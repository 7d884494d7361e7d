"""Element types, with the names and predicates of openvino.Type."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import ml_dtypes
import numpy as np


class _Row(NamedTuple):
    """Properties of one type: openvino's printed name, width in bits, `to_dtype()`, and `storage` (None: the same)."""

    label: str
    bitwidth: int
    dtype: str
    storage: Any = None


def _codes(name: str) -> np.dtype[Any]:
    """Return the storage dtype of a type without a NumPy or ml_dtypes scalar: bytes in a field called ``name``."""
    return np.dtype([(name, np.uint8)])


# In the order of ov::element::Type_t, whose value is openvino's hash. Strings are `bytes` objects: openvino's may
# contain any byte, which NumPy's StringDType (UTF-8 only) and 'S' (drops trailing NULs) cannot represent.
_ROWS: dict[str, _Row] = {
    "dynamic": _Row("dynamic", 0, ""),
    "boolean": _Row("char", 8, "bool"),
    "bf16": _Row("bfloat16", 16, "float16", ml_dtypes.bfloat16),
    "f16": _Row("float16", 16, "float16"),
    "f32": _Row("float32", 32, "float32"),
    "f64": _Row("double64", 64, "float64"),
    "i4": _Row("int4_t", 4, "int8", ml_dtypes.int4),
    "i8": _Row("int8_t", 8, "int8"),
    "i16": _Row("int16_t", 16, "int16"),
    "i32": _Row("int32_t", 32, "int32"),
    "i64": _Row("int64_t", 64, "int64"),
    "u1": _Row("uint1_t", 1, "uint8", _codes("u1")),
    "u2": _Row("uint2_t", 2, "uint8", ml_dtypes.uint2),
    "u3": _Row("uint3_t", 3, "uint8", _codes("u3")),
    "u4": _Row("uint4_t", 4, "uint8", ml_dtypes.uint4),
    "u6": _Row("uint6_t", 6, "uint8", _codes("u6")),
    "u8": _Row("uint8_t", 8, "uint8"),
    "u16": _Row("uint16_t", 16, "uint16"),
    "u32": _Row("uint32_t", 32, "uint32"),
    "u64": _Row("uint64_t", 64, "uint64"),
    "nf4": _Row("nfloat4", 4, "uint8", _codes("nf4")),
    "f8e4m3": _Row("f8e4m3", 8, "uint8", ml_dtypes.float8_e4m3fn),
    "f8e5m2": _Row("f8e5m2", 8, "uint8", ml_dtypes.float8_e5m2),
    "string": _Row("string", 256, "S", object),
    "f4e2m1": _Row("f4e2m1", 4, "uint8", ml_dtypes.float4_e2m1fn),
    "f8e8m0": _Row("f8e8m0", 8, "uint8", ml_dtypes.float8_e8m0fnu),
}

_QUANTIZED = {"i4", "i8", "i32", "u8", "nf4", "f4e2m1", "f8e4m3", "f8e5m2", "f8e8m0"}

# Further names of types in IR files, as precisions of ports, in lower case.
_LEGACY_NAMES = {
    "undefined": "dynamic",
    "unspecified": "dynamic",
    "bool": "boolean",
    "bin": "u1",
    "fp16": "f16",
    "fp32": "f32",
    "fp64": "f64",
}


class Type:
    """An element type, such as `Type.f32`. Each has one instance, so that `is` and `==` agree.

    `Type(dtype)` converts any argument of `numpy.dtype`, as openvino's does ("u4" is NumPy's uint32, not the 4-bit
    type), and the names of element types that NumPy does not know, such as "f32".

    Raises: TypeError for an argument that is no data type, RuntimeError for a dtype that has no element type.
    """

    dynamic: ClassVar[Type]
    undefined: ClassVar[Type]
    boolean: ClassVar[Type]
    bf16: ClassVar[Type]
    f16: ClassVar[Type]
    f32: ClassVar[Type]
    f64: ClassVar[Type]
    i4: ClassVar[Type]
    i8: ClassVar[Type]
    i16: ClassVar[Type]
    i32: ClassVar[Type]
    i64: ClassVar[Type]
    u1: ClassVar[Type]
    u2: ClassVar[Type]
    u3: ClassVar[Type]
    u4: ClassVar[Type]
    u6: ClassVar[Type]
    u8: ClassVar[Type]
    u16: ClassVar[Type]
    u32: ClassVar[Type]
    u64: ClassVar[Type]
    nf4: ClassVar[Type]
    f8e4m3: ClassVar[Type]
    f8e5m2: ClassVar[Type]
    f8e8m0: ClassVar[Type]
    f4e2m1: ClassVar[Type]
    string: ClassVar[Type]

    type_name: str
    bitwidth: int
    size: int
    """The number of bytes of an element, 1 for the packed types, see `nbytes`."""
    packed: bool
    """True if several elements share a byte in a tensor or weights file."""
    real: bool
    integral: bool
    integral_number: bool
    signed: bool
    quantized: bool
    _label: str
    _hash: int
    _dtype: np.dtype[Any] | None
    _storage: np.dtype[Any] | None

    def __new__(cls, dtype: Any) -> Type:  # noqa: PYI034
        if isinstance(dtype, Type):
            return dtype
        try:
            converted = np.dtype(dtype)
        except TypeError:
            if not isinstance(dtype, str) or dtype.lower() not in _TYPES:
                raise
            return _TYPES[dtype.lower()]
        return cls.of(converted)

    @classmethod
    def _define(cls, index: int, name: str, row: _Row) -> Type:
        self = object.__new__(cls)
        self.type_name, self._label, self._hash = name, row.label, index
        self.bitwidth, self.size = row.bitwidth, -(-row.bitwidth // 8)
        self.packed = 0 < row.bitwidth < 8
        self.real = "f" in name and name != "nf4"
        self.integral = not self.real
        self.integral_number = self.integral and name != "boolean"
        self.signed = self.real or name[0] == "i" or name == "boolean"
        self.quantized = name in _QUANTIZED
        self._dtype = np.dtype(row.dtype) if row.dtype else None
        self._storage = self._dtype if row.storage is None else np.dtype(row.storage)
        return self

    @staticmethod
    def parse(text: str) -> Type:
        """Return the type of a name in an IR file: `f32`, `FP32`, `BOOL`, ..., in any case. ValueError if unknown."""
        try:
            return _TYPES[text.lower()]
        except KeyError:
            raise ValueError(f"{text!r} is not an element type") from None

    @staticmethod
    def of(dtype: np.dtype[Any] | type) -> Type:
        """Return the element type of a NumPy or ml_dtypes dtype of any byte order. RuntimeError if there is none."""
        dtype = np.dtype(dtype)
        if dtype.kind in "UST":
            return Type.string
        element_type = _BY_DTYPE.get(dtype.newbyteorder("=") if dtype.kind in "iuf" else dtype)
        if element_type is None:
            raise RuntimeError(f"Unsupported data type: {dtype}")
        return element_type

    @property
    def storage(self) -> np.dtype[Any]:
        """The dtype of unpacked elements, different for every type. TypeError for the dynamic type."""
        if self._storage is None:
            raise TypeError("the dynamic element type has no storage")
        return self._storage

    def to_dtype(self) -> np.dtype[Any]:
        """Return openvino's dtype of `Tensor.data`: float16 for bf16 bits, uint8 or int8 for packed bytes.

        IndexError for the dynamic type.
        """
        if self._dtype is None:
            raise IndexError("the dynamic element type has no dtype")
        return self._dtype

    def to_string(self) -> str:
        """Return the name, such as f32."""
        return self.type_name

    def get_type_name(self) -> str:
        """Return the name, such as f32."""
        return self.type_name

    def get_size(self) -> int:
        """Return the number of bytes of an element; 1 for types of fewer than 8 bits."""
        return self.size

    def get_bitwidth(self) -> int:
        """Return the number of bits of an element."""
        return self.bitwidth

    def is_static(self) -> bool:
        """Return whether the type is known."""
        return self is not Type.dynamic

    def is_dynamic(self) -> bool:
        """Return whether the type is not known."""
        return self is Type.dynamic

    def is_real(self) -> bool:
        """Return whether the elements are floating-point numbers."""
        return self.real

    def is_integral(self) -> bool:
        """Return whether the elements are integers or booleans."""
        return self.integral

    def is_integral_number(self) -> bool:
        """Return whether the elements are integers, and not booleans."""
        return self.integral_number

    def is_signed(self) -> bool:
        """Return whether the type has negative values."""
        return self.signed

    def is_quantized(self) -> bool:
        """Return whether the elements are quantised numbers."""
        return self.quantized

    def compatible(self, other: Type) -> bool:
        """Return whether the types are equal or one of them is dynamic."""
        return self.merge(other) is not None

    def merge(self, other: Type) -> Type | None:
        """Return the more specific of two compatible types, None if they are not compatible."""
        if not isinstance(other, Type):
            raise TypeError(f"expected a Type, got {type(other).__name__}")
        if self is other or other is Type.dynamic:
            return self
        return other if self is Type.dynamic else None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other or isinstance(other, Type):
            return self is other
        return type(other).__name__ == "Type" and repr(self) == repr(other)  # openvino's

    def __repr__(self) -> str:
        return f"<Type: '{self._label}'>"

    def __reduce__(self) -> str | tuple[Any, tuple[str]]:
        return "TF32" if self is TF32 else (Type.parse, (self.type_name,))


_TYPES: dict[str, Type] = {}
for _index, (_name, _row) in enumerate(_ROWS.items()):
    _TYPES[_name] = Type._define(_index, _name, _row)
    setattr(Type, _name, _TYPES[_name])
_TYPES.update({alias: _TYPES[name] for alias, name in _LEGACY_NAMES.items()})
Type.undefined = Type.dynamic

TF32 = Type._define(len(_ROWS), "tf32", _Row("tf32", 32, "float32"))
"""The type of f32 operands that tensor cores round to 11 significant bits: a precision of products, not of tensors."""

_BY_DTYPE = {type._storage: type for type in _TYPES.values() if type._storage is not None}
del _BY_DTYPE[np.dtype(object)]  # its elements need not be strings
