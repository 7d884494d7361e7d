"""A convolution does the elementwise layers after it: on the host while its results are in cache, on a device in the
kernel that computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ovgpu.model import Model, Node, Output
from ovgpu.ops.base.elementwise import same_layout
from ovgpu.ops.base.op import op_of
from ovgpu.ops.base.shape_inputs import shape_tensor_ports
from ovgpu.ops.base.trace import trace
from ovgpu.ops.convolution._convolution import OPERANDS
from ovgpu.ops.convolution.convolution import Convolution, ConvolutionBackpropData
from ovgpu.ops.fused.compressed_convolution import CompressedConvolution
from ovgpu.ops.fused.convolution_epilogue import ConvolutionWithEpilogue
from ovgpu.passes._graph import DEVICE_TYPES, alike, is_fusable, is_number, users_of
from ovgpu.passes.fuse_elementwise import PARTS, fused, layer_of
from ovgpu.symbolic import Sym
from ovgpu.types import Type

Users = dict[int, list[Node]]


def fuse_convolution_epilogues(model: Model, device: bool = False) -> None:
    """Rewrites the model and the bodies in it, in place; ports' specs must be inferred."""
    users = users_of(model)
    shape_tensors = shape_tensor_ports(model) if device else set[int]()
    place = {id(node): i for i, node in enumerate(model.ops)}
    taken = set[int]()
    for node in model.ops:
        for body in vars(node.op).values():
            if isinstance(body, Model):
                fuse_convolution_epilogues(body, device)
        if not _is_convolution(node, device):
            continue
        layers = region(node, users, shape_tensors | taken, place, OPERANDS) if device else _chain(node, users, taken)
        if layers:
            taken |= {id(layer.outputs[0]) for layer in layers}
            last, result = layers[-1], node.outputs[0]
            op, (_, *others) = fused(layers, result, is_literal)
            last.op = ConvolutionWithEpilogue(layer=layer_of(node), convolution=node.op, fused=op, device=device)  # type: ignore[arg-type]
            last.inputs = [*node.inputs, *others]
    model.changed()


def _is_convolution(node: Node, device: bool) -> bool:
    if isinstance(node.op, (Convolution, ConvolutionBackpropData)):
        return len(node.inputs) == 2
    return device and isinstance(node.op, CompressedConvolution) and len(node.inputs) == 4


def region(node: Node, users: Users, others: set[int], place: dict[int, int], operands: int,
           takes: Callable[[Node, Output], bool] = lambda layer, operand: True) -> list[Node]:
    """The layers on a device, in order: the most of those that follow from the result, have its extents, and leave one
    result of its type. Numbers become literals, and there are so many ``operands`` at most. ``others``: results that
    are of no such layers; ``takes``: whether a layer may be one, and take another tensor."""
    port = node.outputs[0]
    if port.spec.type not in DEVICE_TYPES:
        return []
    inside, found, best = {id(port)}, list[Node](), 0
    waiting = {id(user): user for user in users.get(id(port), ())}
    while waiting and len(found) < PARTS:
        layer = waiting.pop(min(waiting, key=place.__getitem__))
        result = layer.outputs[0] if layer.outputs else None
        if result is None or id(result) in others or not is_fusable(layer, others) or not alike(result, port):
            continue
        outside = [s for s in layer.inputs if s is not None and id(s) not in inside and not is_literal(s)]
        if not all(takes(layer, s) for s in outside):
            continue
        found.append(layer)
        inside.add(id(result))
        waiting |= {id(user): user for user in users.get(id(result), ())}
        members = set(map(id, found))
        given = {id(s) for each in found for s in each.inputs if id(s) not in inside and not is_literal(s)}
        if len(given) > operands:
            break
        if result.spec.type == port.spec.type and all(
                all(id(user) in members for user in users.get(i, ())) for i in inside - {id(result)}):
            best = len(found)
    return found[:best]


def is_literal(port: Output | None) -> bool:
    """Whether the port is a number; what has an axis may be the bias of a single channel, and another one elsewhere."""
    return is_number(port) and port is not None and not port.spec.shape


def _chain(node: Node, users: Users, taken: set[int]) -> list[Node]:
    """The layers on the host: each alone takes what the one before has made, and can be computed in its place."""
    found = list[Node]()
    last = node
    while (user := _next(last.outputs[0], users)) is not None and id(user.outputs[0]) not in taken:
        found.append(user)
        last = user
    return found


def _next(port: Output, users: Users) -> Node | None:
    """The layer that alone takes a result and can be computed in its place, from tensors of its shape, from numbers
    and from what there is one of per channel."""
    found, spec = users.get(id(port), []), port.spec
    if len(found) != 1 or not is_fusable(found[0], set()) or spec.type not in (Type.f32, Type.f64):
        return None
    user = found[0]
    others = [s for s in user.inputs if s is not port]
    if len(others) != len(user.inputs) - 1 or not same_layout(user.outputs[0].spec, spec):
        return None
    if any(s is None or s.spec.type != spec.type for s in (*others, user.outputs[0])):
        return None
    tape = trace(op_of(user), (spec.type.storage,) * len(user.inputs), spec.type.storage)
    position = next(i for i, s in enumerate(user.inputs) if s is port)
    return user if position in tape.inplace and all(map(_is_static_or_alike, others, [spec] * len(others))) else None


def _is_static_or_alike(port: Output | None, spec: Any) -> bool:
    """Whether it is known how the tensor broadcasts to the result."""
    assert port is not None
    return same_layout(port.spec, spec) or not any(isinstance(d, Sym) for d in port.spec.shape or ())
