"""Attention on the device: which kernel computes it, and how.

`cuda_kernels/attention.cu` has one for few queries, which splits the keys, and one for many. Two more compute f16 and
bf16 on tensor cores, where weights are rounded to the type of the values: `attention_stream.cu`, which splits the keys,
for few queries or small batches, and `attention_mma.cu` for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.strided import Axes, strides_of

TILE = 64  # queries per block where there are many, or twice as many
FEW = 8  # queries up to which the keys are split instead
WARPS = 4  # per block
WIDEST = 256  # elements of a row
BLOCKS = 4  # per multiprocessor, that splitting aims at; half as many on tensor cores
KEYS = 64  # at least, of each part
MOST_SPLITS = 128  # parts of the keys
STREAMED_ROWS = 32  # queries up to which `attention_stream.cu` is used whatever the batch
STREAMED_WIDTH = 128  # elements of a row up to which it has registers
TENSOR_CORES = 80  # compute capability of the first cards whose tensor cores `attention_mma.cu` is for
PAD = 8  # elements after each row in its shared memory
BAND = 64  # keys to a tile of a mask
MARKED = 256  # queries and keys from which on it pays to look at the mask's tiles beforehand


def attend(k: Any, inputs: Sequence[Any], out: Array, causal: bool, length: Array | None = None) -> Any:
    """Records the kernel; NotImplemented for rows that are too long.

    ``inputs`` are q, k and v, then mask, scale and sink or None, all f32, f16, bf16 or f64 but for a boolean mask.
    ``length`` [1] is the number of keys that count, on the device, if that is not all of them.
    """
    q, key, v, mask, scale, sink = inputs
    if key.shape[-2] == 0:
        k.copy(np.zeros((), out.dtype), out)
    if out.size == 0 or key.shape[-2] == 0:
        return None
    if max(q.shape[-1], out.shape[-1]) > WIDEST or not _unit(out):
        return NotImplemented
    sums = np.dtype(np.float64 if q.dtype == np.float64 else np.float32)
    kind, batch, queries = q.dtype, out.shape[:-2], out.shape[-2]
    q, key, v = (_dense(k, x) for x in (q, key, v))
    operands = [_broadcast(q, (*batch, queries, q.shape[-1])), _broadcast(key, (*batch, *key.shape[-2:])),
                _broadcast(v, (*batch, *v.shape[-2:])), _broadcast(mask, (*batch, queries, key.shape[-2])),
                _broadcast(sink, (*batch, queries, 1)), strides_of(out)]
    if queries == 1 and batch and not causal and not operands[1][-3] and not operands[2][-3]:
        # heads that share their keys are queries of one head
        batch, queries = (*batch[:-1], 1), batch[-1]
        operands = [s if i in (1, 2) else (*s[:-3], 0, s[-3], s[-1]) for i, s in enumerate(operands)]
    keys, depth, width = key.shape[-2], key.shape[-1], v.shape[-1]
    axes = Axes.collapse(batch, *(s[:-2] for s in operands),
                         reach=max(abs(s[-2]) * max(keys, queries + TILE) + abs(s[-1]) * keys for s in operands))
    if not axes.rank:
        return NotImplemented
    index = axes.numbers(0)[0].dtype
    strides = np.array([*(s[-2] for s in operands), operands[3][-1]], index)
    form = "CAUSAL" if causal else "NONE" if mask is None else "BOOLEAN" if mask.dtype == bool else "ADDED"
    args = (q, key, v, mask, scale, sink, out, axes.packed(), strides, *axes.numbers(queries, keys, depth, width),
            sums.type(1 / sqrt(max(depth, 1))), length)
    kernel = f"{k.c_type(kind)}, {form}"
    vector = _vector((q, key, v), (depth, width), operands[:3])
    if kind.itemsize == 2 and k.capability >= TENSOR_CORES and vector > 1 and max(depth, width) <= STREAMED_WIDTH and (
            queries <= STREAMED_ROWS or axes.size * -(-queries // TILE) < k.multiprocessors):
        _attend_stream(k, kernel, axes, (queries, keys, depth, width), args)
        return None
    if queries > FEW and kind.itemsize == 2 and k.capability >= TENSOR_CORES:
        vector = min(vector, _vector((out,), (), operands[5:]))
        marks = _marks(k, kernel, mask, (queries, keys), axes.size) if vector > 1 and length is None else None
        staged = 0 if mask is None or causal else queries if operands[3][-2] else 1
        _attend_mma(k, kernel, axes, (queries, depth, width), vector, (staged, mask), (*args, marks))
        return None
    if queries > FEW and kind != np.float64:
        columns = -(-width // TILE)
        k.kernel("attention.cu", f"attend_tiles<{kernel}, {columns}, {axes.index}, {axes.rank}>",
                 (axes.size * -(-queries // TILE),), (256,), args)
        return None
    lanes = 8 if sums.itemsize == 4 else 16
    each = next(p for p in (8, 16, 32) if p * lanes >= max(depth, width))
    together = 1 if queries == 1 or each > 16 or kind == np.float64 else 4
    blocks = axes.size * -(-queries // together)
    splits, *scratch = _split(k, blocks, BLOCKS, keys // KEYS, (together, lanes * each + 2), sums)
    k.kernel("attention.cu", f"attend_split<{kernel}, {vector}, {each}, {together}, {axes.index}, {axes.rank}>",
             (blocks, splits), (WARPS * 32,), (*args, *scratch))
    return None


def _split(k: Any, blocks: int, aim: int, most: int, part: tuple[int, int],
           sums: np.dtype[Any]) -> tuple[int, Array | None, Array | None]:
    """Number of splits of the keys, at most ``most``, for ``aim`` blocks per multiprocessor; memory for their parts
    and for the number of blocks that have arrived."""
    splits = max(1, min(-(-aim * k.multiprocessors // blocks), most, MOST_SPLITS))
    if splits == 1:
        return 1, None, None
    arrived = k.scratch((blocks,), np.dtype(np.uint32))
    arrived.data.memset_async(0, arrived.nbytes, k.stream)
    return splits, k.scratch((blocks, splits, *part), sums), arrived


def _attend_stream(k: Any, kernel: str, axes: Axes, extents: tuple[int, int, int, int], args: Sequence[Any]) -> None:
    """Launch the kernel that streams keys through registers; ``extents`` are queries, keys, depth and width."""
    queries, keys = extents[:2]
    depth, width = -(-extents[2] // 32) * 32, -(-extents[3] // 64) * 64
    step = 32 if max(depth, width) <= 64 else 16  # keys of a warp at a time
    most = keys // (WARPS * step)
    fills = axes.size * -(-queries // 32) * max(1, most) >= k.multiprocessors
    rows = 8 if queries <= 8 else 32 if queries > 16 and step == 32 and fills else 16
    blocks = axes.size * -(-queries // rows)
    splits, *scratch = _split(k, blocks, BLOCKS // 2, most, (rows, width + 4), np.dtype(np.float32))
    k.kernel("attention_stream.cu", f"attend_stream<{kernel}, {depth}, {width}, {rows}, {step}, {axes.index}, "
             f"{axes.rank}>", (blocks, splits), (WARPS * 32,), (*args, *scratch), 4 * WARPS * rows * (width + 4))


def _attend_mma(k: Any, kernel: str, axes: Axes, extents: tuple[int, int, int], vector: int,
                masked: tuple[int, Array | None], args: Sequence[Any]) -> None:
    """Launch the kernel for tensor cores; ``extents`` are queries, depth and width, ``masked`` the number of rows of
    the mask that is read, and the mask."""
    queries, depth, width = extents[0], *(max(-(-n // 16) * 16, 16) for n in extents[1:])
    many = queries > 2 * TILE and axes.size * -(-queries // (2 * TILE)) >= k.multiprocessors
    # two tiles of 16 queries per warp read less of shared memory, where registers are left for them
    tiles = 2 if many and max(depth, width) <= 128 and vector > 1 and axes.index == "int" else 1
    rows, keys = tiles * TILE, 64 if tiles * width <= 160 else 32 if max(depth, width) <= 192 else 16
    shared = 2 * (rows * (depth + PAD) + 2 * keys * (depth + PAD + width + PAD))
    if masked[0] and masked[1] is not None:
        shared += (rows if masked[0] > 1 else 1) * (keys * masked[1].itemsize + 16)
    k.kernel("attention_mma.cu", f"attend_mma<{kernel}, {depth}, {width}, {tiles}, {keys}, {vector}, {axes.index}, "
             f"{axes.rank}>", (axes.size * -(-queries // rows),), (WARPS * 32,), args, shared)


def _marks(k: Any, kernel: str, mask: Array | None, extents: tuple[int, int], heads: int) -> Array | None:
    """Launch the kernel that marks the tiles of a mask of (queries, keys) that several heads share, and return the
    marks; None if that does not pay."""
    queries, keys = extents
    if (mask is None or "CAUSAL" in kernel or mask.shape[-2:] != extents or min(extents) < MARKED or keys % 8
            or 2 * mask.size > heads * queries * keys or not mask.flags.c_contiguous or mask.data.ptr % 16):
        return None
    strips, tiles, planes = -(-queries // (2 * TILE)) * 8, -(-keys // BAND), mask.size // (queries * keys)
    marks = k.scratch((planes, tiles, strips), np.dtype(np.uint8))
    k.kernel("attention_mma.cu", f"mark_tiles<{kernel}>", (strips, planes), (512,),
             (mask, np.int32(queries), np.int32(keys), marks), tiles)
    return marks


def _vector(arrays: Sequence[Array], extents: Sequence[int], strides: Sequence[tuple[int, ...]]) -> int:
    """How many elements of rows can be moved at a time: as many as 16 bytes have, or one."""
    vector = 16 // arrays[0].dtype.itemsize
    counts = (*extents, *(n for s in strides for n in s[:-1]))
    return 1 if any(n % vector for n in counts) or any(x.data.ptr % 16 for x in arrays) else vector


def _unit(x: Array) -> bool:
    return bool(x.shape[-1] == 1 or x.strides[-1] == x.dtype.itemsize)


def _dense(k: Any, x: Array) -> Array:
    """The array, or a copy that has rows with a unit stride."""
    if _unit(x):
        return x
    copied = k.scratch(x.shape, x.dtype)
    k.copy(x, copied)
    return copied


def _broadcast(x: Array | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements for every axis of ``shape``; 0 where ``x`` is broadcast or absent."""
    return (0,) * len(shape) if x is None else strides_of(x, shape)
