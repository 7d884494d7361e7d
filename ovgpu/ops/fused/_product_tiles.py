"""Products of more than eight rows with compressed weights on tensor cores: launch of `product_tiles.cu`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import PORTABLE_CLUSTER, KernelRecorder
from ovgpu.ops.base.strided import CHUNK_BYTES, reciprocal
from ovgpu.ops.fused._packed import Packed
from ovgpu.ops.fused._product_form import CHUNK
from ovgpu.ops.fused._product_mma import CAPABILITY, is_linear, quant_param_indices, type_names

MAX_ROWS = 256  # rows of x; for more, it is faster to decompress the weights to memory and multiply with cuBLAS
LARGE_ELEMENTS, DEEP_COLUMNS = 1 << 24, 1 << 12  # of the weights; see `pays`
TILE, WARPS, THREADS = 128, 8, 256  # rows of the weights per tile; warps and threads of a block; as in product_tiles.cu
PITCH = TILE + 4  # floats between columns of sums; as in product_tiles.cu
PASS = 32  # rows of x whose sums are in shared memory at a time; as in product_tiles.cu
STAGE_BYTES = 128  # bytes of a row's codes per stage
ROWS = (16, 32, 64)  # rows of x per tile
MAX_STAGES = 4
RESERVED_BYTES = 1 << 10  # shared memory that CUDA reserves in each block
MIN_FULL = 0.85  # share of the concurrent blocks that whole tiles must occupy on average, else blocks also divide K


def pays(weights: Packed, m: int, clustered: bool) -> bool:
    """Return whether the kernel is faster than `_product_mma` for ``m`` rows of x. With few rows, a launch takes longer
    to add partial sums than to multiply, unless the blocks of a tile are ``clustered``. The limits were measured on an
    H100 (`bench.gpu_layers`); those for up to 16 rows and for clusters are estimates of `bench.kernels`."""
    if clustered or m > ROWS[-1] or weights.columns >= DEEP_COLUMNS:
        return True
    return m > ROWS[0] and (m <= ROWS[1] or weights.rows * weights.columns >= LARGE_ELEMENTS)


@dataclass(frozen=True)
class Form:
    """Launch shape of the kernel.

    ``words``: words of codes per lane and step; ``rows``: rows of x per tile; ``stages``: stages in shared memory;
    ``resident``: blocks per multiprocessor; ``grouped``: True if scales or zero points vary along K; ``extents``: tiles
    along M and N, and parts of K. A unit of work is a part of K of one tile. ``share``: consecutive units that one
    block takes together; ``shares``: the number of such shares; ``blocks``: the number of blocks; ``cluster``:
    consecutive blocks per cluster; ``shared``: bytes of shared memory per block.
    """

    words: int
    rows: int
    stages: int
    resident: int
    grouped: bool
    extents: tuple[int, int, int]
    share: int
    shares: int
    blocks: int
    cluster: int
    shared: int


def form(
    weights: Packed,
    m: int,
    itemsize: int,
    params: Sequence[Array | None],
    multiprocessors: int,
    shared_limit: int,
    partial: int,
    max_cluster: int = 1,
) -> Form | None:
    """Return the launch shape for ``m`` rows of x with elements of ``itemsize`` bytes, None where the kernel does not
    apply. ``params`` are the scale and the zero point. ``partial`` is the number of f32 elements in memory for partial
    sums, which blocks outside clusters need. ``max_cluster``: see `KernelRecorder`."""
    (n, k), bits = weights.shape, weights.dtype.bitwidth
    groups = [1 if values is None else values.shape[1] for values in params]
    words = next(
        (
            w
            for w in (4, 2, 1)
            if w * 32 // bits >= CHUNK and not any(g > 1 and k // g % (w * 4 * 32 // bits) for g in groups)
        ),
        None,
    )
    if words is None or k * bits % 128:
        return None
    grouped, columns = max(groups) > 1, STAGE_BYTES * 8 // bits
    row_bytes = columns * itemsize  # of x in a stage
    rows = next(r for r in ROWS if r >= min(m, ROWS[-1]))
    while rows > ROWS[0] and _stages(shared_limit, rows, row_bytes) < 2:
        rows //= 2
    extents = -(-m // rows), -(-n // TILE), -(-k // columns)
    tiles, parts = extents[0] * extents[1] * weights.matrices, extents[2]
    # Few tiles are divided among the blocks of clusters.
    cluster = 1
    while 2 * cluster <= min(multiprocessors // tiles, parts, max_cluster, PORTABLE_CLUSTER):
        cluster *= 2
    if cluster > 1:
        shared_limit -= CHUNK_BYTES + rows * TILE * 4
    # Threads of a block that is alone on its multiprocessor have more registers. Few tiles need fewer blocks.
    crowded = itemsize > 2 or (rows > PASS and grouped and params[1] is not None)
    alone = rows > ROWS[0] and (crowded or tiles <= multiprocessors)
    half = (shared_limit + RESERVED_BYTES) // 2 - RESERVED_BYTES
    resident = 1 if alone or _stages(half, rows, row_bytes) < 2 else 2
    stages = min(_stages(half if resident == 2 else shared_limit, rows, row_bytes), MAX_STAGES)
    if cluster > 1:
        shared = stages * _stage_bytes(rows, row_bytes) + _sum_bytes(rows) + CHUNK_BYTES + rows * TILE * 4
        return Form(words, rows, stages, resident, grouped, extents, 1, tiles * parts, tiles * cluster, cluster, shared)
    concurrent_blocks = multiprocessors * resident
    most = min(concurrent_blocks, partial // (2 * rows * TILE))  # blocks that can leave sums of two tiles
    if tiles <= concurrent_blocks:
        each = max(min(most // tiles, parts), 1)
        share, blocks = parts if each == 1 else 1, tiles * each
    elif tiles >= MIN_FULL * -(-tiles // concurrent_blocks) * concurrent_blocks or most < MIN_FULL * concurrent_blocks:
        share, blocks = parts, concurrent_blocks
    else:
        share, blocks = 1, most
    shared = stages * _stage_bytes(rows, row_bytes) + _sum_bytes(rows)
    return Form(words, rows, stages, resident, grouped, extents, share, tiles * parts // share, blocks, 1, shared)


def _stage_bytes(rows: int, row_bytes: int) -> int:
    return TILE * STAGE_BYTES + rows * row_bytes


def _sum_bytes(rows: int) -> int:
    return 4 * min(rows, PASS) * PITCH


def _stages(available_bytes: int, rows: int, row_bytes: int) -> int:
    """Return the number of stages that fit into ``available_bytes``; x has ``row_bytes`` per row and stage."""
    return (available_bytes - _sum_bytes(rows)) // _stage_bytes(rows, row_bytes)


def is_usual(k: KernelRecorder, weights: Packed, x: Array, stored: Sequence[Any], partial: Array) -> bool:
    """Return whether the kernel supports these arrays and `pays`; for the arguments see `launch`."""
    shape = form(
        weights, x.shape[1], x.itemsize, stored[1:], k.multiprocessors, k.shared_limit, partial.size, k.max_cluster
    )
    return shape is not None and pays(weights, x.shape[1], shape.cluster > 1)


def launch(k: KernelRecorder, weights: Packed, x: Array, out: Array, stored: Sequence[Any], partial: Array) -> bool:
    """Record ``out [E, M, N] = x [1 or E, M, K] @ weights [E, N, K]^T``, where all arrays are contiguous. Return False
    where the kernel does not apply. ``stored`` are the codes, the scale and the zero point, which are constants;
    ``partial`` is f32 memory for partial sums."""
    (_count, m, n), depth, dtype, params = out.shape, weights.columns, out.dtype, stored[1:]
    splits = k.tf32 and dtype == np.float32
    if not (splits or dtype.itemsize == 2) or k.capability < CAPABILITY or x.dtype != dtype or m > MAX_ROWS:
        return False
    if weights.dtype.bitwidth == 16 or not is_linear(weights, params) or max(x.size, weights.rows * depth) >= 2**31:
        return False
    if any(a.data.ptr % 16 for a in (x, stored[0], out)):
        return False
    shape = form(weights, m, dtype.itemsize, params, k.multiprocessors, k.shared_limit, partial.size, k.max_cluster)
    if shape is None:
        return False
    arrived = k.scratch((shape.blocks, WARPS), np.dtype(np.uint32))
    arrived.data.memset_async(0, arrived.nbytes, k.stream)
    names = [
        *type_names(k, weights, params),
        k.c_type(dtype),
        shape.words,
        shape.rows,
        shape.stages,
        shape.resident,
        str(shape.grouped).lower(),
        *["true"] * (shape.cluster > 1),
    ]
    divisors = [field for extent in shape.extents for field in (extent, *reciprocal(extent))]
    extents = np.array((m, n, depth, *divisors, shape.share, shape.shares, len(x) > 1), np.int64).astype(np.int32)
    k.kernel(
        "product_tiles.cu",
        f"product_tiles<{', '.join(map(str, names))}>",
        (shape.blocks,),
        (THREADS,),
        (x, out, *stored, quant_param_indices(weights, params), partial, arrived, extents),
        shape.shared,
        tf32=splits,
        early=True,
        cluster=shape.cluster,
        otherwise=lambda other: launch(other, weights, x, out, stored, partial),
    )
    return True
