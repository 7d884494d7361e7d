"""Ops whose results are as long as the data say: NonZero."""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops._op import Op, op
from ovgpu.symbolic import Spec, Sym, product, unknown
from ovgpu.types import Type


@op("NonZero", "opset3")
class NonZero(Op):
    """``x [d1 .. dR] -> [R, N]``: a column of coordinates for each of the N non-zero elements, in row-major order."""

    output_type: Type = Type.i64

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        if self.output_type not in (Type.i32, Type.i64):
            raise OpError(f"output_type {self.output_type.get_type_name()} is neither i32 nor i64")
        if x.shape is None:
            return (Spec(self.output_type, None),)
        size = product(x.shape)
        return (Spec(self.output_type, (len(x.shape), unknown(0, size.hi if isinstance(size, Sym) else size))),)

    def evaluate(self, xp: Any, x: Any) -> tuple[Any, ...]:
        found = xp.nonzero(x) if x.ndim else (xp.zeros(int(bool(x)), np.int64),)
        rows = xp.stack(found).astype(self.output_type.storage)
        return (rows if x.ndim else rows[:0],)
