"""Class Tensor: memory with an element type and a shape, and the interface of openvino.Tensor."""

from __future__ import annotations

import builtins
import math
import os
import warnings
from html import escape
from typing import Any, Self

import numpy as np

from ovgpu._util import host_memory
from ovgpu._util.dlpack import from_dlpack, to_dlpack
from ovgpu.errors import Error
from ovgpu.types import Array, Shape, Strides, Type, nbytes, pack, unpack

CUDA_DEVICE_TYPES = 2, 13  # DLPack: kDLCUDA and kDLCUDAManaged


class Tensor:
    """Memory with an element type and a shape.

    - `Tensor(array, shared_memory=False)`: dtype and shape of a NumPy array; copies its memory, or shares it
    - `Tensor(element_type, shape)`: new memory with zeros or empty strings; takes a Type or what `numpy.dtype` takes
    - `Tensor(array, shape, element_type)`: shares the first bytes of an array; use it for packed types such as u4
    - `Tensor([[1, 2], [3, 4]])`: the values of a nested list
    - `Tensor(other, begin, end)`: shares a region of another tensor
    - `Tensor(port)`, `Tensor(port, array)`: type and shape of a port, empty if the shape is dynamic

    In addition to openvino.Tensor's arguments, an object with `__array__` or `__dlpack__`, or an openvino.Tensor, may
    take the place of an array.

    Raises: TypeError for arguments that match no line above; RuntimeError for arguments that cannot be a tensor (a
    dtype that is no element type, too little memory, memory to share that is not C-contiguous); ValueError for
    read-only memory to share.
    """

    __slots__ = ("__weakref__", "_array", "_element_type", "_memory", "_owned", "_shape")
    _element_type: Type
    _shape: tuple[int, ...]
    _array: Any
    """Elements of `Type.storage` in the tensor's shape; flat bytes if the type is packed."""
    _memory: Any
    """The whole memory that `set_shape` may use: flat if it is contiguous, else in its original shape."""
    _owned: bool
    """True if `set_shape` may replace the memory by a larger one."""

    def __new__(cls, array: Any = None, *args: Any, **kwargs: Any) -> Self:
        if cls is Tensor and remote_tensor_class is not None and not isinstance(array, np.ndarray) and on_device(array):
            return super().__new__(remote_tensor_class)  # type: ignore[return-value]
        return super().__new__(cls)

    def __init__(self, array: Any = None, shape: Any = None, type: Any = None, *, shared_memory: bool = False) -> None:
        if isinstance(shape, bool):
            shape, shared_memory = None, shape
        if isinstance(array, Type | np.dtype | str | builtins.type) or (array is None and type is not None):
            if shape is None:
                raise TypeError("a Tensor of an element type needs a shape")
            self._allocate(Type(type if array is None else array), Shape(shape))
        elif isinstance(array, Tensor):
            self._share(array) if shape is None else self._region(array, Shape(shape), Shape(type))
        elif hasattr(array, "get_partial_shape"):
            static = array.get_partial_shape().is_static
            extents = Shape(array.get_shape()) if static else Shape([0])
            element_type = _element_type(array)
            if shape is None:
                self._allocate(element_type, extents)
            else:
                contents = _as_array(shape)
                _compare_with_port(contents, extents, element_type)
                self._wrap(contents, extents, element_type)
        elif shape is not None:
            self._wrap(_as_array(array), Shape(shape), Type.dynamic if type is None else Type(type))
        elif hasattr(array, "get_byte_size"):  # openvino.Tensor, possibly packed or of strings
            element_type = _element_type(array)
            if element_type is Type.string:  # openvino ends the process for `bytes_data` of no strings
                strings = array.bytes_data if array.get_size() else np.empty(tuple(array.shape), np.bytes_)
                self._convert(strings, shared_memory)
            else:
                self._wrap(array.data, Shape(array.shape), element_type)
                if not shared_memory:
                    self._hold(self._array.copy(), element_type, self._shape, owned=True)
        else:
            self._convert(_as_array(array), shared_memory)

    @classmethod
    def from_array(cls, array: Any, element_type: Type, share: bool = True) -> Tensor:
        """Return a tensor with the elements of an array of dtype `element_type.storage`.

        The array may have any strides and be read-only. The tensor shares its memory unless `share` is false or the
        type is packed.

        Raises: TypeError for another dtype.
        """
        if array.dtype != element_type.storage:
            raise TypeError(f"{element_type.type_name} is stored as {element_type.storage}, got {array.dtype}")
        tensor = cls.__new__(cls)
        memory = pack(array, element_type) if element_type.packed else array if share else array.copy()
        tensor._hold(memory, element_type, array.shape, owned=memory is not array)
        return tensor

    # --- construction ---

    def _hold(self, array: Any, element_type: Type, shape: tuple[int, ...], owned: bool) -> None:
        self._array, self._element_type, self._shape, self._owned = array, element_type, shape, owned
        self._memory = array.reshape(-1) if array.flags.c_contiguous else array

    def _share(self, other: Tensor) -> None:
        self._hold(other._array, other._element_type, other._shape, owned=False)

    def _allocate(self, element_type: Type, shape: Shape) -> None:
        if element_type is Type.dynamic:
            raise Error("a tensor cannot have the dynamic element type")
        self._hold(self._new(element_type, shape), element_type, tuple(shape), owned=True)

    def _new(self, element_type: Type, shape: Shape) -> Array:
        """Return new memory, zeroed, for a tensor of this type and shape."""
        return _zeros(element_type, shape)

    def _convert(self, array: Array, shared: bool) -> None:
        stored, element_type = _as_storage(array)
        if shared:
            if stored is not array or element_type.packed:
                raise Error(f"an array of {array.dtype} cannot be shared, only copied")
            _check_shareable(array)
        elif element_type.packed:
            stored = pack(stored, element_type)
        else:
            stored = np.array(stored, order="C", copy=True)
        self._hold(stored, element_type, array.shape, owned=not shared)

    def _wrap(self, array: Array, shape: Shape, element_type: Type) -> None:
        if element_type is Type.dynamic:
            element_type = Type.of(array.dtype)
        if element_type is Type.string:
            raise Error("a string tensor cannot share the memory of an array")
        _check_shareable(array)
        raw, needed = array.reshape(-1).view(np.uint8), nbytes(element_type, shape)
        if raw.size < needed:
            name = element_type.type_name
            raise Error(f"a {name} tensor of shape {shape} takes {needed} bytes, the array has {raw.size}")
        raw = raw[:needed]
        memory = raw if element_type.packed else raw.view(element_type.storage).reshape(shape)
        self._hold(memory, element_type, tuple(shape), owned=False)

    def _region(self, other: Tensor, begin: Shape, end: Shape) -> None:
        if other._element_type.packed:
            raise Error(f"a region of a tensor of packed {other._element_type.type_name} is not possible")
        if not len(begin) == len(end) == len(other._shape):
            raise Error(f"region {begin}..{end} does not fit rank {len(other._shape)}")
        if any(not low <= high <= extent for low, high, extent in zip(begin, end, other._shape)):
            raise Error(f"region {begin}..{end} is out of bounds of shape {other.shape}")
        array = other._array[tuple(map(slice, begin, end))]
        self._hold(array, other._element_type, array.shape, owned=False)

    @property
    def _buffer(self) -> Any:
        """`_array`, which may still lack elements that are to be copied from a device."""
        return self._array

    # --- type and shape ---

    @property
    def remote(self) -> bool:
        """True if the memory is on a device; `data` is then a copy."""
        return False

    @property
    def element_type(self) -> Type:
        """Element type."""
        return self._element_type

    @property
    def shape(self) -> Shape:
        """The shape. Assignment works as `set_shape`."""
        return Shape(self._shape)

    @shape.setter
    def shape(self, shape: Any) -> None:
        self.set_shape(shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self._shape)

    @property
    def byte_size(self) -> int:
        """The size of the elements in bytes. As in OpenVINO, a string counts 32 bytes, without its characters."""
        if self._element_type is Type.string:
            return self.size * Type.string.size
        return nbytes(self._element_type, self._shape)

    @property
    def strides(self) -> Strides:
        """The distance in bytes from one element to the next along each axis. Raises RuntimeError for packed types."""
        if self._element_type.packed:
            raise Error(f"the packed element type {self._element_type.type_name} has no strides in bytes")
        itemsize, size = self._array.dtype.itemsize, self._element_type.size
        return Strides(step // itemsize * size for step in self._array.strides)

    def is_continuous(self) -> bool:
        """Return whether the memory is C-contiguous."""
        return bool(self._array.flags.c_contiguous)

    def get_element_type(self) -> Type:
        """Return the element type."""
        return self.element_type

    def get_shape(self) -> Shape:
        """Return the shape."""
        return self.shape

    def get_size(self) -> int:
        """Return the number of elements."""
        return self.size

    def get_byte_size(self) -> int:
        """Return the number of bytes."""
        return self.byte_size

    def get_strides(self) -> Strides:
        """Return the strides in bytes."""
        return self.strides

    def set_shape(self, shape: Any) -> None:
        """Change the shape. Memory that is too small is replaced if the tensor owns it, else RuntimeError."""
        extents, memory = Shape(shape), self._memory
        if not memory.flags.c_contiguous:
            if len(extents) != memory.ndim or any(map(int.__gt__, extents, memory.shape)):
                raise Error(f"shape {extents} exceeds the region of shape {list(memory.shape)}")
            self._array = memory[tuple(map(slice, extents))]
        else:
            packed = self._element_type.packed
            needed = nbytes(self._element_type, extents) if packed else math.prod(extents)
            if needed > memory.size:
                if not self._owned:
                    raise Error(f"shape {extents} exceeds the shared memory")
                memory = self._memory = self._new(self._element_type, extents).reshape(-1)
            self._array = memory[:needed] if packed else memory[:needed].reshape(extents)
        self._shape = tuple(extents)

    def write(self, array: Array) -> None:
        """Copy the elements and the shape of an array. The elements are cast to this tensor's dtype.

        Raises: RuntimeError if memory that is too small is not the tensor's own.
        """
        if self._shape != array.shape:
            self.set_shape(array.shape)
        np.copyto(self.array, array, casting="unsafe")

    # --- contents ---

    @property
    def array(self) -> Any:
        """The elements as an array of `Type.storage`: the memory itself, or an unpacked copy if the type is packed."""
        if self._element_type.packed:
            return unpack(self._array, self._element_type, self._shape)
        return self._array

    @property
    def data(self) -> Array:
        """The memory as openvino.Tensor shows it: bf16 as float16 bits, f8 as uint8, packed types as flat bytes.

        Strings are copied into an array of `bytes` with a warning. Use `str_data` or `bytes_data` instead.
        """
        if self._element_type is Type.string:
            warnings.warn(
                "Data of string type will be copied! Use `str_data` or `bytes_data` to read or change it.",
                RuntimeWarning,
                stacklevel=2,
            )
            return self.bytes_data
        view: Array = self._array.view(self._element_type.to_dtype())
        return view

    def read(self, index: Any = ...) -> Array:
        """Return a copy of some elements, in the dtype of `array`: ``tensor.read((0, -1))`` is the last row of logits
        [1, n, vocabulary]. If the tensor is on a card, as large results are, only these are copied to the host.

        ``index`` selects a part as in NumPy: an integer, a slice, ``...``, None, or a tuple of these.
        Raises: TypeError for another index, IndexError for one out of range.
        """
        return np.array(self.array[basic_index(index)])

    @property
    def str_data(self) -> Array:
        """A copy of a string tensor as `str`; malformed UTF-8 is replaced. Assignment keeps the shape."""
        strings = [item.decode(errors="replace") for item in self._strings().reshape(-1)]
        return np.array(strings, np.str_).reshape(self._shape)

    @str_data.setter
    def str_data(self, values: Any) -> None:
        self._fill(values)

    @property
    def bytes_data(self) -> Array:
        """A copy of a string tensor as `bytes`, without trailing NULs. Assignment keeps the shape."""
        return np.array(self._strings().reshape(-1).tolist(), np.bytes_).reshape(self._shape)

    @bytes_data.setter
    def bytes_data(self, values: Any) -> None:
        self._fill(values)

    def _strings(self) -> Array:
        if self._element_type is not Type.string:
            raise Error("Tensor's type must be a string!")
        strings: Array = self._array
        return strings

    def _fill(self, values: Any) -> None:
        mine, theirs = self._strings(), _encode(np.array(values, object))
        if theirs.ndim == 0 or theirs.size != mine.size:
            raise Error(
                "Passed array must have the same size (number of elements) as the Tensor! "
                f"It has {theirs.size}, the tensor {mine.size}"
            )
        mine[...] = theirs.reshape(mine.shape)

    def copy_from(self, source: Any) -> None:
        """Copy the elements and the shape of a tensor, array or list of the same element type.

        Raises: RuntimeError if the types differ or shared memory is too small, TypeError for another kind of source.
        """
        if not isinstance(source, Tensor):
            source = Tensor.from_array(*_as_storage(_as_array(source)))
        if source._element_type is not self._element_type:
            mine, theirs = self._element_type.type_name, source._element_type.type_name
            raise Error(f"Tensor element types are not equal: {theirs} into {mine}")
        self.set_shape(source._shape)
        self._array[...] = source.array if source.remote else source._array

    def copy_to(self, target_tensor: Tensor) -> None:
        """Copy the elements and the shape to another tensor of the same element type; see `copy_from`."""
        if not isinstance(target_tensor, Tensor):
            raise TypeError(f"expected a Tensor, got {type(target_tensor).__name__}")
        target_tensor.copy_from(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the elements as a NumPy array; `copy=False` raises ValueError if a copy is needed."""
        values: Array = self.array
        converts = dtype is not None and np.dtype(dtype) != values.dtype
        if copy is False and (converts or self._element_type.packed):
            raise ValueError(f"values of {self._element_type.type_name} as {dtype} need a copy")
        if converts:
            return values.astype(dtype)
        return values.copy() if copy else values

    def __dlpack__(self, **options: Any) -> Any:
        """Return the memory as a DLPack capsule. Raise BufferError for strings and packed types."""
        if self._element_type.packed:
            raise BufferError(f"DLPack has no packed {self._element_type.type_name}")
        return to_dlpack(self._array, **options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def __copy__(self) -> Tensor:
        return Tensor(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        tensor = Tensor.__new__(Tensor)
        tensor._hold(self._array.copy(), self._element_type, self._shape, owned=True)
        return tensor

    def __repr__(self) -> str:
        return f"<Tensor: shape{self.shape} type: {self._element_type.type_name}>"

    def _repr_html_(self) -> str:
        """Return the type, the shape and, for a tensor on the host, some values."""
        title = f"{type(self).__name__}: {self._element_type.type_name} {self.shape}"
        values = "" if self.remote else np.array2string(self.array, threshold=100, edgeitems=3, max_line_width=120)
        return f"<b>{escape(title)}</b><pre>{escape(values)}</pre>"


def tensor_from_file(path: str | os.PathLike[str]) -> Tensor:
    """Return the bytes of a file as a tensor of u8."""
    return Tensor(np.fromfile(path, np.uint8), shared_memory=True)


remote_tensor_class: type[Tensor] | None = None
"""The class that `Tensor` creates for memory on a device; `ovgpu.request.remote_tensor` sets it."""


def basic_index(index: Any) -> Any:
    """Return an index that selects a view. Raises: TypeError for arrays, lists and booleans."""
    for item in index if isinstance(index, tuple) else (index,):
        whole = hasattr(item, "__index__") and not isinstance(item, bool | np.bool_) and not np.ndim(item)
        if not (whole or item is None or item is ... or isinstance(item, slice)):
            raise TypeError(f"a part of a tensor is selected by integers and slices, not {type(item).__name__}")
    return index


def on_device(source: Any) -> bool:
    """Return whether an object is a tensor or array in CUDA memory."""
    if isinstance(source, Tensor):
        return source.remote
    device = getattr(source, "__dlpack_device__", None)
    if device is not None and not isinstance(source, type):
        return device()[0] in CUDA_DEVICE_TYPES
    return hasattr(source, "__cuda_array_interface__")


def _zeros(element_type: Type, shape: Shape) -> Array:
    if element_type is Type.string:
        return np.full(shape, b"", object)
    if element_type.packed:
        return host_memory.zeros((nbytes(element_type, shape),), np.uint8)
    return host_memory.zeros(shape, element_type.storage)


def _element_type(source: Any) -> Type:
    """Return the element type of a port or tensor of ovgpu or openvino."""
    return Type.parse(source.get_element_type().get_type_name())


def _as_array(source: Any) -> Array:
    if isinstance(source, np.ndarray):
        return source
    if isinstance(source, list):
        return np.array(source)
    if hasattr(source, "__array__") or hasattr(source, "__array_interface__"):
        return array_of(source)
    if hasattr(source, "__dlpack__"):
        return from_dlpack(source)
    raise TypeError(f"a Tensor is made of an array or a list, got {type(source).__name__}")


def array_of(source: Any) -> Array:
    """Return an object as an array by NumPy's protocols, or by DLPack where these fail: torch has none for bf16."""
    try:
        return np.asarray(source)
    except TypeError:
        if not hasattr(source, "__dlpack__"):
            raise
        return from_dlpack(source)


def _as_storage(array: Array) -> tuple[Array, Type]:
    """Return the array in its element type's storage dtype and native byte order, and the type. Copy only if needed."""
    element_type = Type.of(array.dtype)
    if element_type is Type.string:
        return _encode(array), element_type
    return array.astype(element_type.storage, copy=False), element_type


def _encode(values: Array) -> Array:
    items = values.astype(object).reshape(-1)
    if not all(isinstance(item, str | bytes) for item in items):
        raise Error("a string tensor takes str and bytes")
    encoded = np.empty(items.size, object)
    encoded[:] = [item.encode() if isinstance(item, str) else item for item in items]
    return encoded.reshape(values.shape)


def _compare_with_port(array: Array, extents: Shape, element_type: Type) -> None:
    """Warn if an array differs from a port in type or size: the tensor takes its first bytes as they are. Raise
    RuntimeError if it has too few elements."""
    if element_type != Type.of(array.dtype):
        warnings.warn("Type of the array and the port are different. Data is going to be casted.", RuntimeWarning, 3)
    if array.size < math.prod(extents):
        raise Error(f"Shape of the port exceeds shape of the array: {extents} and {list(array.shape)}")
    if array.size > math.prod(extents):
        warnings.warn(
            "Shape of the port is smaller than shape of the array. Passed data will be cropped.", RuntimeWarning, 3
        )


def _check_shareable(array: Array) -> None:
    if not array.flags.c_contiguous:
        raise Error("memory to share must be C-contiguous")
    if not array.flags.writeable:
        raise ValueError("array is not writeable")
