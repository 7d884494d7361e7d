"""Variables that grow: ReadValue -> [Gather of beams ->] Concat -> Assign, as caches of attention are exported.

The Concat becomes an `CacheAppend`, whose result the program keeps in memory with room for more; the Gather becomes a
`Reorder`, which does nothing while the beams are in order.
"""

from __future__ import annotations

from typing import Any

from ovgpu.model import Model, Node, Output
from ovgpu.ops.base.op import op_of
from ovgpu.ops.fused.kv_cache import BeamsAreIdentity, CacheAppend, Reorder
from ovgpu.ops.movement.indexing import Gather
from ovgpu.ops.movement.movement import Concat
from ovgpu.passes._graph import Graph
from ovgpu.types import Type


def growing_variables(model: Model) -> None:
    """Rewrites the model in place; ports' specs must be inferred."""
    flags: dict[int, Output] = {}  # id(beams) -> whether they are in order
    for sink in model.sinks:
        node = None if sink.inputs[0] is None else sink.inputs[0].node
        if node is None or type(node.op) is not Concat or len(node.inputs) < 2 or node.outputs[0].spec.shape is None:
            continue
        rank, past = len(node.outputs[0].spec.shape), node.inputs[0]
        axis = node.op.axis + (rank if node.op.axis < 0 else 0)
        picks = _picked(past) if axis else None
        if not _reads(past if picks is None else picks[0], sink):
            continue
        node.op = CacheAppend(axis=axis)
        if picks is not None and past is not None:
            variable, beams = picks
            if id(beams) not in flags:
                flag = flags[id(beams)] = Graph(past.node).add(BeamsAreIdentity(), beams)
                (flag.spec,) = op_of(flag.node).infer(beams.spec)
            past.node.op, past.node.inputs = Reorder(), [variable, beams, flags[id(beams)]]
    if flags:
        model.changed()


def _reads(port: Output | None, sink: Node) -> bool:
    """Whether the port is the variable that the Assign sets."""
    op: Any = None if port is None else port.node.op
    wanted: Any = sink.op
    return op is not None and op.name == "ReadValue" and op.variable_id == wanted.variable_id


def _picked(port: Output | None) -> tuple[Output, Output] | None:
    """(what, beams) of a Gather of parts along the first axis, beams being an input."""
    node = None if port is None else port.node
    if node is None or not isinstance(node.op, Gather) or node.outputs[0].spec.shape is None:
        return None
    x, beams, axis = node.inputs
    if x is None or beams is None or axis is None or axis.spec.constant is None or beams.spec.rank != 1:
        return None
    if beams.spec.type not in (Type.i32, Type.i64):
        return None
    first = axis.spec.constant.item() in (0, -(x.spec.rank or 0))
    return (x, beams) if first and beams.node.op.name == "Parameter" else None
