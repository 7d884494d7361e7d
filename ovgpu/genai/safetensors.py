"""Files of tensors in the format of safetensors."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np

from ovgpu.errors import Error

Array = np.ndarray[Any, Any]
TYPES: dict[Any, Any] = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def read_safetensors(contents: Any, where: str) -> dict[str, Array]:
    """Return the tensors of floats in bytes, u8 [n], by name. They are views of these.

    Raises: Error, which begins with ``where``, for other contents.
    """
    data = np.frombuffer(contents, np.uint8)
    size = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or size > len(data) - 8:
        raise Error(f"{where} is no safetensors file: its header is not complete")
    try:
        header = json.loads(data[8 : 8 + size].tobytes())
        return {
            name: _tensor(data[8 + size :], entry)
            for name, entry in header.items()
            if name != "__metadata__" and entry["dtype"] in TYPES
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise Error(f"{where} is no safetensors file: {e!r}") from None


def _tensor(data: Array, entry: dict[str, Any]) -> Array:
    """Return a tensor by its entry in the header. Raises: ValueError or TypeError for one that does not fit."""
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end <= len(data):
        raise ValueError(f"the tensor {entry} is outside the file")
    part = data[begin:end]
    if begin % np.dtype(TYPES[entry["dtype"]]).itemsize:
        part = part.copy()
    array: Array = part.view(TYPES[entry["dtype"]]).reshape(entry["shape"])
    return array
