"""Convolutions on tensor cores where channels are adjacent in memory: launches of `implicit_gemm.cu`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import PORTABLE_CLUSTER, KernelRecorder
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.strided import CHUNK_BYTES, has_chunks, reciprocal, strides_of
from ovgpu.ops.convert import Convert
from ovgpu.ops.convolution._convolved import MAX_EPILOGUE_OPERANDS, Convolved, Epilogue, epilogue_arguments
from ovgpu.ops.fused._elementwise import Chain
from ovgpu.types import Type

FILE = "implicit_gemm.cu"
CAPABILITY = 80  # the least compute capability
OCTET = 8  # neighbouring channels that a thread computes; as in implicit_gemm.cu
STRIP_SUMS = 8 * 32  # pixels by channels of a strip, whose sums a warp of a cluster adds up
NUMBERS = 8  # the most literals of an epilogue that are passed as arguments; as in implicit_gemm.cu
STAGE_BYTES = 128  # bytes of a row in a stage; as in implicit_gemm.cu
# Rows (pixels) and columns (channels) of tiles, with the estimated clocks per stage: of a block that is alone on its
# multiprocessor, and of each of several blocks there
TILES = {
    (256, 128): (1500, 1450),
    (128, 128): (830, 790),
    (128, 64): (620, 590),
    (64, 128): (620, 590),
    (64, 64): (420, 390),
    (64, 32): (300, 230),
    (32, 32): (230, 135),
}
L2_BYTES_PER_CLOCK = 24  # per multiprocessor
EPILOGUE_CLOCKS = 0.12  # per element
RESULT_BYTES = 2  # per element
# Estimated clocks to exchange the sums of parts of K, and to add one part; through memory, and in a cluster
MEMORY_COST, CLUSTER_COST = (1600, 100), (1300, 200)
MAX_CHOICES = 8  # the most launch shapes that `ovgpu tune` measures
PARTIAL_ELEMENTS = 1 << 20  # f32 elements for partial sums in memory: enough for tiles that are too few for a card


@dataclass(frozen=True)
class Scales:
    """Scales of a convolution of s8 codes: its values are ``factor * (sum - correction)``, with factor f32 [O] and
    correction s32 [O], both constants. ``padding`` is the code of elements outside of x."""

    factor: Array
    correction: Array
    padding: int


@dataclass(frozen=True)
class Form:
    """Launch shape of the kernel. There are ``tiles`` tiles of ``rows`` pixels by ``columns`` channels. K is divided
    into ``parts`` of ``steps`` stages each. A block has ``shared`` bytes of shared memory."""

    rows: int
    columns: int
    tiles: int
    parts: int
    steps: int
    shared: int

    @property
    def threads(self) -> int:
        """Threads of a block: four warps, or eight for tiles of 256 rows, as `Tile` of implicit_gemm.cu says."""
        return 256 if self.rows > 128 else 128


def shared_bytes(tile: tuple[int, int], parts: int = 1) -> int:
    """Return a block's bytes of shared memory: three stages of large tiles, six of small ones, four of others. The
    blocks of a cluster, which compute ``parts`` of K, add memory for the sums that they receive."""
    stages = sum(tile) * STAGE_BYTES * (3 if sum(tile) > 192 else 6 if sum(tile) < 128 else 4)
    if parts == 1:
        return stages
    warps = max(4 * 32 * 32 // prod(tile), 1)  # that divide each stage of a small tile, and sum up separately
    return stages + CHUNK_BYTES + -(-prod(tile) // STRIP_SUMS // parts) * parts * STRIP_SUMS * 4 * warps


def partial_elements(row_bytes: int) -> int:
    """Return the most f32 elements for partial sums that a launch with ``row_bytes`` bytes of K takes: none if K is so
    short that splitting it in two costs more time than it saves."""
    stages = -(-row_bytes // STAGE_BYTES)
    fixed, each = MEMORY_COST
    alone, _ = TILES[64, 64]
    return PARTIAL_ELEMENTS if alone * stages / 2 > fixed + 2 * each else 0


def forms(
    pixels: int,
    outputs: int,
    row_bytes: int,
    multiprocessors: int,
    shared_limit: int,
    partial: int = PARTIAL_ELEMENTS,
    max_cluster: int = 1,
) -> list[Form]:
    """Return the launch shapes for a result of ``pixels`` rows and ``outputs`` columns, with ``row_bytes`` bytes of K.
    The fastest one by the estimates above comes first.

    K is split only where multiprocessors would be idle. If ``max_cluster`` is above 1, the parts are summed within a
    cluster, else through memory that holds ``partial`` elements.
    """
    stages, clusters = -(-row_bytes // STAGE_BYTES), max_cluster > 1
    estimates = list[tuple[float, Form]]()
    for tile, (alone, crowded) in TILES.items():
        tiles = -(-pixels // tile[0]) * -(-outputs // tile[1])
        most = min(
            multiprocessors // tiles,
            stages,
            min(max_cluster, PORTABLE_CLUSTER) if clusters else partial // (tiles * prod(tile)),
        )
        fixed, each = CLUSTER_COST if clusters else MEMORY_COST
        for parts in range(1, max(1, most) + 1):
            steps, blocks = -(-stages // parts), tiles * parts
            shared = shared_bytes(tile, parts if clusters else 1)
            if -(-stages // steps) != parts or shared > shared_limit:
                continue
            rounds = -(-blocks // multiprocessors)
            # the blocks of a cluster divide the epilogue of a tile; otherwise one block computes all of it
            epilogues = rounds if parts == 1 or not clusters else 1 / parts
            moved = blocks * steps * sum(tile) * STAGE_BYTES + tiles * prod(tile) * RESULT_BYTES
            copied = moved / multiprocessors / L2_BYTES_PER_CLOCK
            computed = steps * max(alone, rounds * crowded) + EPILOGUE_CLOCKS * prod(tile) * epilogues
            time = max(copied, computed) + (fixed + each * parts if parts > 1 else 0)
            estimates.append((time, Form(*tile, tiles, parts, steps, shared)))
    return [shape for _, shape in sorted(estimates, key=lambda item: item[0])]


def multiplies_pixels(k: KernelRecorder, c: Convolved, scales: Scales | None) -> bool:
    """Return whether implicit_gemm.cu takes these arrays: x and kernel of s8 (with scales), f16 or bf16, one group, up
    to two spatial axes, adjacent channels with pixels of whole chunks, and a multiple of eight output channels. The
    kernel [1, O, C, R, S] must lie in memory as [O, R, S, C]."""
    dtypes = ("int8",) if scales is not None else ("float16", "bfloat16")
    if c.x.dtype.name not in dtypes or c.kernel.dtype != c.x.dtype or k.capability < CAPABILITY:
        return False
    if c.out.dtype.name not in ("int8", "float16", "bfloat16", "float32") or not all(
        is_plain(a.dtype) for a in c.operands
    ):
        return False
    if c.groups != 1 or c.transposed or len(c.taps) not in (1, 2) or len(c.operands) > MAX_EPILOGUE_OPERANDS:
        return False
    if not c.out.size or not c.channels or c.outputs % OCTET or not has_chunks(c.x) or not has_chunks(c.out):
        return False
    if min(strides_of(c.x)) < 0:
        return False
    outputs, channels, *taps = strides_of(c.kernel)[1:]
    dense = [c.channels * prod(c.taps[i + 1 :]) for i in range(len(c.taps))]
    laid_out = (
        channels == 1 and outputs in (0, c.channels * prod(c.taps)) and all(s in (0, d) for s, d in zip(taps, dense))
    )
    constants = (c.kernel,) if scales is None else (c.kernel, scales.factor, scales.correction)
    return laid_out and not any(a.data.ptr % CHUNK_BYTES for a in constants) and _window(c)[1] == "int"


def _window(c: Convolved) -> tuple[np.ndarray[Any, Any], str, Any]:
    """Return `Convolved.window` for this kernel, which counts pixels, and bytes of x and of the weights."""
    span = sum(s * n for s, n in zip(strides_of(c.x), c.x.shape)) * c.x.dtype.itemsize
    return c.window(max(c.out.size // c.outputs + max(rows for rows, _ in TILES), span, c.kernel.nbytes))


def convolve_pixels(
    k: KernelRecorder,
    c: Convolved,
    scales: Scales | None,
    value_dtype: np.dtype[Any],
    early: bool = False,
    partial: Array | None = None,
) -> None:
    """Record a convolution that `multiplies_pixels` accepts.

    The epilogue's first input has type ``value_dtype``: f32, f16 or bf16. Without an epilogue, values are converted to
    the type of ``c.out``. With ``early``, the convolution's kernel is a constant, so that it may be read before earlier
    launches have ended. ``partial`` is memory for `partial_elements` partial sums in f32; by default the launch gets
    memory of its own.
    """
    given, workspace = c, partial  # `otherwise` below starts again from these
    if c.epilogue is None and value_dtype != c.out.dtype:
        c = replace(c, epilogue=Epilogue(Chain.of(Convert(destination_type=Type.of(c.out.dtype)), 1), ()))
    window, _, scalar = _window(c)
    pixels, row_bytes = c.out.size // c.outputs, c.channels * prod(c.taps) * c.x.dtype.itemsize
    shapes = forms(
        pixels,
        c.outputs,
        row_bytes,
        k.multiprocessors,
        k.shared_limit,
        PARTIAL_ELEMENTS if partial is None else partial.size,
        k.max_cluster,
    )
    split = "CLUSTER" if k.max_cluster > 1 else "MEMORY"
    shape = k.choose(
        f"implicit_gemm {c.x.dtype}: {pixels} pixels, {c.outputs} outputs, {row_bytes} bytes, {split}",
        {f"{s.rows} x {s.columns}, {s.parts} parts": s for s in shapes[:MAX_CHOICES]},
    )
    split = "NONE" if shape.parts == 1 else split
    arrived = None
    if split == "MEMORY":
        if partial is None:
            partial = k.scratch((shape.tiles * shape.parts * shape.rows * shape.columns,), np.dtype(np.float32))
        arrived = k.scratch((shape.tiles, shape.threads // 32), np.dtype(np.uint32))
        arrived.data.memset_async(0, arrived.nbytes, k.stream)
    extents = (c.out.shape[-1], c.out.shape[-2] if c.out.ndim > 3 else 1, -(-c.outputs // shape.columns), shape.parts)
    divisors = [value for extent in extents for value in (extent, *reciprocal(extent))]
    tap_bytes, columns = c.channels * c.x.dtype.itemsize, c.taps[-1]
    taps, channel_bytes = divmod(STAGE_BYTES, tap_bytes)
    division = np.array((*divisors, shape.steps, *divmod(taps, columns), channel_bytes), np.int64).astype(np.int32)
    epilogue, source, arguments = epilogue_arguments(k, c, scalar, value_dtype, NUMBERS)
    types = [k.c_type(dtype) for dtype in (c.x.dtype, value_dtype, c.out.dtype)]
    names = [*types, shape.rows, shape.columns, split, epilogue, *(_operand(x, c.out.shape) for x in c.operands)]
    constants = (
        (None, None, np.int32(0)) if scales is None else (scales.factor, scales.correction, np.int32(scales.padding))
    )
    grid = (shape.tiles * shape.parts,) if split == "CLUSTER" else (shape.tiles, shape.parts)
    k.kernel(
        FILE,
        f"implicit_gemm<{', '.join(map(str, names))}>",
        grid,
        (shape.threads,),
        (
            c.x,
            c.kernel,
            c.out,
            *constants,
            partial if split == "MEMORY" else None,
            arrived,
            window,
            division,
            *arguments,
        ),
        shape.shared,
        prelude=source,
        early=early,
        cluster=shape.parts if split == "CLUSTER" else 1,
        otherwise=lambda other: convolve_pixels(other, given, scales, value_dtype, early, workspace),
    )


def _operand(x: Array, shape: Sequence[int]) -> str:
    """Return the struct Operand that describes to the kernel how operand x of the epilogue broadcasts to ``shape``."""
    batch, channel, *spatial = strides_of(x, shape)
    size = x.dtype.itemsize
    width = min(OCTET * size, CHUNK_BYTES)
    adjacent = channel == 1 and not any(n % width for n in (x.data.ptr, *(s * size for s in (batch, *spatial))))
    return f"Operand<{size}, {str(any((batch, *spatial))).lower()}, {str(adjacent).lower()}>"
