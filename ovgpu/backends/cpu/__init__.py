"""The NumPy backend: memory blocks are NumPy arrays, and a call is a NumPy function with its arguments bound."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from ovgpu._util import host_memory
from ovgpu.errors import OpError, explain
from ovgpu.ops.base.op import Array, Op, call, evaluate
from ovgpu.ops.base.tasks import record, workers
from ovgpu.ops.base.xp import NUMPY
from ovgpu.runtime.backend import Call, Clock, Recording
from ovgpu.runtime.profile import HostClock
from ovgpu.types import Type
from ovgpu.types.mapped import let_go

ALIGNMENT_BYTES = 64  # of memory blocks
PIECE_BYTES = 1 << 22  # of a constant, which a worker copies at a time


class _Memory:
    """A view of an array's memory through ``__array_interface__``, without NumPy's checks of contiguity."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        address, readonly = owner.__array_interface__["data"]
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "strides": strides,
            "typestr": f"|V{owner.itemsize}",
            "data": (address + offset, readonly),
        }


class CpuBackend:
    """The backend of the CPU, see `ovgpu.runtime.backend.Backend`. All requests share it."""

    name = "CPU"
    fuses = False
    xp = NUMPY
    remote = False
    captures_graphs = False

    def for_request(self) -> CpuBackend:
        return self

    def allocate(self, nbytes: int) -> Any:
        if nbytes > sys.maxsize - ALIGNMENT_BYTES:
            raise MemoryError
        block = host_memory.empty((nbytes + ALIGNMENT_BYTES,), np.uint8)
        start = -block.ctypes.data % ALIGNMENT_BYTES
        return block[start : start + nbytes]

    def require(self, nbytes: int) -> None:
        host_memory.require(nbytes)

    def make_array(
        self, block: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Type
    ) -> Array:
        if 0 in shape:
            return np.empty(shape, dtype.storage)
        return np.ndarray(shape, dtype.storage, block, offset, strides)

    def dense(self, block: Any, shape: tuple[int, ...], dtype: Type) -> Array:
        return np.ndarray(shape, dtype.storage, block)

    def view(self, array: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        if array.shape == shape and array.strides == strides and not offset:
            return array
        if 0 in shape:
            return np.empty(shape, array.dtype)
        if array.flags.c_contiguous and array.dtype != object and array.size:
            return np.ndarray(shape, array.dtype, array, offset, strides)
        if array.strides == strides and (index := _slices(array, offset, shape)) is not None:
            return array[index]
        if array.dtype == object:
            return np.lib.stride_tricks.as_strided(array.reshape(-1)[offset // 8 :], shape, strides)
        return np.asarray(_Memory(array, offset, shape, strides)).view(array.dtype)

    def constant(self, value: Any) -> Array:
        (array,), copy = self.constants([value])
        copy()
        return array

    def constants(self, values: Sequence[Any]) -> tuple[Sequence[Array], Callable[[], None]]:
        arrays = [self._constant_memory(value) for value in values]
        copies = [(target, value) for target, value in zip(arrays, values) if target is not value]
        work = workers(sum(target.nbytes for target, _ in copies) > PIECE_BYTES)
        pieces = (piece for target, value in copies for piece in _pieces(target, value))
        for worker, piece in zip(cycle(work), pieces):
            worker(_move, *piece)
        return arrays, partial(record, call, work)

    def _constant_memory(self, value: Array) -> Array:
        """Return the constant itself if it is aligned and dense, else memory for an aligned and dense copy."""
        if value.flags.aligned and value.flags.c_contiguous:
            return value
        if not value.nbytes:
            return value.copy()
        return self.dense(self.allocate(value.nbytes), value.shape, Type.of(value.dtype))

    def to_host(self, array: Array) -> Any:
        return array

    def pinned(self, nbytes: int) -> Any:
        return self.allocate(nbytes)

    def upload(self, source: Any, target: Array) -> Sequence[Call]:
        return () if source is target else self.copy(source, target)

    def download(self, source: Array, target: Any) -> Sequence[Call]:
        return self.upload(source, target)

    def channels_last(self) -> Sequence[Type]:
        return ()

    def multiplies_i8(self) -> bool:
        return False

    def active(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def explain(self, error: Exception) -> str:
        return explain(error)

    def slicing(self, incoming: int, outgoing: int) -> None:
        return None

    def nesting(self) -> None:
        return None

    def restore(self, nesting: None) -> None:
        pass

    def launch_whole(self, recording: Recording) -> bool:
        return False

    def launch(self, recording: Recording) -> bool:
        return False

    def ready(self, calls: Sequence[Call]) -> bool:
        return True

    def finish_compiling(self) -> None:
        pass

    def export_kernels(self) -> dict[str, bytes]:
        return {}

    def import_kernels(self, files: Mapping[str, bytes]) -> None:
        pass  # NumPy's functions are not part of a model

    def memory_held(self) -> int:
        return 0

    def memory_of_request(self) -> dict[str, int]:
        return {}

    def clock(self) -> Clock:
        return HostClock()

    def synchronize(self) -> None:
        pass

    def order(self, owners: Sequence[Any]) -> None:
        pass

    def abandon(self) -> None:
        pass

    def bind(
        self,
        op: Op,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array],
        workspace: Sequence[Array],
        types: Sequence[Type],
    ) -> Sequence[Call]:
        if op.numpy is not None:
            calls: list[Call] = []
            add = calls.append
            status = op.numpy(lambda *args, **named: add(partial(*args, **named)), inputs, outputs, workspace)
            if status is not NotImplemented:
                return calls
        return [partial(_evaluate_into, op, inputs, outputs, types)]

    def copy(self, source: Array, target: Array) -> Sequence[Call]:
        return [partial(np.copyto, target, source)]

    def evaluate(self, op: Op, inputs: Sequence[Array | None], types: Sequence[Type]) -> Sequence[Array]:
        results = evaluate(op, self.xp, inputs, types)
        return [np.array(r) if any(x is not None and np.may_share_memory(r, x) for x in inputs) else r for r in results]


def _pieces(target: Array, source: Array) -> Iterator[tuple[Array, Array]]:
    """Yield pieces of a copy, as arrays of bytes: NumPy copies bytes faster than unaligned elements."""
    if not source.flags.c_contiguous:
        yield target, source
        return
    target, source = (array.reshape(-1).view(np.uint8) for array in (target, source))
    for first in range(0, source.size, PIECE_BYTES):
        yield target[first : first + PIECE_BYTES], source[first : first + PIECE_BYTES]


def _move(target: Array, source: Array) -> None:
    np.copyto(target, source)
    let_go(source)


def _slices(array: Array, offset: int, shape: tuple[int, ...]) -> tuple[slice, ...] | None:
    """Return the slices that select a part of this shape and the array's own strides, at a byte offset.

    None if one slice per axis cannot do that. Indexing is many times faster than `_Memory`.
    """
    index = []
    for extent, step, size in zip(array.shape, array.strides, shape):
        if step <= 0:
            return None
        start, offset = divmod(offset, step)
        if start + size > extent:
            return None
        index.append(slice(start, start + size))
    return None if offset else tuple(index)


def _evaluate_into(op: Op, inputs: Sequence[Array | None], outputs: Sequence[Array], types: Sequence[Type]) -> None:
    host_memory.require(sum([out.nbytes for out in outputs]))  # `evaluate` allocates as much again
    for out, result in zip(outputs, evaluate(op, NUMPY, inputs, types)):
        if out.shape != result.shape:
            raise OpError(f"the result has shape {result.shape}, inference said {out.shape}")
        np.copyto(out, result)
