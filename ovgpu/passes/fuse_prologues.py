"""Norm or elementwise layers -> MatMul becomes one MatMulWithPrologue in a decode step, which has few rows.

Elementwise layers that combine both halves of a product, as in SwiGLU, become its gate. A 16-bit product without such
layers becomes a MatMulWithPrologue, too: unlike cuBLAS's kernels, its kernel may begin before the previous one ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ovgpu.model import Model, Node, Output
from ovgpu.ops.base.op import op_of
from ovgpu.ops.base.shape_inputs import shape_tensor_ports
from ovgpu.ops.fused._elementwise import Fused, Layer, Part
from ovgpu.ops.fused._product_mma import MAX_ARRAYS
from ovgpu.ops.fused.add_norm import AddNorm
from ovgpu.ops.fused.compressed import CompressedMatMul
from ovgpu.ops.fused.matmul_prologue import MatMulWithPrologue
from ovgpu.ops.matrix.matmul import ExactMatMul, MatMul
from ovgpu.ops.normalization.normalization import ScaledMVN
from ovgpu.passes._graph import HALVES, add_port, is_fusable, redirect, users_of
from ovgpu.passes.fuse_elementwise import fuse_single, layer_of
from ovgpu.spec import Spec

MAX_PARTS = 4  # elementwise layers of a prologue: every thread block computes them again


def fuse_prologues(model: Model) -> None:
    """Rewrite the model in place. Sums must be fused with their norms, and specs inferred, before."""
    users, shape_tensors, moved = users_of(model), shape_tensor_ports(model), dict[Output, Output]()
    fixed = shape_tensors | {x for node in model.ops if node.op.name == "ShapeOf" for x in node.sources if x}
    for node in model.ops:
        x = node.sources[0] if _takes_prologue(node) else None
        if x is None or (x.spec.rank or 0) < 2:
            continue
        product: Any = op_of(node)
        match = (
            _match_prologue(x.node, shape_tensors)
            if (users[x] == [node] and x not in shape_tensors and x not in moved)
            else None
        )
        gated = _match_gate(node, users, fixed)
        if match is None and gated is None and not isinstance(product, MatMul):
            continue
        prologue, layers = match or (None, ())
        weights, computed = node.sources[1:], prologue is not None
        node.op = MatMulWithPrologue(
            prologue=prologue,
            product=product,
            gate=gated and gated[1],
            weights=len(weights),
            dtype=x.spec.type,
            before=layers,
            layer=layer_of(node),
        )
        node.sources = [*weights, *(x.node.sources if computed else [x])]
        for total in x.node.ports[1:] if computed else ():
            moved[total] = add_port(node, total)
        if gated is not None:
            port, (result, _) = node.ports[0], gated
            port.spec, port.names, moved[result] = result.spec, result.own_names, port
    redirect(model, moved)
    model.changed()


def _takes_prologue(node: Node) -> bool:
    """Return whether the node is a product with a matrix [N, K] that the kernel reads."""
    op = op_of(node)
    if isinstance(op, CompressedMatMul):
        return op.transpose and op.weights.matrices == 1 and not op.batch
    if not isinstance(op, MatMul) or isinstance(op, ExactMatMul) or op.transpose_a or not op.transpose_b:
        return False
    matrix = node.sources[1]
    return (
        matrix is not None
        and matrix.node.op.name == "Constant"
        and matrix.spec.rank == 2
        and (matrix.spec.type in HALVES)
    )


def _match_prologue(
    node: Node, shape_tensors: set[Output]
) -> tuple[AddNorm | ScaledMVN | Fused, tuple[Layer, ...]] | None:
    """Return the node's op as a prologue, and its original layers; None if it cannot be a prologue."""
    op = op_of(node)
    if isinstance(op, AddNorm):
        return op, op.layers
    if isinstance(op, ScaledMVN):
        return op, (layer_of(node),)
    if is_fusable(node, shape_tensors) and None not in node.sources:
        op = fuse_single(node)
    if not isinstance(op, Fused) or op.chain.inputs > MAX_ARRAYS or len(op.chain.parts) > MAX_PARTS:
        return None
    return op, op.layers


def _match_gate(node: Node, users: Mapping[Output, list[Node]], fixed: set[Output]) -> tuple[Output, Fused] | None:
    """Return the result of elementwise layers that combine both halves of a product's columns, and the layers as an op.

    The op's inputs are the first half and the second half.

    Return None if there are no such layers, if other layers take the product or its halves, or if these are ``fixed``:
    the model needs them, or their shapes, elsewhere.
    """
    product, split = node.ports[0], _only_user(node.ports[0], users)
    if split is None or split.op.name not in ("Split", "VariadicSplit") or len(split.ports) != 2:
        return None
    (first, second), gate = split.ports, _only_user(split.ports[0], users)
    if gate is None or _only_user(second, users) is not gate or fixed & {product, first, second}:
        return None
    op, shape = fuse_single(gate) if is_fusable(gate, fixed) else op_of(gate), product.spec.shape
    if not isinstance(op, Fused) or {*gate.sources} != {first, second} or shape is None:
        return None
    half = Spec(product.spec.type, (*shape[:-1], shape[-1] // 2))
    if any((port.spec.type, port.spec.shape) != (half.type, half.shape) for port in (first, second, gate.ports[0])):
        return None
    return gate.ports[0], op if gate.sources[0] is first else _swap_inputs(op)


def _only_user(port: Output, users: Mapping[Output, list[Node]]) -> Node | None:
    takers = users.get(port, [])
    return takers[0] if len(takers) == 1 else None


def _swap_inputs(op: Fused) -> Fused:
    """Return the op with its two inputs in the other order."""
    parts = (Part(part.op, tuple(1 - i if i < 2 else i for i in part.operands)) for part in op.chain.parts)
    return replace(op, chain=replace(op.chain, parts=tuple(parts)))
