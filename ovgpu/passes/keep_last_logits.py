"""Logits of a decoder for the last position alone, which is all that the generation of a text needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.ops.movement.slicing import Slice
from ovgpu.types import Type

ELEMENTWISE = frozenset("Add Clamp Convert Divide Multiply Subtract Tanh".split())
"""Ops between the product and the logits, as in Gemma's soft-capping."""

END = 2**31 - 1  # a bound that Slice reads as the end of the axis


def keep_last_logits(model: Model, output_index: int | None = None, count: int = 1) -> bool:
    """Reduce an output in place from [batch, length, vocabulary] to [batch, 1, vocabulary], the last position.

    ``count`` is the number of positions that are kept, if there are so many.

    The product of hidden states and weights then computes one row instead of a row for each token of a prompt. Return
    False, and change nothing, unless the output is such a product, followed by elementwise layers at most. By default,
    the output is the one named logits of a model with states and with texts of any length.
    """
    if output_index is None:
        output_index = _logits(model)
    if output_index is None:
        return False
    product = _product(model, output_index)
    hidden = None if product is None else product.sources[0]
    if product is None or hidden is None:
        return False
    bounds = [_constant(value) for value in (-count, END, 1, 1)]  # start, stop, step, axis
    product.sources[0] = Node(Slice(), [hidden, *bounds], name=f"{product.friendly_name}/last_position").ports[0]
    model.changed()
    model.validate_nodes_and_infer_types()
    return True


def _logits(model: Model) -> int | None:
    for index, port in enumerate(model.outputs if model.sinks else ()):
        shape = port.partial_shape
        if "logits" in port.get_names() and shape.rank.is_static and len(shape) == 3 and shape[1].is_dynamic:
            return index
    return None


def _product(model: Model, output_index: int) -> Node | None:
    """Return the MatMul that computes an output; None unless a row depends only on that row of its first input."""
    port = model.results[output_index].sources[0]
    while port is not None and port.spec.rank == 3 and len(port.get_target_inputs()) == 1:
        node = port.node
        if node.op.name == "MatMul":
            hidden = node.sources[0]
            transposed = getattr(node.op, "transpose_a", True)
            return None if transposed or hidden is None or hidden.spec.rank != 3 else node
        if node.op.name not in ELEMENTWISE or getattr(node.op, "auto_broadcast", "numpy") != "numpy":
            return None
        rows = [source for source in node.sources if not _is_for_all_rows(source)]
        port = rows[0] if len(rows) == 1 else None
    return None


def _is_for_all_rows(port: Output | None) -> bool:
    """Return whether an operand is the same for all rows: it broadcasts along axis 1 of a tensor of rank 3."""
    shape = None if port is None else port.spec.shape
    return shape is not None and (len(shape) < 2 or (len(shape) <= 3 and shape[-2] == 1))


def _constant(value: int) -> Output:
    op: Any = Constant(element_type=Type.i64, value=np.array([value], np.int64))
    return Node(op, []).ports[0]
