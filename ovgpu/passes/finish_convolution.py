"""On the host, a convolution does the elementwise layers after it while its results are in cache."""

from __future__ import annotations

from typing import Any

from ovgpu.model import Model, Node, Output
from ovgpu.ops._elementwise import same_layout
from ovgpu.ops._fused import Layer
from ovgpu.ops._op import op_of
from ovgpu.ops._trace import trace
from ovgpu.ops.convolution import Convolution, ConvolutionBackpropData
from ovgpu.ops.finished_convolution import RESULT, FinishedConvolution
from ovgpu.passes._graph import is_fusable, users_of
from ovgpu.symbolic import Sym
from ovgpu.types import Type


def finish_convolutions(model: Model) -> None:
    """Rewrites the model and the bodies in it, in place; ports' specs must be inferred."""
    users = users_of(model)
    for node in model.ops:
        for body in vars(node.op).values():
            if isinstance(body, Model):
                finish_convolutions(body)
        if isinstance(node.op, (Convolution, ConvolutionBackpropData)) and len(node.inputs) == 2:
            _finish(node, users)
    model.changed()


def _finish(node: Node, users: dict[int, list[Node]]) -> None:
    """Has the last of the layers after a convolution do all of them."""
    op: Any = node.op
    last, inputs = node, [*node.inputs]
    layers, operands = list[Layer](), list[tuple[int, ...]]()
    while (user := _next(last.outputs[0], users)) is not None:
        places = []
        for source in user.inputs:
            if source is last.outputs[0]:
                places.append(RESULT)
            else:
                places.append(len(inputs))
                inputs.append(source)
        layers.append(Layer(op_of(user), user.friendly_name, user.place))  # type: ignore[arg-type]
        operands.append(tuple(places))
        last = user
    if layers:
        last.op = FinishedConvolution(convolution=op, kind=node.outputs[0].spec.type,
                                      layers=tuple(layers), operands=tuple(operands))
        last.inputs = inputs


def _next(port: Output, users: dict[int, list[Node]]) -> Node | None:
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
