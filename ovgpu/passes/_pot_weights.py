"""8-bit weights in the forms of POT (2020 to 2022) -> Constant of i8 -> Convert -> Multiply by scales, nncf's form."""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgpu.model import Node
from ovgpu.ops.arithmetic.arithmetic import Multiply, Subtract
from ovgpu.ops.base.storage import decode, encode
from ovgpu.ops.convert import Convert, Identity
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.ops.quantization import FakeQuantize
from ovgpu.passes._graph import NodeBuilder
from ovgpu.passes._steps import MAX_LEVELS, SMALLEST_STEP, ZERO_TOLERANCE
from ovgpu.passes._weights import COMPUTE_TYPES, quant_params
from ovgpu.types import Type

CODES = range(-128, 128)
ROUNDING = 1e-4  # of a code: smaller zero points count as 0. POT wrote up to 7.6e-6


def drop_zero_points(node: Node) -> None:
    """Make a Subtract from codes of i8 an Identity if its zero points are 0, apart from rounding errors."""
    if not isinstance(node.op, Subtract):
        return
    floats, zero = node.sources
    assert floats is not None and zero is not None
    codes = floats.node.sources[0] if isinstance(floats.node.op, Convert) else None
    if codes is None or not isinstance(codes.node.op, Constant) or codes.spec.type != Type.i8:
        return
    points = quant_params(zero)
    if points is not None and floats.spec.shape == node.ports[0].spec.shape and _is_zero(points):
        node.op, node.sources = Identity(), [floats]


def _is_zero(points: Any) -> bool:
    return bool((abs(decode(points).astype(np.float32)) < ROUNDING).all())


def store_codes(node: Node) -> bool:
    """Make a FakeQuantize of a constant a Multiply of codes by scales, if its levels are whole multiples of steps and
    the codes fit i8. Return whether it is one now. The specs of the new layers are not inferred."""
    op: Any = node.op
    dtype = node.ports[0].spec.type
    if not isinstance(op, FakeQuantize) or op.levels > MAX_LEVELS or op.auto_broadcast != "numpy":
        return False
    if dtype not in COMPUTE_TYPES or (node.ports[0].spec.rank or 0) < 2:
        return False
    constants = [None if source is None else quant_params(source) for source in node.sources]
    if any(value is None for value in constants):
        return False
    values, in_low, in_high, out_low, out_high = (decode(v).astype(np.float32) for v in constants if v is not None)
    steps = np.float32(op.levels - 1)
    unit = (out_high - out_low) / steps
    if (in_high - in_low).min() < SMALLEST_STEP or unit.min() < SMALLEST_STEP or values.size == 0:
        return False
    low = np.rint(out_low / unit)
    codes = np.rint((values - in_low) / (in_high - in_low) * steps).clip(0, steps) + low
    if not (abs(out_low / unit - low) < ZERO_TOLERANCE).all() or codes.shape != values.shape:
        return False
    if not (codes.min() in CODES and codes.max() in CODES):
        return False
    graph = NodeBuilder(node)
    floats = graph.add(Convert(destination_type=dtype), graph.constant(codes, Type.i8))
    node.op, node.sources = Multiply(), [floats, graph.constant(encode(unit, dtype), dtype)]
    return True
