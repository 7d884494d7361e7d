"""Upload of a model's constants to one block of device memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from ovgpu.backends.cuda import rt, transfer
from ovgpu.backends.cuda.transfer import Chunk
from ovgpu.ops.base.lazy import Converted, Joined, LazyConstant
from ovgpu.ops.base.op import Array, Op

ALIGNMENT_BYTES = 256  # of constants in their block; at least the widest load of a kernel

Compute = Callable[[Op, Array, Array], None]
"""Enqueues an op of one device array, which writes another one."""


def slab(
    values: Sequence[Array | LazyConstant], stream: Any, compute: Compute
) -> tuple[list[Array], Callable[[], None]]:
    """Return device arrays for constants of the host, and the function that uploads these and waits.

    Each host array is read once. Those of `Converted` constants are uploaded as they are, and ``compute`` converts them
    on the device: the host would take ten times as long to convert as to copy them.
    """
    if not values:
        return [], lambda: None
    cupy = rt.cupy()
    parts = [list(_parts(value)) for value in values]
    # A chunk of plain arrays overwrites what lies between them, so that no converted array may.
    order = sorted(range(len(values)), key=lambda i: any(isinstance(part, Converted) for part in parts[i]))
    begins, end = [0] * len(values), 0
    for i in order:
        begins[i] = end
        end += -(-values[i].nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    block = cupy.cuda.alloc(max(end, 1))
    arrays = [cupy.ndarray(value.shape, value.dtype, memptr=block + at) for value, at in zip(values, begins)]
    plain, converted = list[tuple[int, Array | LazyConstant]](), list[tuple[Any, Converted]]()
    for i in order:
        at = begins[i]
        for part in parts[i]:
            if isinstance(part, Converted):
                converted.append((block + at, part))
            else:
                plain.append((at, part))
            at += part.nbytes
    staged = max(end, sum(part.source.nbytes for _, part in converted))

    def copy() -> None:
        transfer.upload(
            chain(transfer.chunks(plain, block, stream), _converted(converted, stream, compute)), staged, stream
        )

    return arrays, copy


def _parts(value: Array | LazyConstant) -> Iterator[Array | LazyConstant]:
    """Yield the parts of a constant that follow each other in memory."""
    if isinstance(value, Joined) and value.is_in_order:
        for part in value.parts:
            yield from _parts(part)
    else:
        yield value


def _converted(constants: Sequence[tuple[Any, Converted]], stream: Any, compute: Compute) -> Iterator[Chunk]:
    """Yield the chunks of arrays that are converted on the device, each to its address."""
    if not constants:
        return
    cupy = rt.cupy()
    buffer = cupy.cuda.alloc(transfer.CHUNK)  # each conversion has read it before the next chunk is copied

    def store(op: Op, source_type: Any, result: Array, staged: Array) -> None:
        transfer.enqueue_copy(buffer, stream, staged)
        compute(op, cupy.ndarray(result.shape, source_type, memptr=buffer), result)

    for target, constant in constants:
        source = np.ascontiguousarray(constant.source).reshape(-1)
        length = max(transfer.CHUNK // source.itemsize, 1)
        for begin in range(0, source.size, length):
            part = source[begin : begin + length]
            result = cupy.ndarray(part.shape, constant.dtype, memptr=target + begin * constant.dtype.itemsize)
            yield [(0, part.view(np.uint8))], partial(store, constant.op, source.dtype, result)
