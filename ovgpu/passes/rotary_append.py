"""In a decoder's step, queries and keys are turned, and keys and values written to their caches, by one layer."""

from __future__ import annotations

from ovgpu.model import Model, Node, Output
from ovgpu.ops.attention.attention import CachedAttention
from ovgpu.ops.fused.kv_cache import CacheWrite
from ovgpu.ops.fused.rotary import Rotary, RotaryCacheWrite
from ovgpu.ops.movement.movement import Transpose
from ovgpu.ops.shape.reshape import Reshape, Unsqueeze
from ovgpu.passes._graph import Graph, users_of


def append_rotated(model: Model) -> None:
    """Rewrites the model in place; ports' specs must be inferred, and are again."""
    users, moved = users_of(model), dict[int, Output]()
    for node in model.ops:
        if isinstance(node.op, CachedAttention):
            _join(node, users, moved)
    if moved:
        for node in model.ops:
            node.inputs = [None if s is None else moved.get(id(s), s) for s in node.inputs]
        model.changed()
        model.validate_nodes_and_infer_types()


def _join(attention: Node, users: dict[int, list[Node]], moved: dict[int, Output]) -> None:
    """Notes what one layer does instead of those that give an attention its queries, keys and values."""
    query, *places = (_behind_views(source) for source in attention.inputs[:3])
    if not isinstance(query.op, Rotary) or not all(isinstance(p.op, CacheWrite) and id(p.outputs[0]) not in moved
                                                   for p in places):
        return
    (keys, new, lengths), (values, v, _) = (p.inputs for p in places)
    assert keys is not None and new is not None and v is not None
    key, op, first = new.node, query.op, query.inputs[0]
    if len(users[id(new)]) > 1 or not isinstance(key.op, Rotary) or vars(key.op) != vars(op) or first is None:
        return
    axes = {p.op.axis for p in places}  # type: ignore[attr-defined]
    if (key.inputs[1:] != query.inputs[1:] or axes != {len(new.spec.shape or ()) - 2}
            or any(s.spec.type != new.spec.type for s in (v, first, keys))):
        return
    ports = Graph(query).add(RotaryCacheWrite(size=op.size, pairs=op.pairs), first, key.inputs[0], v,
                             *query.inputs[1:], keys, values, lengths, outputs=3)
    moved.update({id(old): port for old, port in zip([query.outputs[0], *(p.outputs[0] for p in places)], ports)})


def _behind_views(port: Output | None) -> Node:
    """The node that computes what a port is another view of."""
    assert port is not None
    while isinstance(port.node.op, (Reshape, Transpose, Unsqueeze)) and port.node.inputs[0] is not None:
        port = port.node.inputs[0]
    return port.node
