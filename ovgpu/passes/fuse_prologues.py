"""Norm or elementwise layers -> MatMul becomes one MatMulWithPrologue in a decode step, whose rows are few.

Elementwise layers that combine both halves of a product, such as those of SwiGLU, become its gate. A product of 16 bits
without any of these becomes a MatMulWithPrologue too: its kernel may then begin before the one before it has ended,
which cuBLAS's kernels do not.
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
from ovgpu.passes.fuse_elementwise import alone, layer_of
from ovgpu.spec import Spec

MAX_PARTS = 4  # elementwise layers of a prologue: each block computes them again


def fuse_prologues(model: Model) -> None:
    """Rewrite the model in place. Sums must be fused with their norms, and specs inferred, before."""
    users, shape_tensors, moved = users_of(model), shape_tensor_ports(model), dict[Output, Output]()
    fixed = shape_tensors | {x for node in model.ops if node.op.name == "ShapeOf" for x in node.sources if x}
    for node in model.ops:
        x = node.sources[0] if _takes_prologue(node) else None
        if x is None or (x.spec.rank or 0) < 2:
            continue
        product: Any = op_of(node)
        found = (
            _prologue(x.node, shape_tensors)
            if (users[x] == [node] and x not in shape_tensors and x not in moved)
            else None
        )
        gated = _gated(node, users, fixed)
        if found is None and gated is None and not isinstance(product, MatMul):
            continue
        prologue, layers = found or (None, ())
        weights, computed = node.sources[1:], prologue is not None
        node.op = MatMulWithPrologue(
            prologue=prologue,
            product=product,
            gate=gated and gated[1],
            weights=len(weights),
            kind=x.spec.type,
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


def _prologue(node: Node, shape_tensors: set[Output]) -> tuple[AddNorm | ScaledMVN | Fused, tuple[Layer, ...]] | None:
    """Return the node's op as a prologue, and its origins; None if it cannot be one."""
    op = op_of(node)
    if isinstance(op, AddNorm):
        return op, op.layers
    if isinstance(op, ScaledMVN):
        return op, (layer_of(node),)
    if is_fusable(node, shape_tensors) and None not in node.sources:
        op = alone(node)
    if not isinstance(op, Fused) or op.chain.inputs > MAX_ARRAYS or len(op.chain.parts) > MAX_PARTS:
        return None
    return op, op.layers


def _gated(node: Node, users: Mapping[Output, list[Node]], fixed: set[Output]) -> tuple[Output, Fused] | None:
    """Return the result of elementwise layers that alone take both halves of a product's columns, and the layers as a
    gate of the first half and the second. Return None if there are none, or if a tensor between them is ``fixed``: the
    model needs it or its shape elsewhere."""
    product, split = node.ports[0], _only_user(node.ports[0], users)
    if split is None or split.op.name not in ("Split", "VariadicSplit") or len(split.ports) != 2:
        return None
    (first, second), gate = split.ports, _only_user(split.ports[0], users)
    if gate is None or _only_user(second, users) is not gate or fixed & {product, first, second}:
        return None
    op, shape = alone(gate) if is_fusable(gate, fixed) else op_of(gate), product.spec.shape
    if not isinstance(op, Fused) or {*gate.sources} != {first, second} or shape is None:
        return None
    half = Spec(product.spec.type, (*shape[:-1], shape[-1] // 2))
    if any((port.spec.type, port.spec.shape) != (half.type, half.shape) for port in (first, second, gate.ports[0])):
        return None
    return gate.ports[0], op if gate.sources[0] is first else _exchanged(op)


def _only_user(port: Output, users: Mapping[Output, list[Node]]) -> Node | None:
    found = users.get(port, [])
    return found[0] if len(found) == 1 else None


def _exchanged(op: Fused) -> Fused:
    """Return the op for its two inputs in the other order."""
    parts = (Part(part.op, tuple(1 - i if i < 2 else i for i in part.operands)) for part in op.chain.parts)
    return replace(op, chain=replace(op.chain, parts=tuple(parts)))
