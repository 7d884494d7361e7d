"""Outputs of a request: tensors that inferences write, which belong to the request or to the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu._util import host_memory
from ovgpu.compile.ports import ConstOutput
from ovgpu.errors import Error, OpError, explain
from ovgpu.ops.base.op import Array
from ovgpu.runtime.state import Variables
from ovgpu.tensor import Tensor
from ovgpu.types import PartialShape, Type


class RequestOutput:
    """One output of a request. An inference writes to its tensor's memory directly."""

    shared_array = None  # outputs have no shared array; `RequestInput` has the same attribute
    address: tuple[int, ...] = ()
    """Device address of the tensor that the caller has bound; empty if it is not on a device."""

    def __init__(self, port: ConstOutput) -> None:
        self.port = port
        self._tensor: Tensor | None = None
        self.bound = False  # True if the tensor is the caller's
        self._array: Array | None = None  # array that an inference writes to, if it is not the tensor's memory

    @property
    def tensor(self) -> Tensor:
        """The output tensor. Before the first inference it holds zeros; dynamic dimensions have extent 0."""
        if self._tensor is None:
            element_type, shape = self.port.element_type, self.port.partial_shape
            extents = [d.get_length() if d.is_static else 0 for d in shape] if shape.rank.is_static else [0]
            if element_type.is_dynamic():
                raise Error("[Result] the output has no element type before the first inference")
            self._tensor = self._new_tensor(element_type, tuple(extents))
        return self._tensor

    def bind(self, tensor: Tensor) -> None:
        """Make inferences write to this tensor, which takes the shape of the result if its memory is large enough.

        Raises: Error for another element type, or a shape that the output cannot have (an empty tensor is accepted).
        """
        element_type, location = self.port.element_type, self.port.node.source_location
        if not element_type.is_dynamic() and tensor.element_type is not element_type:
            raise Error(
                f"[Result] Failed to set tensor for output with precision: "
                f"{tensor.element_type.get_type_name()}, if model output tensor precision is: "
                f"{element_type.get_type_name()} ({location})"
            )
        if tensor.size and not self.port.partial_shape.compatible(PartialShape(list(tensor.shape))):
            raise Error(
                f"[Result] Can't set the output tensor: the model output (shape={self.port.partial_shape}) "
                f"and the tensor (shape={list(tensor.shape)}) are incompatible ({location})"
            )
        self._check_host(tensor)
        self._tensor, self.bound = tensor, True

    def _check_host(self, tensor: Tensor) -> None:
        if tensor.remote:
            raise Error(
                f"[Result] the tensor is on a CUDA device, the model on the CPU ({self.port.node.source_location})"
            )

    def allocate(self, shape: tuple[int, ...], element_type: Type) -> Array:
        """Return the array to write a result of this shape to: the same array as before if the shape is the same."""
        if not element_type.packed:
            tensor = self._resized_tensor(shape, element_type)
            if tensor.is_continuous():
                return tensor.array
        if self._array is None or self._array.shape != shape or self._array.dtype != element_type.storage:
            self._array = host_memory.empty(shape, element_type.storage)
        return self._array

    def host(self) -> Array | None:
        """Return the host array that an inference downloads the result to, or None if it downloads nothing."""
        return None

    def _new_tensor(self, element_type: Type, shape: tuple[int, ...]) -> Tensor:
        return Tensor(element_type, shape)

    def _resized_tensor(self, shape: tuple[int, ...], element_type: Type) -> Tensor:
        tensor = self._tensor
        if tensor is None or (tensor.element_type is not element_type and not self.bound):
            tensor = self._tensor = self._new_tensor(element_type, shape)
        if tensor._shape != shape:
            try:
                tensor.set_shape(shape)
            except RuntimeError as e:
                raise Error(
                    f"[Result] the tensor set for the output cannot take the result: {e} "
                    f"({self.port.node.source_location})"
                ) from None
        return tensor

    def store(self, result: Array) -> None:
        """Copy a result into the tensor, unless the inference has written it there."""
        tensor = self._tensor
        if tensor is None or result is not tensor._array:
            self._fill(result)

    def _fill(self, result: Array) -> None:
        """Copy a result on the host into the tensor."""
        element_type = self._element_type_of(result)
        tensor = self._resized_tensor(tuple(result.shape), element_type)
        if element_type.packed:
            tensor.copy_from(Tensor.from_array(result, element_type))
        else:
            np.copyto(tensor.array if self.bound else tensor._buffer, result)

    def _element_type_of(self, result: Array) -> Type:
        element_type = self.port.element_type
        return Type.of(result.dtype) if element_type.is_dynamic() else element_type

    @property
    def own(self) -> Tensor | None:
        """The tensor if it is the output's own, else None."""
        return None if self.bound else self._tensor

    def producers(self) -> Sequence[Any]:
        """Return the owner of the bound tensor's device memory; nothing if the tensor is on the host.

        Inferences wait for work enqueued on that memory, such as reads of the last result.
        """
        return ()

    def overlaps(self, array: Array) -> bool:
        """Return whether an inference that reads the array might overwrite it."""
        return self._tensor is not None and np.may_share_memory(self._tensor._memory, array)

    def value(self, share: bool, decode_strings: bool | None) -> Any:
        """Return the output as an array as in `Tensor.data`: a view if ``share``, else a copy; strings always a copy,
        as objects of `bytes` if ``decode_strings`` is None.

        Raises: OpError if there is no memory for the copy.
        """
        tensor = self.tensor
        if tensor.element_type is Type.string:
            if decode_strings is None:
                return tensor.array.copy()
            return tensor.str_data if decode_strings else tensor.bytes_data
        data = tensor.data
        return data if share else self._copy(data)

    def _copy(self, data: Array) -> Array:
        """Return a copy. Raise OpError if there is no memory for it."""
        try:
            host_memory.require(data.nbytes)
            return data.copy()
        except MemoryError as e:
            raise OpError(explain(e)).at("Result", self.port.node.source_location) from e

    def looks_finite(self) -> bool:
        """Return True: the host computes in f16 only if it is asked to, see `ovgpu.runtime.overflow`."""
        return True

    def preserve(self) -> None:
        """Download copies of the last result that were returned and not read yet, before the next inference overwrites
        the result."""


class RequestMemory:
    """`binding.MemoryProvider` of a request: results go to its outputs, new values to the buffers of its variables."""

    def __init__(self, outputs: Sequence[RequestOutput], variables: Variables) -> None:
        self._outputs, self._variables = outputs, variables

    def output(self, index: int, shape: tuple[int, ...], element_type: Type) -> Array:
        return self._outputs[index].allocate(shape, element_type)

    def variable(
        self, name: str, shape: tuple[int, ...], element_type: Type, strides: tuple[int, ...], append: bool
    ) -> Array:
        return self._variables.write(name, shape, element_type, strides, append)

    def host(self, index: int) -> Array | None:
        return self._outputs[index].host()
