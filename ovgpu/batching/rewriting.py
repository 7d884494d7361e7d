"""Rewriting of nodes that work for a batch of one row only, in models exported with batch 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ovgpu.batching.axes import Axes, Batch, BatchAxis
from ovgpu.model import Node, Output
from ovgpu.ops.base.view import equal
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.ops.movement.broadcast import Broadcast3
from ovgpu.ops.movement.gather import Gather8
from ovgpu.ops.movement.movement import Concat
from ovgpu.ops.sequence.recurrent import Cell, SequenceOfCells
from ovgpu.ops.shape.reshape import Reshape
from ovgpu.ops.shape.shape import ShapeOf3
from ovgpu.passes._graph import NodeBuilder
from ovgpu.symbolic import Int, Sym, product


def rewrite(node: Node, axes: Axes, batch: Batch, source: tuple[Output, int] | None) -> bool:
    """Rewrite a node that is for a batch of one row. Return whether it was changed.

    ``axes`` are the batch axes of the node's inputs. ``source`` is an input of the model with a batch axis, and that
    axis; None in bodies.
    """
    if isinstance(node.op, Reshape) and axes[0] is not None:
        return _rewrite_target(node, axes[0], batch)
    if isinstance(node.op, (Concat, Cell, SequenceOfCells)) and any(axes) and source is not None:
        axis = next(a for a in axes if a is not None)
        count = len(axes) if isinstance(node.op, Concat) else 1 + node.op.states
        if isinstance(node.op, SequenceOfCells):
            count += 1  # the lengths
        # The list has `any` repeat all of these inputs, and not only the first one.
        return any([_repeat(node, i, axis, source) for i in range(count) if axes[i] is None])
    return False


def _rewrite_target(node: Node, axis: BatchAxis, batch: Batch) -> bool:
    """Replace the 1 of a Reshape's constant target shape that stands for the batch."""
    op: Any = node.op
    x, target = node.sources[0], node.sources[1]
    if x is None or x.spec.shape is None or target is None or not isinstance(target.node.op, Constant):
        return False
    values = [int(v) for v in target.node.op.value.ravel()]
    extents = [
        x.spec.shape[i] if v == 0 and op.special_zero and i < len(x.spec.shape) else v for i, v in enumerate(values)
    ]
    if any(batch.depends(extent) for extent in extents):  # a 0 in the target already copies the batch
        return False
    place = _place(values, extents, product(x.spec.shape[: axis.axis]) * axis.outer, axis)
    if place is None:
        return False
    if -1 not in values:
        values[place] = -1
    elif place == axis.axis and axis == BatchAxis(place) and (op.special_zero or 0 not in values):
        values[place] = 0  # the extent of the input
        node.op = replace(op, special_zero=True)
    else:
        return False
    node.sources[1] = NodeBuilder(node).constant(np.array(values, np.int64))
    return True


def _place(values: Sequence[int], extents: Sequence[Int], before: Int, axis: BatchAxis) -> int | None:
    """Return the index of the 1 in a target shape that stands for the batch, or None.

    The product of the ``extents`` before it is ``before``, the number of elements outside the rows. If several
    candidates are left, the one on the input's batch axis is preferred.
    """
    candidates = [
        i for i, v in enumerate(values) if v == 1 and -1 not in values[:i] and equal(product(extents[:i]), before)
    ]
    return axis.axis if axis.axis in candidates else next(iter(candidates), None)


def _repeat(node: Node, input_index: int, axis: BatchAxis, source: tuple[Output, int]) -> bool:
    """Repeat an input for each row, if its extent is 1 on the batch axis. Return whether it was repeated."""
    x = node.sources[input_index]
    shape = None if x is None else x.spec.shape
    if (
        x is None
        or shape is None
        or axis != BatchAxis(axis.axis)
        or axis.axis >= len(shape)
        or (not equal(shape[axis.axis], 1) or any(isinstance(d, Sym) for d in shape))
    ):
        return False
    graph = NodeBuilder(node)
    rows = graph.add(Gather8(), graph.add(ShapeOf3(), source[0]), graph.constant([source[1]]), graph.constant(0))
    before, after = (graph.constant(np.array(part, np.int64)) for part in (shape[: axis.axis], shape[axis.axis + 1 :]))
    target = graph.add(Concat(axis=0), before, rows, after)
    node.sources[input_index] = graph.add(Broadcast3(mode="numpy"), x, target)
    return True
