"""CuPy's own arrays on the emulated card: `pytest --device arrays`.

CuPy itself reshapes, slices and takes addresses, with the same errors as on a card. Memory, copies, streams, modules
and launches are the emulator's, and so are the computations for which CuPy has kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import cupy
import numpy as np

from ovgpu.backends.cuda.xp import CupyAdapter
from ovgpu.ops.base import op as op_module
from ovgpu.ops.base.xp import Adapter
from tests.emulator import cuda
from tests.emulator import cupy_emu as emulator
from tests.emulator.ndarray import ndarray as EmulatedArray

from .cuda import Namespace


class MemoryPointer(cupy.cuda.MemoryPointer):  # type: ignore[misc]
    """CuPy's pointer, which copies as the emulator does."""

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, super().__add__(offset).ptr - self.mem.ptr)

    @property
    def emulated(self) -> cuda.MemoryPointer:
        return cuda.MemoryPointer(self.mem, self.ptr - self.mem.ptr)

    def _device_array_pointer(self) -> int:
        return int(self.ptr)

    def copy_from_device_async(self, source: MemoryPointer, size: int, stream: Any = None) -> None:
        self.emulated.copy_from_device_async(source.emulated, size, stream)

    def copy_from_host_async(self, mem: int, size: int, stream: Any = None) -> None:
        self.emulated.copy_from_host_async(mem, size, stream)

    def copy_to_host_async(self, mem: int, size: int, stream: Any = None) -> None:
        self.emulated.copy_to_host_async(mem, size, stream)

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        self.emulated.memset_async(value, size, stream)


class ndarray(cupy.ndarray):  # type: ignore[misc]
    """CuPy's array in the emulator's memory."""

    def __new__(cls, *args: Any, **named: Any) -> Self:
        with cupy.cuda.using_allocator(alloc):
            found: Self = super().__new__(cls, *args, **named)
        return found

    @property
    def emulated(self) -> EmulatedArray:
        return EmulatedArray(self.shape, self.dtype, self.data.emulated, self.strides)

    def _device_array_pointer(self) -> int:
        return int(self.data.ptr)

    def set(self, arr: np.ndarray[Any, Any], stream: Any = None) -> None:
        self.emulated.set(arr, stream)

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
        return self.emulated.get(stream, order, out, blocking)

    def copy(self, order: str = "C") -> ndarray:
        return _array(self.emulated.copy(order))


def alloc(size: int) -> MemoryPointer:
    return _pointer(cuda.alloc(size))


def _pointer(emulated: cuda.MemoryPointer) -> MemoryPointer:
    block = emulated.mem
    memory = cupy.cuda.UnownedMemory(block.ptr, block.size, block, block.device_id)
    return MemoryPointer(memory, emulated.ptr - block.ptr)


def _array(emulated: EmulatedArray) -> ndarray:
    return ndarray(emulated.shape, emulated.dtype, _pointer(emulated.data), emulated.strides)


def evaluate(op: op_module.Op, xp: Adapter, inputs: Sequence[Any], types: Sequence[Any]) -> Sequence[Any]:
    """Evaluate as `ovgpu.ops.base.op.evaluate`, but on the emulator's arrays if the inputs are CuPy's."""
    if not isinstance(xp, CupyAdapter):
        return op_module.evaluate(op, xp, inputs, types)
    found: Sequence[Any] = _to_cupy(op_module.evaluate(op, CupyAdapter(emulator), _to_emulator(inputs), types))
    return found


def _to_emulator(value: Any) -> Any:
    """Return `value` with the emulator's arrays in place of CuPy's, also inside lists."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_to_emulator, value))
    return value.emulated if isinstance(value, ndarray) else value


def _to_cupy(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_to_cupy, value))
    return _array(value) if isinstance(value, EmulatedArray) else value


class Module(Namespace):
    """The emulator with CuPy's arrays."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(emulator, name)
        if isinstance(found, type) or not callable(found):
            return found
        return lambda *args, **named: _to_cupy(found(*_to_emulator(args), **named))


def empty(shape: Any, dtype: Any = float) -> ndarray:
    return ndarray(shape, dtype)


MODULE = Module(
    emulator,
    ndarray=ndarray,
    empty=empty,
    cuda=Namespace(
        cuda,
        MemoryPointer=MemoryPointer,
        UnownedMemory=cupy.cuda.UnownedMemory,
        PinnedMemoryPointer=cupy.cuda.PinnedMemoryPointer,
        alloc=alloc,
    ),
)
