"""Attention -> Quantize becomes one AttentionWithCodes on the device.

    ScaledDotProductAttention -> Transpose -> Reshape -> [Multiply] -> Quantize

Layers that only move elements may come in between; they then move the codes. A Multiply by a factor per head and column
may come before the Quantize, as in models with smoothed outliers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.ops.base.op import op_of
from ovgpu.ops.fused._elementwise import Fused
from ovgpu.ops.fused.attention_codes import AttentionWithCodes
from ovgpu.ops.movement.movement import Transpose
from ovgpu.passes._graph import NodeBuilder, alike_shapes, constant_integers, constant_of, redirect, users_of
from ovgpu.passes.fuse_elementwise import layer_of
from ovgpu.passes.quantize_norms import match_quantization
from ovgpu.types import Type


def quantize_attention(model: Model) -> None:
    """Rewrite the model and its bodies in place. Elementwise layers must be fused, and specs inferred, before; they are
    inferred again."""
    if _rewrite_all(model):
        model.validate_nodes_and_infer_types()


def _rewrite_all(model: Model) -> bool:
    """Rewrite the model and its bodies; return whether anything changed."""
    changed = any([_rewrite_all(body) for node in model.ops for body in bodies(node.op)])
    users, moved = users_of(model), dict[Output, Output]()
    for node in model.ops:
        source = node.sources[0] if node.sources else None
        codes = None if source is None else match_quantization(node, source)
        nodes = [] if codes is None else _find_attention(node, users)
        if codes is not None and nodes:
            factors = [_by_head(port, nodes) for port in node.sources[1 : codes.chain.inputs]]
            if not any(value is None for value in factors):
                _rewrite(node, nodes, codes, factors, moved)
    redirect(model, moved)
    model.changed()
    return changed or bool(moved)


def _find_attention(node: Node, users: Mapping[Output, list[Node]]) -> list[Node]:
    """Return an attention and the layers that move its elements to the node; an empty list if there is none.

    No other layer may take these tensors.
    """
    nodes, user = list[Node](), node
    while (source := user.sources[0]) is not None and users[source] == [user]:
        user = source.node
        nodes.insert(0, user)
        if type(user.op) is ScaledDotProductAttention:
            return nodes
        if not isinstance(user.op, Transpose) and not op_of(user).is_reshape:
            break
    return []


def _by_head(port: Output | None, nodes: Sequence[Node]) -> Any:
    """Return the constant factor of an attention's results in their own layout, as an array [H, 1, D].

    ``nodes``: the attention and the layers that move its results. Without such layers, return the factor as it is.
    Return None if it differs between queries, or is no constant of f32.
    """
    value, (attention, *moves) = constant_of(port), nodes
    if value is None or value.dtype != np.float32:
        return None
    if not moves:
        return value if value.ndim < 2 or value.shape[-2] == 1 else None
    shape, last = attention.ports[0].spec.shape, moves[-1].ports[0].spec.shape
    if len(moves) != 2 or shape is None or last is None or len(shape) != len(last) + 1:
        return None
    *batch, heads, queries, width = shape
    rank = len(shape)
    swaps = isinstance(moves[0].op, Transpose) and constant_integers(moves[0].sources[1]) == [
        *range(rank - 3),
        rank - 2,
        rank - 3,
        rank - 1,
    ]
    if not swaps or not isinstance(heads, int) or not isinstance(width, int):
        return None
    columns = heads * width
    fits = alike_shapes(last, (*batch, queries, columns)) and value.size == columns == value.shape[-1]
    return value.reshape(heads, 1, width) if fits else None


def _rewrite(
    node: Node, nodes: Sequence[Node], codes: Fused, factors: Sequence[Any], moved: dict[Output, Output]
) -> None:
    """Add a node that computes the codes of the attention, and record it as the replacement of the attention's result.

    The layers that moved the result then move codes, and the last of them replaces the Quantize.
    """
    (attention, *moves), graph = nodes, NodeBuilder(node)
    origin: Any = layer_of(attention)
    op = AttentionWithCodes(attention=attention.op, codes=codes, layer=origin)  # type: ignore[arg-type]
    added = [graph.constant(value, Type.f32) for value in factors]
    quantized = Node(op, [*attention.sources, *added], name=attention.friendly_name, layer_id=attention.layer_id)
    moved[attention.ports[0]] = quantized.ports[0]
    moved[node.ports[0]] = moves[-1].ports[0] if moves else quantized.ports[0]
