"""KV caches: in ``ReadValue -> [Gather of beams ->] Concat -> Assign``, Gather becomes Reorder, Concat CacheAppend.

The program keeps the result of `CacheAppend` in memory with spare capacity, where new rows are appended in place.
`Reorder` copies nothing as long as every beam continues itself: the beams are the identity.
"""

from __future__ import annotations

from typing import Any

from ovgpu.model import Model, Node, Output
from ovgpu.ops.base.op import op_of
from ovgpu.ops.fused.kv_cache import BeamsAreIdentity, CacheAppend, Reorder
from ovgpu.ops.movement.gather import Gather
from ovgpu.ops.movement.movement import Concat
from ovgpu.passes._graph import NodeBuilder
from ovgpu.types import Type


def append_to_caches(model: Model) -> None:
    """Rewrite the model in place. Port specs must be inferred beforehand."""
    flags: dict[Output, Output] = {}  # tensor of beams -> flag that tells whether they are the identity
    for sink in model.sinks:
        node = None if sink.sources[0] is None else sink.sources[0].node
        if node is None or type(node.op) is not Concat or len(node.sources) < 2 or node.ports[0].spec.shape is None:
            continue
        rank, past = len(node.ports[0].spec.shape), node.sources[0]
        axis = node.op.axis + (rank if node.op.axis < 0 else 0)
        gather = _match_gather(past) if axis else None
        if not _reads(past if gather is None else gather[0], sink):
            continue
        node.op = CacheAppend(axis=axis)
        if gather is not None and past is not None:
            variable, beams = gather
            if beams not in flags:
                flag = flags[beams] = NodeBuilder(past.node).add(BeamsAreIdentity(), beams)
                (flag.spec,) = op_of(flag.node).infer_specs(beams.spec)
            past.node.op, past.node.sources = Reorder(), [variable, beams, flags[beams]]
    if flags:
        model.changed()


def _reads(port: Output | None, sink: Node) -> bool:
    """Return whether the port reads the variable that ``sink``, an Assign, sets."""
    op: Any = None if port is None else port.node.op
    assign: Any = sink.op
    return op is not None and op.name == "ReadValue" and op.variable_id == assign.variable_id


def _match_gather(port: Output | None) -> tuple[Output, Output] | None:
    """Return (tensor, beams) of a Gather along the first axis whose beams are an input of the model, else None."""
    node = None if port is None else port.node
    if node is None or not isinstance(node.op, Gather) or node.ports[0].spec.shape is None:
        return None
    x, beams, axis = node.sources
    if x is None or beams is None or axis is None or axis.spec.constant is None or beams.spec.rank != 1:
        return None
    if beams.spec.type not in (Type.i32, Type.i64):
        return None
    first = axis.spec.constant.item() in (0, -(x.spec.rank or 0))
    return (x, beams) if first and beams.node.op.name == "Parameter" else None
