"""GroupNormalization -> elementwise layers becomes one GroupNormWithEpilogue on a device.

The norm's kernel computes the layers: an activation, the sum with a tensor, or a scale and shift per channel and image.
"""

from __future__ import annotations

from functools import partial

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.base.shape_inputs import shape_tensor_ports
from ovgpu.ops.base.view import equal
from ovgpu.ops.normalization._group_norm import MAX_EPILOGUE_OPERANDS
from ovgpu.ops.normalization.group_normalization import GroupNormalization, GroupNormWithEpilogue
from ovgpu.ops.quantization import FakeConvert
from ovgpu.passes._graph import alike, is_scalar, users_of
from ovgpu.passes.fuse_convolution_epilogues import find_epilogue, is_literal
from ovgpu.passes.fuse_elementwise import fuse_nodes, layer_of


def fuse_group_norm_epilogues(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand."""
    users, excluded = users_of(model), shape_tensor_ports(model)
    order = {node: i for i, node in enumerate(model.ops)}
    for node in model.ops:
        for body in bodies(node.op):
            fuse_group_norm_epilogues(body)
        if not isinstance(node.op, GroupNormalization):
            continue
        result = node.ports[0]
        layers = find_epilogue(node, users, excluded, order, MAX_EPILOGUE_OPERANDS, partial(_may_take, result))
        if layers:
            excluded |= {layer.ports[0] for layer in layers}
            op, (_, *operands) = fuse_nodes(layers, result, is_literal)
            layers[-1].op = GroupNormWithEpilogue(layer=layer_of(node), norm=node.op, fused=op)
            layers[-1].sources = [*node.sources, *operands]
    model.changed()


def _may_take(result: Output, layer: Node, operand: Output) -> bool:
    """Return whether the norm's kernel can read the operand of a layer.

    It can if the operand is a number, has the result's shape, or has one element per channel, for each image or for
    all.
    """
    shape, out = operand.spec.shape, result.spec.shape
    if isinstance(layer.op, FakeConvert) or shape is None or out is None or len(shape) > len(out):
        return False
    images, channels, *spatial = (1,) * (len(out) - len(shape)) + tuple(shape)
    if alike(operand, result) or is_scalar(operand):
        return True
    return (equal(images, 1) or equal(images, out[0])) and equal(channels, out[1]) and all(equal(d, 1) for d in spatial)
