"""Attention on CUDA devices: the choice of a kernel, and its launch.

`cuda_kernels/attention.cu` has a kernel for few queries, which splits the keys, and one for many. Two more compute on
tensor cores, where weights are rounded to the type of the values. `attention_stream.cu` splits the keys
(flash-decoding, Dao et al. 2023) and serves few queries or small batches in f16 and bf16; `attention_mma.cu`
(FlashAttention-2, Dao 2023) serves the rest, and many queries in TF32. Where its tiles of queries would leave
multiprocessors idle, it splits the keys, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.strided import CHUNK_BYTES, Axes, reciprocal, strides_of
from ovgpu.ops.quantization import Codes

TILE_QUERIES = 64  # queries per block of the kernels for many queries, or twice as many
SPLIT_QUERIES = 8  # queries up to which the kernel that splits the keys is used
WARPS = 4  # warps per block
MAX_WIDTH = 256  # elements of a row of q, k, v or out, at most
TF32_WIDTH = 128  # elements of a row up to which `attention_mma.cu` has shared memory for f32
BLOCKS_PER_SM = 4  # blocks per multiprocessor that splitting the keys aims at; half as many on tensor cores
MIN_SPLIT_KEYS = 64  # keys of each split, at least
MERGE_TRIPS = 6  # trips through the keys that take as long as merging the splits, in attention_stream.cu
PARTS_PER_SM = 2  # blocks of `attend_mma` per multiprocessor that splitting the keys aims at
MIN_PART_TRIPS = 2  # trips of such a block through the keys, at least
NO_HEADS = np.zeros(7, np.int32)  # struct Heads of `attention_mma.cu`, which only parts of the keys need
MAX_PARTS = 16  # of the keys: more of them take long to merge
MAX_SPLITS = 128  # splits of the keys, as in attention.cuh
STREAMED_QUERIES = 32  # queries up to which `attention_stream.cu` is used whatever the batch
STREAMED_WIDTH = 128  # elements of a row up to which it has registers
MIN_CAPABILITY = 80  # first compute capability whose tensor cores `attention_mma.cu` uses
BAND = 64  # keys per tile of a mask, as in attention_mma.cu
CODE = "signed char"  # type of codes in kernels
MIN_MARKED = 256  # queries, and keys, from which on classifying the mask's tiles beforehand pays


@dataclass(frozen=True)
class NewRows:
    """Rows of a decode step that the kernel rotates and appends to the caches before attention, one per batch and head:
    ``key`` [.., 1, E], ``value`` [.., 1, Ev], and the factors ``cos`` and ``sin`` [.., 1, E or E / 2] of key and
    queries, whose halves are paired."""

    key: Array
    value: Array
    cos: Array
    sin: Array

    @property
    def arrays(self) -> tuple[Array, ...]:
        return self.key, self.value, self.cos, self.sin

    def fit(self, queries: int, others: Sequence[Array]) -> bool:
        """Return whether the kernel takes the arrays, for this number of queries per head; ``others`` are q, k, v."""
        arrays, depth = (*self.arrays, *others), self.key.shape[-1]
        return queries == self.key.shape[-2] == 1 and depth % 64 == 0 and all(map(_has_unit_stride, arrays)) and (
            len({x.dtype for x in arrays}) == 1) and _vector_elements(
                self.arrays[2:], (), [strides_of(x) for x in self.arrays[2:]]) > 1


def attend(k: KernelRecorder, inputs: Sequence[Any], out: Array, causal: bool, length: Array | None = None,
           fresh: NewRows | None = None, codes: Codes | None = None) -> Any:
    """Record the kernel that computes attention. Return NotImplemented for long rows and unsupported layouts.

    ``inputs`` are q, k and v, then mask, scale and sink or None, all f32, f16, bf16 or f64 except a boolean mask.
    ``length`` [1], i64 on the device, is the number of keys to attend to; None stands for all keys. ``fresh``: the last
    of these keys, and its value, which only the kernel that streams keys appends. ``codes``: ``out`` has these codes,
    which only the kernels on tensor cores write; their factor is [.., 1, Ev].
    """
    q, key, v, mask, scale, sink = inputs
    if codes is not None and not (key.shape[-2] and all(map(_has_unit_stride, (q, key, v)))):
        return NotImplemented
    if key.shape[-2] == 0:
        k.copy(np.zeros((), out.dtype), out)
    if out.size == 0 or key.shape[-2] == 0:
        return None
    if max(q.shape[-1], out.shape[-1]) > MAX_WIDTH or not _has_unit_stride(out):
        return NotImplemented
    sum_dtype = np.dtype(np.float64 if q.dtype == np.float64 else np.float32)
    kind, batch, queries = q.dtype, out.shape[:-2], out.shape[-2]
    if fresh is not None and (causal or not fresh.fit(queries, (q, key, v))):
        return NotImplemented
    q, key, v = (_with_unit_stride(k, x) for x in (q, key, v))
    operands = [_broadcast_strides(q, (*batch, queries, q.shape[-1])),
                _broadcast_strides(key, (*batch, *key.shape[-2:])), _broadcast_strides(v, (*batch, *v.shape[-2:])),
                _broadcast_strides(mask, (*batch, queries, key.shape[-2])),
                _broadcast_strides(sink, (*batch, queries, 1)), strides_of(out),
                *(_broadcast_strides(x, (*batch, *x.shape[-2:])) for x in (fresh.arrays if fresh else ()))]
    if codes is not None:
        operands.append(_broadcast_strides(codes.factor, (*batch, 1, out.shape[-1])))
    shares_keys = queries == 1 and batch and not causal and not operands[1][-3] and not operands[2][-3]
    if shares_keys and (codes is None or codes.factor is None):
        # heads that share their keys become queries of one head (multi-query attention)
        if batch[-1] > 1 and any(s[-3] for s in operands[6:]):
            return NotImplemented
        batch, queries = (*batch[:-1], 1), batch[-1]
        operands = [(*s[:-3], 0, s[-3], s[-1]) if i in (0, 3, 4, 5) else s for i, s in enumerate(operands)]
    keys, depth, width = key.shape[-2], key.shape[-1], v.shape[-1]
    axes = Axes.collapse(batch, *(s[:-2] for s in operands), reach=max(
        abs(s[-2]) * max(keys, queries + TILE_QUERIES) + abs(s[-1]) * keys for s in operands))
    if not axes.rank:
        return NotImplemented
    mask_mode = "CAUSAL" if causal else "NONE" if mask is None else "BOOLEAN" if mask.dtype == bool else "ADDED"

    def arguments(axes: Axes, rows: int) -> tuple[Any, ...]:
        """Return the arguments that all kernels have, for so many rows of q per batch."""
        numbers = axes.numbers(rows, keys, depth, width)
        strides = np.array([*(s[-2] for s in operands[:6]), operands[3][-1]], numbers[0].dtype)
        return (q, key, v, mask, scale, sink, out, axes.packed(), strides, *numbers,
                sum_dtype.type(1 / sqrt(max(depth, 1))), length)

    args = arguments(axes, queries)
    kernel = f"{k.c_type(kind)}, {mask_mode}"
    vector = _vector_elements((q, key, v), (depth, width), operands[:3])
    rounds = k.tf32 and kind == np.float32 and max(depth, width) <= TF32_WIDTH
    on_tensor_cores = rounds or (kind.itemsize == 2 and k.capability >= MIN_CAPABILITY)
    if on_tensor_cores and vector > 1 and queries > 1 and fresh is None and codes is None and _is_aligned(
            out, operands[5], 2) and _attend_parts(
                k, kernel, (batch, operands), (queries, keys, depth, width), mask, length is None, arguments, rounds):
        return None
    if (kind.itemsize == 2 and k.capability >= MIN_CAPABILITY and vector > 1 and max(depth, width) <= STREAMED_WIDTH
            and (queries <= STREAMED_QUERIES or axes.size * -(-queries // TILE_QUERIES) < k.multiprocessors)):
        _attend_stream(k, kernel, axes, (queries, keys, depth, width), args, fresh, codes)
        return None
    if fresh is not None:
        return NotImplemented
    if queries > SPLIT_QUERIES and on_tensor_cores:
        vector = vector if _is_aligned(out, operands[5], 2) else 1
        marks = _mark_mask_tiles(k, kernel, mask, (queries, keys), axes.size) if vector > 1 and length is None else None
        staged = 0 if mask is None or causal else queries if operands[3][-2] else 1
        _attend_mma(k, kernel, axes, (queries, depth, width), vector, (staged, mask), (*args, marks), rounds, codes)
        return None
    if codes is not None:
        return NotImplemented
    if queries > SPLIT_QUERIES and kind != np.float64:
        columns = -(-width // TILE_QUERIES)
        k.kernel("attention.cu", f"attend_tiles<{kernel}, {columns}, {axes.index}, {axes.rank}>",
                 (axes.size * -(-queries // TILE_QUERIES),), (256,), args)
        return None
    lanes = 8 if sum_dtype.itemsize == 4 else 16  # lanes of a warp that share a key
    per_lane = next(p for p in (8, 16, 32) if p * lanes >= max(depth, width))
    block_queries = 1 if queries == 1 or per_lane > 16 or kind == np.float64 else 4
    blocks = axes.size * -(-queries // block_queries)
    splits, *scratch = _split(k, blocks, BLOCKS_PER_SM, keys // MIN_SPLIT_KEYS, (block_queries, lanes * per_lane + 2),
                              sum_dtype)
    k.kernel("attention.cu", f"attend_split<{kernel}, {vector}, {per_lane}, {block_queries}, {axes.index}, "
             f"{axes.rank}>", (blocks, splits), (WARPS * 32,), (*args, *scratch))
    return None


def _split(k: KernelRecorder, blocks: int, blocks_per_sm: int, max_splits: int, part: tuple[int, int],
           sum_dtype: np.dtype[Any]) -> tuple[int, Array | None, Array | None]:
    """Return the number of splits of the keys, scratch for their partial results, and counters of finished blocks.

    The splits, at most ``max_splits``, aim at ``blocks_per_sm`` blocks per multiprocessor. One split needs no arrays.
    """
    splits = max(1, min(blocks_per_sm * k.multiprocessors // blocks, max_splits, MAX_SPLITS))
    if splits == 1:
        return 1, None, None
    arrived = k.scratch((blocks,), np.dtype(np.uint32))
    arrived.data.memset_async(0, arrived.nbytes, k.stream)
    return splits, k.scratch((blocks, splits, *part), sum_dtype), arrived


def _attend_stream(k: KernelRecorder, kernel: str, axes: Axes, extents: tuple[int, int, int, int],
                   args: Sequence[Any], fresh: NewRows | None, codes: Codes | None) -> None:
    """Record the kernel that streams keys through registers; ``extents`` are queries, keys, depth and width."""
    queries, keys = extents[:2]
    depth, width = -(-extents[2] // 32) * 32, -(-extents[3] // 64) * 64
    step = 32 if max(depth, width) <= 64 else 16  # keys that a warp takes at a time
    trips = keys // (WARPS * step)
    max_splits = trips if trips > MERGE_TRIPS else 1
    fills_device = axes.size * -(-queries // 32) * max_splits >= k.multiprocessors
    rows = 8 if queries <= 8 else 32 if queries > 16 and step == 32 and fills_device else 16
    blocks = axes.size * -(-queries // rows)
    splits, *scratch = _split(k, blocks, BLOCKS_PER_SM // 2, max_splits, (rows, width + 4), np.dtype(np.float32))
    new_rows, seconds = (None,) * 4, (0, 0)
    if fresh is not None:
        new_rows, seconds = fresh.arrays, tuple(x.shape[-1] // depth * depth // 2 for x in (fresh.cos, fresh.sin))
    form = ", true" if fresh is not None else f", false, {CODE}" if codes is not None else ""
    k.kernel("attention_stream.cu", f"attend_stream<{kernel}, {depth}, {width}, {rows}, {step}, {axes.index}, "
             f"{axes.rank}{form}>", (blocks, splits), (WARPS * 32,),
             (*args, *scratch, *new_rows, *axes.numbers(*seconds), *_code_arguments(codes)),
             4 * WARPS * rows * (width + 4), early=True)


def _attend_parts(k: KernelRecorder, kernel: str, walk: tuple[tuple[int, ...], Sequence[tuple[int, ...]]],
                  extents: tuple[int, int, int, int], mask: Array | None, whole: bool,
                  arguments: Callable[[Axes, int], tuple[Any, ...]], rounds: bool) -> bool:
    """Record the kernel for tensor cores if splitting the keys keeps all multiprocessors busy. Return whether it does.

    Heads that share their keys become rows of one head, unless they have whole tiles of queries anyway. ``walk``: the
    batch and the operands' strides; ``extents``: queries, keys, depth and width; ``whole``: all keys are attended to.
    """
    (batch, operands), (queries, keys, depth, width) = walk, extents
    causal, strides = "CAUSAL" in kernel, [0] * 4
    group = batch[-1] if batch and not causal and not operands[1][-3] and not operands[2][-3] else 1
    rows = queries
    if queries < MIN_MARKED and -(-group * queries // TILE_QUERIES) < group * -(-queries // TILE_QUERIES):
        strides = [operands[i][-3] for i in (0, 3, 4, 5)]
        rows, batch = group * queries, (*batch[:-1], 1)
    axes = Axes.collapse(batch, *(s[:-2] for s in operands), reach=max(
        abs(s[-2]) * max(keys, queries + TILE_QUERIES) + abs(s[-1]) * keys for s in operands) + group * max(
            map(abs, strides)))
    form = _Form.of(depth, width, 1, rounds)
    blocks = axes.size * -(-rows // form.rows)
    most = keys // (MIN_PART_TRIPS * form.keys)
    splits = min(PARTS_PER_SM * k.multiprocessors // blocks, most, MAX_PARTS)
    if splits < 2 or blocks * splits < k.multiprocessors or not axes.rank or axes.index != "int":
        return False
    parts = k.scratch((blocks, splits, form.rows, form.width + 4), np.dtype(np.float32))
    arrived = k.scratch((blocks, WARPS), np.dtype(np.uint32))
    arrived.data.memset_async(0, arrived.nbytes, k.stream)
    heads = np.array([queries, *reciprocal(queries), *strides], np.int64).astype(np.int32)
    masked = 0 if mask is None or causal else rows if operands[3][-2] or strides[1] else 1
    marks = _mark_mask_tiles(k, kernel, mask, (queries, keys), axes.size) if whole else None
    k.kernel("attention_mma.cu", f"attend_mma<{kernel}, {form.depth}, {form.width}, 1, {form.keys}, "
             f"{CHUNK_BYTES // form.itemsize}, int, {axes.rank}, {kernel.split(',')[0]}, true>", (blocks, splits),
             (WARPS * 32,), (*arguments(axes, rows), marks, *_code_arguments(None), heads, parts, arrived),
             form.shared(masked, mask), tf32=rounds, early=True)
    return True


@dataclass(frozen=True)
class _Form:
    """Sizes of `attend_mma`: rows of q and of keys and values, rounded up; tiles of 16 queries per warp; keys that are
    staged at a time; bytes per element."""

    depth: int
    width: int
    tiles: int
    keys: int
    itemsize: int

    @staticmethod
    def of(depth: int, width: int, tiles: int, rounds: bool) -> _Form:
        depth, width = (max(-(-n // 16) * 16, 16) for n in (depth, width))
        keys = 64 if tiles * width <= 160 else 32 if max(depth, width) <= 192 else 16
        if rounds:
            keys = 32 if max(depth, width) <= 64 else 16
        return _Form(depth, width, tiles, keys, 4 if rounds else 2)

    @property
    def rows(self) -> int:
        """The rows of q of a block."""
        return self.tiles * TILE_QUERIES

    def shared(self, masked: int, mask: Array | None) -> int:
        """Return the bytes of shared memory; ``masked`` is the number of rows that are read of the mask."""
        found = self.itemsize * (self.rows * self.depth + 2 * self.keys * (self.depth + self.width))
        if masked and mask is not None:
            found += (self.rows if masked > 1 else 1) * (self.keys * mask.itemsize + 16)
        return found


def _attend_mma(k: KernelRecorder, kernel: str, axes: Axes, extents: tuple[int, int, int], vector: int,
                masked: tuple[int, Array | None], args: Sequence[Any], rounds: bool, codes: Codes | None) -> None:
    """Record the kernel for tensor cores.

    ``extents`` are queries, depth and width; ``masked`` is the number of rows that are read of the mask, and the mask;
    ``rounds`` is true for f32, which is rounded to TF32.
    """
    queries, depth, width = extents
    many = queries > 2 * TILE_QUERIES and axes.size * -(-queries // (2 * TILE_QUERIES)) >= k.multiprocessors
    # two tiles of 16 queries per warp read less shared memory, where registers suffice for both
    tiles = 2 if many and max(depth, width) <= (64 if rounds else 128) and vector > 1 and axes.index == "int" else 1
    form = _Form.of(depth, width, tiles, rounds)
    out = "" if codes is None else f", {CODE}"
    k.kernel("attention_mma.cu", f"attend_mma<{kernel}, {form.depth}, {form.width}, {tiles}, {form.keys}, {vector}, "
             f"{axes.index}, {axes.rank}{out}>", (axes.size * -(-queries // form.rows),), (WARPS * 32,),
             (*args, *_code_arguments(codes), NO_HEADS, None, None), form.shared(*masked), tf32=rounds,
             early=True)


def _mark_mask_tiles(k: KernelRecorder, kernel: str, mask: Array | None, extents: tuple[int, int],
                     heads: int) -> Array | None:
    """Record the kernel that classifies the tiles of a (queries, keys) mask shared by several heads, and return its
    marks. Return None if that does not pay."""
    queries, keys = extents
    if (mask is None or "CAUSAL" in kernel or mask.shape[-2:] != extents or min(extents) < MIN_MARKED or keys % 8
            or 2 * mask.size > heads * queries * keys or not mask.flags.c_contiguous
            or mask.data.ptr % (8 * mask.itemsize)):
        return None
    strips, tiles, planes = -(-queries // (2 * TILE_QUERIES)) * 8, -(-keys // BAND), mask.size // (queries * keys)
    marks = k.scratch((planes, tiles, strips), np.dtype(np.uint8))
    k.kernel("attention_mma.cu", f"mark_tiles<{kernel}>", (strips, planes), (512,),
             (mask, np.int32(queries), np.int32(keys), marks), tiles, early=True)
    return marks


def _vector_elements(arrays: Sequence[Array], extents: Sequence[int], strides: Sequence[tuple[int, ...]]) -> int:
    """Return the number of elements per vector access: 16 bytes' worth if sizes and addresses allow, else 1."""
    vector = 16 // arrays[0].dtype.itemsize
    counts = (*extents, *(n for s in strides for n in s[:-1]))
    return 1 if any(n % vector for n in counts) or any(x.data.ptr % 16 for x in arrays) else vector


def _code_arguments(codes: Codes | None) -> tuple[Any, Any]:
    return (None, np.zeros(4, np.int32)) if codes is None else codes.arguments()


def _is_aligned(x: Array, strides: tuple[int, ...], elements: int) -> bool:
    """Return whether each group of neighbouring elements of a row lies at a multiple of its size."""
    return not any(n % elements for n in strides[:-1]) and not x.data.ptr % (elements * x.dtype.itemsize)


def _has_unit_stride(x: Array) -> bool:
    """Return whether rows have a unit stride."""
    return bool(x.shape[-1] == 1 or x.strides[-1] == x.dtype.itemsize)


def _with_unit_stride(k: KernelRecorder, x: Array) -> Array:
    """Return the array, or a copy of it if its rows do not have a unit stride."""
    if _has_unit_stride(x):
        return x
    copied = k.scratch(x.shape, x.dtype)
    k.copy(x, copied)
    return copied


def _broadcast_strides(x: Array | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides in elements for every axis of ``shape``; 0 where ``x`` is broadcast or absent."""
    return (0,) * len(shape) if x is None else strides_of(x, shape)
