"""Inputs of a request, and the conversion of the values that a caller passes.

A caller passes inputs as a dict by port, index or tensor name, as a list or tuple in order, or as the single value of
a model with one input. A value is a Tensor, whose type must be the model's, or anything that NumPy converts to an
array. An array is silently converted to the model's type, as in OpenVINO's Python API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ovgpu._util import host_memory
from ovgpu._util.dlpack import from_dlpack
from ovgpu.compile.ports import ConstOutput, PortList
from ovgpu.errors import Error
from ovgpu.ops.base.op import Array
from ovgpu.request import host_copies
from ovgpu.request.batched_tensor import BatchedTensor
from ovgpu.request.live_tensor import LiveTensor
from ovgpu.request.pinned import HostDevicePair
from ovgpu.request.results import OVDict
from ovgpu.tensor import Tensor, array_of, on_device
from ovgpu.types import Type, pack, unpack

MAX_COPIED_BYTES = 65536  # copying up to this size costs less than binding steps to another array
SCALAR_TYPES = (str, float, int, bytes)


def numbered(ports: PortList, inputs: Any) -> Iterable[tuple[int, Any]]:
    """Return pairs (index of the input, value) for all inputs that the caller passes.

    Raises: RuntimeError for an input that does not exist, TypeError for keys of another kind.
    """
    if inputs is None:
        return ()
    if isinstance(inputs, OVDict):
        inputs = inputs.to_tuple()
    elif isinstance(inputs, Mapping):
        return [(_index(ports, key), value) for key, value in inputs.items()]
    if isinstance(inputs, (list, tuple)) and not (
        isinstance(inputs, list) and len(ports) == 1 and inputs and _is_data(inputs)
    ):
        return [(ports.index_of(index), value) for index, value in enumerate(inputs)]
    if not _is_value(inputs):
        raise TypeError(f"Incompatible inputs of type: {type(inputs)}")
    return [(ports.index_of(), inputs)]


def _is_value(value: Any) -> bool:
    """Return whether something can be the value of an input."""
    return isinstance(value, (np.ndarray, Tensor, *SCALAR_TYPES, list, tuple, np.generic)) or any(
        hasattr(value, name) for name in ("__array__", "__dlpack__", "get_byte_size")
    )


def _index(ports: PortList, key: Any) -> int:
    if key is None:
        raise TypeError("Incompatible key type for input: None")
    return ports.index_of(key)


def _is_data(values: list[Any]) -> bool:
    """Return whether a list holds scalars, in one or two levels: the data of a single input, not a list of inputs."""
    return all(
        isinstance(v, SCALAR_TYPES) or (isinstance(v, list) and all(isinstance(x, SCALAR_TYPES) for x in v))
        for v in values
    )


class RequestInput:
    """One input of a request: its own tensor, or a tensor or array that the caller shares."""

    shared_host: Array | None = None
    """The pinned array that has the last copy of a small `staged_source`; only on a device."""

    has_copy = False
    """True if the running inference reads a copy of the caller's array."""
    keeps_copy = False
    """True while an inference is repeated, which then reads the copy again: the inference may have overwritten the
    caller's array, if that is the memory of a result."""

    is_sent = False
    """True if `set` has begun to upload the own tensor, for the inference that follows at once."""

    def __init__(self, port: ConstOutput) -> None:
        self.port = port
        element_type = port.element_type
        self._element_type = None if element_type.is_dynamic() else element_type  # None: any type
        self._dtype = None if self._element_type is None else self._element_type.storage
        shape = port.partial_shape
        self._bounds = (
            [(d.min_length, d.max_length if d.max_length >= 0 else None) for d in shape]
            if shape.rank.is_static
            else None
        )
        self._accepted: tuple[int, ...] | None = None  # the last shape that passed `_check`
        self._tensor: Tensor | None = None  # the tensor that is read, unless an array is shared
        self.shared_array: Array | None = None
        self._own: Tensor | None = None
        self._staged: Array | None = None
        self.private = True  # True if the array of the last `read` is the input's own memory

    # ---- setting

    def set(self, value: Any, share: bool) -> None:
        """Set the input's value. With ``share``, an array of the right type is not copied but read by the inference.

        Raises: TypeError for a value that is no array, ValueError for strings that are no numbers, Error for another
        shape, a Tensor of another type, or integers that a packed type does not hold.
        """
        if isinstance(value, Tensor):
            return self.bind(value)
        if hasattr(value, "get_byte_size"):  # openvino.Tensor
            return self.bind(LiveTensor(value))
        array = self._converted(value)
        self._check(array.shape)
        flags = array.flags  # an array that is read-only is copied, as in OpenVINO
        if share and array.dtype == self._dtype and flags.c_contiguous and flags.aligned and flags.writeable:
            self._tensor, self.shared_array = None, array
            return None
        bound = self._tensor
        if bound is not None and bound is not self._own and self._takes_copies(bound, value):
            with suppress(RuntimeError):  # too small: OpenVINO raises, ovgpu uses the own tensor
                return bound.write(array)
        own = self._own_tensor(array)
        if own is None:
            self._tensor, self.shared_array = None, np.array(array, order="C")
        else:
            if own._shape != array.shape:
                own.set_shape(array.shape)
            target = own.array
            if target.nbytes < host_copies.PARALLEL_BYTES:
                np.copyto(target, array, casting="unsafe")
            else:
                self._fill_own(own, array)
            self._tensor, self.shared_array = own, None
        return None

    def _fill_own(self, own: Tensor, array: Array) -> None:
        """Copy a large array of the same shape into the input's own tensor, converted to its type."""
        host_copies.copy(own.array, array)

    def _takes_copies(self, bound: Tensor, value: Any) -> bool:
        """Return whether a copy of ``value`` goes into the tensor that the caller has bound. As in OpenVINO, arrays do,
        and numbers and lists do not."""
        if (
            self.shared_array is not None
            or bound.remote
            or bound.element_type.packed
            or isinstance(bound, BatchedTensor)
            or getattr(value, "ndim", 0) == 0
            or not hasattr(value, "__array__")
        ):
            return False
        return bool(bound.array.flags.writeable)

    def bind(self, tensor: Tensor) -> None:
        """Make inferences read this tensor. Raise Error for another type, or a shape that the input cannot have."""
        if self._element_type is not None and tensor.element_type is not self._element_type:
            raise Error(
                f"[Parameter] Failed to set tensor for input with precision: "
                f"{tensor.element_type.get_type_name()}, since the model input tensor precision is: "
                f"{self._element_type.get_type_name()} ({self.port.node.source_location})"
            )
        self._check_host(tensor)
        self._check(tuple(tensor.shape))
        self._tensor, self.shared_array = tensor, None

    def _check_host(self, source: Any) -> None:
        if on_device(source):
            raise Error(
                f"[Parameter] the array is on a CUDA device, the model on the CPU: copy it to the host first "
                f"({self.port.node.source_location})"
            )

    def _converted(self, value: Any) -> Array:
        """Return the value as an array. Bits and strings are converted; the caller still has to cast the dtype."""
        if not isinstance(value, np.ndarray):
            self._check_host(value)
        if isinstance(value, np.ndarray):
            array = value
        elif not _is_value(value):
            raise TypeError(f"Incompatible inputs of type: {type(value)}")
        else:
            array = _as_array(value)
        if array.dtype == self._dtype and array.dtype != object:
            pass
        elif self._element_type is None:
            array = array.astype(Type.of(array.dtype).storage, copy=False)
        elif self._element_type is Type.string:
            array = Tensor(array).array if array.dtype.kind in "US" else _encoded(array)
        elif array.dtype.kind in "US":
            array = array.astype(self._dtype)  # parse numbers; other strings raise ValueError
        elif self._element_type.packed:
            array = self._unpacked(array)
        elif array.dtype == self._element_type.to_dtype():
            array = array.view(self._dtype)  # bits, as `Tensor.data` shows them: float16 for bf16, uint8 for f8
        if array.ndim == 0 and self._bounds:
            array = array.reshape((1,) * len(self._bounds))
        return array

    def _unpacked(self, array: Array) -> Array:
        """Convert an array to the storage dtype of the input's packed type. Raise Error for integers out of range."""
        element_type = self._element_type
        assert element_type is not None
        if not element_type.integral_number:
            return array.astype(element_type.storage)
        codes = array if array.dtype.kind in "iuV" else array.astype(np.int64)
        try:
            return unpack(pack(np.ascontiguousarray(codes), element_type), element_type, array.shape)
        except ValueError as e:
            raise Error(f"[Parameter] {e} ({self.port.node.source_location})") from None

    def replace_own(self, tensor: Tensor) -> None:
        """Replace the input's own tensor by this one, which has the same contents, and read it from now on."""
        self._own = self._tensor = tensor

    def _own_tensor(self, array: Array) -> Tensor | None:
        """Return the input's own tensor, made for this array at first; None for packed and dynamic types, which use
        arrays."""
        if self._element_type is None or self._element_type.packed:
            return None
        if self._own is None:
            self._own = self._new_tensor(self._element_type, array.shape)
        return self._own

    def _new_tensor(self, element_type: Type, shape: tuple[int, ...]) -> Tensor:
        return Tensor(element_type, shape)

    def _check(self, shape: tuple[int, ...]) -> None:
        if shape == self._accepted or self._bounds is None:
            return
        if len(shape) != len(self._bounds) or any(
            n < low or (high is not None and n > high) for n, (low, high) in zip(shape, self._bounds)
        ):
            raise Error(
                f"[Parameter] Can't set the input tensor: the model input (shape={self.port.partial_shape}) "
                f"and the tensor (shape={list(shape)}) are incompatible ({self.port.node.source_location})"
            )
        self._accepted = shape

    # ---- reading

    @property
    def own(self) -> Tensor | None:
        """The input's own tensor, or None if it has none yet."""
        return self._own

    @property
    def tensor(self) -> Tensor:
        """The tensor that is read. At first it is the input's own, with zeros, and extent 0 for dynamic dimensions."""
        if self._tensor is None:
            if self.shared_array is not None:
                element_type = Type.of(self.shared_array.dtype) if self._element_type is None else self._element_type
                self._tensor = Tensor.from_array(self.shared_array, element_type)
            elif self._element_type is None:
                raise Error(
                    f"[Parameter] the input has no element type before its tensor is set "
                    f"({self.port.node.source_location})"
                )
            else:
                bounds = [(0, 0)] if self._bounds is None else self._bounds
                shape = [low if low == high else 0 for low, high in bounds]
                self._tensor = self._own = self._new_tensor(self._element_type, tuple(shape))
        return self._tensor

    def read(self) -> Array:
        """Return the input as a contiguous array: the same one each time, unless the caller lends another large array.

        Raises: Error if it was never set and has a dynamic shape, or no longer has a shape that the model accepts.
        """
        array = self.shared_array
        if array is None:
            array = self._bound()
            if self._tensor is self._own:
                self.private = True
                return array
        self.private = array.nbytes <= MAX_COPIED_BYTES or not array.flags.c_contiguous
        return self.staged(array) if self.private else array

    def _bound(self) -> Array:
        """Return the array of the tensor that is read."""
        if self._tensor is None and self.port.partial_shape.is_dynamic:
            raise Error(
                f"[Parameter] the input tensor is not set, and its shape {self.port.partial_shape} is "
                f"dynamic ({self.port.node.source_location})"
            )
        array: Array = self.tensor.array
        self._check(array.shape)
        return array

    def producers(self) -> Sequence[Any]:
        """Return the owners of arrays on a device, whose enqueued work inferences wait for."""
        return ()

    def staged_source(self) -> Array | None:
        """Return the host array that each inference copies to pinned memory: one that the caller shares, or that of a
        tensor that the caller has bound. Return None if inferences read the input elsewhere."""
        return None

    def stage(self, source: Array) -> None:
        """Copy an array to `shared_host`, as each inference does."""
        assert self.shared_host is not None
        np.copyto(self.shared_host, source)

    def stage_own(self, source: Array | None) -> None:
        """Copy an array to the pinned memory of the input's own tensor, by default nothing. Begin to upload the tensor,
        if graphs do not upload it."""

    def pair(self, array: Array) -> HostDevicePair:
        """Return the array of `read` as the shape function (host) and as steps (device) read it."""
        return HostDevicePair(array, array)

    def staged(self, array: Array) -> Array:
        """Copy the array to the input's memory. Return the copy."""
        staged = self._staged
        if staged is None or staged.shape != array.shape or staged.dtype != array.dtype:
            staged = self._staged = host_memory.empty(array.shape, array.dtype)
        host_copies.copy(staged, array)
        return staged

    def zeros(self, shape: Iterable[Any]) -> Array:
        """Return zeros of this shape and the input's type. Raise Error if the model does not accept the shape."""
        extents = tuple(d if isinstance(d, int) else d.get_length() for d in shape)
        self._check(extents)
        return np.zeros(extents, self.port.element_type.storage)


def _as_array(value: Any) -> Array:
    if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
        return from_dlpack(value)
    try:
        return array_of(value)
    except ValueError as e:  # a ragged list
        raise TypeError(f"Incompatible inputs of type: {type(value)}: {e}") from None


def _encoded(array: Array) -> Array:
    """Return an object array of bytes. Raise TypeError for items that are neither str nor bytes."""
    encoded = np.empty(array.shape, object)
    flat = encoded.reshape(-1)
    for i, item in enumerate(array.reshape(-1)):
        if not isinstance(item, (str, bytes)):
            raise TypeError(f"a string input takes str and bytes, got {type(item).__name__}")
        flat[i] = item.encode() if isinstance(item, str) else item
    return encoded
