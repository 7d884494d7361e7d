"""MatMul by constant weights -> PanelMatMul by the same in panels of columns, in programs for batches on the host."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ovgpu.model import Model, Node
from ovgpu.ops.base.op import Array, call, op_of
from ovgpu.ops.base.tasks import record, shares, workers
from ovgpu.ops.fused.panel_matmul import COLUMNS, PanelMatMul
from ovgpu.ops.matrix.matmul import MAX_UNPACKED_PRODUCTS, MatMul
from ovgpu.passes._derived import derived
from ovgpu.passes._graph import NodeBuilder
from ovgpu.types import Type
from ovgpu.types.mapped import let_go

MIN_ELEMENTS = 1 << 16  # smaller weights stay in cache
MIN_ROWS = 8  # that are multiplied at a time


def lay_out_panels(model: Model) -> None:
    """Rewrite the model in place. Port specs must be inferred beforehand."""
    changed = False
    for node in model.ops:
        weights = _weights(node)
        if weights is None:
            continue
        op: Any = node.op
        matrix = weights if op.transpose_b else weights.T
        panels = derived(("lay_out_panels", op.transpose_b), [weights], partial(_panels, matrix))
        port = NodeBuilder(node).constant(panels, Type.f32)
        (port.spec,) = op_of(port.node).infer_specs()
        node.op, node.sources, changed = PanelMatMul(), [node.sources[0], port], True
    if changed:
        model.changed()


def _weights(node: Node) -> Array | None:
    """Return the constant that the node multiplies by if panels of it are faster, else None."""
    op = node.op
    if type(op) is not MatMul or op.transpose_a or not all(node.sources):
        return None
    x, constant = (port.spec for port in node.sources if port is not None)
    weights = constant.constant
    if x.shape is None or len(x.shape) < 2 or weights is None or constant.type is not Type.f32 or weights.ndim != 2:
        return None
    columns, depth = weights.shape if op.transpose_b else weights.shape[::-1]
    fits = MIN_ROWS * depth * COLUMNS <= MAX_UNPACKED_PRODUCTS and columns % COLUMNS == 0
    return weights if fits and weights.size >= MIN_ELEMENTS else None


def _panels(weights: Array) -> Array:
    """Return weights [N, K] as panels [N / COLUMNS, K, COLUMNS]."""
    columns, depth = weights.shape
    panels = np.empty((columns // COLUMNS, depth, COLUMNS), weights.dtype)
    source = weights.reshape(-1, COLUMNS, depth).swapaxes(1, 2)
    work = workers()
    for worker, part in zip(work, shares(len(panels), len(work))):
        worker(np.copyto, panels[part], source[part])
    record(call, work)
    let_go(weights)
    return panels
