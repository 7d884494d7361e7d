"""Elementwise layers that feed each other -> one Fused layer, whose intermediate values stay in registers.

A layer joins a chain when all its users are in the chain, so that nothing is computed twice and the chain has one
result. A layer whose result is broadcast in the chain may join too, unless computing it for every element of the
chain's result costs more than storing it once. Constants of one element become literals of the code. Shape arithmetic
stays as it is, because the shape function computes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.base.op import op_of
from ovgpu.ops.base.shape_inputs import shape_tensor_ports
from ovgpu.ops.base.view import equal
from ovgpu.ops.convert import Convert, Identity
from ovgpu.ops.fused._elementwise import Chain, Fused, Layer, Part
from ovgpu.ops.quantization import Dequantize, Quantize
from ovgpu.passes._graph import is_fusable, is_scalar, scalar_of, users_of
from ovgpu.symbolic import Sym, product
from ovgpu.types import Type

MAX_INPUTS = 12  # of a chain: each takes registers and kernel arguments
MAX_PARTS = 32  # layers of a chain
MAX_RECOMPUTE_RATIO = 4  # how often a chain may compute each element of a costly value that it broadcasts

_FUNCTION = re.compile(r"\b[a-z]\w*\(")  # a function call in CUDA code


def fuse_elementwise(model: Model) -> None:
    """Fuse chains in the model and its bodies, in place. Port specs must be inferred beforehand."""
    for node in model.ops:
        for body in bodies(node.op):
            fuse_elementwise(body)
    _skip_identities(model)
    users = users_of(model)
    shape_tensors = shape_tensor_ports(model)
    order = {node: i for i, node in enumerate(model.ops)}
    taken: set[Node] = set()
    for root in reversed(model.ops):
        if root not in taken and is_fusable(root, shape_tensors):
            group = _collect_chain(root, users, shape_tensors, taken)
            taken |= set(group)
            if len(group) > 1:
                root.op, root.sources = fuse_nodes(sorted(group, key=order.__getitem__))
    model.changed()


def _skip_identities(model: Model) -> None:
    """Make layers take the input of an Identity instead of its output.

    A Result still takes the Identity, since it has the names of the tensor that it takes.
    """
    for node in model.ops:
        if node.op.name != "Result":
            node.sources = [
                s.node.sources[0] if s is not None and isinstance(s.node.op, Identity) else s for s in node.sources
            ]
    model.changed()


def _collect_chain(
    root: Node, users: dict[Output, list[Node]], shape_tensors: set[Output], taken: set[Node]
) -> list[Node]:
    """Return the nodes of the chain that ends with ``root``. The root comes first."""
    group = [root]
    members = {root}
    for member in group:  # the loop appends to it
        for source in member.sources:
            if source is None:
                continue
            node = source.node
            if node in members or node in taken or not is_fusable(node, shape_tensors):
                continue
            if not all(user in members for user in users.get(source, ())):
                continue  # the node is tried again for its other users
            if len(group) < MAX_PARTS and _is_worth_joining(node, root) and _input_count([*group, node]) <= MAX_INPUTS:
                group.append(node)
                members.add(node)
    return group


def _is_worth_joining(node: Node, root: Node) -> bool:
    """Return whether computing the node's value for every element of the root's result costs no more than storing it.

    Extents that are known only at run time are assumed not to be broadcast.
    """
    mine, result = node.ports[0].spec.shape or (), root.ports[0].spec.shape or ()
    if len(mine) == len(result) and all(isinstance(m, Sym) or equal(m, r) for m, r in zip(mine, result)):
        return True
    if any(isinstance(d, Sym) for d in (*mine, *result)):
        return _is_cheap(node)
    return _is_cheap(node) or bool(product(result) <= MAX_RECOMPUTE_RATIO * product(mine))


def _is_cheap(node: Node) -> bool:
    """Return whether the node's value costs about as much to compute as to load: its code calls no function."""
    op: Any = node.op
    return isinstance(op, Convert) or not _FUNCTION.search(op.cuda_expression(node.sources[-1].spec.type))  # type: ignore[union-attr]


def _input_count(group: Sequence[Node]) -> int:
    computed = {node.ports[0] for node in group}
    return len({s for node in group for s in node.sources if s not in computed and not is_scalar(s)})


def fuse_nodes(
    nodes: Sequence[Node], first: Output | None = None, literal: Callable[[Output | None], bool] = is_scalar
) -> tuple[Fused, list[Output | None]]:
    """Return the op that computes all ``nodes``, and its inputs. The nodes are in topological order.

    ``first`` becomes the first input, if given. ``literal`` returns whether a constant becomes a literal.
    """
    _leave_out_codes(nodes)
    operand_indices: dict[Output | None, int] = {}
    sources = dict.fromkeys(s for s in (first, *(s for node in nodes for s in node.sources)) if s is not None)
    computed = {node.ports[0] for node in nodes}
    literals = [s for s in sources if literal(s)]
    inputs: list[Output | None] = [s for s in sources if s not in computed and not literal(s)]
    for port in (*inputs, *literals, *(node.ports[0] for node in nodes)):
        operand_indices[port] = len(operand_indices)
    parts = tuple(Part(op_of(node), tuple(operand_indices[s] for s in node.sources)) for node in nodes)  # type: ignore[arg-type]
    values: list[np.ndarray[Any, Any]] = [s.node.op.value for s in literals]  # type: ignore[attr-defined]
    chain = Chain(len(inputs), tuple((s.spec.type, v.tobytes()) for s, v in zip(literals, values)), parts)
    return Fused(chain=chain, ranks=tuple(v.ndim for v in values), layers=tuple(map(layer_of, nodes))), inputs


def _leave_out_codes(nodes: Sequence[Node]) -> None:
    """Let each Quantize whose codes are only dequantised again in the chain return whole numbers of f32.

    This saves the conversion to i8 and the zero point. The last node is left alone, since its result leaves the chain.
    """
    for node in nodes[:-1]:
        users = [user for user in nodes if node.ports[0] in user.sources]
        if isinstance(node.op, Quantize) and all(isinstance(user.op, Dequantize) for user in users):
            zero, *others = (_zero_code(coded) for coded in (node, *users))
            if zero is not None and all(other == zero for other in others):
                op = node.op
                node.op = replace(op, low=op.low - int(zero), high=op.high - int(zero), dtype=Type.f32)
                for changed in (node, *users):
                    changed.sources = changed.sources[:2]


def _zero_code(node: Node) -> float | None:
    """Return the code that stands for 0 in a Quantize or Dequantize, None if there are several."""
    return scalar_of(node.sources[2]) if len(node.sources) > 2 else 0.0


def fuse_single(node: Node) -> Fused:
    """Return a chain of one elementwise node with the same inputs."""
    op: Any = op_of(node)
    return Fused(chain=Chain.of(op, len(node.sources)), ranks=(), layers=(layer_of(node),))


def layer_of(node: Node) -> Layer:
    """Return the layer of a node whose op becomes part of another op."""
    return Layer(op_of(node), node.friendly_name, node.source_location)
