"""Launches that restore keys and values from the type in which a cache stores them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.strided import Axes, strides_of
from ovgpu.ops.fused.kv_cache import FIRST_PAGE, ROWS_PER_BLOCK
from ovgpu.ops.fused.stored_tokens import PARAMETER_BYTES, U8


def restore_tokens(k: KernelRecorder, cache: Array, memory: Array, table: Array | None = None) -> Any:
    """Record the kernel that restores the tokens of a cache, and return them. They lie in ``memory`` [N], which has
    their type. With a ``table`` of pages, return (pool, table) with the pages of these sequences alone. Return
    NotImplemented for arrays that it does not take."""
    width = cache.shape[-1] - (PARAMETER_BYTES if cache.dtype == U8 else 0)
    if cache.strides[-1] != cache.itemsize and cache.shape[-1] > 1:
        return NotImplemented
    page, own_table = 0, None
    if table is not None and len(table) > 1 and strides_of(table)[0] != table.shape[1]:
        return NotImplemented
    if table is None:
        result = _array(memory, (*cache.shape[:-1], width))
        extents, operands = cache.shape[:-1], [strides_of(cache)[:-1], strides_of(result)[:-1]]
    else:
        sequences, pages = len(table), table.shape[1] - FIRST_PAGE
        result = _array(memory, (sequences * pages, *cache.shape[1:-1], width))
        own_table = k.scratch(table.shape, table.dtype)
        (page, *inner), (own_page, *own_inner) = strides_of(cache)[:-1], strides_of(result)[:-1]
        extents, none = (sequences, pages, *cache.shape[1:-1]), (0,) * len(inner)
        operands = [
            (0, 0, *inner),
            (pages * own_page, own_page, *own_inner),
            (table.shape[1], 0, *none),
            (pages, 1, *none),
            (0, 1, *none),
        ]
    axes = Axes.collapse(extents, *operands, reach=max(width, cache[:1].size if table is not None else 0))
    if not axes.rank:
        return NotImplemented
    k.kernel(
        "stored_tokens.cu",
        f"restore_tokens<{k.c_type(cache.dtype)}, {k.c_type(memory.dtype)}, {axes.index}, {axes.rank}"
        f"{', true' if table is not None else ''}>",
        (-(-axes.size // ROWS_PER_BLOCK),),
        (32, ROWS_PER_BLOCK),
        (cache, result, axes.packed(), *axes.numbers(axes.size, width, page), table, own_table),
        early=True,
    )
    return result if table is None else (result, own_table)


def _array(memory: Array, shape: Sequence[int]) -> Array:
    return memory[: prod(shape)].reshape(shape)
