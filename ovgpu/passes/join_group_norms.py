"""Group norms and instance norms -> one GroupNorm with a scale and a shift per channel.

These norms of a tensor ``[N, C, ...]`` normalise the elements of a group of channels in each image::

    Reshape [N, G, ...] -> MVN over the axes after G -> Reshape [N, C, ...] -> Multiply [C, 1, ...] -> Add [C, 1, ...]
                           MVN over the axes after C                        -> Multiply [C, 1, ...] -> Add [C, 1, ...]

Groups may have more axes, or share one with the images. There may be several layers that scale and shift, per channel
or per group, and they may stand before the second Reshape as well. `join_norms` has made an MVN of smaller layers
before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.arithmetic.arithmetic import Add, Multiply, Subtract
from ovgpu.ops.base.op import op_of
from ovgpu.ops.base.view import equal
from ovgpu.ops.normalization.group_normalization import GroupNorm
from ovgpu.ops.normalization.normalization import ScaledRMS
from ovgpu.passes._graph import NodeBuilder, alike_shapes, broadcasts, constant_of, users_of
from ovgpu.passes.join_norms import Over
from ovgpu.passes.scale_norms import match_norm
from ovgpu.symbolic import Int, Sym, product

Floats = np.ndarray[Any, np.dtype[np.float64]]


def join_group_norms(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand."""
    users = users_of(model)
    for node in model.ops:
        for body in bodies(node.op):
            join_group_norms(body)
        over = None if isinstance(node.op, ScaledRMS) else match_norm(node)
        if over is None:
            continue
        reshaped = over.x.node.sources[0] if op_of(over.x.node).is_reshape else None
        if reshaped is None or not _rewrite(node, over, reshaped, users):
            _rewrite(node, over, over.x, users)
    model.changed()


def _rewrite(node: Node, over: Over, data: Output, users: dict[Output, list[Node]]) -> bool:
    """Make the last layer that scales and shifts a norm a GroupNorm; return whether it is over groups of channels."""
    groups = _count_groups(over, data)
    affine = None if groups is None else _match_affine(node, data, users)
    if groups is None or affine is None:
        return False
    op: Any = node.op
    last, *terms = affine
    graph = NodeBuilder(last)
    ports = [graph.constant(values, data.spec.type) for values in terms]
    for port in ports:
        port.spec = op_of(port.node).infer_specs()[0]
    last.op = GroupNorm(num_groups=groups, epsilon=op.eps, inside=op.eps_is_inside())
    last.sources = [data, *ports]
    return True


def _count_groups(over: Over, data: Output) -> int | None:
    """Return the number of channel groups of each image, None if the norm is not over groups of channels."""
    shape, rows = data.spec.shape, over.x.spec.shape
    if shape is None or rows is None or len(shape) < 2 or isinstance(shape[1], Sym):
        return None
    outer_rank = len(rows) - len(over.axes)
    if not over.axes or list(over.axes) != list(range(outer_rank, len(rows))) or equal(shape[0], 0):
        return None
    groups = product(rows[:outer_rank]) // shape[0]
    if isinstance(groups, Sym) or groups < 1 or shape[1] % groups or not shape[1]:
        return None
    if groups == 1 and len(shape) == 2:  # a layer norm
        return None
    return int(groups) if equal(groups * shape[0], product(rows[:outer_rank])) else None


def _match_affine(node: Node, data: Output, users: dict[Output, list[Node]]) -> tuple[Node, Floats, Floats] | None:
    """Return the last layer that scales or shifts a norm's result, and the scale and the shift of each channel.

    The layer's result must have the shape of the data. Return None if there is no such layer.
    """
    assert data.spec.shape is not None
    images, channels = data.spec.shape[:2]
    port, affine = node.ports[0], None
    scale, shift = np.ones(channels), np.zeros(channels)
    has_axes = False  # whether a constant had several elements; the norm becomes a GroupNorm only then
    while len(following := users.get(port, [])) == 1:
        user = following[0]
        shape, result = port.spec.shape, user.ports[0].spec.shape if user.ports else None
        if shape is None or result is None:
            break
        if not op_of(user).is_reshape:
            position = int(user.sources[0] is port)  # index of the other operand
            same = len(user.sources) == 2 and broadcasts(user) and alike_shapes(shape, result)
            value = constant_of(user.sources[position]) if same else None
            per_channel = None if value is None else _per_channel(value, shape, images, channels)
            if value is None or per_channel is None:
                break
            if isinstance(user.op, Multiply):
                scale, shift = scale * per_channel, shift * per_channel
            elif isinstance(user.op, Add):
                shift = shift + per_channel
            elif isinstance(user.op, Subtract) and position:
                shift = shift - per_channel
            else:
                break
            has_axes |= value.size > 1
        elif user.sources[0] is not port:
            break
        port = user.ports[0]
        if has_axes and alike_shapes(result, data.spec.shape):
            affine = user, scale, shift
    return affine


def _per_channel(value: Any, shape: Sequence[Int], images: Int, channels: int) -> Floats | None:
    """Return the element that a constant has for each channel, None if it has several for a channel.

    The constant broadcasts to a tensor of this shape, which is a reshaped tensor [images, channels, ...].
    """
    value = np.asarray(value, np.float64).reshape((1,) * (len(shape) - value.ndim) + value.shape)
    varying = [i for i, extent in enumerate(value.shape) if extent != 1]
    if not varying:
        return np.full(channels, value.reshape(()))
    first = next((i for i in range(len(shape) + 1) if equal(product(shape[:i]), images)), None)
    if first is None or varying[0] < first:
        return None
    axes = slice(first, varying[-1] + 1)
    count = product(shape[axes])
    if isinstance(count, Sym) or not count or channels % count:
        return None
    value = np.broadcast_to(value.reshape(value.shape[axes]), shape[axes])
    return np.repeat(value.reshape(-1), channels // count)
