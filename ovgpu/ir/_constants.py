"""The weights of a model file, and constants as views of them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu.errors import ModelError, OpError
from ovgpu.ops.graph import Constant
from ovgpu.symbolic import Spec
from ovgpu.types import Type
from ovgpu.types.mapped import map_file
from ovgpu.types.packing import nbytes, unpack

Array = np.ndarray[Any, Any]

SMALL = 1024
"""Up to so many elements a packed constant takes part in shape inference, which unpacks it."""


class PackedConstant(Constant):
    """A constant of several elements per byte, which is unpacked when `value` is first asked for."""

    packed: Array
    """The bytes in OpenVINO's layout, a view of the mapped file."""
    shape: tuple[int, ...]

    def __init__(self, element_type: Type, packed: Array, shape: tuple[int, ...]) -> None:
        self.__dict__.update(element_type=element_type, packed=packed, shape=shape)

    @cached_property
    def value(self) -> Array:
        return unpack(self.packed, self.element_type, self.shape)

    def infer(self) -> tuple[Spec, ...]:
        small = self.packed.size <= SMALL
        return (Spec(self.element_type, self.shape, self.value if small else None),)


class Weights:
    """The bytes of a .bin file; a file is mapped on first use and never read as a whole."""

    def __init__(self, source: Path | Any | None) -> None:
        self._source = source

    @property
    def name(self) -> str:
        return self._source.name if isinstance(self._source, Path) else "the weights"

    @cached_property
    def bytes(self) -> Array:
        """All of it as a read-only uint8 array (writable if the given buffer is)."""
        if self._source is None:
            raise OpError("the model has constants, but no weights were given")
        if not isinstance(self._source, Path):
            return as_bytes(self._source)
        try:
            return map_file(self._source)
        except (OSError, ValueError) as e:
            reason = getattr(e, "strerror", None) or e
            raise OpError(f"the weights cannot be read: {self._source}: {reason}") from None

    def constant(self, kind: Type, shape: tuple[int, ...], offset: int, size: int) -> Constant:
        """The constant at ``offset``, of ``size`` bytes: a view of the file, aligned or not.

        As in OpenVINO, it may have more bytes than it needs; the first of them count. Raises: OpError if the range is
        not in the file or too small for the shape.
        """
        if offset < 0 or size < 0:
            raise OpError(f"offset {offset} and size {size} must not be negative")
        if kind is Type.dynamic:
            raise OpError("a constant cannot have the dynamic element type")
        if kind is not Type.string:
            needed = nbytes(kind, shape)
            if needed == 0:  # openvino writes a byte all the same
                return _constant(kind, np.empty(0, np.uint8), shape)
            if size < needed:
                raise OpError(f"{kind.type_name} of shape {list(shape)} takes {needed} bytes, not {size}")
        data = self.bytes
        if offset + size > data.size:
            raise OpError(f"bytes {offset} to {offset + size} are outside {self.name}, which has {data.size}")
        return _constant(kind, data[offset : offset + (size if kind is Type.string else needed)], shape)


def _constant(kind: Type, raw: Array, shape: tuple[int, ...]) -> Constant:
    if len(shape) > 64:
        raise OpError(f"a constant has at most 64 dimensions, not {len(shape)}")
    if kind.packed:
        return PackedConstant(kind, raw, shape)
    try:
        return Constant(element_type=kind, value=unpack(raw, kind, shape))
    except (ValueError, OverflowError) as e:
        raise OpError(str(e)) from None


def as_bytes(weights: Any) -> Array:
    """A flat uint8 view of bytes, a memoryview, an array, or a tensor that has its array in ``data``."""
    if not isinstance(weights, (bytes, bytearray, memoryview, np.ndarray)):
        weights = getattr(weights, "data", weights)
    try:
        if isinstance(weights, np.ndarray):
            return np.ascontiguousarray(weights).reshape(-1).view(np.uint8)
        return np.frombuffer(weights, np.uint8) if len(weights) else np.empty(0, np.uint8)
    except (TypeError, ValueError, BufferError) as e:
        kind = type(weights).__name__
        raise ModelError(f"weights must be bytes, an array or a tensor, not {kind}: {e}") from None
