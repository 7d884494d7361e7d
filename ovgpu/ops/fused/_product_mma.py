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
from ovgpu.ops.fused._product_form import CHUNK, LANES, form, steps_ahead
from ovgpu.types import Type

CAPABILITY = 80  # least compute capability, 8.0: older tensor cores lack the kernel's instructions
FEW_ROWS = 8  # rows of x up to which the kernel computes x, and is used for weights of 16 bits
MAX_ARRAYS = 3  # arrays from which the kernel computes x, at most
GATED = 2  # columns of the product per column of the result, with a gate
MAX_STRIDE_BYTES = 1 << 24  # between rows of x: offsets of 64 rows, the most of a launch, then fit into 32 bits

DECODERS = {
    Type.i4: "Nibbles<true>",
    Type.u4: "Nibbles<false>",
    Type.i8: "Bytes<true>",
    Type.u8: "Bytes<false>",
    Type.f16: "Dense",
    Type.bf16: "Dense",
}
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
    """Rows of x [..., K]: the ``chain`` of the ``arrays``, which broadcast to x, or without a chain the only array.

    ``total`` receives the result of the chain. ``norm`` normalises it. With a norm or a chain, x has at most `FEW_ROWS`
    rows."""

    arrays: Sequence[Array]
    chain: Chain | None = None
    norm: Norm | None = None
    total: Array | None = None

    def row_strides(self, shape: Sequence[int]) -> tuple[int, ...] | None:
        """Return for each array the distance between its rows, as a matrix [M, K] broadcast to ``shape``. Return None
        unless the rows of all arrays are equally spaced and aligned to 16 bytes."""
        strides = [strides_of(a, shape) for a in self.arrays]
        axes = Axes.collapse(shape[:-1], *(s[:-1] for s in strides))
        rows = tuple(s[0] if s else 0 for s in axes.strides)
        fits = (
            len(axes.extents) <= 1
            and all(s[-1] == 1 for s in strides)
            and all(
                0 <= n * a.dtype.itemsize < MAX_STRIDE_BYTES and n * a.dtype.itemsize % 16 == a.data.ptr % 16 == 0
                for a, n in zip(self.arrays, rows)
            )
        )
        return rows if fits else None

    def terms_fit(self, dtype: np.dtype[Any]) -> bool:
        """Return whether all arrays have this dtype, and the total, scale and shift are contiguous and aligned."""
        others = [self.total, *(() if self.norm is None else (self.norm.scale, self.norm.shift))]
        return all(a.dtype == dtype for a in self.arrays) and all(
            a is None or (a.dtype == dtype and a.flags.c_contiguous and a.data.ptr % 16 == 0) for a in others
        )


def is_linear(weights: Packed, quant_params: Sequence[Array | None]) -> bool:
    """Return whether the codes are plain numbers, and scales and zero points belong to rows or to the whole matrix."""
    zero = quant_params[1]
    return (
        weights.dtype in DECODERS
        and weights.table == TABLES.get(weights.dtype, ())
        and (zero is None or zero.dtype == ZEROS[weights.dtype])
        and all(values is None or len(values) in (1, weights.rows) for values in quant_params)
    )


def type_names(k: KernelRecorder, weights: Packed, quant_params: Sequence[Array | None]) -> list[str]:
    """Return the kernel's types of the codes, the scale and the zero point."""
    return [DECODERS[weights.dtype], *("None" if values is None else k.c_type(values.dtype) for values in quant_params)]


def launch(
    k: KernelRecorder, weights: Packed, x: Input, out: Array, stored: Sequence[Any], gate: Chain | None = None
) -> bool:
    """Record ``out [..., N] = x [..., K] @ weights [N, K]^T``, where out and codes are contiguous. Return False where
    the kernel does not apply. ``stored`` are the codes, the scale and the zero point, which are constants. A ``gate``
    computes out [..., N / 2] from both halves of the product, for few rows."""
    rows = x.row_strides((*out.shape[:-1], weights.columns))
    return rows is not None and _launch(k, weights, x, rows, out.reshape(1, -1, out.shape[-1]), stored, gate=gate)


def launch_stacked(k: KernelRecorder, weights: Packed, x: Array, out: Array, stored: Sequence[Any]) -> bool:
    """Record ``out [E, M, N] = x [1 or E, M, K] @ weights [E, N, K]^T``, where all arrays are contiguous; see
    `launch`."""
    return _launch(k, weights, Input((x,)), (x.shape[2],), out, stored, len(x) > 1)


def _launch(
    k: KernelRecorder,
    weights: Packed,
    x: Input,
    row_strides: Sequence[int],
    out: Array,
    stored: Sequence[Any],
    stacked: bool = False,
    gate: Chain | None = None,
) -> bool:
    (count, m, columns), (n, depth), dtype, quant_params = out.shape, weights.shape, out.dtype, stored[1:]
    splits, dense, computed = k.tf32 and dtype == np.float32, weights.dtype.bitwidth == 16, x.norm or x.chain
    if not (splits or dtype.itemsize == 2) or k.capability < CAPABILITY or not x.terms_fit(dtype):
        return False
    if (dense and weights.dtype.storage != dtype) or (m > FEW_ROWS and (dense or computed or gate)):
        return False
    first, norm = x.arrays[0], x.norm
    shape = is_linear(weights, quant_params) and form(
        weights,
        m,
        k.multiprocessors,
        (first.data.ptr, stored[0].data.ptr),
        quant_params,
        1 + splits,
        norm is not None,
        GATED if gate else 1,
    )
    if not shape:
        return False
    names = [
        *type_names(k, weights, quant_params),
        k.c_type(dtype),
        shape.words,
        shape.rows,
        steps_ahead(shape.rows),
        str(shape.grouped).lower(),
    ]
    prelude = ""
    if x.chain:
        prelude = k.functor("Chain", x.chain, tuple([a.dtype for a in x.arrays]), MAX_ARRAYS - 1)
    if gate:
        prelude += k.functor("Gate", gate, (dtype, dtype), GATED - 1)
    last = ["Chain" if x.chain else "Identity", len(x.arrays), norm.kind if norm else "PLAIN", *["Gate"] * bool(gate)]
    names += last if gate or norm else last[:2] if x.chain else []
    chunks, batches, groups = shape.staged(weights) // CHUNK, -(-m // shape.rows), shape.groups(columns)
    shift = min((chunks - 1).bit_length(), (LANES * shape.warps).bit_length() - 1)
    absent = (None,) * (MAX_ARRAYS - len(x.arrays))
    k.kernel(
        "product_mma.cu",
        f"product_mma<{', '.join(map(str, names))}>",
        (shape.blocks(groups, batches * count, k.multiprocessors) * batches, 1, count),
        (LANES, shape.along_k, shape.along_n),
        (
            *x.arrays,
            *absent,
            np.array((*row_strides, *(0 for _ in absent)), np.int32),
            x.total,
            norm and norm.scale,
            norm and norm.shift,
            np.float32(norm.eps if norm else 0),
            np.int32(norm is not None and not norm.inside),
            out,
            *stored,
            quant_param_indices(weights, quant_params),
            *map(np.int32, (m, n, depth, stacked, groups, shape.steps, shape.rounds, shift)),
        ),
        shape.shared(weights),
        prelude=prelude,
        tf32=splits,
        early=True,
    )
    return True


def quant_param_indices(weights: Packed, quant_params: Sequence[Array | None]) -> Array:
    """Return the struct QuantParamIndices of the scale and the zero point."""
    return np.concatenate([_quant_param_index(weights, values) for values in quant_params])


def _quant_param_index(weights: Packed, values: Array | None) -> Array:
    """Return the struct QuantParamIndex, which computes the index of a scale or zero point from row and column."""
    rows, columns = (1, 1) if values is None else values.shape
    fields = [columns if rows > 1 else 0, *reciprocal(weights.columns // columns)]
    return np.array(fields, np.int64).astype(np.int32)
