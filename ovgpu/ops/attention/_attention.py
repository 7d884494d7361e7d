"""Attention on CUDA devices: the choice of a kernel.

`cuda_kernels/attention.cu` has a kernel for few queries, which splits the keys, and one for many queries. Kernels on
tensor cores (`_tensor_cores.py`) replace both where they take the operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ovgpu.ops.attention import _tensor_cores
from ovgpu.ops.attention._operands import NewToken, Operands, has_unit_stride
from ovgpu.ops.attention._restore import restore_tokens
from ovgpu.ops.attention._splits import WARPS, Splits
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import KernelRecorder, first_of
from ovgpu.ops.fused.stored_tokens import U8
from ovgpu.ops.quantization import Codes

TILE_QUERIES = 64  # queries per block of the kernel for many queries
SPLIT_QUERIES = 8  # the most queries for the kernel that splits the keys
MAX_WIDTH = 256  # the most elements of a query, key, value or row of out
BLOCKS_PER_SM = 4  # blocks per multiprocessor that splitting the keys aims at
MIN_SPLIT_KEYS = 64  # the least keys per split
MIN_CAPABILITY = 80  # the least compute capability whose tensor cores are used


def attend(
    k: KernelRecorder,
    inputs: Sequence[Any],
    out: Array,
    causal: bool,
    length: Array | None = None,
    new_token: NewToken | None = None,
    codes: Codes | None = None,
    table: Array | None = None,
    restored: Sequence[Array] = (),
) -> Any:
    """Record the kernel that computes attention. Return NotImplemented for arrays that no kernel takes.

    ``inputs`` are q, k and v, then mask, scale and sink or None, all f32, f16, bf16 or f64 except a boolean mask, and
    except k and v as caches store them (`ovgpu.ops.fused.stored_tokens`). ``length`` [1], i64 on the device, is the
    number of keys to attend to; None stands for all keys. ``new_token`` has the last of these keys, and its value; only
    the kernel that streams keys appends them to the caches. With ``codes``, codes are written to ``out``, which only
    kernels on tensor cores do; the codes' factor is [..., 1, Ev]. With ``table``, k and v are pools of pages
    (`ovgpu.ops.fused.kv_cache`), and each row of the batch has its own length. ``restored`` is memory for k and v in
    the type of q, which more than SPLIT_QUERIES queries need if these are as caches store them.
    """
    q, key, v, *others = inputs
    if codes is not None and not (key.shape[-2] and all(map(has_unit_stride, (q, key, v)))):
        return NotImplemented
    if key.shape[-2] == 0:
        k.copy(np.zeros((), out.dtype), out)
    if out.size == 0 or key.shape[-2] == 0:
        return None
    if max(q.shape[-1], out.shape[-1]) > MAX_WIDTH or not has_unit_stride(out):
        return NotImplemented
    if new_token is not None and (causal or not new_token.fit(out.shape[-2], (q, key, v))):
        return NotImplemented
    arrays = [_with_unit_stride(k, x) for x in (q, key, v)]
    x = Operands.of((*arrays, *others), out, causal, length, new_token, codes, table)
    if x.is_stored and new_token is None and not _reads_stored(k, x):
        tokens = [restore_tokens(k, x, memory, table) for x, memory in zip(arrays[1:], restored, strict=True)]
        if any(x is NotImplemented for x in tokens):
            return NotImplemented
        if table is not None:
            table, tokens = tokens[0][1], [pool for pool, _ in tokens]
        return attend(k, (q, *tokens, *others), out, causal, length, table=table)
    if x.queries == 1 and x.sharing > 1:
        x = x.with_heads_as_queries()
    elif new_token is not None and x.batch[-1:] > (1,) and not x.strides[1][-3]:
        return NotImplemented  # heads would append different tokens to one cache
    return _record(k, x) if x.axes.rank else NotImplemented


def _reads_stored(k: KernelRecorder, x: Operands) -> bool:
    """Return whether a kernel reads keys and values as they are stored, rather than after they have been restored."""
    few = x.sharing * x.queries <= _tensor_cores.STREAMED_ROWS
    return x.queries <= SPLIT_QUERIES or (few and _streams_stored(k, x))


def _streams_stored(k: KernelRecorder, x: Operands) -> bool:
    return k.capability >= MIN_CAPABILITY and x.key.dtype == U8 and _tensor_cores.can_stream(x)


def _record(k: KernelRecorder, x: Operands) -> Any:
    """Record the kernel for these operands. Return NotImplemented if there is none."""
    if x.is_stored:
        return _record_stored(k, x)
    rounds = k.tf32 and x.q.dtype == np.float32 and max(x.depth, x.width) <= _tensor_cores.TF32_WIDTH
    if rounds or (x.q.dtype.itemsize == 2 and k.capability >= MIN_CAPABILITY):
        if _on_tensor_cores(k, x, rounds):
            return None
    if x.new_token is not None or x.codes is not None:
        return NotImplemented
    _attend(k, x)
    return None


def _record_stored(k: KernelRecorder, x: Operands) -> Any:
    """Do what `_record` does, for keys and values that are stored in another type."""
    if _streams_stored(k, x):
        _tensor_cores.stream(k, x.grouped(_tensor_cores.STREAMED_ROWS))
        return None
    if x.new_token is not None:
        return NotImplemented
    _attend(k, x)
    return None


def _on_tensor_cores(k: KernelRecorder, x: Operands, rounds: bool) -> bool:
    """Record a kernel on tensor cores. Return False if none takes the operands."""
    few, streams = x.sharing * x.queries <= _tensor_cores.STREAMED_ROWS, _tensor_cores.streams(k, x)
    attempts: dict[str, Callable[[], bool]] = {}
    if _tensor_cores.can_stream(x) and (streams or x.new_token is None):
        attempts["stream"] = partial(_tensor_cores.stream, k, x.grouped(_tensor_cores.STREAMED_ROWS) if few else x)
    if x.new_token is None:
        attempts["grouped"] = partial(_tensor_cores.attend_grouped, k, x, rounds)
    if x.new_token is None and x.queries > SPLIT_QUERIES and _tensor_cores.can_stage(x):
        attempts["tiles"] = partial(_tensor_cores.attend_mma, k, x, rounds)
    order = (  # the fastest by rule comes first
        ("stream", "grouped", "tiles")
        if streams and few
        else (("grouped", "stream", "tiles") if streams else ("grouped", "tiles", "stream"))
    )
    return first_of(k, x.question(), {name: attempts[name] for name in order if name in attempts})


def _attend(k: KernelRecorder, x: Operands) -> None:
    """Record the kernels without tensor cores."""
    kernel, dtype = x.kernel(k), x.q.dtype
    if x.queries > SPLIT_QUERIES and dtype != np.float64:
        columns = -(-x.width // TILE_QUERIES)
        k.kernel(
            "attention.cu",
            f"attend_tiles<{kernel}, {columns}, {x.template(k, x.axes.index, x.axes.rank)}>",
            (x.axes.size * -(-x.queries // TILE_QUERIES),),
            (256,),
            x.arguments(),
        )
        return
    sums = np.dtype(np.float64 if dtype == np.float64 else np.float32)
    lanes = 8 if sums.itemsize == 4 else 16  # lanes of a warp that share a key
    per_lane = next(p for p in (8, 16, 32) if p * lanes >= max(x.depth, x.width))
    block_queries = 1 if x.queries == 1 or per_lane > 16 or dtype == np.float64 else 4
    blocks = x.axes.size * -(-x.queries // block_queries)
    splits = Splits.of(
        k, blocks, x.keys // MIN_SPLIT_KEYS, (block_queries, lanes * per_lane + 2), per_sm=BLOCKS_PER_SM, dtype=sums
    )
    k.kernel(
        "attention.cu",
        f"attend_split<{kernel}, {x.vector}, {per_lane}, {block_queries}, {x.template(k, x.axes.index, x.axes.rank)}>",
        splits.grid(blocks),
        (WARPS * 32,),
        (*x.arguments(), *splits.scratch),
    )


def _with_unit_stride(k: KernelRecorder, x: Array) -> Array:
    """Return the array, or a copy of it if its rows do not have a unit stride."""
    if has_unit_stride(x):
        return x
    copied = k.scratch(x.shape, x.dtype)
    k.copy(x, copied)
    return copied
