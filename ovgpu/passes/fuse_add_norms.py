"""Add -> layer norm or RMS norm becomes one AddNorm on the device, which returns the sum too if other layers take it.

Usually the sum adds a product, its bias and the residual stream, and later layers take it as the new residual stream.
"""

from __future__ import annotations

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.arithmetic.arithmetic import Add
from ovgpu.ops.base.op import op_of
from ovgpu.ops.base.shape_inputs import shape_tensor_ports
from ovgpu.ops.fused._elementwise import Fused
from ovgpu.ops.fused.add_norm import TERMS, AddNorm
from ovgpu.ops.normalization.normalization import ScaledMVN
from ovgpu.passes._graph import add_port, is_fusable, is_scalar, redirect, users_of
from ovgpu.passes.fuse_elementwise import fuse_single, layer_of


def fuse_add_norms(model: Model) -> None:
    """Rewrite the model and its bodies in place. Elementwise layers must be fused and specs inferred before."""
    users, shape_tensors, moved = users_of(model), shape_tensor_ports(model), dict[Output, Output]()
    for node in model.ops:
        for body in bodies(node.op):
            fuse_add_norms(body)
        port = node.sources[0] if isinstance(node.op, ScaledMVN) else None
        if port is None or port in moved:
            continue
        added, others = _match_sum(port.node, shape_tensors), [user for user in users[port] if user is not node]
        # If a Concat takes the sum, the Add stays: it writes straight into the Concat's memory.
        if added is not None and all(user.op.name != "Concat" for user in others):
            moved[port] = _rewrite(node, port, added, keep=bool(others))
    redirect(model, moved)
    model.changed()


def _match_sum(node: Node, shape_tensors: set[Output]) -> Fused | None:
    """Return the node as a chain if it adds at most ``TERMS`` tensors, each of them once; else None."""
    op = op_of(node)
    if isinstance(op, Add) and is_fusable(node, shape_tensors) and not any(map(is_scalar, node.sources)):
        op = fuse_single(node)
    if not isinstance(op, Fused) or op.literals or any(type(part.op) is not Add for part in op.chain.parts):
        return None
    terms, parts = op.chain.inputs, op.chain.parts
    operands = [i for part in parts for i in part.operands]
    return op if terms == len(parts) + 1 <= TERMS and len(set(operands)) == len(operands) else None


def _rewrite(node: Node, port: Output, added: Fused, keep: bool) -> Output:
    """Make the norm compute the sum as well, and return the port that replaces the sum.

    Without ``keep``, only layers that read the shape of the sum are left, and the norm's result has the same shape.
    """
    op, (_, scale, shift) = op_of(node), node.sources
    assert isinstance(op, ScaledMVN)
    node.op = AddNorm(added=added, norm=op, layer=layer_of(node), keep=keep)
    node.sources = [scale, shift, *port.node.sources]
    if not keep:
        return node.ports[0]
    return add_port(node, port)
