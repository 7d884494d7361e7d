"""Levels of a FakeQuantize as whole numbers of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgpu.model import Node, Output
from ovgpu.ops.base.storage import decode
from ovgpu.ops.quantization import FakeQuantize
from ovgpu.passes._weights import quant_params
from ovgpu.types import Type

Array = np.ndarray[Any, Any]

MAX_LEVELS = 256
SMALLEST_STEP = 1e-30  # whose reciprocal is finite in f32
# Greatest distance, in steps, of 0 from the nearest level. Up to 256 levels leave f32 four digits behind the point.
ZERO_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Steps:
    """Levels of a FakeQuantize, which rounds to the multiples ``low`` to ``high`` of ``step``.

    Its results are the same multiples of ``unit``. Step and unit are scalars, or arrays [1, C, 1, ...] with one element
    per channel.
    """

    step: Array
    unit: Array
    low: int
    high: int

    @staticmethod
    def of(node: Node, dtypes: Sequence[Type]) -> Steps | None:
        """Return the levels of a FakeQuantize of one of these types.

        Return None for other nodes, and if the levels are no whole multiples of a step, or vary along other axes than
        the channels.
        """
        op: Any = node.op
        if not isinstance(op, FakeQuantize) or not 2 <= op.levels <= MAX_LEVELS:
            return None
        if node.ports[0].spec.type not in dtypes:
            return None
        ranges = [_by_channel(s, node.ports[0].spec.rank) for s in node.sources[1:]]
        if not all(r is not None and np.isfinite(r).all() for r in ranges):
            return None
        in_low, in_high, out_low, out_high = ranges
        step, unit = (in_high - in_low) / (op.levels - 1), (out_high - out_low) / (op.levels - 1)
        if step.min() < SMALLEST_STEP or unit.min() < SMALLEST_STEP or (in_low > 0).any() or (in_high < 0).any():
            return None
        lows = np.append(in_low / step, out_low / unit)
        low = round(lows[0])
        if not (abs(lows - low) < ZERO_TOLERANCE).all():
            return None
        return Steps(step, unit.astype(np.float32), low, low + op.levels - 1)

    def equals(self, other: Steps) -> bool:
        """Return whether the same codes stand for the same numbers in both."""
        return (
            (self.low, self.high) == (other.low, other.high)
            and np.array_equal(self.step, other.step)
            and np.array_equal(self.unit, other.unit)
        )

    @property
    def zero(self) -> int:
        """The code of i8 that stands for 0: the code -128 stands for the level ``low``."""
        return -128 - self.low

    @property
    def varies(self) -> bool:
        """True if steps differ between channels."""
        return self.step.size > 1 or self.unit.size > 1


def _by_channel(port: Output | None, rank: int | None) -> Any:
    """Return the value of a constant in f64: a scalar, or one element per channel of an image. None for others."""
    value = None if port is None else quant_params(port)
    if value is None or (value.size > 1 and not 2 < value.ndim == rank) or value.size not in (1, *value.shape[1:2]):
        return None
    return decode(value).astype(np.float64).reshape(value.shape if value.size > 1 else ())
