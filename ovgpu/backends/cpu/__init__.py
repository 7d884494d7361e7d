"""The NumPy backend: memory is NumPy's, a call is a ufunc with its arrays bound to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops._op import Array, Op, evaluate
from ovgpu.ops._xp import NUMPY
from ovgpu.runtime.backend import Call, Clock, Recording, explain
from ovgpu.runtime.profile import HostClock
from ovgpu.types import Type

ALIGNMENT = 64


class _Memory:
    """Lends an array's memory to another array without NumPy's checks of contiguity."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        address, readonly = owner.__array_interface__["data"]
        self.owner = owner
        self.__array_interface__ = {"version": 3, "shape": shape, "strides": strides,
                                    "typestr": f"|V{owner.itemsize}", "data": (address + offset, readonly)}


class CpuBackend:
    """See `ovgpu.runtime.backend.Backend`."""

    name = "CPU"
    fuses = False
    xp = NUMPY
    remote = False
    replays = False

    def for_request(self) -> CpuBackend:
        return self

    def allocate(self, nbytes: int) -> Any:
        if nbytes > sys.maxsize - ALIGNMENT:
            raise MemoryError
        block = np.empty(nbytes + ALIGNMENT, np.uint8)
        start = -block.ctypes.data % ALIGNMENT
        return block[start : start + nbytes]

    def place(self, block: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], kind: Type) -> Array:
        if 0 in shape:
            return np.empty(shape, kind.storage)
        return np.ndarray(shape, kind.storage, block, offset, strides)

    def dense(self, block: Any, shape: tuple[int, ...], kind: Type) -> Array:
        return np.ndarray(shape, kind.storage, block)

    def view(self, array: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        if array.shape == shape and array.strides == strides and not offset:
            return array
        if 0 in shape:
            return np.empty(shape, array.dtype)
        if array.flags.c_contiguous and array.dtype != object and array.size:
            return np.ndarray(shape, array.dtype, array, offset, strides)
        if array.dtype == object:
            return np.lib.stride_tricks.as_strided(array.reshape(-1)[offset // 8 :], shape, strides)
        return np.asarray(_Memory(array, offset, shape, strides)).view(array.dtype)

    def constant(self, value: Any) -> Array:
        if value.flags.aligned and value.flags.c_contiguous:
            return value
        aligned = self.place(self.allocate(value.nbytes), 0, value.shape, np.empty(value.shape, value.dtype).strides,
                             Type.of(value.dtype)) if value.nbytes else value.copy()
        np.copyto(aligned, value)
        return aligned

    def constants(self, values: Sequence[Any]) -> Sequence[Array]:
        return [self.constant(value) for value in values]

    def to_host(self, array: Array) -> Any:
        return array

    def pinned(self, nbytes: int) -> Any:
        return self.allocate(nbytes)

    def upload(self, source: Any, target: Array) -> Sequence[Call]:
        return () if source is target else self.copy(source, target)

    def download(self, source: Array, target: Any) -> Sequence[Call]:
        return self.upload(source, target)

    def active(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def explain(self, error: Exception) -> str:
        return explain(error)

    def slicing(self, incoming: int, outgoing: int) -> None:
        return None

    def replay(self, recording: Recording) -> bool:
        return False

    def memory_held(self) -> int:
        return 0

    def clock(self) -> Clock:
        return HostClock()

    def synchronize(self) -> None:
        pass

    def abandon(self) -> None:
        pass

    def bind(self, op: Op, inputs: Sequence[Array | None], outputs: Sequence[Array], workspace: Sequence[Array],
             types: Sequence[Type]) -> Sequence[Call]:
        if op.numpy is not None:
            calls: list[Call] = []
            add = calls.append
            done = op.numpy(lambda *args, **named: add(partial(*args, **named)), inputs, outputs, workspace)
            if done is not NotImplemented:
                return calls
        return [partial(_evaluate_into, op, inputs, outputs, types)]

    def copy(self, source: Array, target: Array) -> Sequence[Call]:
        return [partial(np.copyto, target, source)]

    def evaluate(self, op: Op, inputs: Sequence[Array | None], types: Sequence[Type]) -> Sequence[Array]:
        results = evaluate(op, self.xp, inputs, types)
        return [np.array(r) if any(x is not None and np.may_share_memory(r, x) for x in inputs) else r
                for r in results]


def _evaluate_into(op: Op, inputs: Sequence[Array | None], outputs: Sequence[Array], types: Sequence[Type]) -> None:
    for out, result in zip(outputs, evaluate(op, NUMPY, inputs, types)):
        if out.shape != result.shape:
            raise OpError(f"the result has shape {result.shape}, inference said {out.shape}")
        np.copyto(out, result)
