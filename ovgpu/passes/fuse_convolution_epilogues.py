"""Convolution -> elementwise layers becomes one ConvolutionWithEpilogue. Products of 8-bit integers get epilogues, too.

The host computes the epilogue on results that are still in cache, a device in the kernel of the convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.base.elementwise import same_layout
from ovgpu.ops.base.op import Op, op_of
from ovgpu.ops.base.shape_inputs import shape_tensor_ports
from ovgpu.ops.base.strided import CHUNK_BYTES
from ovgpu.ops.base.trace import trace
from ovgpu.ops.base.view import equal
from ovgpu.ops.convert import Convert
from ovgpu.ops.convolution._convolved import MAX_EPILOGUE_OPERANDS
from ovgpu.ops.convolution.convolution import Convolution, ConvolutionBackpropData
from ovgpu.ops.fused._elementwise import Fused
from ovgpu.ops.fused.compressed_convolution import CompressedConvolution
from ovgpu.ops.fused.convolution_epilogue import ConvolutionWithEpilogue
from ovgpu.ops.fused.quantized import (
    QuantizedConvolution,
    QuantizedConvolutionWithEpilogue,
    QuantizedMatMul,
    QuantizedMatMulWithEpilogue,
)
from ovgpu.ops.quantization import Dequantize
from ovgpu.passes._graph import DEVICE_TYPES, HALVES, alike, is_fusable, is_scalar, users_of
from ovgpu.passes.fuse_elementwise import MAX_PARTS, fuse_nodes, layer_of
from ovgpu.symbolic import Sym
from ovgpu.types import Type

Users = dict[Output, list[Node]]

QUANTIZED = (QuantizedConvolution, QuantizedMatMul)


def fuse_convolution_epilogues(model: Model, device: bool = False) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand."""
    users = users_of(model)
    shape_tensors = shape_tensor_ports(model) if device else set[Output]()
    order = {node: i for i, node in enumerate(model.ops)}
    taken = set[Output]()
    for node in model.ops:
        for body in bodies(node.op):
            fuse_convolution_epilogues(body, device)
        if not _is_convolution(node, device):
            continue
        may_take = _may_take_rows if isinstance(node.op, QuantizedMatMul) else _may_take_any
        layers = (
            find_epilogue(node, users, shape_tensors | taken, order, MAX_EPILOGUE_OPERANDS, may_take)
            if device
            else _find_host_epilogue(node, users, taken)
        )
        if layers:
            if isinstance(node.op, QUANTIZED):
                layers = [*_find_upcasts(layers), *layers]
            taken |= {layer.ports[0] for layer in layers}
            last, result = layers[-1], node.ports[0]
            op, (_, *others) = fuse_nodes(layers, result, is_literal)
            last.op = _with_epilogue(node, op, device)
            last.sources = [*node.sources, *others]
    model.changed()


def _with_epilogue(node: Node, epilogue: Fused, device: bool) -> Op:
    op, layer = op_of(node), layer_of(node)
    if isinstance(op, QuantizedConvolution):
        return QuantizedConvolutionWithEpilogue(layer=layer, product=op, fused=epilogue)
    if isinstance(op, QuantizedMatMul):
        return QuantizedMatMulWithEpilogue(layer=layer, product=op, fused=epilogue)
    return ConvolutionWithEpilogue(layer=layer, convolution=op, fused=epilogue, device=device)  # type: ignore[arg-type]


def _may_take_any(layer: Node, operand: Output) -> bool:
    return True


def _may_take_rows(layer: Node, operand: Output) -> bool:
    """Return whether the operand has the shape of the layer's result, or one element per column."""
    shape, result = operand.spec.shape or (), layer.ports[0].spec.shape or ()
    return alike(operand, layer.ports[0]) or (
        len(shape) > 0 and equal(shape[-1], result[-1]) and all(equal(d, 1) for d in shape[:-1])
    )


def _find_upcasts(layers: Sequence[Node]) -> list[Node]:
    """Return the layers that dequantise or upcast operands of the epilogue.

    If they become part of the epilogue, it reads fewer bytes: codes, or 16-bit elements.
    """
    inside = {layer.ports[0] for layer in layers}
    sources = dict.fromkeys(s for layer in layers for s in layer.sources if s is not None and s not in inside)
    return [
        s.node
        for s in sources
        if isinstance(s.node.op, Dequantize)
        or (isinstance(s.node.op, Convert) and s.node.sources[0] is not None and s.node.sources[0].spec.type in HALVES)
    ]


def _is_convolution(node: Node, device: bool) -> bool:
    if isinstance(node.op, QUANTIZED):
        return True
    if isinstance(node.op, (Convolution, ConvolutionBackpropData)):
        return len(node.sources) == 2
    return device and isinstance(node.op, CompressedConvolution) and len(node.sources) == 4


def find_epilogue(
    node: Node,
    users: Users,
    excluded: set[Output],
    order: dict[Node, int],
    max_operands: int,
    may_take: Callable[[Node, Output], bool],
) -> list[Node]:
    """Return the layers, in order, of the largest epilogue that a device can compute with the node.

    The layers depend on the node's result, have its shape, and only the last one's result is taken by other layers.
    This result has the type of the node's result; after a quantised product, it may have other types. Besides literals
    and the node's result, the layers take at most ``max_operands`` tensors. ``excluded``: ports that must not be
    results of the layers; ``order``: position of each node; ``may_take(layer, tensor)``: whether the layer may take the
    tensor.
    """
    port, is_quantized = node.ports[0], isinstance(node.op, QUANTIZED)
    if port.spec.type not in DEVICE_TYPES:
        return []
    inside, layers, best = {port}, list[Node](), 0  # best: the number of layers of the largest epilogue so far
    waiting = set(users.get(port, ()))
    while waiting and len(layers) < MAX_PARTS:
        layer = min(waiting, key=order.__getitem__)
        waiting.remove(layer)
        result = layer.ports[0] if layer.ports else None
        if result is None or result in excluded or not is_fusable(layer, excluded) or not alike(result, port):
            continue
        outside = [s for s in layer.sources if s is not None and s not in inside and not is_literal(s)]
        if not all(may_take(layer, s) for s in outside):
            continue
        layers.append(layer)
        inside.add(result)
        waiting.update(users.get(result, ()))
        members = set(layers)
        operands = {s for member in layers for s in member.sources if s not in inside and not is_literal(s)}
        if len(operands) > max_operands:
            break
        may_end = _may_be_written(node, result) if is_quantized else result.spec.type == port.spec.type
        if may_end and all(all(user in members for user in users.get(i, ())) for i in inside - {result}):
            best = len(layers)
    return layers[:best]


def _may_be_written(node: Node, result: Output) -> bool:
    """Return whether the kernel of a quantised product can write a result of this type in whole chunks."""
    factor, dtype = node.sources[2], result.spec.type
    outputs = 0 if factor is None or factor.spec.shape is None else factor.spec.shape[0]
    return dtype in (Type.i8, Type.f32, *HALVES) and not outputs * dtype.size % CHUNK_BYTES


def is_literal(port: Output | None) -> bool:
    """Return whether the port is a scalar constant.

    A constant with axes becomes an operand. It may be the bias of a single channel, and kernels with the bias as an
    operand can be shared by layers with different biases.
    """
    return is_scalar(port) and port is not None and not port.spec.shape


def _find_host_epilogue(node: Node, users: Users, taken: set[Output]) -> list[Node]:
    """Return the epilogue for the host: each layer is the only user of the one before, and can be computed in place."""
    layers = list[Node]()
    last = node
    while (user := _next_in_place(last.ports[0], users)) is not None and user.ports[0] not in taken:
        layers.append(user)
        last = user
    return layers


def _next_in_place(port: Output, users: Users) -> Node | None:
    """Return the only user of a result if it can be computed in place, else None.

    Its other operands must have the result's layout or a static shape.
    """
    takers, spec = users.get(port, []), port.spec
    if len(takers) != 1 or not is_fusable(takers[0], set()) or spec.type not in (Type.f32, Type.f64):
        return None
    user = takers[0]
    others = [s for s in user.sources if s is not port]
    if len(others) != len(user.sources) - 1 or not same_layout(user.ports[0].spec, spec):
        return None
    if any(s is None or s.spec.type != spec.type for s in (*others, user.ports[0])):
        return None
    tape = trace(op_of(user), (spec.type.storage,) * len(user.sources), spec.type.storage)
    position = next(i for i, s in enumerate(user.sources) if s is port)
    return user if position in tape.inplace and all(map(_is_static_or_alike, others, [spec] * len(others))) else None


def _is_static_or_alike(port: Output | None, spec: Any) -> bool:
    """Return whether it is known at compile time how the tensor broadcasts to a result with this spec."""
    assert port is not None
    return same_layout(port.spec, spec) or not any(isinstance(d, Sym) for d in port.spec.shape or ())
