"""Grouped-query attention: Unsqueeze, Broadcast and Reshape of keys and values -> groups of query heads.

Models are exported with keys and values repeated for every query head. Instead, this pass reshapes the queries to
groups of heads, [b, h, g, ..], to which keys and values [b, h, 1, ..] broadcast. Attention then reads these without
copies.
"""

from __future__ import annotations

from ovgpu.model import Model, Node, Output
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.ops.movement.broadcast import Broadcast3
from ovgpu.ops.shape.reshape import Reshape, Unsqueeze
from ovgpu.passes._graph import NodeBuilder, rewrite
from ovgpu.symbolic import Int, Sym, atoms


def group_heads(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again."""
    rewrite(model, lambda node: isinstance(node.op, ScaledDotProductAttention) and _group(node))


def _group(node: Node) -> bool:
    """Make the node the Reshape that ends a grouped attention. Return False, and change nothing, if its keys and values
    are not repeated, or other inputs do not allow it."""
    q, k, v, mask, *others = (*node.sources, None)[: max(len(node.sources), 4)]
    keys, values = _match_repeat(k), _match_repeat(v)
    if q is None or k is None or v is None or keys is None or values is None or len(others) > 1:  # the second is a sink
        return False
    shape, heads, mask_shape = q.spec.shape, _heads(keys), None if mask is None else mask.spec.shape
    if shape is None or len(shape) != 4 or isinstance(shape[-1], Sym) or heads != _heads(values):
        return False
    if mask is not None and (mask_shape is None or (len(mask_shape) > 2 and mask_shape[-3] != 1)):
        return False
    graph, repeats = NodeBuilder(node), _heads(k) // heads
    single = graph.constant([2])
    q = graph.add(Reshape(special_zero=True), q, graph.constant([0, heads, repeats, -1, shape[-1]]))
    if mask is not None and mask_shape is not None and len(mask_shape) == 4:
        mask = graph.add(Unsqueeze(), mask, single)
    grouped = graph.add(
        node.op,  # type: ignore[arg-type]
        q,
        graph.add(Unsqueeze(), keys, single),
        graph.add(Unsqueeze(), values, single),
        mask,
        *others,
    )
    node.op, width = Reshape(special_zero=True), _shape(v)[-1]
    node.sources = [grouped, graph.constant([0, heads * repeats, -1, width])]
    return True


def _heads(port: Output) -> Int:
    return _shape(port)[1]


def _shape(port: Output) -> tuple[Int, ...]:
    assert port.spec.shape is not None
    return port.spec.shape


def _match_repeat(port: Output | None) -> Output | None:
    """Return the tensor [b, h, s, e] that the port repeats as [b, h * g, s, e], else None.

    Models broadcast keys and values of all layers to the length of one layer's cache, which would repeat the row of a
    cache of length 1. The rewritten attention raises an error there, since keys, values and mask do not fit each other.
    """
    shapes: list[tuple[Int, ...]] = []
    for op in (Reshape, Broadcast3, Unsqueeze):
        if port is None or type(port.node.op) is not op or port.spec.shape is None:
            return None
        shapes.append(port.spec.shape)
        port = port.node.sources[0]
    if port is None or port.spec.shape is None or len(port.spec.shape) != 4 or len(shapes[0]) != 4:
        return None
    (b, h, s, e), (_, heads, length, _) = port.spec.shape, shapes[0]
    if isinstance(h, Sym) or isinstance(heads, Sym) or isinstance(e, Sym) or not h or heads % h:
        return None
    matches = shapes[1:] == [(b, h, heads // h, length, e), (b, h, 1, s, e)] and shapes[0] == (b, heads, length, e)
    return port if matches and (length == s or _broadcasts(s, length)) else None


def _broadcasts(extent: Int, result: Int) -> bool:
    """Return whether ``result`` is the symbolic extent that ``extent`` and another extent broadcast to."""
    return any(a.op == "broadcast" and extent in a.args and result.terms == (((a,), 1),) for a in atoms(result))
