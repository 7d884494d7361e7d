"""Internal op of a residual connection: a sum and its norm in one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from ovgpu.ops.base import launch
from ovgpu.ops.base.elementwise import same_layout
from ovgpu.ops.base.op import Array, Arrays, Op, evaluate, internal_op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.fused._elementwise import Fused, Layer
from ovgpu.ops.normalization.normalization import EPSILON, ScaledMVN
from ovgpu.ops.quantization import Codes
from ovgpu.spec import Spec
from ovgpu.types import Type

TERMS = 3  # the most terms of a sum; as in normalization.cu


@internal_op
class AddNorm(Op):
    """Norm of a sum: ``scale [n], shift [n], x, y[, z] -> norm [...][, sum [...]]``.

    The sum is ``(x + y) + z``, or in the order of ``added``. All sums are rounded, as in separate layers. ``keep``:
    True if the sum itself has users, and is an output. ``layer`` is the norm's origin.
    """

    added: Fused
    norm: ScaledMVN
    layer: Layer
    keep: bool

    name: ClassVar[str] = "AddNorm"
    exact = True  # because its parts decode and encode

    @property
    def layers(self) -> tuple[Layer, ...]:
        return (*self.added.layers, self.layer)

    def attributes(self) -> dict[str, Any]:
        return {"layers": tuple(layer.name for layer in self.layers), "norm": self.norm.name, **self.norm.attributes()}

    def infer_specs(self, scale: Spec | None, shift: Spec | None, *terms: Spec) -> tuple[Spec, ...]:
        (total,) = self.added.infer_specs(*terms)
        return (*self.norm.infer_specs(total, scale, shift), total)[: 1 + self.keep]

    def evaluate(self, xp: Adapter, scale: Array, shift: Array, *terms: Array) -> tuple[Array, ...]:
        (total,) = self.added.evaluate(xp, *terms)
        return (*evaluate(self.norm, xp, (total, scale, shift), (Type.of(total.dtype),)), total)[: 1 + self.keep]

    def inplace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> tuple[int, ...]:
        """Return the terms of the norm's layout: a thread reads each element before it writes the same position."""
        return tuple(i for i, x in enumerate(inputs) if i > 1 and x is not None and same_layout(x, outputs[0]))

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (scale, shift, *terms), (out, *sums) = inputs, outputs
        if not normalize_sum(k, self.norm, (scale, shift), self.order(terms), out, *sums):
            total = sums[0] if sums else out
            k.elementwise(self.added.chain, terms, total)
            return self.norm.cuda(k, (total, scale, shift), (out,), ())
        return None

    def order(self, terms: Sequence[Any]) -> list[Any]:
        """Return the terms in the order in which they are added."""
        first = self.added.chain.parts[0].operands
        return [terms[i] for i in (*first, *(i for i in range(len(terms)) if i not in first))]


def normalize_sum(
    k: KernelRecorder,
    norm: ScaledMVN,
    scaled: Sequence[Any],
    terms: Sequence[Any],
    out: Any,
    total: Any = None,
    codes: Codes | None = None,
) -> bool:
    """Record one kernel that normalises the sum of one to three terms. Return False if it does not take these arrays.

    ``scaled``: scale and shift, or None; ``out``: the norm, which may be None where ``codes`` are written; ``total``:
    the sum, if it is kept.
    """
    result = codes.array if out is None and codes is not None else out
    n = prod(result.shape[result.ndim - norm.rank :])
    periods = [_rows(term, result, n) for term in terms]
    if not result.size or not launch.is_real(terms[0]) or 0 in periods or result.size // n > launch.MAX_INDEX:
        return False
    rows = result.size // n
    beside = (*terms[1:], total, *scaled, None if codes is None else codes.factor)
    row_tiling = launch.registers(k.multiprocessors, terms[0], terms[0] if out is None else out, rows, n, *beside)
    if row_tiling is None:
        return False
    block, vector, vectors = row_tiling
    kernel = "add_normalize_rows" if codes is None else "normalize_rows_to_codes"
    x, y, z = (*terms, None, None)[:TERMS]
    each = (*map(np.uint32, periods), np.uint32(1), np.uint32(1))[:TERMS]
    k.kernel(
        "normalization.cu",
        f"{kernel}<{k.c_type(terms[0].dtype)}, {norm.kind}, {vector}, {vectors}>",
        (launch.ceildiv(rows, block[1]),),
        block,
        (
            x,
            y,
            z,
            out,
            total,
            *scaled,
            *each,
            np.uint32(rows),
            np.uint32(n),
            launch.real(norm.eps, terms[0]),
            np.int32(EPSILON.index("INSIDE" if norm.inside else "OUTSIDE")),
            *(() if codes is None else (codes.array, *codes.arguments())),
        ),
        early=True,
    )
    return True


def _rows(x: Array, out: Array, n: int) -> int:
    """Return the number of rows of n elements after which x, broadcast to ``out``, repeats; 0 if x does not consist of
    whole dense rows."""
    axes = next((i for i, extent in enumerate(x.shape) if extent != 1), x.ndim)
    shape = x.shape[axes:]
    alike = x.flags.c_contiguous and shape == out.shape[out.ndim - len(shape) :]
    return x.size // n if alike and n and x.size % n == 0 else 0
