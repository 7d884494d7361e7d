"""Rotary of queries and keys, and CacheWrite of keys and values -> one RotaryCacheWrite in a decode step."""

from __future__ import annotations

from ovgpu.model import Model, Node, Output
from ovgpu.ops.attention.attention import CachedAttention
from ovgpu.ops.fused.kv_cache import CacheWrite
from ovgpu.ops.fused.rotary import Rotary, RotaryCacheWrite
from ovgpu.ops.movement.movement import Transpose
from ovgpu.ops.shape.reshape import Reshape, Unsqueeze
from ovgpu.passes._graph import NodeBuilder, redirect, users_of


def append_rotated(model: Model) -> None:
    """Rewrite the model in place. Port specs must be inferred beforehand; they are inferred again."""
    users, moved = users_of(model), dict[Output, Output]()
    for node in model.ops:
        if isinstance(node.op, CachedAttention):
            _join(node, users, moved)
    if moved:
        redirect(model, moved)
        model.changed()
        model.validate_nodes_and_infer_types()


def _join(attention: Node, users: dict[Output, list[Node]], moved: dict[Output, Output]) -> None:
    """Add one layer that computes the queries of an attention and writes its keys and values, and record the ports that
    this layer replaces."""
    query, *writes = (_skip_views(source) for source in attention.sources[:3])
    if not isinstance(query.op, Rotary) or not all(
        isinstance(p.op, CacheWrite) and p.ports[0] not in moved for p in writes
    ):
        return
    (keys, new, lengths), (values, v, _) = (p.sources for p in writes)
    assert keys is not None and new is not None and values is not None and v is not None
    key, op, first = new.node, query.op, query.sources[0]
    if len(users[new]) > 1 or not isinstance(key.op, Rotary) or vars(key.op) != vars(op) or first is None:
        return
    axes = {p.op.axis for p in writes}  # type: ignore[attr-defined]
    if (
        key.sources[1:] != query.sources[1:]
        or axes != {len(new.spec.shape or ()) - 2}
        or any(s.spec.type != new.spec.type for s in (v, first))
        or keys.spec.type != values.spec.type
    ):
        return
    ports = NodeBuilder(query).add(
        RotaryCacheWrite(size=op.size, pairs=op.pairs),
        first,
        key.sources[0],
        v,
        *query.sources[1:],
        keys,
        values,
        lengths,
        outputs=3,
    )
    moved.update({old: port for old, port in zip([query.ports[0], *(p.ports[0] for p in writes)], ports)})


def _skip_views(port: Output | None) -> Node:
    """Return the node behind a chain of views: Reshape, Transpose and Unsqueeze."""
    assert port is not None
    while isinstance(port.node.op, (Reshape, Transpose, Unsqueeze)) and port.node.sources[0] is not None:
        port = port.node.sources[0]
    return port.node
