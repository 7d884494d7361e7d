"""BatchNormInference with constant parameters -> Multiply and Add, which fuse with the layers before and after them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.arithmetic.arithmetic import Add, Multiply
from ovgpu.ops.base.op import op_of
from ovgpu.ops.normalization.channel_normalization import BatchNorm, by_channel
from ovgpu.passes._graph import NodeBuilder
from ovgpu.types import Type


def scale_channels(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand.

    Batch norms of 16-bit types stay as they are, since their scale and shift would be rounded to 16 bits.
    """
    for node in model.ops:
        for body in bodies(node.op):
            scale_channels(body)
        _scale(node)
    model.changed()


def _scale(node: Node) -> None:
    op: Any = op_of(node)
    spec = node.ports[0].spec
    if not isinstance(op, BatchNorm) or spec.type not in (Type.f32, Type.f64) or spec.rank is None:
        return
    x, *parameters = op.order(node.sources)
    if any(port.spec.constant is None for port in parameters):
        return
    gamma, beta, mean, variance = (port.spec.constant.astype(np.float64) for port in parameters)
    scale = gamma / np.sqrt(variance + op.epsilon)
    graph = NodeBuilder(node)
    product: Output = graph.add(Multiply(), x, _channel_constant(graph, scale, spec.type, spec.rank))
    product.spec = spec
    node.op, node.sources = Add(), [product, _channel_constant(graph, beta - mean * scale, spec.type, spec.rank)]


def _channel_constant(graph: NodeBuilder, value: Any, dtype: Type, rank: int) -> Output:
    port = graph.constant(by_channel(value, rank), dtype)
    port.spec = op_of(port.node).infer_specs()[0]
    return port
