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
ZERO_TOLERANCE = 1e-3  # of a step, by which 0 may miss the nearest level: f32 has 7 digits for 3 in front of the point


@dataclass(frozen=True)
class Steps:
    """Levels of a FakeQuantize: the multiples ``low`` to ``high`` of ``step`` that round to them, and of ``unit`` that
    they are. Both are numbers, or arrays [1, C, 1, ...]."""

    step: Array
    unit: Array
    low: int
    high: int

    @staticmethod
    def of(node: Node, kinds: Sequence[Type]) -> Steps | None:
        """Return the levels of a FakeQuantize of one of these types; None if they are no multiples of a step, or vary
        otherwise than by channel."""
        op: Any = node.op
        if not isinstance(op, FakeQuantize) or not 2 <= op.levels <= MAX_LEVELS or node.ports[0].spec.type not in kinds:
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
        """Return whether codes of both stand for the same numbers."""
        return (
            (self.low, self.high) == (other.low, other.high)
            and np.array_equal(self.step, other.step)
            and np.array_equal(self.unit, other.unit)
        )

    @property
    def zero(self) -> int:
        """The code of i8 that stands for 0, where codes begin at -128."""
        return -128 - self.low

    @property
    def varies(self) -> bool:
        """True if the channels have steps of their own."""
        return self.step.size > 1 or self.unit.size > 1


def _by_channel(port: Output | None, rank: int | None) -> Any:
    """Return the value of a constant of one element, or of one per channel of an image, in f64; else None."""
    value = None if port is None else quant_params(port)
    if value is None or (value.size > 1 and not 2 < value.ndim == rank) or value.size not in (1, *value.shape[1:2]):
        return None
    return decode(value).astype(np.float64).reshape(value.shape if value.size > 1 else ())
