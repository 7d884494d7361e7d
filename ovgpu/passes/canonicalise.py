"""Canonicalisation: of several ways to say the same, the one that later passes and backends know."""

from __future__ import annotations

import numpy as np

from ovgpu.model import Model, Node
from ovgpu.ops.base.op import op_of
from ovgpu.ops.convert import Convert, ConvertLike, Identity
from ovgpu.ops.convolution.binary_convolution import BinaryConvolution
from ovgpu.ops.pooling.pooling import AdaptiveMaxPool, MaxPool8
from ovgpu.passes._graph import Graph, constant_of
from ovgpu.types import Type
from ovgpu.types.packing import pack, unpack


def canonicalise(model: Model) -> None:
    """Rewrites the model and the bodies in it, in place; ports' specs must be inferred.

    - ConvertLike is Convert where the type is known: the second tensor itself is needed no longer.
    - Convert to the type that the tensor has is Identity.
    - Pooling whose indices nobody takes gives the values alone.
    - The bits of a constant kernel of BinaryConvolution are in the order of other constants.
    """
    taken = {id(s) for node in (*model.ops, *model.results, *model.sinks) for s in node.inputs if s is not None}
    for node in model.ops:
        for body in vars(node.op).values():
            if isinstance(body, Model):
                canonicalise(body)
        _convert(node)
        if isinstance(node.op, (MaxPool8, AdaptiveMaxPool)) and id(node.outputs[1]) not in taken:
            node.op, node.outputs = node.op.values(), node.outputs[:1]
        if isinstance(node.op, BinaryConvolution):
            _turn_bits(node)
    model.changed()


def _turn_bits(node: Node) -> None:
    """The first bit of a byte of the kernel is the lowest; of other constants, the highest."""
    value = constant_of(node.inputs[1])
    if value is not None:
        raw = getattr(node.inputs[1].node.op, "packed", None)  # type: ignore[union-attr]
        bits = np.unpackbits(pack(value, Type.u1) if raw is None else raw, bitorder="little")
        kernel = Graph(node).constant(unpack(np.packbits(bits), Type.u1, value.shape), Type.u1)
        node.inputs = [node.inputs[0], kernel]


def _convert(node: Node) -> None:
    op, types = op_of(node), [s.spec.type for s in node.inputs if s is not None]
    if isinstance(op, ConvertLike) and types[1].is_static():
        op = Convert(destination_type=types[1])
    if isinstance(op, Convert):
        node.op = Identity() if op.destination_type == types[0] else op
        node.inputs = node.inputs[:1]
