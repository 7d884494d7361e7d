"""Writing constants into a .bin file."""

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

CHUNK = 1 << 22
"""Elements that are converted at a time, so that no constant is held twice as a whole."""

F16_MAX, F16_TINY = 65504.0, 2.0**-24


class Blobs:
    """A .bin file in the making. Equal constants are written once; each begins at a multiple of its type's
    size, so that a reader's views are aligned (OpenVINO itself packs them without gaps).

    The file ends with a checksum of its constants, which the .xml states as well: a reader knows by it that the two
    files belong together. OpenVINO does not look at what lies behind the last constant.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._end = 0
        self._known: dict[tuple[int, bytes], int] = {}

    def write_checksum(self) -> tuple[int, str]:
        """Writes the end of the file; returns its size in bytes, and the checksum in hexadecimal digits."""
        checksum = _hash()
        for (size, digest), start in self._known.items():
            checksum.update(b"%d %d " % (start, size) + digest)
        self._file.seek(self._end)
        self._file.write(checksum.digest())
        return self._end + CHECKSUM_BYTES, checksum.hexdigest()

    def write(self, chunks: Iterable[Array], alignment: int) -> tuple[int, int]:
        """Writes flat uint8 arrays as one constant; its offset and size."""
        start = -(-self._end // alignment) * alignment
        self._file.seek(start)
        size, digest = 0, _hash()
        for chunk in chunks:
            self._file.write(chunk.data)
            digest.update(chunk.data)
            size += chunk.size
        key = size, digest.digest()
        before = self._known.get(key) if size else 0
        if before is not None and before % alignment == 0:  # take it back
            self._file.truncate(self._end)
            return before, size
        self._known[key] = start
        self._end = start + size
        return start, size


def _hash() -> blake2b:
    import hashlib  # takes time to import that readers do not have to wait for

    return hashlib.blake2b(digest_size=CHECKSUM_BYTES)


def shape_of(op: Constant) -> tuple[int, ...]:
    return op.shape if isinstance(op, PackedConstant) else op.value.shape


def constant_bytes(op: Constant) -> Iterator[Array]:
    """The bytes of a constant in OpenVINO's layout; one for an empty constant, whose address it wants."""
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
    """Whether OpenVINO would store the constant as f16.

    It keeps those of which three quarters or more are out of range, and single values that f16 rounds by more
    than one part in ten thousand.
    """
    if op.element_type not in (Type.f32, Type.f64) or op.value.size == 0:
        return False
    if op.value.size == 1:
        value = float(op.value.reshape(()))
        return abs(value) <= F16_MAX and abs(float(np.float16(value)) - value) <= 1e-4 * abs(value)
    outside = 0
    for part in _parts(op.value):
        size = np.abs(part)
        outside += int(np.count_nonzero((size > F16_MAX) | ((size < F16_TINY) & (size > 0))))
    return outside < 0.75 * op.value.size


def f16_bytes(op: Constant) -> Iterator[Array]:
    """The values rounded to f16, with those out of range at its limits."""
    for part in _parts(op.value):
        yield np.clip(part, -F16_MAX, F16_MAX).astype(np.float16).view(np.uint8)


def _parts(values: Array) -> Iterator[Array]:
    flat = np.ascontiguousarray(values).reshape(-1)
    return (flat[i:i + CHUNK] for i in range(0, flat.size, CHUNK))
