"""Products of up to 64 rows with compressed weights on tensor cores: conditions and launch of `compressed_mma.cu`.

x is of 16 bits, or of f32 where TF32 is allowed; the kernel then splits its elements into two terms in bf16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.strided import reciprocal
from ovgpu.ops.fused._packed import Packed
from ovgpu.types import Type

CAPABILITY = 80  # compute capability of the first devices whose tensor cores the kernel is for
MAX_ROWS = 64  # rows of x
TILE = 16  # rows of the weights per warp; as in compressed_mma.cu
CHUNK = 8  # elements of x in 16 bytes
LANES_PER_ROW = 4  # lanes of a warp that share a row of codes
PITCH = 20  # floats between columns of partial sums; as in compressed_mma.cu
WARPS = 8  # warps per block, unless more split K
ROWS = (1, 4, 8, 16, 32)  # rows of x per block
AHEAD = 2  # steps whose codes are loaded at once
SHARED_BYTES = 64 << 10  # shared memory for x

DECODERS = {Type.i4: "Nibbles<true>", Type.u4: "Nibbles<false>", Type.i8: "Bytes<true>", Type.u8: "Bytes<false>"}
TABLES = {Type.i4: tuple(map(float, (*range(8), *range(-8, 0)))), Type.u4: tuple(map(float, range(16)))}
ZEROS = {Type.i4: np.int8, Type.u4: np.uint8, Type.i8: np.int8, Type.u8: np.uint8}


@dataclass(frozen=True)
class Form:
    """Launch shape of the kernel.

    ``words``: words of codes per lane and step; ``rows``: rows of x per block; ``grouped``: True if scales or zero
    points vary along K; ``along_k``, ``along_n``: warps along K and N; ``steps``: steps of each warp; ``rounds``: steps
    for which x is in shared memory at a time; ``terms``: 16-bit numbers per element of x.
    """

    words: int
    rows: int
    grouped: bool
    along_k: int
    along_n: int
    steps: int
    rounds: int
    terms: int

    def staged(self, weights: Packed) -> int:
        """Return the number of elements of a row of x in shared memory at a time."""
        return min(self.rounds, self.steps) * self.along_k * step_of(weights, self.words)

    def shared(self, weights: Packed, m: int) -> int:
        """Return the bytes of shared memory, which holds x first, and every warp's partial sums later."""
        chunks = step_of(weights, self.words) // (LANES_PER_ROW * CHUNK)
        padding = 0 if self.rows == 1 else 2 if chunks == 4 else 4
        return max(self.staged(weights) // (LANES_PER_ROW * CHUNK) * (self.terms * self.rows * 4 + padding) * 16,
                   4 * self.along_k * self.along_n * min(m, self.rows) * PITCH)


def step_of(weights: Packed, words: int) -> int:
    """Return the number of codes of a row that a warp takes in a step."""
    return LANES_PER_ROW * words * (8 if weights.is_nibbles else 4)


def form(weights: Packed, m: int, multiprocessors: int, addresses: Sequence[int],
         quant_params: Sequence[Array | None], terms: int = 1) -> Form | None:
    """Return the launch shape for ``m`` rows of x, None where the kernel does not apply.

    ``addresses`` are the addresses of x and of the codes; ``quant_params`` are the scale and the zero point; see `Form`
    for ``terms``."""
    zero = quant_params[1]
    if weights.kind not in DECODERS or weights.table != TABLES.get(weights.kind, ()) or not 0 < m <= MAX_ROWS:
        return None
    if zero is not None and zero.dtype != ZEROS[weights.kind]:
        return None
    (n, k), bits = weights.shape, weights.kind.bitwidth
    groups = [1 if values is None else values.shape[1] for values in quant_params]
    if any(values is not None and len(values) not in (1, weights.rows) for values in quant_params):
        return None
    words = [w for w in (4, 2, 1) if k % (w * 32 // bits) == 0 and addresses[1] % (4 * w) == 0
             and not any(g > 1 and k // g % step_of(weights, w) for g in groups)]
    if k % CHUNK or addresses[0] % 16 or not words or (words[0] == 1 and bits == 8):
        return None
    rows = next(r for r in ROWS if r >= min(m, ROWS[-1]))
    tiles = -(-n // TILE) * weights.matrices * -(-m // rows)
    return _divided(weights, words[0], rows, max(groups) > 1, tiles / multiprocessors, terms)


def _divided(weights: Packed, words: int, rows: int, grouped: bool, tiles: float, terms: int) -> Form:
    """Split K over enough warps to keep a multiprocessor busy with ``tiles`` tiles of rows (split-K). The limits were
    measured on an H100 (`bench.gpu_compressed`)."""
    least, most, target = (4, 16, 16) if rows <= CHUNK else (1, 8 if rows <= 16 else 4, 8)
    along_k = least
    while along_k < most and tiles * along_k < target:
        along_k *= 2
    while along_k > 1 and along_k > -(-weights.columns // step_of(weights, words)):
        along_k //= 2
    return divided(weights, words, rows, grouped, along_k, max(WARPS // along_k, 1), terms)


def divided(weights: Packed, words: int, rows: int, grouped: bool, along_k: int, along_n: int, terms: int = 1) -> Form:
    """Return the launch shape for these numbers of warps, with fewer along K if x would not fit into shared memory."""
    step = step_of(weights, words)
    while True:
        steps = -(-weights.columns // (step * along_k))
        fitting_steps = SHARED_BYTES // (2 * terms * step * rows * along_k)
        rounds = steps if steps <= fitting_steps else fitting_steps // AHEAD * AHEAD
        if rounds or along_k == 1:
            return Form(words, rows, grouped, along_k, along_n, steps, rounds, terms)
        along_k //= 2


def launch(k: KernelRecorder, weights: Packed, x: Array, out: Array, stored: Sequence[Any]) -> bool:
    """Record ``out [E, M, N] = x [1 or E, M, K] @ weights [E, N, K]^T``. Return False where the kernel does not apply.

    ``stored`` are the codes, the scale and the zero point."""
    (count, m, n), depth = out.shape, x.shape[2]
    splits = k.tf32 and x.dtype == np.float32
    if not (splits or x.dtype.itemsize == 2) or k.capability < CAPABILITY:
        return False
    quant_params = stored[1:]
    launch_shape = form(weights, m, k.multiprocessors, (x.data.ptr, stored[0].data.ptr), quant_params, 1 + splits)
    if launch_shape is None:
        return False
    types = ", ".join([DECODERS[weights.kind],
                       *("None" if values is None else k.c_type(values.dtype) for values in quant_params)])
    chunks = launch_shape.staged(weights) // CHUNK
    shift = min((chunks - 1).bit_length(), (32 * launch_shape.along_k * launch_shape.along_n).bit_length() - 1)
    k.kernel("compressed_mma.cu",
             f"product_mma<{types}, {k.c_type(x.dtype)}, {launch_shape.words}, {launch_shape.rows}, {AHEAD}, "
             f"{str(launch_shape.grouped).lower()}>",
             (-(-n // (TILE * launch_shape.along_n)) * -(-m // launch_shape.rows), 1, count),
             (32, launch_shape.along_k, launch_shape.along_n),
             (x, out, *stored, np.concatenate([_quant_param_index(weights, values) for values in quant_params]),
              *map(np.int32, (m, n, depth, len(x) > 1, launch_shape.rounds, shift))),
             launch_shape.shared(weights, m), tf32=splits)
    return True


def _quant_param_index(weights: Packed, values: Array | None) -> Array:
    """Return the struct QuantParamIndex, which computes the index of a scale or zero point from row and column."""
    rows, columns = (1, 1) if values is None else values.shape
    numbers = [columns if rows > 1 else 0, *reciprocal(weights.columns // columns)]
    return np.array(numbers, np.int64).astype(np.int32)
