"""Writer of constants into a .bin file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ovgpu.ir._constants import CHECKSUM_BYTES, PackedConstant
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.types import Type, pack

if TYPE_CHECKING:
    from hashlib import blake2b

Array = np.ndarray[Any, Any]

CHUNK_ELEMENTS = 1 << 22
"""Elements converted at a time, so that no second copy of a whole constant is held."""

F16_MAX, F16_TINY = 65504.0, 2.0**-24


class Blobs:
    """Writer of a .bin file. Equal constants are written once. Each constant begins at a multiple of its type's
    size, so that a reader's views are aligned (OpenVINO itself packs them without gaps).

    The file ends with a checksum of its constants. The .xml contains it as well, so that a reader can check that the
    two files belong together. OpenVINO ignores bytes after the last constant.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._end = 0
        self._known: dict[tuple[int, bytes], int] = {}

    def write_checksum(self) -> tuple[int, str]:
        """Write the checksum at the end of the file. Return the file size in bytes and the checksum in hexadecimal."""
        checksum = _hash()
        for (size, digest), start in self._known.items():
            checksum.update(b"%d %d " % (start, size) + digest)
        self._file.seek(self._end)
        self._file.write(checksum.digest())
        return self._end + CHECKSUM_BYTES, checksum.hexdigest()

    def write(self, chunks: Iterable[Array], alignment: int) -> tuple[int, int]:
        """Write flat uint8 arrays as one constant. Return its offset and size in bytes."""
        start = -(-self._end // alignment) * alignment
        self._file.seek(start)
        size, digest = 0, _hash()
        for chunk in chunks:
            self._file.write(chunk.data)
            digest.update(chunk.data)
            size += chunk.size
        key = size, digest.digest()
        existing = self._known.get(key) if size else 0
        if existing is not None and existing % alignment == 0:  # discard the copy
            self._file.truncate(self._end)
            return existing, size
        self._known[key] = start
        self._end = start + size
        return start, size


def _hash() -> blake2b:
    import hashlib  # slow to import, and readers do not need it

    return hashlib.blake2b(digest_size=CHECKSUM_BYTES)


def shape_of(op: Constant) -> tuple[int, ...]:
    """Return the shape of a constant without unpacking it."""
    return op.shape if isinstance(op, PackedConstant) else op.value.shape


def constant_bytes(op: Constant) -> Iterator[Array]:
    """Yield the bytes of a constant in OpenVINO's layout. An empty one has one byte, as OpenVINO needs an address."""
    if op.element_type is not Type.string and 0 in shape_of(op):
        yield np.zeros(1, np.uint8)
    elif isinstance(op, PackedConstant):
        yield op.packed
    elif op.element_type is Type.string or op.element_type.packed:
        yield pack(op.value, op.element_type)
    else:
        yield np.ascontiguousarray(op.value).reshape(-1).view(np.uint8)


# ---- compression to f16


def fits_f16(op: Constant) -> bool:
    """Return whether OpenVINO would store the constant as f16.

    It does not if three quarters or more of the values are out of range, or if f16 rounds a single value by more
    than one part in ten thousand.
    """
    if op.element_type not in (Type.f32, Type.f64) or op.value.size == 0:
        return False
    if op.value.size == 1:
        value = float(op.value.reshape(()))
        return abs(value) <= F16_MAX and abs(float(np.float16(value)) - value) <= 1e-4 * abs(value)
    out_of_range = 0
    for part in _parts(op.value):
        size = np.abs(part)
        out_of_range += int(np.count_nonzero((size > F16_MAX) | ((size < F16_TINY) & (size > 0))))
    return out_of_range < 0.75 * op.value.size


def f16_bytes(op: Constant) -> Iterator[Array]:
    """Yield the bytes of the values rounded to f16; values out of range are clipped to its limits."""
    for part in _parts(op.value):
        yield np.clip(part, -F16_MAX, F16_MAX).astype(np.float16).view(np.uint8)


def _parts(values: Array) -> Iterator[Array]:
    flat = np.ascontiguousarray(values).reshape(-1)
    return (flat[i : i + CHUNK_ELEMENTS] for i in range(0, flat.size, CHUNK_ELEMENTS))
