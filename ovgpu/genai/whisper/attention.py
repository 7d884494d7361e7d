"""Scores of the cross-attention of a decoder as its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.model import Model, Node, Output
from ovgpu.ops.arithmetic.arithmetic import Add, Multiply
from ovgpu.ops.infrastructure.graph import Constant, Result
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.ops.movement.gather import Gather
from ovgpu.ops.movement.movement import Concat
from ovgpu.types import Type

CROSS_ATTENTION = "encoder_attn"  # part of the names of such layers
QUERY, KEY, MASK, SCALE = 0, 1, 3, 4  # inputs of ScaledDotProductAttention


def keep_scores(model: Model, heads: Sequence[tuple[int, int]]) -> None:
    """Replace the outputs of a decoder in place by the scores [batch, heads, length, positions] of some heads.

    They are the products of queries and keys before the softmax, scaled and masked, of the attention to the encoder.
    ``heads`` are pairs of a layer and a head. Raises: Error for layers or heads that the model does not have.
    """
    layers = [
        node
        for node in model.get_ordered_ops()
        if node.op.name == "ScaledDotProductAttention" and CROSS_ATTENTION in node.friendly_name
    ]
    found = []
    for layer, head in heads:
        if layer >= len(layers):
            raise Error(f"alignment_heads has layer {layer}, and the model has {len(layers)} cross-attentions")
        found.append(_scores(layers[layer], head))
    scores = Node(Concat(axis=1), found).ports[0]
    for result in [*model.results]:
        model.remove_result(result)
    model.add_results([Node(Result(), [scores], name="alignment/result")])
    model.validate_nodes_and_infer_types()


def _scores(layer: Node, head: int) -> Output:
    """Return the scores [batch, 1, length, positions] of a head."""
    if getattr(layer.op, "causal", False):
        raise Error(f"'{layer.friendly_name}' is causal: it attends to no encoder")
    sources = [*layer.sources, None, None, None]
    query, key, mask, scale = (sources[n] for n in (QUERY, KEY, MASK, SCALE))
    assert query is not None and key is not None
    if key.node.op.name == "ReadValue" and key.node.sources:  # the first inference computes what the state keeps
        (key,) = key.node.sources
        assert key is not None
    shape = query.partial_shape
    if shape.rank.is_dynamic or len(shape) != 4 or shape[1].is_dynamic or shape[3].is_dynamic:
        raise Error(f"the queries of '{layer.friendly_name}' have the shape {shape}, not [batch, heads, length, width]")
    if head >= shape[1].get_length():
        raise Error(f"alignment_heads has head {head}, and '{layer.friendly_name}' has {shape[1].get_length()} heads")
    if scale is None:
        scale = _constant(1 / np.sqrt(shape[3].get_length()), np.float32)
    scaled = Node(Multiply(), [_head(query, head), scale]).ports[0]
    scores = Node(MatMul(transpose_b=True), [scaled, _head(key, head)]).ports[0]
    if mask is None:
        return scores
    if mask.spec.type == Type.boolean:
        raise Error(f"the mask of '{layer.friendly_name}' is boolean: times of words need one that is added")
    own = mask.partial_shape
    heads = own[1] if own.rank.is_static and len(own) == 4 else 1
    return Node(Add(), [scores, mask if heads == 1 else _head(mask, head)]).ports[0]


def _head(port: Output, head: int) -> Output:
    return Node(Gather(), [port, _constant([head]), _constant(1)]).ports[0]


def _constant(value: Any, dtype: Any = np.int64) -> Output:
    array = np.array(value, dtype)
    return Node(Constant(element_type=Type.of(array.dtype), value=array), []).ports[0]
