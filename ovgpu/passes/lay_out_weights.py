"""MatMul by constant weights -> MatMul by transposed weights where BLAS on the host multiplies by these faster.

For products of one row, weights are stored with their longer axis contiguous, because long runs are read up to twice as
fast as short ones. For products of up to `FEW_ROWS` rows, weights are stored so that ``transpose_b`` is false. BLAS
then packs them in less time, and packing is a large part of a product with few rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.base.op import Array, call, op_of
from ovgpu.ops.base.tasks import record, shares, workers
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.passes._graph import NodeBuilder
from ovgpu.symbolic import Sym, product
from ovgpu.types import Type
from ovgpu.types.mapped import let_go

MIN_ELEMENTS = 1 << 16  # smaller weights stay in cache
FEW_ROWS = 256  # with more rows, packing takes little of the time
TILE_ROWS, TILE_COLUMNS = 64, 1024  # size of a tile of weights that is transposed at a time
CACHE_LINE = 16  # elements: at least a cache line of 64 bytes, for f32 and f64


def lay_out_weights(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand."""
    transposed: dict[int, Output] = {}  # by the id of the original weights, which their constant keeps alive
    for node in model.ops:
        for body in bodies(node.op):
            lay_out_weights(body)
        weights = _weights(node)
        if weights is not None:
            if id(weights) not in transposed:
                transposed[id(weights)] = _add_transposed(node, weights)
            op: Any = node.op
            node.op = replace(op, transpose_b=not op.transpose_b)
            node.sources = [node.sources[0], transposed[id(weights)]]
    if transposed:
        model.changed()


def _weights(node: Node) -> Array | None:
    """Return the constant that the node multiplies by if it should be transposed, else None."""
    op = node.op
    if not isinstance(op, MatMul):
        return None
    x, constant = (port.spec for port in node.sources if port is not None)
    weights = constant.constant
    if x.shape is None or weights is None or constant.type not in (Type.f32, Type.f64):
        return None
    if weights.ndim != 2 or weights.size < MIN_ELEMENTS:
        return None
    rows = product((*x.shape[:-2], x.shape[-1]) if op.transpose_a and len(x.shape) > 1 else x.shape[:-1])
    if isinstance(rows, Sym) or rows == 1:
        return weights if weights.shape[0] > weights.shape[1] else None
    return weights if op.transpose_b and rows <= FEW_ROWS else None


def _add_transposed(node: Node, weights: Array) -> Output:
    value = np.empty(weights.shape[::-1], weights.dtype)
    work = workers()
    for worker, rows in zip(work, shares(len(weights), len(work))):
        worker(_transpose, weights[rows], value[:, rows])
    record(call, work)
    let_go(weights)
    port = NodeBuilder(node).constant(value, Type.of(value.dtype))
    (port.spec,) = op_of(port.node).infer_specs()
    return port


def _transpose(source: Array, target: Array) -> None:
    """Copy the transpose by tiles with padded rows. Rows of weights often share few cache sets; padded rows do not."""
    buffer = np.empty((TILE_ROWS, TILE_COLUMNS + CACHE_LINE), source.dtype)
    for row in range(0, source.shape[0], TILE_ROWS):
        for column in range(0, source.shape[1], TILE_COLUMNS):
            part = source[row : row + TILE_ROWS, column : column + TILE_COLUMNS]
            tile = buffer[: part.shape[0], : part.shape[1]]
            np.copyto(tile, part)
            np.copyto(target[column : column + TILE_COLUMNS, row : row + TILE_ROWS], tile.T)
