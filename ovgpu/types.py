"""Element types, dimensions, shapes and layouts: the vocabulary every other module speaks.

The classes mirror openvino's public ones. They are stricter where openvino silently makes a number up: a
negative extent other than -1, a reversed range, an empty or unparsable extent, or an index out of range raises.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, NoReturn, SupportsIndex, TypeAlias, overload

import ml_dtypes
import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

# --- element types ---------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """One element type: openvino's printed name, width in bits, `to_dtype()`, and our storage (None: the same)."""

    label: str
    bitwidth: int
    dtype: str
    storage: Any = None


# In the order of ov::element::Type_t, whose value is openvino's hash. Types without a NumPy or ml_dtypes scalar
# (u1, u3, u6, nf4) are stored as uint8 codes. Strings are objects of type `bytes`: openvino's may hold any byte,
# which NumPy's StringDType (UTF-8 only) and 'S' (drops trailing NULs) cannot keep.
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
    "u1": _Row("uint1_t", 1, "uint8"),
    "u2": _Row("uint2_t", 2, "uint8", ml_dtypes.uint2),
    "u3": _Row("uint3_t", 3, "uint8"),
    "u4": _Row("uint4_t", 4, "uint8", ml_dtypes.uint4),
    "u6": _Row("uint6_t", 6, "uint8"),
    "u8": _Row("uint8_t", 8, "uint8"),
    "u16": _Row("uint16_t", 16, "uint16"),
    "u32": _Row("uint32_t", 32, "uint32"),
    "u64": _Row("uint64_t", 64, "uint64"),
    "nf4": _Row("nfloat4", 4, "uint8"),
    "f8e4m3": _Row("f8e4m3", 8, "uint8", ml_dtypes.float8_e4m3fn),
    "f8e5m2": _Row("f8e5m2", 8, "uint8", ml_dtypes.float8_e5m2),
    "string": _Row("string", 256, "S", object),
    "f4e2m1": _Row("f4e2m1", 4, "uint8", ml_dtypes.float4_e2m1fn),
    "f8e8m0": _Row("f8e8m0", 8, "uint8", ml_dtypes.float8_e8m0fnu),
}

_QUANTIZED = {"i4", "i8", "i32", "u8", "nf4", "f4e2m1", "f8e4m3", "f8e5m2", "f8e8m0"}

# What port precisions of any IR version hold beside the names above in either case.
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
    """An element type, `Type.f32` and so on; one instance each, so `is` and `==` agree.

    `Type(dtype)` converts what `numpy.dtype` understands, as openvino's does ("u4" is NumPy's uint32, not the
    4-bit type), and beyond it the names of element types that NumPy does not know, such as "f32".

    Raises: TypeError for what is no data type, RuntimeError for a dtype that has no element type.
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
    """Bytes one element takes; 1 for the packed types, see `nbytes`."""
    packed: bool
    """Whether several elements share a byte in a tensor or weights file."""
    real: bool
    integral: bool
    integral_number: bool
    signed: bool
    quantized: bool
    _label: str
    _hash: int
    _dtype: np.dtype[Any] | None
    _storage: np.dtype[Any] | None

    def __new__(cls, dtype: Any) -> Type:
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
        """The type an IR file names: `f32`, `FP32`, `BOOL`, `undefined`, ... in either case. ValueError if none."""
        try:
            return _TYPES[text.lower()]
        except KeyError:
            raise ValueError(f"{text!r} is not an element type") from None

    @staticmethod
    def of(dtype: np.dtype[Any] | type) -> Type:
        """The element type of a NumPy or ml_dtypes dtype, byte order aside. RuntimeError if there is none."""
        dtype = np.dtype(dtype)
        if dtype.kind in "USTO" and dtype.names is None and dtype.type is not object or dtype.kind == "T":
            return Type.string
        found = _BY_DTYPE.get(dtype.newbyteorder("=") if dtype.kind in "iuf" else dtype)
        if found is None:
            raise RuntimeError(f"Unsupported data type: {dtype}")
        return found

    @property
    def storage(self) -> np.dtype[Any]:
        """The dtype that holds one unpacked element. TypeError for the dynamic type."""
        if self._storage is None:
            raise TypeError("the dynamic element type has no storage")
        return self._storage

    def to_dtype(self) -> np.dtype[Any]:
        """openvino's dtype for `Tensor.data`: float16 for bf16 bits, uint8 or int8 for packed bytes."""
        if self._dtype is None:
            raise IndexError("the dynamic element type has no dtype")
        return self._dtype

    def to_string(self) -> str:
        return self.type_name

    def get_type_name(self) -> str:
        return self.type_name

    def get_size(self) -> int:
        return self.size

    def get_bitwidth(self) -> int:
        return self.bitwidth

    def is_static(self) -> bool:
        return self is not Type.dynamic

    def is_dynamic(self) -> bool:
        return self is Type.dynamic

    def is_real(self) -> bool:
        return self.real

    def is_integral(self) -> bool:
        return self.integral

    def is_integral_number(self) -> bool:
        return self.integral_number

    def is_signed(self) -> bool:
        return self.signed

    def is_quantized(self) -> bool:
        return self.quantized

    def compatible(self, other: Type) -> bool:
        """Whether the types are equal or one of them is dynamic."""
        return self.merge(other) is not None

    def merge(self, other: Type) -> Type | None:
        """The more specific of two compatible types, None if they are not compatible."""
        _check_class(other, Type)
        if self is other or other is Type.dynamic:
            return self
        return other if self is Type.dynamic else None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"<Type: '{self._label}'>"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Type.parse, (self.type_name,)


def _check_class(value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise TypeError(f"expected {expected.__name__}, got {type(value).__name__}")


_TYPES: dict[str, Type] = {}
for _index, (_name, _row) in enumerate(_ROWS.items()):
    _TYPES[_name] = Type._define(_index, _name, _row)
    setattr(Type, _name, _TYPES[_name])
_TYPES.update({alias: _TYPES[name] for alias, name in _LEGACY_NAMES.items()})
Type.undefined = Type.dynamic

# Later rows must not claim a dtype that is an earlier type's own: uint8 is u8, not the codes of u1.
_BY_DTYPE: dict[np.dtype[Any], Type] = {}
for _type in _TYPES.values():
    if _type._storage is not None and (_type._storage != np.uint8 or _type is Type.u8):
        _BY_DTYPE.setdefault(_type._storage, _type)


# --- bit layouts -----------------------------------------------------------------------------------------------
# Several elements per byte, first element in the low bits: u2, u4, i4, nf4, f4e2m1. First element in the high bit:
# u1. In three bytes: u3 (8 elements) and u6 (4 elements) keep their low 2 or 4 bits in the first two bytes and their
# high 1 or 2 bits in the third, first element in the high bits.

_TRIPLES = {"u3": (8, 2), "u6": (4, 4)}  # elements per three bytes, low bits per element

_NF4 = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
     -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
     0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0],
    np.float32,
)  # fmt: skip


def decode_nf4(codes: Array) -> Array:
    """The float32 values of NormalFloat4 codes 0..15 (QLoRA, arXiv 2305.14314, appendix E), any shape."""
    return _NF4[codes]


def nbytes(type: Type, shape: Iterable[int]) -> int:
    """Exact bytes of a dense tensor in OpenVINO's layout. ValueError for a type without a fixed size."""
    extents = [operator.index(extent) for extent in shape]
    if any(extent < 0 for extent in extents):
        raise ValueError(f"shape {extents} has a negative extent")
    if type is Type.dynamic or type is Type.string:
        raise ValueError(f"a tensor of element type {type.type_name} has no fixed size in bytes")
    count = math.prod(extents)
    if type.type_name in _TRIPLES:
        return -(-count // _TRIPLES[type.type_name][0]) * 3
    return -(-count * type.bitwidth // 8)


def unpack(raw: Any, type: Type, shape: Iterable[int]) -> Array:
    """One element per item, dtype `type.storage`, from a buffer in OpenVINO's layout.

    Byte-sized types come as a view of the buffer; packed ones, strings and booleans with bytes other than 0 and 1
    as a copy. Strings have the layout of weights files: int32 count, int32 offsets (count + 1), characters.

    Raises: ValueError if the buffer has not exactly the bytes that `shape` needs.
    """
    extents = [operator.index(extent) for extent in shape]
    raw = raw.reshape(-1).view(np.uint8) if isinstance(raw, np.ndarray) else np.frombuffer(raw, np.uint8)
    if type is Type.string:
        return _unpack_strings(raw, extents)
    if raw.size != nbytes(type, extents):
        raise ValueError(
            f"{type.type_name} tensor of shape {extents} takes {nbytes(type, extents)} bytes, the buffer has {raw.size}"
        )
    if type is Type.boolean and raw.size and raw.max() > 1:
        return (raw != 0).reshape(extents)
    if not type.packed:
        return raw.view(type.storage).reshape(extents)
    count = math.prod(extents)
    if type is Type.u1:
        return np.unpackbits(raw, count=count).reshape(extents)
    if type.type_name in _TRIPLES:
        codes = _unpack_triples(raw, *_TRIPLES[type.type_name])
    else:
        bits = type.bitwidth
        codes = np.empty((raw.size, 8 // bits), np.uint8)
        for position in range(8 // bits):
            np.bitwise_and(raw >> (position * bits), (1 << bits) - 1, out=codes[:, position])
    codes = codes.reshape(-1)[:count]
    if type is Type.i4:
        codes = (codes ^ 8) - np.uint8(8)  # sign extension; wraps around to the two's complement
    return codes.view(type.storage).reshape(extents)


def pack(array: Array, type: Type) -> Array:
    """The inverse of `unpack`: a flat uint8 array in OpenVINO's layout, padding bits zero.

    Integer types also accept any integer array whose values are in range.

    Raises: TypeError if the dtype is not `type.storage`, ValueError for a value out of range.
    """
    array = _as_storage(np.asarray(array), type).reshape(-1)
    if type is Type.string:
        return _pack_strings(array)
    codes = np.ascontiguousarray(array).view(np.uint8)
    if not type.packed:
        return codes
    if type is Type.u1:
        return np.packbits(codes)
    if type.type_name in _TRIPLES:
        return _pack_triples(codes, *_TRIPLES[type.type_name])
    bits, per_byte = type.bitwidth, 8 // type.bitwidth
    groups = _pad(codes, per_byte).reshape(-1, per_byte) & np.uint8((1 << bits) - 1)
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    return np.bitwise_or.reduce(groups << shifts, axis=1)


def _as_storage(array: Array, type: Type) -> Array:
    if type.packed and type.integral and (array.dtype.kind in "iu" or array.dtype == type.storage):
        wide = array.astype(np.int8) if array.dtype == type.storage and array.dtype.kind == "V" else array
        low, high = (-8, 7) if type is Type.i4 else (0, (1 << type.bitwidth) - 1)
        if wide.size and (wide.min() < low or wide.max() > high):
            raise ValueError(f"{type.type_name} holds {low}..{high}, got {wide.min()}..{wide.max()}")
        return array if array.dtype == type.storage else array.astype(np.int8).astype(type.storage)
    if type.is_integral_number() and array.dtype.kind in "iu" and array.dtype != type.storage:
        limits = np.iinfo(type.storage) if type is not Type.string else None
        if limits and not (array.size and (array.min() < limits.min or array.max() > limits.max)):
            return array.astype(type.storage)
        raise ValueError(f"{type.type_name} cannot hold every value of an array of {array.dtype}")
    if array.dtype != type.storage:
        raise TypeError(f"{type.type_name} is stored as {type.storage}, got an array of {array.dtype}")
    return array


def _pad(codes: Array, multiple: int) -> Array:
    short = -codes.size % multiple
    return np.concatenate([codes, np.zeros(short, np.uint8)]) if short else codes


def _shifts(count: int, bits: int) -> Array:
    return np.arange((count - 1) * bits, -1, -bits, dtype=np.uint8)


def _unpack_triples(raw: Array, count: int, low: int) -> Array:
    groups, high = raw.reshape(-1, 3, 1), 8 // count
    lows = (groups[:, :2] >> _shifts(count // 2, low)) & np.uint8((1 << low) - 1)
    highs = (groups[:, 2] >> _shifts(count, high)) & np.uint8((1 << high) - 1)
    return lows.reshape(-1, count) | highs << np.uint8(low)


def _pack_triples(codes: Array, count: int, low: int) -> Array:
    groups, high = _pad(codes, count).reshape(-1, count), 8 // count
    raw = np.empty((len(groups), 3), np.uint8)
    lows = (groups & np.uint8((1 << low) - 1)).reshape(-1, 2, count // 2)
    np.bitwise_or.reduce(lows << _shifts(count // 2, low), axis=2, out=raw[:, :2])
    np.bitwise_or.reduce((groups >> np.uint8(low)) << _shifts(count, high), axis=1, out=raw[:, 2])
    return raw.reshape(-1)


def _unpack_strings(raw: Array, extents: list[int]) -> Array:
    count = math.prod(extents)
    head = 4 * (count + 2)
    if raw.size < head:
        raise ValueError(f"string tensor of shape {extents} needs {head} bytes of offsets, the buffer has {raw.size}")
    stored, *ends = raw[:head].view(np.int32).tolist()
    if stored != count or ends[0] != 0 or ends != sorted(ends) or ends[-1] > raw.size - head:
        raise ValueError(f"string tensor of shape {extents} has inconsistent offsets")
    text = raw[head:].tobytes()
    array = np.empty(count, object)
    array[:] = [text[begin:end] for begin, end in zip(ends, ends[1:])]
    return array.reshape(extents)


def _pack_strings(array: Array) -> Array:
    strings = [item.encode() if isinstance(item, str) else bytes(item) for item in array]
    offsets = np.cumsum([0, *map(len, strings)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError("a string tensor holds at most 2 GiB of characters")
    head = np.array([len(strings), *offsets], np.int32)
    return np.frombuffer(head.tobytes() + b"".join(strings), np.uint8)


# --- dimensions and shapes -------------------------------------------------------------------------------------

UNBOUNDED = 2**63 - 1  # the upper bound of a dimension without one, as in openvino


class Dimension:
    """An extent, known or within bounds: `Dimension(3)`, `Dimension(1, 10)`, `Dimension("1..10")`, `Dimension()`.

    -1 as a value is "unknown", as a bound "none". Immutable.

    Raises: TypeError for what is no int or str, RuntimeError for a text or bounds that make no sense.
    """

    __slots__ = ("_max", "_min")
    __hash__: ClassVar[None]  # type: ignore[assignment]
    _min: int
    _max: int

    def __init__(
        self,
        dimension: SupportsIndex | str = -1,
        max_dimension: SupportsIndex | None = None,
        *,
        min_dimension: SupportsIndex | None = None,
    ) -> None:
        if isinstance(dimension, str):
            low, high = _parse_bounds(dimension)
        else:
            low = _extent(dimension if min_dimension is None else min_dimension)
            high = low if max_dimension is None else _extent(max_dimension)
        self._min = 0 if low == -1 else low
        self._max = UNBOUNDED if high == -1 else high
        if self._min > self._max:
            raise RuntimeError(f"Dimension bounds {low}..{high} are reversed")

    @staticmethod
    def dynamic() -> Dimension:
        return Dimension()

    @property
    def is_dynamic(self) -> bool:
        return self._min != self._max

    @property
    def is_static(self) -> bool:
        return self._min == self._max

    @property
    def min_length(self) -> int:
        """The lower bound, 0 if there is none."""
        return self._min

    @property
    def max_length(self) -> int:
        """The upper bound, -1 if there is none."""
        return -1 if self._max == UNBOUNDED else self._max

    def get_min_length(self) -> int:
        return self.min_length

    def get_max_length(self) -> int:
        return self.max_length

    def get_length(self) -> int:
        """The extent. RuntimeError if it is not known."""
        if self._min != self._max:
            raise RuntimeError(f"Cannot get length of dynamic dimension {self}")
        return self._min

    def __len__(self) -> int:
        return self.get_length()

    def compatible(self, dim: Dimension) -> bool:
        """Whether some extent satisfies both."""
        _check_class(dim, Dimension)
        return max(self._min, dim._min) <= min(self._max, dim._max)

    def refines(self, dim: Dimension) -> bool:
        """Whether every extent that satisfies this one satisfies `dim`."""
        _check_class(dim, Dimension)
        return dim._min <= self._min and self._max <= dim._max

    def relaxes(self, dim: Dimension) -> bool:
        """Whether every extent that satisfies `dim` satisfies this one."""
        _check_class(dim, Dimension)
        return dim.refines(self)

    def same_scheme(self, dim: Dimension) -> bool:
        """Whether both are dynamic, or both static and equal."""
        _check_class(dim, Dimension)
        return self == dim if self.is_static else dim.is_dynamic

    def merge(self, dim: Dimension) -> Dimension | None:
        """The extents that satisfy both, None if there are none."""
        low, high = max(self._min, dim._min), min(self._max, dim._max)
        return _interval(low, high) if low <= high else None

    def __add__(self, other: Dimension | int) -> Dimension:
        other = _dimension(other)
        return _interval(self._min + other._min, _saturate(self._max, other._max, operator.add))

    def __mul__(self, other: Dimension | int) -> Dimension:
        other = _dimension(other)
        return _interval(self._min * other._min, _saturate(self._max, other._max, operator.mul))

    __radd__ = __add__
    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dimension):
            return self._min == other._min and self._max == other._max
        try:
            value = operator.index(other)  # type: ignore[arg-type]
        except TypeError:
            return NotImplemented
        low, high = (0, UNBOUNDED) if value == -1 else (value, value)
        return self._min == low and self._max == high

    def to_string(self) -> str:
        if self._min == self._max:
            return str(self._min)
        if self._min == 0 and self._max == UNBOUNDED:
            return "?"
        return f"{self._min or ''}..{'' if self._max == UNBOUNDED else self._max}"

    __str__ = to_string

    def __repr__(self) -> str:
        return f"<Dimension: {self}>"

    def __copy__(self) -> Dimension:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Dimension:
        return self


Dimension.__hash__ = None


def _interval(low: int, high: int) -> Dimension:
    dimension = object.__new__(Dimension)
    dimension._min, dimension._max = low, high
    return dimension


def _saturate(left: int, right: int, function: Any) -> int:
    if UNBOUNDED in (left, right) and 0 not in (left, right):
        return UNBOUNDED
    return min(int(function(left, right)), UNBOUNDED)


def _extent(value: SupportsIndex) -> int:
    number = operator.index(value)
    if number > UNBOUNDED:
        raise TypeError(f"dimension {number} does not fit into 64 bits")
    if number < -1:
        raise RuntimeError(f"dimension {number} is negative")
    return number


def _parse_bounds(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(-1|\d+)|\?|(-1|\d*)\.\.(-1|\d*)", text.strip(), re.ASCII)
    if match is None:
        raise RuntimeError(f'Cannot parse dimension: "{text}"')
    exact, low, high = match.groups()
    if exact is not None:
        return _extent(int(exact)), _extent(int(exact))
    return _extent(int(low or -1)), _extent(int(high or -1))


def _dimension(value: object) -> Dimension:
    """A Dimension of what openvino accepts as an element of a partial shape."""
    if isinstance(value, Dimension):
        return value
    if isinstance(value, str):
        return Dimension(value)
    if isinstance(value, (list, tuple)):
        if len(value) != 2:
            raise TypeError(f"a dynamic dimension is a pair (lower, upper), got {len(value)} elements")
        return Dimension(operator.index(value[0]), operator.index(value[1]))
    if not hasattr(value, "__index__"):
        raise TypeError(
            f"Incorrect type {type(value)} for dimension: expected int, str, Dimension or a pair (lower, upper)"
        )
    return Dimension(value)  # type: ignore[arg-type]


def _split_extents(text: str) -> list[str]:
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1].strip()
    fields = [field.strip() for field in text.split(",")] if text else []
    if "" in fields:
        raise RuntimeError(f'Cannot parse shape: "{text}" has an empty dimension')
    return fields


class Shape(list[int]):
    """A fully known shape: a list of non-negative ints that also equals tuples and prints as openvino's.

    Raises: TypeError for what is no sequence of non-negative ints, RuntimeError for a text that is no shape.
    """

    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __init__(self, axis_lengths: Iterable[SupportsIndex] | str = ()) -> None:
        if isinstance(axis_lengths, str):
            axis_lengths = [Dimension(field).get_length() for field in _split_extents(axis_lengths)]
        super().__init__(_axis_length(length) for length in axis_lengths)

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> int: ...
    @overload
    def __getitem__(self, index: slice, /) -> Shape: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> int | Shape:
        return Shape(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any, /) -> None:
        if isinstance(index, slice):
            raise TypeError("a Shape is assigned axis by axis")
        super().__setitem__(index, value.get_length() if isinstance(value, Dimension) else _axis_length(value))

    def __eq__(self, other: object) -> bool:
        return list.__eq__(self, list(other)) if isinstance(other, (list, tuple)) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other if isinstance(other, (list, tuple)) else NotImplemented

    def to_string(self) -> str:
        return f"[{','.join(map(str, self))}]"

    __str__ = to_string

    def __repr__(self) -> str:
        return f"<Shape: {self}>"


def _axis_length(value: SupportsIndex) -> int:
    length = operator.index(value)
    if not 0 <= length < 2**64:
        raise TypeError(f"a shape has non-negative extents of at most 64 bits, got {length}")
    return length


class PartialShape:
    """A shape whose extents, or even rank, may be unknown: `PartialShape([1, -1, (2, 8), "..4"])`, `"[1,?]"`, `"..."`.

    Raises: TypeError for elements that are no dimensions, RuntimeError for a text that is no shape, for what needs a
    known rank or extent, and for an index out of range.
    """

    __slots__ = ("_dims",)
    __hash__: ClassVar[None]  # type: ignore[assignment]
    _dims: list[Dimension] | None

    def __init__(self, shape: PartialShape | Sequence[Any] | str) -> None:
        if isinstance(shape, PartialShape):
            self._dims = None if shape._dims is None else list(shape._dims)
        elif isinstance(shape, str):
            fields = _split_extents(shape)
            self._dims = None if fields == ["..."] else [Dimension(field) for field in fields]
        elif isinstance(shape, (list, tuple)):
            self._dims = [_dimension(item) for item in shape]
        else:
            raise TypeError(f"a PartialShape is made of a list, tuple, str or shape, got {type(shape).__name__}")

    @staticmethod
    def dynamic(rank: Dimension | SupportsIndex = -1) -> PartialShape:
        """All extents unknown; a rank that is not given, or not static, is unknown as well."""
        if not isinstance(rank, Dimension):
            rank = Dimension(operator.index(rank))
        shape = PartialShape([Dimension()] * (rank.get_length() if rank.is_static else 0))
        if rank.is_dynamic:
            shape._dims = None
        return shape

    def _known(self) -> list[Dimension]:
        if self._dims is None:
            raise RuntimeError("the shape has no known rank")
        return self._dims

    @property
    def rank(self) -> Dimension:
        return Dimension() if self._dims is None else Dimension(len(self._dims))

    @property
    def is_static(self) -> bool:
        return self._dims is not None and all(dim._min == dim._max for dim in self._dims)

    @property
    def is_dynamic(self) -> bool:
        return not self.is_static

    @property
    def all_non_negative(self) -> bool:
        return True

    def to_shape(self) -> Shape:
        """The shape, all extents being known. RuntimeError otherwise."""
        if not self.is_static:
            raise RuntimeError(f"to_shape was called on the dynamic shape {self}")
        return self.get_min_shape()

    get_shape = to_shape

    def get_min_shape(self) -> Shape:
        """The lower bounds; empty if the rank is unknown."""
        return Shape([dim._min for dim in self._dims or ()])

    def get_max_shape(self) -> Shape:
        """The upper bounds, 2**63 - 1 where there is none; empty if the rank is unknown."""
        return Shape([dim._max for dim in self._dims or ()])

    def get_dimension(self, index: SupportsIndex) -> Dimension:
        return self[index]

    def _pairs(self, shape: PartialShape) -> Iterator[tuple[Dimension, Dimension]] | None:
        """The dimensions side by side, None if the ranks are known and differ."""
        mine, theirs = self._known(), shape._known()
        return zip(mine, theirs) if len(mine) == len(theirs) else None

    def compatible(self, shape: PartialShape) -> bool:
        """Whether some shape satisfies both."""
        _check_class(shape, PartialShape)
        return self.merge(shape) is not None

    def merge(self, shape: PartialShape) -> PartialShape | None:
        """The shapes that satisfy both, None if there are none."""
        if self._dims is None or shape._dims is None:
            return PartialShape(shape if self._dims is None else self)
        if len(self._dims) != len(shape._dims):
            return None
        merged = [mine.merge(theirs) for mine, theirs in zip(self._dims, shape._dims)]
        return None if None in merged else PartialShape(merged)

    def refines(self, shape: PartialShape) -> bool:
        """Whether every shape that satisfies this one satisfies `shape`."""
        _check_class(shape, PartialShape)
        if shape._dims is None:
            return True
        if self._dims is None or len(self._dims) != len(shape._dims):
            return False
        return all(mine.refines(theirs) for mine, theirs in zip(self._dims, shape._dims))

    def relaxes(self, shape: PartialShape) -> bool:
        """Whether every shape that satisfies `shape` satisfies this one."""
        _check_class(shape, PartialShape)
        return shape.refines(self)

    def same_scheme(self, shape: PartialShape) -> bool:
        """Whether ranks agree and each pair of dimensions is both dynamic, or equal; or both ranks are unknown."""
        _check_class(shape, PartialShape)
        if self._dims is None or shape._dims is None:
            return self._dims is shape._dims
        if len(self._dims) != len(shape._dims):
            return False
        return all(mine.same_scheme(theirs) for mine, theirs in zip(self._dims, shape._dims))

    def _position(self, index: SupportsIndex) -> int:
        position, rank = operator.index(index), len(self._known())
        if not -rank <= position < rank:
            raise RuntimeError(f"Accessing out-of-range dimension {position} of {self}")
        return position

    @overload
    def __getitem__(self, index: SupportsIndex) -> Dimension: ...
    @overload
    def __getitem__(self, index: slice) -> PartialShape: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Dimension | PartialShape:
        if isinstance(index, slice):
            return PartialShape(self._known()[index])
        return self._known()[self._position(index)]

    def __setitem__(self, index: SupportsIndex, value: Any) -> None:
        self._known()[self._position(index)] = _dimension(value)

    def __iter__(self) -> Iterator[Dimension]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PartialShape):
            return self._dims == other._dims
        return self._dims == list(other) if isinstance(other, (list, tuple)) else NotImplemented

    def to_string(self) -> str:
        return "[...]" if self._dims is None else f"[{','.join(map(str, self._dims))}]"

    __str__ = to_string

    def __repr__(self) -> str:
        return f"<PartialShape: {self}>"

    def __copy__(self) -> PartialShape:
        return PartialShape(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> PartialShape:
        return PartialShape(self)


# --- layouts ---------------------------------------------------------------------------------------------------

_AXIS_ALIASES = {
    "B": "N", "BATCH": "N", "CHANNEL": "C", "CHANNELS": "C", "DEPTH": "D", "HEIGHT": "H", "WIDTH": "W",
}  # fmt: skip


class Layout:
    """Names of axes: `Layout("NCHW")`, `Layout("[batch, ..., channels]")`; "?" is unnamed, "..." any number of axes.

    Equals a str that spells the same layout.

    Raises: RuntimeError for a text that is no layout, TypeError for what is no text.
    """

    __slots__ = ("_scalar", "_tail", "head")
