"""Products of few rows on tensor cores, with compressed weights or weights of 16 bits: launch of `product_mma.cu`.

x is of 16 bits, or of f32 where TF32 is allowed; the kernel then splits its elements into two terms in bf16. The kernel
may also compute x: a chain of elementwise layers, a norm, or both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.strided import Axes, reciprocal, strides_of
from ovgpu.ops.fused._elementwise import Chain
from ovgpu.ops.fused._packed import Packed
from ovgpu.types import Type

CAPABILITY = 80  # compute capability of the first devices whose tensor cores the kernel is for
MAX_ROWS = 64  # rows of x
FEW_ROWS = 8  # rows of x up to which the kernel computes x, and is used for weights of 16 bits
TILE = 16  # rows of the weights per warp; as in product_mma.cu
CHUNK = 8  # 16-bit elements in 16 bytes
LANES_PER_ROW = 4  # lanes of a warp that share a row of codes
PITCH = 20  # floats between columns of partial sums; as in product_mma.cu
WARPS, MAX_WARPS = 8, 16  # warps per block, unless more split K
ROWS = (1, 4, 8, 16, 32)  # rows of x per block
AHEAD = 2  # steps whose codes are loaded at once
MAX_ARRAYS = 3  # from which x is computed
SHARED_BYTES = 64 << 10  # shared memory for x

DECODERS = {Type.i4: "Nibbles<true>", Type.u4: "Nibbles<false>", Type.i8: "Bytes<true>", Type.u8: "Bytes<false>",
            Type.f16: "Dense", Type.bf16: "Dense"}
TABLES = {Type.i4: tuple(map(float, (*range(8), *range(-8, 0)))), Type.u4: tuple(map(float, range(16)))}
ZEROS = {Type.i4: np.int8, Type.u4: np.uint8, Type.i8: np.int8, Type.u8: np.uint8}


@dataclass(frozen=True)
class Norm:
    """Norm of the rows of x: a scale and a shift [K] or None, and where ``eps`` is added."""

    kind: Literal["MVN", "RMS"]
    scale: Array | None
    shift: Array | None
    eps: float
    inside: bool


@dataclass(frozen=True)
class Input:
    """Rows of x [..., K]: ``chain`` of the ``arrays``, which broadcast to x; or the only array, if it is None.

    ``total`` receives what the chain computes. ``norm`` normalises it; with a norm or a chain, rows are few."""

    arrays: Sequence[Array]
    chain: Chain | None = None
    norm: Norm | None = None
    total: Array | None = None

    def row_strides(self, shape: Sequence[int]) -> tuple[int, ...] | None:
        """Return the distance between rows of each array, broadcast to ``shape``, as a matrix [M, K]; None if an array
        is not rows at equal distances, aligned to 16 bytes."""
        strides = [strides_of(a, shape) for a in self.arrays]
        axes = Axes.collapse(shape[:-1], *(s[:-1] for s in strides))
        rows = tuple(s[0] if s else 0 for s in axes.strides)
        fits = len(axes.extents) <= 1 and all(s[-1] == 1 for s in strides) and all(
            0 <= n * a.dtype.itemsize < 2**24 and n * a.dtype.itemsize % 16 == a.data.ptr % 16 == 0
            for a, n in zip(self.arrays, rows))
        return rows if fits else None

    def terms_fit(self, dtype: np.dtype[Any]) -> bool:
        """Return whether all arrays have this dtype, and those that are not rows of x are contiguous and aligned."""
        others = [self.total, *(() if self.norm is None else (self.norm.scale, self.norm.shift))]
        return all(a.dtype == dtype for a in self.arrays) and all(
            a is None or (a.dtype == dtype and a.flags.c_contiguous and a.data.ptr % 16 == 0) for a in others)


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


def is_linear(weights: Packed, quant_params: Sequence[Array | None]) -> bool:
    """Return whether codes are numbers, and the scale and the zero point are those of rows, or of all."""
    zero = quant_params[1]
    return weights.kind in DECODERS and weights.table == TABLES.get(weights.kind, ()) and (
        zero is None or zero.dtype == ZEROS[weights.kind]) and all(
        values is None or len(values) in (1, weights.rows) for values in quant_params)


def type_names(k: KernelRecorder, weights: Packed, quant_params: Sequence[Array | None]) -> list[str]:
    """Return the kernel's types of the codes, the scale and the zero point."""
    return [DECODERS[weights.kind], *("None" if values is None else k.c_type(values.dtype) for values in quant_params)]


def step_of(weights: Packed, words: int) -> int:
    """Return the number of codes of a row that a warp takes in a step."""
    return LANES_PER_ROW * words * (32 // weights.kind.bitwidth)


def form(weights: Packed, m: int, multiprocessors: int, addresses: Sequence[int],
         quant_params: Sequence[Array | None], terms: int = 1, computed: bool = False) -> Form | None:
    """Return the launch shape for ``m`` rows of x, None where the kernel does not apply.

    ``addresses`` are the addresses of x and of the codes; ``quant_params`` are the scale and the zero point; see `Form`
    for ``terms``. ``computed``: whether the kernel computes x."""
    if not is_linear(weights, quant_params) or not 0 < m <= MAX_ROWS:
        return None
    (n, k), bits = weights.shape, weights.kind.bitwidth
    groups = [1 if values is None else values.shape[1] for values in quant_params]
    words = [w for w in (4, 2, 1) if k % (w * 32 // bits) == 0 and addresses[1] % (4 * w) == 0
             and w * 32 // bits >= CHUNK and not any(g > 1 and k // g % step_of(weights, w) for g in groups)]
    if k % CHUNK or addresses[0] % 16 or not words:
        return None
    rows = next(r for r in ROWS if r >= min(m, ROWS[-1]))
    tiles = -(-n // TILE) * weights.matrices * -(-m // rows)
    most = MAX_WARPS // 2 if terms > 1 and (rows > 1 or computed) else MAX_WARPS
    return _divided(weights, words[0], rows, max(groups) > 1, tiles / multiprocessors, terms, most)


def _divided(weights: Packed, words: int, rows: int, grouped: bool, tiles: float, terms: int, warps: int) -> Form:
    """Split K over enough of at most ``warps`` warps to keep a multiprocessor busy with ``tiles`` tiles of rows
    (split-K). The limits were measured on an H100 (`bench.gpu_compressed`)."""
    least, most, target = (4, warps, 16) if rows <= CHUNK else (1, 8 if rows <= 16 else 4, 8)
    along_k = least
    while along_k < most and tiles * along_k < target:
        along_k *= 2
    while along_k > 1 and along_k * AHEAD > -(-weights.columns // step_of(weights, words)):
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


def launch(k: KernelRecorder, weights: Packed, x: Input, out: Array, stored: Sequence[Any]) -> bool:
    """Record ``out [..., N] = x [..., K] @ weights [N, K]^T``, where out and codes are contiguous. Return False where
    the kernel does not apply. ``stored`` are the codes, the scale and the zero point, which are constants."""
    rows = x.row_strides((*out.shape[:-1], weights.columns))
    return rows is not None and _launch(k, weights, x, rows, out.reshape(1, -1, out.shape[-1]), stored)


def launch_stacked(k: KernelRecorder, weights: Packed, x: Array, out: Array, stored: Sequence[Any]) -> bool:
    """Record ``out [E, M, N] = x [1 or E, M, K] @ weights [E, N, K]^T``, where all arrays are contiguous; see
    `launch`."""
    return _launch(k, weights, Input((x,)), (x.shape[2],), out, stored, len(x) > 1)


def _launch(k: KernelRecorder, weights: Packed, x: Input, row_strides: Sequence[int], out: Array,
            stored: Sequence[Any], stacked: bool = False) -> bool:
    (count, m, n), depth, kind, quant_params = out.shape, weights.columns, out.dtype, stored[1:]
    splits, dense, computed = k.tf32 and kind == np.float32, weights.kind.bitwidth == 16, x.norm or x.chain
    if not (splits or kind.itemsize == 2) or k.capability < CAPABILITY or not x.terms_fit(kind):
        return False
    if (dense and weights.kind.storage != kind) or (m > FEW_ROWS and (dense or computed)):
        return False
    first, norm = x.arrays[0], x.norm
    shape = form(weights, m, k.multiprocessors, (first.data.ptr, stored[0].data.ptr), quant_params, 1 + splits,
                 bool(computed))
    if shape is None or (norm and shape.rounds < shape.steps):
        return False
    names = [*type_names(k, weights, quant_params), k.c_type(kind), shape.words, shape.rows, AHEAD,
             str(shape.grouped).lower()]
    prelude = ""
    if x.chain:
        prelude = k.functor("Chain", x.chain, tuple([a.dtype for a in x.arrays]), MAX_ARRAYS - 1)
        names += ["Chain", len(x.arrays)]
    if norm:
        names += [norm.kind] if x.chain else ["Identity", 1, norm.kind]
    chunks, warps = shape.staged(weights) // CHUNK, shape.along_k * shape.along_n
    shift = min((chunks - 1).bit_length(), (32 * warps).bit_length() - 1)
    absent = (None,) * (MAX_ARRAYS - len(x.arrays))
    k.kernel("product_mma.cu", f"product_mma<{', '.join(map(str, names))}>",
             (-(-n // (TILE * shape.along_n)) * -(-m // shape.rows), 1, count), (32, shape.along_k, shape.along_n),
             (*x.arrays, *absent, np.array((*row_strides, *(0 for _ in absent)), np.int32), x.total,
              norm and norm.scale, norm and norm.shift, np.float32(norm.eps if norm else 0),
              np.int32(norm is not None and not norm.inside), out, *stored,
              quant_param_indices(weights, quant_params),
              *map(np.int32, (m, n, depth, stacked, shape.rounds, shift))),
             shape.shared(weights, m), prelude=prelude, tf32=splits, early=True)
    return True


def quant_param_indices(weights: Packed, quant_params: Sequence[Array | None]) -> Array:
    """Return the struct QuantParamIndices of the scale and the zero point."""
    return np.concatenate([_quant_param_index(weights, values) for values in quant_params])


def _quant_param_index(weights: Packed, values: Array | None) -> Array:
    """Return the struct QuantParamIndex, which computes the index of a scale or zero point from row and column."""
    rows, columns = (1, 1) if values is None else values.shape
    numbers = [columns if rows > 1 else 0, *reciprocal(weights.columns // columns)]
    return np.array(numbers, np.int64).astype(np.int32)
