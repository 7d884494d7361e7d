"""What a caller gives as inputs, and the inputs of a request.

Inputs are a dict by port, number or tensor name, a list or tuple in order, or the one value of a model with one
input. A value is a Tensor (its type must be the model's), or anything else that becomes an array: it is converted
to the model's type without a word, as OpenVINO's Python API does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ovgpu._util import host_memory
from ovgpu.errors import Error
from ovgpu.ops.base.op import Array
from ovgpu.request.pinned import HostDevicePair
from ovgpu.request.ports import ConstOutput, PortList
from ovgpu.request.results import OVDict
from ovgpu.tensor import Tensor, on_device
from ovgpu.types import Type, pack, unpack

COPIED_BYTES = 65536  # bytes: copying less than this costs less than binding steps to another array
SIMPLE = (str, float, int, bytes)


def numbered(ports: PortList, inputs: Any) -> Iterable[tuple[int, Any]]:
    """(number of the input, value) of everything that the caller gives.

    Raises: RuntimeError for an input that there is not, TypeError for keys of another kind.
    """
    if inputs is None:
        return ()
    if isinstance(inputs, OVDict):
        inputs = inputs.to_tuple()
    elif isinstance(inputs, Mapping):
        return [(_number(ports, key), value) for key, value in inputs.items()]
    if isinstance(inputs, (list, tuple)) and not (
        isinstance(inputs, list) and len(ports) == 1 and inputs and _is_data(inputs)
    ):
        return [(ports.number(number), value) for number, value in enumerate(inputs)]
    return [(ports.number(), inputs)]


def _number(ports: PortList, key: Any) -> int:
    if key is None:
        raise TypeError("Incompatible key type for input: None")
    return ports.number(key)


def _is_data(values: list[Any]) -> bool:
    """Whether a list is the data of the only input, rather than a list of inputs: one or two levels of scalars."""
    return all(isinstance(v, SIMPLE) or (isinstance(v, list) and all(isinstance(x, SIMPLE) for x in v))
               for v in values)


class InputSlot:
    """One input of a request: a tensor of its own, or what the caller lends it."""

    def __init__(self, port: ConstOutput) -> None:
        self.port = port
        kind = port.element_type
        self._kind = None if kind.is_dynamic() else kind  # None: that of the tensor given
        self._dtype = None if self._kind is None else self._kind.storage
        shape = port.partial_shape
        self._bounds = ([(d.min_length, d.max_length if d.max_length >= 0 else None) for d in shape]
                        if shape.rank.is_static else None)
        self._accepted: tuple[int, ...] | None = None  # the last shape that fitted
        self._tensor: Tensor | None = None  # what is read; unless it is a lent array
        self._lent: Array | None = None
        self._own: Tensor | None = None
        self._staged: Array | None = None
        self.private = True  # whether `read` gave memory that the slot has for itself

    # ---- setting

    def set(self, value: Any, share: bool) -> None:
        """Takes a value; an array is read when the inference runs if it is shared and of the right type.

        Raises: TypeError for what is no array, ValueError for strings that are no numbers, Error for another shape, a
        Tensor of another type, or integers that a packed type does not hold.
        """
        if isinstance(value, Tensor):
            return self.bind(value)
        if hasattr(value, "get_byte_size"):  # openvino.Tensor
            return self.bind(_borrowed(value))
        array = self._converted(value)
        self._check(array.shape)
        if share and array.dtype == self._dtype and array.flags.c_contiguous and array.flags.aligned:
            self._tensor, self._lent = None, array
            return None
        own = self._own_tensor(array)
        if own is None:
            self._tensor, self._lent = None, np.array(array, order="C")
        else:
            np.copyto(own.array, array, casting="unsafe")
            self._tensor, self._lent = own, None
        return None

    def bind(self, tensor: Tensor) -> None:
        """Reads this tensor from now on."""
        if self._kind is not None and tensor.element_type is not self._kind:
            raise Error(f"[Parameter] Failed to set tensor for input with precision: "
                        f"{tensor.element_type.get_type_name()}, since the model input tensor precision is: "
                        f"{self._kind.get_type_name()} ({self.port.node.source_location})")
        self._check_host(tensor)
        self._check(tuple(tensor.shape))
        self._tensor, self._lent = tensor, None

    def _check_host(self, given: Any) -> None:
        if on_device(given):
            raise Error(f"[Parameter] the array is on a CUDA device, the model on the CPU: copy it to the host first "
                        f"({self.port.node.source_location})")

    def _converted(self, value: Any) -> Array:
        """An array with the port's values: its dtype still has to be cast, but bits and strings are done."""
        if not isinstance(value, np.ndarray):
            self._check_host(value)
        if isinstance(value, np.ndarray):
            array = value
        elif value is None or not (isinstance(value, (*SIMPLE, list, tuple, np.generic)) or hasattr(value, "__array__")
                                   or hasattr(value, "__dlpack__")):
            raise TypeError(f"Incompatible inputs of type: {type(value)}")
        else:
            array = _as_array(value)
        if array.dtype == self._dtype and array.dtype != object:
            pass
        elif self._kind is None:
            array = array.astype(Type.of(array.dtype).storage, copy=False)
        elif self._kind is Type.string:
            array = Tensor(array).array if array.dtype.kind in "US" else _encoded(array)
        elif array.dtype.kind in "US":
            array = array.astype(self._dtype)  # texts of numbers; ValueError for others
        elif self._kind.packed:
            array = self._unpacked(array)
        elif array.dtype == self._kind.to_dtype():
            array = array.view(self._dtype)  # bits, as `Tensor.data` shows them: float16 for bf16, uint8 for f8
        if array.ndim == 0 and self._bounds:
            array = array.reshape((1,) * len(self._bounds))
        return array

    def _unpacked(self, array: Array) -> Array:
        """Values of a type that shares bytes among them, in its storage. Error for integers out of range."""
        kind = self._kind
        assert kind is not None
        if not kind.integral_number:
            return array.astype(kind.storage)
        codes = array if array.dtype.kind in "iuV" else array.astype(np.int64)
        try:
            return unpack(pack(np.ascontiguousarray(codes), kind), kind, array.shape)
        except ValueError as e:
            raise Error(f"[Parameter] {e} ({self.port.node.source_location})") from None

    def _own_tensor(self, array: Array) -> Tensor | None:
        """The slot's own tensor in the array's shape; None for types that are kept as arrays."""
        if self._kind is None or self._kind.packed:
            return None
        if self._own is None:
            self._own = self._new_tensor(self._kind, array.shape)
        elif self._own._shape != array.shape:
            self._own.set_shape(array.shape)
        return self._own

    def _new_tensor(self, kind: Type, shape: tuple[int, ...]) -> Tensor:
        return Tensor(kind, shape)

    def _check(self, shape: tuple[int, ...]) -> None:
        if shape == self._accepted or self._bounds is None:
            return
        if len(shape) != len(self._bounds) or any(
            n < low or (high is not None and n > high) for n, (low, high) in zip(shape, self._bounds)
        ):
            raise Error(f"[Parameter] Can't set the input tensor: the model input (shape={self.port.partial_shape}) "
                        f"and the tensor (shape={list(shape)}) are incompatible ({self.port.node.source_location})")
        self._accepted = shape

    # ---- reading

    @property
    def own(self) -> Tensor | None:
        """The slot's own tensor, if it has one yet."""
        return self._own

    @property
    def tensor(self) -> Tensor:
        """The tensor that is read. One of the slot's own at first: zeros, and empty where the shape is dynamic."""
        if self._tensor is None:
            if self._lent is not None:
                kind = Type.of(self._lent.dtype) if self._kind is None else self._kind
                self._tensor = Tensor.from_array(self._lent, kind)
            elif self._kind is None:
                raise Error(f"[Parameter] the input has no element type before its tensor is set "
                            f"({self.port.node.source_location})")
            else:
                shape = [low if low == high else 0 for low, high in self._bounds or ((0, 0),)]
                self._tensor = self._own = self._new_tensor(self._kind, tuple(shape))
        return self._tensor

    def read(self) -> Array:
        """The input as a contiguous array, the same one as last time unless the caller lends a large other one.

        Raises: Error if it was never set and has a dynamic shape, or no longer has a shape that the model takes.
        """
        array = self._lent
        if array is None:
            array = self._bound()
            if self._tensor is self._own:
                self.private = True
                return array
        self.private = array.nbytes <= COPIED_BYTES or not array.flags.c_contiguous
        return self.staged(array) if self.private else array

    def _bound(self) -> Array:
        """The array of the tensor that is read."""
        if self._tensor is None and self.port.partial_shape.is_dynamic:
            raise Error(f"[Parameter] the input tensor is not set, and its shape {self.port.partial_shape} is "
                        f"dynamic ({self.port.node.source_location})")
        array: Array = self.tensor.array
        self._check(array.shape)
        return array

    def producer(self) -> Any:
        """The owner of an array on a device, whose enqueued work inferences wait for; None if there is none."""
        return None

    def pair(self, array: Array) -> HostDevicePair:
        """What `read` gave as the shape function reads it, and as steps read it."""
        return HostDevicePair(array, array)

    def staged(self, array: Array) -> Array:
        """A copy of the array in memory of the slot's own."""
        staged = self._staged
        if staged is None or staged.shape != array.shape or staged.dtype != array.dtype:
            staged = self._staged = host_memory.empty(array.shape, array.dtype)
        np.copyto(staged, array)
        return staged

    def zeros(self, shape: Iterable[Any]) -> Array:
        """An array of this shape and the input's type. Error if the model does not take the shape."""
        extents = tuple(d if isinstance(d, int) else d.get_length() for d in shape)
        self._check(extents)
        return np.zeros(extents, self.port.element_type.storage)


def _as_array(value: Any) -> Array:
    if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    try:
        return np.asarray(value)
    except ValueError as e:  # a ragged list
        raise TypeError(f"Incompatible inputs of type: {type(value)}: {e}") from None


def _encoded(array: Array) -> Array:
    """An object array of bytes. TypeError for items that are no text."""
    encoded = np.empty(array.shape, object)
    flat = encoded.reshape(-1)
    for i, item in enumerate(array.reshape(-1)):
        if not isinstance(item, (str, bytes)):
            raise TypeError(f"a string input takes str and bytes, got {type(item).__name__}")
        flat[i] = item.encode() if isinstance(item, str) else item
    return encoded


def _borrowed(tensor: Any) -> Tensor:
    """A tensor of openvino as one of ours, in the same memory where that is possible."""
    try:
        return Tensor(tensor, shared_memory=True)
    except (RuntimeError, ValueError):
        return Tensor(tensor)
