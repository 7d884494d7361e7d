"""On the host, weights lie in memory as BLAS multiplies rows by them fastest.

For one row, along their longer axis: long runs are read up to twice as fast as short ones. For some rows, not
transposed: then they take less time to pack, which is much of a product of few rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output
from ovgpu.ops.base.op import Array, call, op_of
from ovgpu.ops.base.tasks import record, shares, workers
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.passes._graph import Graph
from ovgpu.symbolic import Sym, product
from ovgpu.types import Type
from ovgpu.types.mapped import let_go

LARGE = 1 << 16  # elements: smaller weights stay in cache
FEW = 256  # rows; where there are more, packing takes little of the time
ROWS, COLUMNS = 64, 1024  # of weights that are transposed at a time
LINE = 16  # elements of a line of cache, or more


def lay_out_weights(model: Model) -> None:
    """Rewrites the model and the bodies in it, in place; ports' specs must be inferred."""
    made: dict[int, Output] = {}  # by the id of the weights as they were
    for node in model.ops:
        for body in vars(node.op).values():
            if isinstance(body, Model):
                lay_out_weights(body)
        weights = _weights(node)
        if weights is not None:
            if id(weights) not in made:
                made[id(weights)] = _transposed(node, weights)
            op: Any = node.op
            node.op = replace(op, transpose_b=not op.transpose_b)
            node.inputs = [node.inputs[0], made[id(weights)]]
    if made:
        model.changed()


def _weights(node: Node) -> Array | None:
    """The constant that the node multiplies by, if it had better be transposed."""
    op = node.op
    if not isinstance(op, MatMul):
        return None
    x, constant = (port.spec for port in node.inputs if port is not None)
    weights = constant.constant
    if x.shape is None or weights is None or constant.type not in (Type.f32, Type.f64):
        return None
    if weights.ndim != 2 or weights.size < LARGE:
        return None
    rows = product((*x.shape[:-2], x.shape[-1]) if op.transpose_a and len(x.shape) > 1 else x.shape[:-1])
    if isinstance(rows, Sym) or rows == 1:
        return weights if weights.shape[0] > weights.shape[1] else None
    return weights if op.transpose_b and rows <= FEW else None


def _transposed(node: Node, weights: Array) -> Output:
    value = np.empty(weights.shape[::-1], weights.dtype)
    work = workers()
    for worker, rows in zip(work, shares(len(weights), len(work))):
        worker(_transpose, weights[rows], value[:, rows])
    record(call, work)
    let_go(weights)
    port = Graph(node).constant(value, Type.of(value.dtype))
    (port.spec,) = op_of(port.node).infer()
    return port


def _transpose(source: Array, target: Array) -> None:
    """By way of tiles whose rows are not where those of the weights often are: in the same few places of the cache."""
    space = np.empty((ROWS, COLUMNS + LINE), source.dtype)
    for row in range(0, source.shape[0], ROWS):
        for column in range(0, source.shape[1], COLUMNS):
            part = source[row : row + ROWS, column : column + COLUMNS]
            tile = space[: part.shape[0], : part.shape[1]]
            np.copyto(tile, part)
            np.copyto(target[column : column + COLUMNS, row : row + ROWS], tile.T)
