"""Canonicalisation: equivalent forms of a layer -> the one form that later passes and backends know."""

from __future__ import annotations

import numpy as np

from ovgpu.model import Model, Node, bodies
from ovgpu.ops.activation.activation import PRelu
from ovgpu.ops.base.op import op_of
from ovgpu.ops.convert import Convert, ConvertLike, Identity
from ovgpu.ops.convolution.binary_convolution import BinaryConvolution
from ovgpu.ops.pooling.pooling import AdaptiveMaxPool, MaxPool8
from ovgpu.ops.shape.reshape import Reshape
from ovgpu.passes._graph import NodeBuilder, constant_of
from ovgpu.passes._pot_weights import drop_zero_points, store_codes
from ovgpu.types import Type
from ovgpu.types.packing import pack, unpack


def canonicalise(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again.

    - ConvertLike -> Convert where the type is known; the second tensor is no longer needed.
    - Convert to the type that the tensor has -> Identity.
    - Max pooling whose indices are unused -> pooling that returns the values alone.
    - PRelu with one slope per channel -> PRelu whose slope broadcasts by NumPy's rules, so that it can be fused.
    - Weights quantised by POT -> weights in the form that nncf writes.
    - Bits of a constant kernel of BinaryConvolution -> the same bits in the bit order of other constants.
    """
    if _rewrite(model):
        model.validate_nodes_and_infer_types()


def _rewrite(model: Model) -> bool:
    """Rewrite the model and its bodies in place. Return whether layers were added, whose specs must be inferred."""
    added = False
    taken = {s for node in (*model.ops, *model.results, *model.sinks) for s in node.sources if s is not None}
    for node in model.ops:
        for body in bodies(node.op):
            added |= _rewrite(body)
        _simplify_convert(node)
        if isinstance(node.op, (MaxPool8, AdaptiveMaxPool)) and node.ports[1] not in taken:
            node.op, node.ports = node.op.values(), node.ports[:1]
        if isinstance(node.op, PRelu):
            added |= _align_slope(node)
        drop_zero_points(node)
        added |= store_codes(node)
        if isinstance(node.op, BinaryConvolution):
            _reverse_bits(node)
    model.changed()
    return added


def _align_slope(node: Node) -> bool:
    """Reshape a slope with one element per channel to [C, 1, ...]. Return whether a layer was added."""
    x, slope = node.sources
    assert x is not None and slope is not None
    rank, channels = x.spec.rank or 0, (x.spec.shape or ())[1:2]
    if rank > 2 and slope.spec.shape == channels != (1,) and isinstance(channels[0], int):
        graph = NodeBuilder(node)
        node.sources = [x, graph.add(Reshape(), slope, graph.constant([*channels, *[1] * (rank - 2)]))]
        return True
    return False


def _reverse_bits(node: Node) -> None:
    """Reverse the bits of each byte of the kernel.

    A kernel stores its first bit as the least significant bit of a byte, other u1 constants as the most significant.
    """
    value = constant_of(node.sources[1])
    if value is not None:
        raw = getattr(node.sources[1].node.op, "packed", None)  # type: ignore[union-attr]
        bits = np.unpackbits(pack(value, Type.u1) if raw is None else raw, bitorder="little")
        kernel = NodeBuilder(node).constant(unpack(np.packbits(bits), Type.u1, value.shape), Type.u1)
        node.sources = [node.sources[0], kernel]


def _simplify_convert(node: Node) -> None:
    """Make a ConvertLike a Convert if its type is known, and a Convert to the tensor's own type an Identity."""
    op, types = op_of(node), [s.spec.type for s in node.sources if s is not None]
    if isinstance(op, ConvertLike) and types[1].is_static():
        op = Convert(destination_type=types[1])
    if isinstance(op, Convert):
        node.op = Identity() if op.destination_type == types[0] else op
        node.sources = node.sources[:1]
