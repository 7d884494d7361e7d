"""Tensors in device memory and the contexts that create them: OpenVINO's RemoteTensor and RemoteContext."""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgpu import tensor as tensor_module
from ovgpu._util.unpicklable import Unpicklable
from ovgpu.backends.cuda import interop
from ovgpu.errors import Error
from ovgpu.request.pinned import StagedTensor, StagingBuffer
from ovgpu.runtime.backend import RemoteBackend
from ovgpu.tensor import Tensor, basic_index
from ovgpu.types import Array, Shape, Type


class RemoteTensor(Tensor):
    """Tensor in the memory of a CUDA device. `Tensor` creates one from any array in such memory:

    - `Tensor(array)`: copies a CuPy array, a torch tensor, or any object with `__dlpack__` or
      `__cuda_array_interface__`; with ``shared_memory=True`` it shares the array's memory
    - `Tensor(remote)`, `Tensor(remote, begin, end)`: shares another tensor's memory, or a region of it

    `RemoteContext.create_tensor` allocates new memory. ``data`` is a read-only copy on the host. CuPy and torch use the
    tensor itself through DLPack, without a copy. Bind it to a request with `set_tensor`, and inferences read or write
    it in place.

    Raises: RuntimeError for memory to share that is not C-contiguous, or a dtype that is not an element type.
    """

    __slots__ = ("_moves", "_producer")
    _producer: Any
    """The object that the memory came from; it knows the work that has been enqueued on it."""
    _moves: bool
    """True if the first access to the data on the host moves the tensor to the host."""

    def __init__(self, array: Any = None, shape: Any = None, type: Any = None, *, shared_memory: bool = False) -> None:
        if isinstance(shape, bool):
            shape, shared_memory = None, shape
        self._moves = False
        if isinstance(array, RemoteTensor):
            self._producer = array._producer
            self._share(array) if shape is None else self._region(array, Shape(shape), Shape(type))
            return
        if shape is not None:
            raise TypeError("the memory of a device array is taken as it is: give neither shape nor type")
        adopted = interop.adopt(array)
        element_type = Type.of(adopted.dtype)
        if shared_memory and not adopted.flags.c_contiguous:
            raise Error("memory to share must be C-contiguous")
        self._producer = array if shared_memory else None
        self._hold(
            adopted if shared_memory else interop.copied(adopted, array),
            element_type,
            tuple(adopted.shape),
            owned=False,
        )

    @classmethod
    def of(
        cls, array: Any, element_type: Type, *, producer: Any = None, owned: bool = False, moves: bool = False
    ) -> RemoteTensor:
        """Return a tensor in the memory of a CuPy array of this type; `set_shape` may replace ``owned`` memory."""
        tensor = cls.__new__(cls)
        tensor._producer, tensor._moves = producer, moves
        tensor._hold(array, element_type, tuple(array.shape), owned=owned)
        return tensor

    def _new(self, element_type: Type, shape: Shape) -> Array:
        array: Array = interop.zeros(tuple(shape), element_type.storage, self._array.data.device_id)
        return array

    @property
    def remote(self) -> bool:
        return not isinstance(self._array, np.ndarray)

    @property
    def device_array(self) -> Any:
        """The memory as a CuPy array of ``element_type.storage``."""
        return self._array

    @property
    def producer(self) -> Any:
        """The object that knows the work enqueued on the memory."""
        return self._array if self._producer is None else self._producer

    @property
    def array(self) -> Any:
        """The elements on the host, in their storage dtype."""
        if not self.remote:
            return self._array
        copy = interop.to_host(self._array, self.producer)
        if self._moves:
            self._hold(copy, self._element_type, self._shape, owned=False)
        else:
            copy.flags.writeable = False
        return copy

    @property
    def data(self) -> Array:
        """A host copy in the dtype of `Tensor.data`; read-only, unless the tensor is itself a copy of a state."""
        view: Array = self.array.view(self._element_type.to_dtype())
        return view

    def read(self, index: Any = ...) -> Array:
        if not self.remote:
            return super().read(index)
        copy: Array = interop.to_host(self._array[basic_index(index)], self.producer)
        return copy

    def copy_from(self, source: Any) -> None:
        """Copy elements and shape of a tensor, array or list of the same element type, on the host or a device.

        Raises: RuntimeError if the types differ or the memory is too small, TypeError for another kind of source.
        """
        if not isinstance(source, Tensor):
            source = Tensor(source)
        if source.element_type is not self._element_type:
            mine, theirs = self._element_type.type_name, source.element_type.type_name
            raise Error(f"Tensor element types are not equal: {theirs} into {mine}")
        self.set_shape(source.shape)
        if isinstance(source, RemoteTensor) and source.remote:
            interop.copy(source._array, self._array, source.producer, self.producer)
        else:
            uploaded = interop.to_device(np.ascontiguousarray(source.array), self._array.data.device_id)
            interop.copy(uploaded, self._array, self.producer)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface: dict[str, Any] = self._array.__cuda_array_interface__
        return interface

    def get_device_name(self) -> str:
        """Return the name of the device that the memory belongs to."""
        return f"NVIDIA.{self._array.device.id}"

    def get_params(self) -> dict[str, Any]:
        """Return the address of the memory, as ``MEM_HANDLE``."""
        return {"MEM_HANDLE": self._array.data.ptr}

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return RemoteTensor.of(interop.copied(self._array, self.producer), self._element_type)

    def __repr__(self) -> str:
        return f"<RemoteTensor: shape{self.shape} type: {self._element_type.type_name}>"


tensor_module.remote_tensor_class = RemoteTensor


class RemoteContext(Unpicklable):
    """Allocator of tensors for a CUDA device; see `Core.get_default_context`."""

    def __init__(self, device: str, backend: RemoteBackend) -> None:
        self._device, self._backend = device, backend

    def get_device_name(self) -> str:
        """Return the name of the device."""
        return self._device

    def get_params(self) -> dict[str, Any]:
        """Return an empty dict: programs share memory by DLPack instead of handles."""
        return {}

    def create_tensor(self, type: Any, shape: Any, properties: Any = None) -> RemoteTensor:
        """Return a tensor of zeros on the device, which grows if an inference's result needs more memory.

        Raises: RuntimeError for packed types, strings, and any ``properties``.
        """
        element_type = Type(type)
        if element_type.packed or element_type is Type.string:
            raise Error(f"a tensor of {element_type.type_name} cannot be on a device")
        if properties:
            raise Error("memory of others is taken as it is: Tensor(array, shared_memory=True)")
        array = interop.zeros(tuple(Shape(shape)), element_type.storage, self._backend.number)
        return RemoteTensor.of(array, element_type, owned=True)

    def create_host_tensor(self, type: Any, shape: Any) -> Tensor:
        """Return a tensor of zeros on the host, in pinned memory unless the type is packed or string."""
        element_type = Type(type)
        if element_type.packed or element_type is Type.string:
            return Tensor(element_type, shape)
        return StagedTensor.of(StagingBuffer(self._backend, True), element_type, tuple(Shape(shape)))

    def __repr__(self) -> str:
        return f"<RemoteContext: {self._device}>"
