"""Inputs and outputs of a request on a device whose memory is not the host's.

The request's own tensors lie in pinned memory: an inference uploads and downloads by itself, as steps of its plan.
What the caller lends is copied into pinned memory first, unless it is on the device: then it is used where it is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any
from weakref import ref

import numpy as np

from ovgpu._util import host_memory
from ovgpu.backends.cuda import CudaBackend, interop, transfer
from ovgpu.errors import Error, OpError, explain
from ovgpu.ops.base.op import Array
from ovgpu.request.deferred import Downloads, ResultTensor, fits_pinned
from ovgpu.request.inputs import InputSlot
from ovgpu.request.outputs import OutputSlot
from ovgpu.request.pinned import HostDevicePair, StagedTensor, StagingBuffer
from ovgpu.request.ports import ConstOutput
from ovgpu.request.remote_tensor import RemoteTensor
from ovgpu.request.results import Deferred
from ovgpu.runtime.backend import Backend
from ovgpu.runtime.blocks import Block
from ovgpu.tensor import Tensor, on_device
from ovgpu.types import Shape, Type

ADDRESSES = 8  # of device arrays that are not the request's own, per input or output


class Addresses:
    """Arrays in memory of others, which they do not keep: the same one each time for the same place."""

    def __init__(self) -> None:
        self._known: OrderedDict[Any, Array | None] = OrderedDict()

    def array(self, given: Array, at_once: bool) -> Array | None:
        """The array for the place of a contiguous one. Unless ``at_once``, None when the place is new: what is bound
        to a place, a graph among it, is made for those that come again."""
        key = given.data.ptr, given.shape, given.dtype
        found = self._known.get(key)
        if found is None:
            if at_once or key in self._known:
                found = interop.borrowed(given)
            self._known[key] = found
            if len(self._known) > ADDRESSES:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return found


def slots(inputs: Iterable[ConstOutput], outputs: Iterable[ConstOutput],
          backend: Backend) -> tuple[list[InputSlot], list[OutputSlot]]:
    """The inputs and outputs of a request."""
    if isinstance(backend, CudaBackend):
        return [RemoteInput(port, backend) for port in inputs], [RemoteOutput(port, backend) for port in outputs]
    return [InputSlot(port) for port in inputs], [OutputSlot(port) for port in outputs]


def addresses(pairs: Sequence[HostDevicePair], outputs: Sequence[OutputSlot]) -> tuple[int, ...]:
    """What bindings differ by: where inputs are read, and where results are written that the caller has a place for."""
    found = [0 if pair.device.dtype == object else pair.device.data.ptr for pair in pairs]
    return (*found, *(address for output in outputs for address in output.address))


def snapshot(array: Array, kind: Type, backend: Backend) -> Tensor:
    """A copy of an array of the backend's as a tensor; on a device it stays there until its data are asked for."""
    if not backend.remote or kind.packed or array.dtype == object:
        return Tensor.from_array(np.array(backend.to_host(array)), kind)
    copy = backend.xp.empty(array.shape, array.dtype)
    for call in backend.copy(array, copy):
        call()
    backend.synchronize()
    return RemoteTensor.of(copy, kind, moves=True)


def arrived(tensor: Tensor, backend: Backend) -> Array:
    """A tensor's elements where the backend can copy them: its own memory if that is there."""
    if (isinstance(tensor, RemoteTensor) and tensor.remote and isinstance(backend, CudaBackend)
            and tensor._array.data.device_id == backend.number):
        interop.order(tensor.producer, backend.stream)
        return tensor._array
    with backend.active():
        return backend.constant(np.array(tensor.array))


class InputTensor(StagedTensor):
    """The request's own tensor of an input: in pinned memory, unless it is large."""

    __slots__ = ()

    def _new(self, element_type: Type, shape: Shape) -> Array:
        if fits_pinned(element_type, tuple(shape)):
            return super()._new(element_type, shape)
        self.pinned = False  # also when it shrinks
        return host_memory.zeros(tuple(shape), element_type.storage)


class RemoteInput(InputSlot):
    """One input of a request."""

    def __init__(self, port: ConstOutput, backend: CudaBackend) -> None:
        super().__init__(port)
        self._backend = backend
        dynamic = port.partial_shape.is_dynamic
        self._lending = StagingBuffer(backend, dynamic)  # for arrays on the host
        self._inbox: Block[Array] = Block(backend.allocate, backend.dense, dynamic)  # for copies of those on the device
        self._received: Array | None = None  # what was last copied there
        self._producer: Any = None  # of an array on the device
        self._addresses = Addresses()

    def set(self, value: Any, share: bool) -> None:
        """Takes a value, see `InputSlot.set`. An array on the device is used where it is if it is shared, contiguous
        and of the right type, else copied. Error for an array on another device, or if there is no memory for it."""
        try:
            self._set(value, share)
        except MemoryError as e:
            raise self._exhausted(e) from e

    def _set(self, value: Any, share: bool) -> None:
        if isinstance(value, (np.ndarray, Tensor)) or not on_device(value):
            super().set(value, share)
            self._producer = None
            return
        array = interop.adopt(value)
        self._check_device(array)
        if self._kind is not None and self._kind.packed:
            return self._set(interop.to_host(array, value), share)
        if array.ndim == 0 and self._bounds:
            array = array.reshape((1,) * len(self._bounds))
        self._check(array.shape)
        if not share or array.dtype != (self._dtype or array.dtype):
            interop.order(value, self._backend.stream)
            array, value = self.staged(array), None
            self._backend.synchronize()  # its owner may write to it from now on
        self._tensor, self._lent, self._producer = None, array, value

    def bind(self, tensor: Tensor) -> None:
        if tensor.remote:
            self._check_device(tensor._array)
        super().bind(tensor)
        self._producer = None

    def _check_host(self, tensor: Tensor) -> None:
        pass

    def _check_device(self, array: Array) -> None:
        if array.data.device_id != self._backend.number:
            raise Error(f"[Parameter] the array is on CUDA device {array.data.device_id}, the model on "
                        f"{self._backend.number} ({self.port.node.source_location})")

    def _new_tensor(self, kind: Type, shape: tuple[int, ...]) -> Tensor:
        if kind.packed or kind is Type.string:
            return super()._new_tensor(kind, shape)
        return InputTensor.of(StagingBuffer(self._backend, self.port.partial_shape.is_dynamic), kind, shape)

    @property
    def tensor(self) -> Tensor:
        """The tensor that is read."""
        if self._tensor is None and self._lent is not None and not isinstance(self._lent, np.ndarray):
            self._tensor = RemoteTensor.of(self._lent, Type.of(self._lent.dtype), producer=self._producer)
        return super().tensor

    def producer(self) -> Any:
        tensor = self._tensor
        return tensor.producer if isinstance(tensor, RemoteTensor) and tensor.remote else self._producer

    def read(self) -> Array:
        """The input as an array, on the host or on the device. Raises as `InputSlot.read`."""
        if self._lent is not None:
            return self._lent
        if self._tensor is not None and self._tensor.remote:
            self._check(self._tensor._shape)
            array: Array = self._tensor._array
            return array
        return self._bound()

    def pair(self, array: Array) -> HostDevicePair:
        """Return what `read` gave as an array in pinned memory, and the array on the device that steps read. A large
        array is uploaded at once by chunks; both are then the one on the device. OpError if memory is short."""
        try:
            return self._pair(array)
        except MemoryError as e:
            raise self._exhausted(e) from e

    def _exhausted(self, error: MemoryError) -> OpError:
        return OpError(explain(error)).at("Parameter", self.port.node.source_location)

    def _pair(self, array: Array) -> HostDevicePair:
        if not isinstance(array, np.ndarray):
            device = array if array is self._received else self._placed(array)
            return HostDevicePair(device, device)
        if array.dtype == object:
            return HostDevicePair(array, array)
        kind = self._kind or Type.of(array.dtype)
        if array.nbytes > transfer.POOLED:
            device = self._received = self._inbox.array(array.shape, kind)
            self._backend.send(array, device)
            return HostDevicePair(device, device)
        tensor = self._tensor
        if self._lent is None and isinstance(tensor, StagedTensor) and tensor is self._own and tensor.pinned:
            return tensor.pair()
        pair = self._lending.pair(array.shape, kind)
        np.copyto(pair.host, array)
        return pair

    def _placed(self, array: Array) -> Array:
        found = None
        if array.flags.c_contiguous:
            found = self._addresses.array(array, at_once=self._lent is None)
        return self.staged(array) if found is None else found

    def staged(self, array: Array) -> Array:
        """A copy, in the input's type, of an array on the device in memory of the slot's own."""
        kind = self._kind or Type.of(array.dtype)
        received = self._received = self._inbox.array(tuple(array.shape), kind)
        self._backend.convert(array, received)
        return received


class RemoteOutput(OutputSlot):
    """One output of a request: computed on the device, and downloaded if its tensor is on the host. Large results stay
    there until they are read, see `ovgpu.request.deferred`."""

    def __init__(self, port: ConstOutput, backend: CudaBackend) -> None:
        super().__init__(port)
        self._backend = backend
        self._downloads = Downloads(backend, port.node.source_location)
        self._new_memory()
        self._host: Array | None = None
        self._addresses = Addresses()
        self._unread: list[ref[Deferred]] = []  # copies of the last result that were handed out

    def _new_memory(self) -> None:
        dynamic = self.port.partial_shape.is_dynamic
        self._staging = StagingBuffer(self._backend, dynamic)
        self._large: Block[Array] = Block(self._backend.allocate, self._backend.dense, dynamic)  # not on the host

    def bind(self, tensor: Tensor) -> None:
        if tensor.remote and tensor._array.data.device_id != self._backend.number:
            raise Error(f"[Result] the tensor is on CUDA device {tensor._array.data.device_id}, the model on "
                        f"{self._backend.number} ({self.port.node.source_location})")
        own = self._tensor is not None and not self.bound
        super().bind(tensor)
        if own:  # which keeps its memory
            self._new_memory()

    def _check_host(self, tensor: Tensor) -> None:
        pass

    def _new_tensor(self, kind: Type, shape: tuple[int, ...]) -> Tensor:
        if kind.packed or kind is Type.string:
            return super()._new_tensor(kind, shape)
        return ResultTensor.create(self._staging, self._downloads, kind, shape)

    @property
    def address(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self._tensor._array.data.ptr,) if self._tensor is not None and self._tensor.remote else ()

    def producer(self) -> Any:
        tensor = self._tensor
        return tensor.producer if isinstance(tensor, RemoteTensor) and tensor.remote else None

    def place(self, shape: tuple[int, ...], kind: Type) -> Array:
        self._host = None
        if self._tensor is not None and self._tensor.remote:
            array = self._shaped(shape, kind)._array
            if array.flags.c_contiguous:
                self._array = self._addresses.array(array, at_once=True)
            else:
                self._array = self._staging.pair(shape, kind).device
            return self._array
        pinned = fits_pinned(kind, shape)
        if not (kind.packed or self.bound):
            tensor = self._tensor
            if isinstance(tensor, ResultTensor) and tensor._shape != shape:
                tensor.expect(None)
            tensor = self._shaped(shape, kind)
            pinned = isinstance(tensor, ResultTensor) and tensor.settle()
        if pinned:
            self._host, self._array = self._staging.pair(shape, kind)
        else:
            self._array = self._large.array(shape, kind)
        return self._array

    def host(self) -> Array | None:
        return self._host

    def keep(self, result: Array) -> None:
        placed = result is self._array
        tensor = self._tensor
        if tensor is not None and tensor.remote:
            if not placed or not tensor.is_continuous():
                self._shaped(tuple(result.shape), self._kind_of(result))
                self._backend.convert(result, tensor._array)
                self._backend.synchronize()
        elif not placed:
            if isinstance(tensor, ResultTensor):
                tensor.expect(None)
            self._fill(self._backend.to_host(result))
        elif isinstance(tensor, ResultTensor) and not self.bound:
            tensor.expect(result if self._host is None else None)
        elif self._host is not None:
            self._fill(self._host)
        else:
            self._download(result)

    def _download(self, result: Array) -> None:
        """Copy a large result into a tensor of the caller's, or of a packed type."""
        kind = self._kind_of(result)
        tensor = None if kind.packed else self._shaped(tuple(result.shape), kind)
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

    def value(self, share: bool, decode_strings: bool) -> Any:
        """As `OutputSlot.value`; a tensor on the device is a CuPy array, a large result that was not read yet is
        `Deferred`."""
        tensor = self.tensor
        if tensor.remote:
            return tensor._array
        if not isinstance(tensor, ResultTensor) or self.bound:
            return super().value(share, decode_strings)
        if share:
            return tensor.data if tensor.unread is None else Deferred(lambda: tensor.data)
        if tensor.unread is None:
            return tensor._buffer.view(tensor.element_type.to_dtype()).copy()
        copy = Deferred(partial(self._downloads.copy, tensor.unread, tensor.element_type))
        self._unread = [known for known in self._unread if known() is not None] + [ref(copy)]
        return copy

    def preserve(self) -> None:
        for known in self._unread:
            copy = known()
            if copy is not None:
                copy.get()
        self._unread.clear()
