"""What the runtime asks of a backend. `core` hands one in; nothing here imports one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ovgpu.ops._op import Array, Op
from ovgpu.ops._xp import Adapter
from ovgpu.types import Type

Call = Callable[[], Any]


class Backend(Protocol):
    """Memory, arrays on it, and the calls that run an op on arrays."""

    name: str
    xp: Adapter

    def allocate(self, nbytes: int) -> Any:
        """A block of memory, aligned to 64 bytes."""

    def place(self, block: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], kind: Type) -> Array:
        """An array in a block; offset and strides in bytes."""

    def view(self, array: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """An array in another one's memory; offset (from its first element) and strides in bytes."""

    def constant(self, value: Any) -> Array:
        """A host array as a constant of the device, aligned for its type."""

    def bind(self, op: Op, inputs: Sequence[Array | None], outputs: Sequence[Array], workspace: Sequence[Array],
             types: Sequence[Type]) -> Sequence[Call]:
        """The calls that write ``outputs``. Inputs that the op wants on the host are NumPy arrays."""

    def copy(self, source: Array, target: Array) -> Sequence[Call]:
        """The calls that copy an array into another of its shape and type."""

    def evaluate(self, op: Op, inputs: Sequence[Array | None], types: Sequence[Type]) -> Sequence[Array]:
        """The op's results in memory of their own."""
