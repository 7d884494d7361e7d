"""Inputs and outputs of a request on a device that has its own memory.

The request's own tensors lie in pinned memory, and an inference uploads and downloads them as steps of its plan. Host
arrays that the caller lends are first copied into pinned memory. Arrays on the device are used in place if possible.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any
from weakref import ref

import numpy as np

from ovgpu._util import host_memory
from ovgpu.backends.cuda import interop, transfer
from ovgpu.compile.ports import ConstOutput
from ovgpu.errors import Error, OpError, explain
from ovgpu.ops.base.op import Array
from ovgpu.request import large_uploads
from ovgpu.request.batched_tensor import BatchedTensor
from ovgpu.request.downloads import Downloads, ResultTensor, fits_pinned
from ovgpu.request.inputs import RequestInput
from ovgpu.request.large_uploads import LargeUpload, is_large
from ovgpu.request.outputs import RequestOutput
from ovgpu.request.pinned import HostDevicePair, StagedTensor, StagingBuffer
from ovgpu.request.remote_tensor import RemoteTensor
from ovgpu.request.results import Deferred
from ovgpu.runtime.backend import Backend, RemoteBackend, is_remote
from ovgpu.runtime.blocks import Block
from ovgpu.tensor import Tensor, on_device
from ovgpu.types import Shape, Type

MAX_BORROWED_ARRAYS = 8  # cached per input or output
SAMPLED_ELEMENTS = 1024  # of a result, by `DeviceOutput.looks_finite`
FLOATS = frozenset({Type.bf16, Type.f16, Type.f32, Type.f64})


class BorrowedArrays:
    """Cache of arrays in the caller's device memory, which they do not keep alive: one array per address, shape, dtype.

    Steps and CUDA graphs are bound to array objects, so the same memory must give the same object.
    """

    def __init__(self) -> None:
        self._cached: OrderedDict[Any, Array | None] = OrderedDict()

    def array(self, source: Array, at_once: bool) -> Array | None:
        """Return the cached array in the memory of a contiguous array.

        Unless ``at_once``, return None when the address is new: bindings and graphs are worth making only for addresses
        that come again.
        """
        key = source.data.ptr, source.shape, source.dtype
        array = self._cached.get(key)
        if array is None:
            if at_once or key in self._cached:
                array = interop.borrowed(source)
            self._cached[key] = array
            if len(self._cached) > MAX_BORROWED_ARRAYS:
                self._cached.popitem(last=False)
        self._cached.move_to_end(key)
        return array


def make_inputs_and_outputs(
    inputs: Iterable[ConstOutput], outputs: Iterable[ConstOutput], backend: Backend
) -> tuple[list[RequestInput], list[RequestOutput]]:
    """Return the inputs and outputs of a request on this backend."""
    if is_remote(backend):
        return [DeviceInput(port, backend) for port in inputs], [DeviceOutput(port, backend) for port in outputs]
    return [RequestInput(port) for port in inputs], [RequestOutput(port) for port in outputs]


def binding_addresses(pairs: Sequence[HostDevicePair], outputs: Sequence[RequestOutput]) -> tuple[int, ...]:
    """Return the device addresses that a binding depends on: those of inputs, and of outputs that the caller bound."""
    addresses = [0 if pair.device.dtype == object else pair.device.data.ptr for pair in pairs]
    return (*addresses, *(address for output in outputs for address in output.address))


def tensor_copy(array: Array, element_type: Type, backend: Backend) -> Tensor:
    """Return a copy of a backend array as a tensor. On a device it stays there until its data are read."""
    if not backend.remote or element_type.packed or array.dtype == object:
        return Tensor.from_array(np.array(backend.to_host(array)), element_type)
    copy = backend.xp.empty(array.shape, array.dtype)
    for call in backend.copy(array, copy):
        call()
    backend.synchronize()
    return RemoteTensor.of(copy, element_type, moves=True)


def backend_array(tensor: Tensor, backend: Backend) -> Array:
    """Return a tensor's elements as an array of the backend: the tensor's own memory if it is on the same device."""
    if (
        isinstance(tensor, RemoteTensor)
        and tensor.remote
        and is_remote(backend)
        and tensor._array.data.device_id == backend.number
    ):
        interop.order(tensor.producer, backend.stream)
        return tensor._array
    with backend.active():
        return backend.constant(np.array(tensor.array))


class InputTensor(StagedTensor):
    """Input tensor that belongs to the request: in pinned memory, unless it is large."""

    __slots__ = ()

    def _new(self, element_type: Type, shape: Shape) -> Array:
        if fits_pinned(element_type, tuple(shape)):
            return super()._new(element_type, shape)
        self.pinned = False  # stays false if the tensor shrinks
        return host_memory.zeros(tuple(shape), element_type.storage)


class DeviceInput(RequestInput):
    """One input of a request on a CUDA device."""

    def __init__(self, port: ConstOutput, backend: RemoteBackend) -> None:
        super().__init__(port)
        self._backend = backend
        dynamic = port.partial_shape.is_dynamic
        self._shared_staging = StagingBuffer(backend, dynamic)  # for shared host arrays
        self._copies: Block[Array] = Block(backend.allocate, backend.dense, dynamic)  # on the device
        self._last_copy: Array | None = None  # the array in `_copies` that was filled last
        self._producer: Any = None  # owner of a shared device array
        self._borrowed_arrays = BorrowedArrays()
        self._large_upload: LargeUpload | None = None  # of the pinned array that was used last

    def set(self, value: Any, share: bool) -> None:
        """Set the input's value; see `RequestInput.set`.

        An array on the device is used in place if it is shared, contiguous and of the right type, else copied.

        Raises: Error for an array on another device, OpError if there is no memory for it.
        """
        self.is_sent = False
        try:
            self._set(value, share)
        except MemoryError as e:
            raise self._out_of_memory(e) from e

    def _set(self, value: Any, share: bool) -> None:
        if isinstance(value, (np.ndarray, Tensor)) or not on_device(value):
            super().set(value, share)
            self._producer = None
            return
        array = interop.adopt(value)
        self._check_device(array)
        if self._element_type is not None and self._element_type.packed:
            return self._set(interop.to_host(array, value), share)
        if array.ndim == 0 and self._bounds:
            array = array.reshape((1,) * len(self._bounds))
        self._check(array.shape)
        if not share or array.dtype != (self._dtype or array.dtype):
            interop.order(value, self._backend.stream)
            array, value = self.staged(array), None
            self._backend.synchronize()  # the owner may write to the array from now on
        self._tensor, self.shared_array, self._producer = None, array, value
        self.shared_host = None  # a direct call would keep the producer

    def bind(self, tensor: Tensor) -> None:
        for item in tensor.items if isinstance(tensor, BatchedTensor) else [tensor]:
            if item.remote:
                self._check_device(item._array)
        super().bind(tensor)
        self._producer = None

    def _check_host(self, tensor: Tensor) -> None:
        pass

    def _check_device(self, array: Array) -> None:
        if array.data.device_id != self._backend.number:
            raise Error(
                f"[Parameter] the array is on CUDA device {array.data.device_id}, the model on "
                f"{self._backend.number} ({self.port.node.source_location})"
            )

    def _new_tensor(self, element_type: Type, shape: tuple[int, ...]) -> Tensor:
        if element_type.packed or element_type is Type.string:
            return super()._new_tensor(element_type, shape)
        return InputTensor.of(StagingBuffer(self._backend, self.port.partial_shape.is_dynamic), element_type, shape)

    @property
    def tensor(self) -> Tensor:
        """The tensor that the next inference reads."""
        if self._tensor is None and self.shared_array is not None and not isinstance(self.shared_array, np.ndarray):
            self._tensor = RemoteTensor.of(self.shared_array, Type.of(self.shared_array.dtype), producer=self._producer)
        return super().tensor

    def producers(self) -> Sequence[Any]:
        tensor = self._tensor
        if isinstance(tensor, RemoteTensor) and tensor.remote:
            return (tensor.producer,)
        if isinstance(tensor, BatchedTensor):
            return [item.producer for item in tensor.items if isinstance(item, RemoteTensor) and item.remote]
        return () if self._producer is None else (self._producer,)

    def read(self) -> Array:
        """Return the input as an array on the host or on the device. Raises the errors of `RequestInput.read`."""
        self.has_copy = self.has_copy and self.keeps_copy
        if self.shared_array is not None:
            return self.shared_array
        if self._tensor is not None and self._tensor.remote:
            self._check(self._tensor._shape)
            if isinstance(self._tensor, BatchedTensor):
                return self._gathered(self._tensor)
            array: Array = self._tensor._array
            return array
        return self._bound()

    def _needs_copy(self) -> bool:
        """Return whether the copy that the inference reads has still to be made, and note that it has one."""
        needed, self.has_copy = not (self.has_copy and self.keeps_copy), True
        return needed

    def _gathered(self, batch: BatchedTensor) -> Array:
        """Copy the items of a batch, on the device or the host, to the input's device memory. Return it."""
        gathered = self._last_copy = self._copies.array(batch._shape, batch.element_type)
        if not self._needs_copy():
            return gathered
        for row, item in enumerate(batch.items):
            if item.remote:
                self._backend.convert(item._array, gathered[row : row + 1])
            else:
                self._backend.send(np.ascontiguousarray(item.array), gathered[row : row + 1])
        return gathered

    def pair(self, array: Array) -> HostDevicePair:
        """Return the array of `read` in pinned memory, paired with the device array that steps read.

        A large array is uploaded at once, in chunks; both members of the pair are then the device array.

        Raises: OpError if there is not enough memory.
        """
        try:
            return self._pair(array)
        except MemoryError as e:
            raise self._out_of_memory(e) from e

    def _out_of_memory(self, error: MemoryError) -> OpError:
        return OpError(explain(error)).at("Parameter", self.port.node.source_location)

    def staged_source(self) -> Array | None:
        if self.shared_array is not None:
            return self.shared_array if isinstance(self.shared_array, np.ndarray) else None
        tensor = self._tensor
        if tensor is None or tensor is self._own or tensor.remote or isinstance(tensor, BatchedTensor):
            return None
        array: Array = tensor.array
        return array

    def _pair(self, array: Array) -> HostDevicePair:
        self.shared_host = None
        if not isinstance(array, np.ndarray):
            device = array if array is self._last_copy else self._device_array(array)
            return HostDevicePair(device, device)
        if array.dtype == object:
            return HostDevicePair(array, array)
        element_type = self._element_type or Type.of(array.dtype)
        if array.nbytes > transfer.POOLED:
            device = self._last_copy = self._copies.array(array.shape, element_type)
            if self._needs_copy():
                self._backend.send(np.ascontiguousarray(array), device)
            return HostDevicePair(device, device)
        tensor = self._tensor
        if self.shared_array is None and isinstance(tensor, StagedTensor) and tensor is self._own and tensor.pinned:
            pair = tensor.pair()
            if array.nbytes >= large_uploads.LARGE_BYTES:
                self._send(pair, None)
                return HostDevicePair(pair.device, pair.device)
            return pair
        pair = self._shared_staging.pair(array.shape, element_type)
        if self._needs_copy():
            self._send(pair, array, lent=True)
        self.shared_host = pair.host
        return HostDevicePair(pair.device, pair.device) if is_large(pair.host) else pair

    def _fill_own(self, own: Tensor, array: Array) -> None:
        if isinstance(own, StagedTensor) and own.pinned and is_large(own.array):
            self.stage_own(array)
            self.is_sent = True
        else:
            super()._fill_own(own, array)

    def stage(self, source: Array) -> None:
        self._send(
            self._shared_staging.pair(source.shape, self._element_type or Type.of(source.dtype)), source, lent=True
        )

    def stage_own(self, source: Array | None) -> None:
        assert isinstance(self._own, StagedTensor)
        self._send(self._own.pair(), source)

    def _send(self, pair: HostDevicePair, source: Array | None, lent: bool = False) -> None:
        """Copy an array, if there is one, to pinned memory. Begin to upload a large one, unless `set` has.

        ``lent``: the array is the caller's, and stays as it is until the inference is over.
        """
        if not is_large(pair.host):
            if source is not None:
                np.copyto(pair.host, source, casting="unsafe")
            return
        if self.is_sent and source is None:
            self.is_sent = False
            return
        upload = self._large_upload
        if upload is None or upload.pair is not pair:
            upload = self._large_upload = LargeUpload(pair, self._backend)
        with self._backend.active():
            if source is None:
                upload.upload()
            elif lent:
                upload.lend(source)
            else:
                upload.send(source)

    def _device_array(self, array: Array) -> Array:
        borrowed = None
        if array.flags.c_contiguous:
            borrowed = self._borrowed_arrays.array(array, at_once=self.shared_array is None)
        return self.staged(array) if borrowed is None else borrowed

    def staged(self, array: Array) -> Array:
        """Copy a device array, converted to the input's type, to the input's device memory. Return the copy."""
        element_type = self._element_type or Type.of(array.dtype)
        copied = self._last_copy = self._copies.array(tuple(array.shape), element_type)
        if self._needs_copy():
            self._backend.convert(array, copied)
        return copied


class DeviceOutput(RequestOutput):
    """One output of a request on a CUDA device.

    A result is downloaded if the output's tensor is on the host. Large results stay on the device until they are read,
    see `ovgpu.request.downloads`.
    """

    def __init__(self, port: ConstOutput, backend: RemoteBackend) -> None:
        super().__init__(port)
        self._backend = backend
        self._downloads = Downloads(backend, port.node.source_location)
        self._new_memory()
        self._host: Array | None = None
        self._borrowed_arrays = BorrowedArrays()
        self._unread: list[ref[Deferred]] = []  # copies of the last result that were returned

    def _new_memory(self) -> None:
        dynamic = self.port.partial_shape.is_dynamic
        self._staging = StagingBuffer(self._backend, dynamic)
        self._large: Block[Array] = Block(self._backend.allocate, self._backend.dense, dynamic)  # device only

    def bind(self, tensor: Tensor) -> None:
        if tensor.remote and tensor._array.data.device_id != self._backend.number:
            raise Error(
                f"[Result] the tensor is on CUDA device {tensor._array.data.device_id}, the model on "
                f"{self._backend.number} ({self.port.node.source_location})"
            )
        own = self._tensor is not None and not self.bound
        super().bind(tensor)
        if own:  # the previous tensor keeps its memory
            self._new_memory()

    def _check_host(self, tensor: Tensor) -> None:
        pass

    def _new_tensor(self, element_type: Type, shape: tuple[int, ...]) -> Tensor:
        if element_type.packed or element_type is Type.string:
            return super()._new_tensor(element_type, shape)
        return ResultTensor.create(self._staging, self._downloads, element_type, shape)

    @property
    def address(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self._tensor._array.data.ptr,) if self._tensor is not None and self._tensor.remote else ()

    def producers(self) -> Sequence[Any]:
        tensor = self._tensor
        return (tensor.producer,) if isinstance(tensor, RemoteTensor) and tensor.remote else ()

    def allocate(self, shape: tuple[int, ...], element_type: Type) -> Array:
        self._host = None
        if self._tensor is not None and self._tensor.remote:
            array = self._resized_tensor(shape, element_type)._array
            if array.flags.c_contiguous:
                self._array = self._borrowed_arrays.array(array, at_once=True)
            else:
                self._array = self._staging.pair(shape, element_type).device
            return self._array
        pinned = fits_pinned(element_type, shape)
        if not (element_type.packed or self.bound):
            tensor = self._tensor
            if isinstance(tensor, ResultTensor) and tensor._shape != shape:
                tensor.set_result(None)
            tensor = self._resized_tensor(shape, element_type)
            pinned = isinstance(tensor, ResultTensor) and tensor.choose_memory()
        if pinned:
            self._host, self._array = self._staging.pair(shape, element_type)
        else:
            self._array = self._large.array(shape, element_type)
        return self._array

    def host(self) -> Array | None:
        return self._host

    def store(self, result: Array) -> None:
        in_place = result is self._array
        tensor = self._tensor
        if tensor is not None and tensor.remote:
            if not in_place or not tensor.is_continuous():
                self._resized_tensor(tuple(result.shape), self._element_type_of(result))
                self._backend.convert(result, tensor._array)
                self._backend.synchronize()
        elif not in_place:
            if isinstance(tensor, ResultTensor):
                tensor.set_result(None)
            self._fill(self._backend.to_host(result))
        elif isinstance(tensor, ResultTensor) and not self.bound:
            tensor.set_result(result if self._host is None else None)
        elif self._host is not None:
            self._fill(self._host)
        else:
            self._download(result)

    def _download(self, result: Array) -> None:
        """Download a large result into the caller's tensor, or into a tensor of a packed type."""
        element_type = self._element_type_of(result)
        tensor = None if element_type.packed else self._resized_tensor(tuple(result.shape), element_type)
        if tensor is not None and tensor.is_continuous():
            self._downloads.into(tensor.array, result)
            return
        host = host_memory.empty(result.shape, result.dtype)
        self._downloads.into(host, result)
        self._fill(host)

    def overlaps(self, array: Array) -> bool:
        tensor = self._tensor
        if tensor is None or not tensor.remote or isinstance(array, np.ndarray):
            return False
        return interop.overlap(tensor._memory, array)

    def value(self, share: bool, decode_strings: bool | None) -> Any:
        """Return the output as `RequestOutput.value` does: a CuPy array for a tensor on the device, `Deferred` for a
        large result that was not read yet."""
        tensor = self.tensor
        if tensor.remote:
            return tensor._array
        if not isinstance(tensor, ResultTensor) or self.bound:
            return super().value(share, decode_strings)
        if share:
            return tensor.data if tensor.unread is None else Deferred(lambda: tensor.data)
        if tensor.unread is None:
            return self._copy(tensor._buffer.view(tensor.element_type.to_dtype()))
        copy = Deferred(partial(self._downloads.copy, tensor.unread, tensor.element_type))
        self._unread = [reference for reference in self._unread if reference() is not None] + [ref(copy)]
        return copy

    def looks_finite(self) -> bool:
        """Return whether evenly spaced elements of the result are all finite; True for types not in `FLOATS`."""
        tensor = self._tensor
        if tensor is None or tensor.element_type not in FLOATS:
            return True
        unread = tensor.unread if isinstance(tensor, ResultTensor) and not self.bound else None
        array = unread if unread is not None else tensor._array if tensor.remote else tensor._buffer
        if not array.flags.c_contiguous:
            return True
        sample = self._backend.to_host(array.reshape(-1)[:: max(1, array.size // SAMPLED_ELEMENTS)])
        return bool(np.isfinite(sample.astype(np.float32, copy=False)).all())

    def preserve(self) -> None:
        for reference in self._unread:
            copy = reference()
            if copy is not None:
                copy.get()
        self._unread.clear()
