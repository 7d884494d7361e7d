"""Convolution -> the same of tensors whose channels are adjacent in memory, where convolutions follow each other.

cuDNN's kernels for tensor cores read such tensors. Given others, it copies them before and after each convolution. The
layers between these convolutions keep the layout, and the planner copies tensors at the ends of such a part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.base.op import Array, op_of
from ovgpu.ops.convolution._convolution import FEW_CHANNELS
from ovgpu.ops.convolution.convolution import Convolution, ConvolutionBackpropData
from ovgpu.ops.fused.channels_last import ChannelsLastConvolution
from ovgpu.ops.fused.convolution_epilogue import ConvolutionWithEpilogue
from ovgpu.passes._graph import Graph, constant_of, users_of
from ovgpu.passes.fuse_elementwise import layer_of
from ovgpu.types import Type
from ovgpu.types.mapped import let_go

RANK = 4  # images


def channels_last(model: Model, types: Callable[[], Sequence[Type]] = tuple) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand.

    ``types()`` are the element types for which the device's convolutions read adjacent channels; it is called only for
    models with such convolutions.
    """
    moved: dict[int, Output] = {}  # kernels with their channels last, by the id of the constant
    for node in model.ops:
        for body in bodies(node.op):
            channels_last(body, types)
    convolutions = [node for node in model.ops if _is_candidate(node)]
    found = types() if convolutions else ()
    convolutions = [node for node in convolutions if node.ports[0].spec.type in found]
    for node in _connected(model, convolutions):
        value = constant_of(node.sources[1])
        is_moved = value.ndim == RANK and max(value.shape[2:]) > 1  # else both orders are the same, or it is of a group
        if is_moved and id(value) not in moved:
            moved[id(value)] = _channels_moved(node, value)
        node.op = ChannelsLastConvolution(layer=layer_of(node), convolution=node.op, moved=is_moved)  # type: ignore[arg-type]
        if is_moved:
            node.sources = [node.sources[0], moved[id(value)], *node.sources[2:]]
    model.changed()


def _is_candidate(node: Node) -> bool:
    """Return whether the node convolves images with a constant kernel, in groups of all channels or of a few."""
    op = node.op.convolution if isinstance(node.op, ConvolutionWithEpilogue) else node.op
    if not isinstance(op, Convolution) or isinstance(op, ConvolutionBackpropData):
        return False
    kernel, shape = constant_of(node.sources[1]), node.ports[0].spec.shape
    if kernel is None or shape is None or len(shape) != RANK:
        return False
    return bool(kernel.ndim == RANK or min(kernel.shape[1:3]) <= FEW_CHANNELS)


def _connected(model: Model, convolutions: Sequence[Node]) -> list[Node]:
    """Return the convolutions whose result another one takes, or that take another one's, perhaps through layers that
    keep the layout."""
    users, inside = users_of(model), set(convolutions)
    found = set[Node]()
    for node in convolutions:
        waiting, seen = [node.ports[0]], set[Output]()
        while waiting:
            port = waiting.pop()
            for user in users.get(port, ()):
                if user in inside:
                    found |= {node, user}
                elif _keeps_layout(user) and user.ports[0] not in seen:
                    seen.add(user.ports[0])
                    waiting.append(user.ports[0])
    return [node for node in convolutions if node in found]


def _keeps_layout(node: Node) -> bool:
    op, shape = op_of(node), node.ports[0].spec.shape if node.ports else None
    return op.keeps_layout and shape is not None and len(shape) == RANK


def _channels_moved(node: Node, kernel: Array) -> Output:
    """Return the constant [O, H, W, C] of a kernel [O, C, H, W]."""
    value = np.ascontiguousarray(np.moveaxis(kernel, 1, -1))
    let_go(kernel)
    port = Graph(node).constant(value, Type.of(value.dtype))
    (port.spec,) = op_of(port.node).infer()
    return port
