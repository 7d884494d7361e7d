"""Classification, an extension of Triton: the highest values of an output and their indices, as text."""

from __future__ import annotations

import numpy as np

from ovgpu.serve.errors import ServeError, Status
from ovgpu.serve.protocol import NamedTensor
from ovgpu.serve.tensors import objects
from ovgpu.types import Type

CLASSIFIED = (Type.f32, Type.f64, Type.u8, Type.u16, Type.u32, Type.u64, Type.i8, Type.i16, Type.i32, Type.i64)
"""Element types of outputs that have classes, as of Triton."""
MAX_CLASSES = 1 << 20  # strings of an output: each takes some 60 bytes


def classified(output: NamedTensor, count: int, has_rows: bool) -> NamedTensor:
    """Return the ``count`` highest values of an output of one of the types `CLASSIFIED`, or all if it has fewer.

    The result has a string ``VALUE:INDEX`` for each, the highest first, and of equal ones the first first. With
    ``has_rows``, the result has shape [rows, count] and the values of each row, else [count].

    Raises: ServeError if these are more than `MAX_CLASSES` strings.
    """
    rows = output.array.reshape(len(output.array) if has_rows else 1, -1)
    strings = len(rows) * min(count, rows.shape[1])
    if strings > MAX_CLASSES:
        text = f"{strings} classes of output '{output.name}' are more than {MAX_CLASSES}"
        raise ServeError(Status.RESOURCE_EXHAUSTED, text)
    # A stable sort of the reversed values, read backwards, has the first of equal values first.
    order = rows.shape[1] - 1 - np.argsort(rows[:, ::-1], axis=1, kind="stable")[:, : -count - 1 : -1]
    values = np.take_along_axis(rows, order, axis=1)
    form = "{:f}:{}" if output.dtype in (Type.f32, Type.f64) else "{}:{}"
    texts = [form.format(value, index).encode() for value, index in zip(values.flat, order.flat)]
    return NamedTensor(output.name, Type.string, objects(texts).reshape(order.shape if has_rows else order.shape[1:]))
