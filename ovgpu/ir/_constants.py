"""Weights of a model file, and constants as views of them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu.errors import ModelError, OpError, explain
from ovgpu.ir._files import is_lfs_pointer
from ovgpu.ir._xml import Element
from ovgpu.model import Model, all_nodes
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.spec import Spec
from ovgpu.types import Type
from ovgpu.types.mapped import check_unchanged, map_file
from ovgpu.types.packing import nbytes, unpack

Array = np.ndarray[Any, Any]

CHECKSUM_BYTES = 16
"""Size of the checksum at the end of a .bin file that ovgpu has written."""
MAX_INFERENCE_BYTES = 1024
"""Packed constants up to this size are unpacked so that shape inference knows their values."""
MAX_RANK = 64
"""Largest rank of a NumPy array."""


class PackedConstant(Constant):
    """Constant with several elements per byte, unpacked when `value` is first read."""

    packed: Array
    """The bytes in OpenVINO's layout, a view of the mapped file."""
    shape: tuple[int, ...]

    def __init__(self, element_type: Type, packed: Array, shape: tuple[int, ...]) -> None:
        self.__dict__.update(element_type=element_type, packed=packed, shape=shape)

    @cached_property
    def value(self) -> Array:
        return unpack(self.packed, self.element_type, self.shape)

    def infer_specs(self) -> tuple[Spec, ...]:
        small = self.packed.size <= MAX_INFERENCE_BYTES
        return (Spec(self.element_type, self.shape, self.value if small else None),)


class Weights:
    """Bytes of a .bin file. The file is mapped on first use and never read as a whole."""

    def __init__(self, source: Path | Any | None, declared: Element | None = None) -> None:
        """Use a path, a buffer, a function from layer names to buffers, or None. ``declared`` is the .xml's <weights>
        element: size and checksum of the .bin."""
        self._source, self._declared = source, declared

    @property
    def name(self) -> str:
        return self._source.name if isinstance(self._source, Path) else "the weights"

    @cached_property
    def bytes(self) -> Array:
        """The whole file as a read-only uint8 array; a given buffer keeps its writability."""
        if self._source is None:
            raise OpError("the model has constants, but no weights were given")
        if not isinstance(self._source, Path):
            return as_bytes(self._source)
        try:
            data = map_file(self._source)
        except (OSError, ValueError) as e:
            reason = getattr(e, "strerror", None) or e
            raise OpError(f"the weights cannot be read: {self._source}: {reason}") from None
        if is_lfs_pointer(data[:100].tobytes()):
            raise ModelError(f"{self.name} is a pointer of Git LFS: `git lfs pull` fetches the file itself")
        self._check(data)
        return data

    def _bytes_of(self, name: str) -> Array:
        """Return the bytes that the function gives for a layer. Raises: OpError if it fails."""
        try:
            return as_bytes(self._source(name))  # type: ignore[misc, operator]
        except Exception as e:
            raise OpError(f"the function that gives the weights failed: {explain(e)}") from e

    def _check(self, data: Array) -> None:
        """Raise ModelError if the file is not the one that was written together with the .xml."""
        size, checksum = (None if self._declared is None else self._declared.get(name) for name in ("size", "checksum"))
        if size is None or checksum is None:
            return
        if size != str(data.size):
            raise ModelError(f"{self.name} has {data.size} bytes, but the .xml was written with one of {size} bytes")
        if checksum != data[-CHECKSUM_BYTES:].tobytes().hex():
            raise ModelError(
                f"{self.name} is not the file that the .xml was written with: it does not end with the "
                f"checksum {checksum}. Weights that are given as bytes or arrays are not compared"
            )

    def constant(self, name: str, dtype: Type, shape: tuple[int, ...], offset: int, size: int) -> Constant:
        """Return the constant of ``size`` bytes at ``offset``: a view of the file, aligned or not. If the weights are a
        function, it gives the bytes of the layer ``name``, and ``offset`` has no meaning.

        As in OpenVINO, the range may be larger than the shape needs; the first bytes count. Raises: OpError if the
        range is outside the file or too small for the shape.
        """
        if offset < 0 or size < 0:
            raise OpError(f"offset {offset} and size {size} must not be negative")
        if dtype is Type.dynamic:
            raise OpError("a constant cannot have the dynamic element type")
        if dtype is not Type.string:
            needed = nbytes(dtype, shape)
            if needed == 0:  # OpenVINO still writes one byte for it
                return _constant(dtype, np.empty(0, np.uint8), shape)
            if size < needed:
                raise OpError(f"{dtype.type_name} of shape {list(shape)} takes {needed} bytes, not {size}")
        if callable(self._source):
            data, offset = self._bytes_of(name), 0
            if data.size != size:
                raise OpError(f"the constant has {size} bytes, and the function that gives the weights {data.size}")
        else:
            data = self.bytes
        if offset + size > data.size:
            raise OpError(f"it takes bytes {offset} to {offset + size} of {self.name}, which has {data.size} bytes")
        return _constant(dtype, data[offset : offset + (size if dtype is Type.string else needed)], shape)


def check_files(model: Model) -> None:
    """Raise ModelError if a file that holds constants of the model has changed since it was read."""
    check_unchanged(
        op.packed if isinstance(op, PackedConstant) else op.value
        for node in all_nodes(model)
        if isinstance(op := node.op, Constant)
    )


def _constant(dtype: Type, raw: Array, shape: tuple[int, ...]) -> Constant:
    if len(shape) > MAX_RANK:
        raise OpError(f"a constant has at most {MAX_RANK} dimensions, not {len(shape)}")
    if dtype.packed:
        return PackedConstant(dtype, raw, shape)
    try:
        return Constant(element_type=dtype, value=unpack(raw, dtype, shape))
    except (ValueError, OverflowError) as e:
        raise OpError(str(e)) from None


def as_bytes(weights: Any) -> Array:
    """Return a flat uint8 view of bytes, a memoryview, an array, or a tensor with an array in ``data``."""
    if not isinstance(weights, (bytes, bytearray, memoryview, np.ndarray)):
        weights = getattr(weights, "data", weights)
    try:
        if isinstance(weights, np.ndarray):
            return np.ascontiguousarray(weights).reshape(-1).view(np.uint8)
        return np.frombuffer(weights, np.uint8) if len(weights) else np.empty(0, np.uint8)
    except (TypeError, ValueError, BufferError) as e:
        class_name = type(weights).__name__
        raise ModelError(f"weights must be bytes, an array or a tensor, not {class_name}: {e}") from None
