"""MatMul -> [add a bias] -> [add a residual] -> [activation] becomes one MatMulWithEpilogue on the device.

Sums that a norm takes are mostly left to the norm (see `fuse_add_norms`): product, bias, sum and norm are two kernels
either way, and for few rows cuBLAS has better kernels for a product alone. If there are many rows and other layers take
the sum as well, the product's epilogue computes it: this saves one of the five reads and writes of a tensor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.activation.activation import Gelu7, Relu
from ovgpu.ops.arithmetic.arithmetic import Add
from ovgpu.ops.base.op import op_of
from ovgpu.ops.base.shape_inputs import shape_tensor_ports
from ovgpu.ops.base.view import equal
from ovgpu.ops.fused._elementwise import Fused
from ovgpu.ops.fused.matmul_epilogue import Activation, MatMulWithEpilogue
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.ops.normalization.normalization import ScaledMVN
from ovgpu.passes._graph import DEVICE_TYPES, HALVES, alike, is_fusable, is_scalar, users_of
from ovgpu.passes.fuse_elementwise import fuse_single, layer_of
from ovgpu.symbolic import Sym, product

MANY_ROWS = 64  # rows of a tile of cuBLAS's kernels

Users = dict[Output, list[Node]]


def fuse_matmul_epilogues(model: Model) -> None:
    """Rewrite the model and its bodies in place. Elementwise layers must be fused and specs inferred before."""
    users, shape_tensors = users_of(model), shape_tensor_ports(model)
    for node in model.ops:
        for body in bodies(node.op):
            fuse_matmul_epilogues(body)
        fused = _match_layers(node, shape_tensors)
        if fused is None or _belongs_to_norm(fused, node.ports[0], users):
            continue
        for i, port in enumerate(node.sources):
            assert port is not None
            matmul, reshape = _find_product(port, node, users, shape_tensors)
            if matmul is not None and _fuse(matmul, reshape, node, _swap_inputs(fused, i), i):
                break
    model.changed()


def _match_layers(node: Node, shape_tensors: set[Output]) -> Fused | None:
    """Return the node as a chain if it may be an epilogue, else None."""
    op = op_of(node)
    if isinstance(op, (Add, Relu, Gelu7)) and is_fusable(node, shape_tensors) and not any(map(is_scalar, node.sources)):
        return fuse_single(node)
    return op if isinstance(op, Fused) and not op.literals else None


def _belongs_to_norm(fused: Fused, port: Output, users: Users) -> bool:
    """Return whether the layers are a sum that the norm behind it should compute."""
    taken = users.get(port, [])
    if any(type(part.op) is not Add for part in fused.chain.parts) or any(user.op.name == "Concat" for user in taken):
        return False
    norms = [user for user in taken if isinstance(user.op, ScaledMVN) and user.sources[0] is port]
    shape = port.spec.shape or ()
    many = not any(isinstance(d, Sym) for d in shape) and product(shape[:-1]) >= MANY_ROWS
    return bool(norms) and (len(taken) == 1 or not many)


def _swap_inputs(fused: Fused, index: int) -> Fused:
    """Return the same chain with its input ``index`` and its first input swapped."""
    swapped = {index: 0, 0: index}
    parts = [replace(part, operands=tuple(swapped.get(i, i) for i in part.operands)) for part in fused.chain.parts]
    return replace(fused, chain=replace(fused.chain, parts=tuple(parts)))


def _find_product(
    port: Output, user: Node, users: Users, shape_tensors: set[Output]
) -> tuple[Node | None, Node | None]:
    """Return the product whose result only this user takes, and the Reshape in between, each None if there is none.

    The product must be by one matrix, not by a batch of them.
    """
    reshape = None
    if op_of(port.node).is_reshape and port.node.sources[0] is not None and _only(port, user, users, shape_tensors):
        reshape, user, port = port.node, port.node, port.node.sources[0]
    if not isinstance(port.node.op, MatMul) or not _only(port, user, users, shape_tensors):
        return None, None
    a, b = (s.spec for s in port.node.sources if s is not None)
    if b.rank != 2 or (a.rank or 0) < 2 or not port.spec.shape or port.spec.type not in DEVICE_TYPES:
        return None, None
    return port.node, reshape


def _only(port: Output, user: Node, users: Users, shape_tensors: set[Output]) -> bool:
    return users[port] == [user] and port not in shape_tensors


def _fuse(matmul: Node, reshape: Node | None, node: Node, fused: Fused, index: int) -> bool:
    """Make the node the product with its epilogue, or, if there is a Reshape, make the Reshape the product and the node
    the Reshape. Return False, and change nothing, if the layers are no epilogue of a product."""
    inputs = list(node.sources)
    inputs[0], inputs[index] = inputs[index], inputs[0]
    result = matmul.ports[0]
    epilogue = _match_epilogue(fused, inputs[1:], result)
    if epilogue is None or node.ports[0].spec.type != result.spec.type:
        return False
    bias, residual, activation = epilogue
    product: Any = op_of(matmul)
    op = MatMulWithEpilogue(
        layer=layer_of(matmul), product=product, fused=fused, bias=bias, residual=residual, activation=activation
    )
    sources = [*matmul.sources, *inputs[1:]]
    if reshape is None:
        if not alike(node.ports[0], result):
            return False
        node.op, node.sources = op, sources
        return True
    if residual or not alike(node.ports[0], reshape.ports[0]):
        return False
    node.op, node.sources = reshape.op, [reshape.ports[0], *reshape.sources[1:]]
    reshape.op, reshape.sources = op, sources
    reshape.friendly_name, reshape.layer_id = node.friendly_name, node.layer_id
    reshape.ports[0].spec = result.spec
    return True


def _match_epilogue(fused: Fused, others: list[Output | None], result: Output) -> tuple[int, int, Activation] | None:
    """Return the indices of the inputs that are bias and residual (0: none), and the activation.

    Return None if the layers compute anything else. ``others``: the inputs of the chain behind the first one.
    """
    chain, bias, residual, last = fused.chain, 0, 0, 0
    activation: Activation = ""
    for value, part in enumerate(chain.parts, chain.inputs):
        other_operands = [i for i in part.operands if i != last]
        if activation or len(other_operands) != len(part.operands) - 1:
            return None
        if isinstance(part.op, Add) and 0 < other_operands[0] < chain.inputs:
            addend = other_operands[0]
            port = others[addend - 1]
            if port is None or port.spec.type != result.spec.type:
                return None
            if not bias and _is_bias(port, result):
                bias = addend
            elif not residual and alike(port, result):
                residual = addend
            else:
                return None
        elif isinstance(part.op, Relu):
            activation = "relu"
        elif isinstance(part.op, Gelu7) and part.op.approximation_mode == "tanh" and result.spec.type in HALVES:
            activation = "gelu"
        else:
            return None
        last = value
    return bias, residual, activation


def _is_bias(port: Output, result: Output) -> bool:
    """Return whether the tensor has one element per column of the result."""
    shape, target = port.spec.shape or (), result.spec.shape or ()
    return 0 < len(shape) <= len(target) and equal(shape[-1], target[-1]) and all(equal(d, 1) for d in shape[:-1])
