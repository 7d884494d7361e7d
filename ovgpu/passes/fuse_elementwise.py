"""Elementwise layers that feed each other -> one Fused layer, whose intermediate values stay in registers.

A layer joins its users when all of them are in the chain, so that nothing is computed twice and the chain still has
one result. A value that is broadcast in the chain may join too, unless computing it for every element of the result
costs more than writing it once. Numbers become literals of the code. Shape arithmetic, which the shape function
computes, stays as it is.
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
from ovgpu.passes._graph import is_fusable, is_number, number_of, users_of
from ovgpu.symbolic import Sym, product
from ovgpu.types import Type

MAX_INPUTS = 12  # of a chain: each takes registers and kernel arguments
MAX_PARTS = 32  # layers of a chain
MAX_RECOMPUTE_RATIO = 4  # elements of the result per element of a value that is costly to compute

_FUNCTION = re.compile(r"\b[a-z]\w*\(")


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
            group = _group(root, users, shape_tensors, taken)
            taken |= set(group)
            if len(group) > 1:
                root.op, root.sources = fused(sorted(group, key=order.__getitem__))
    model.changed()


def _skip_identities(model: Model) -> None:
    """Make layers take the input of an Identity; a Result does not, since it has the name of the tensor it takes."""
    for node in model.ops:
        if node.op.name != "Result":
            node.sources = [
                s.node.sources[0] if s is not None and isinstance(s.node.op, Identity) else s for s in node.sources
            ]
    model.changed()


def _group(root: Node, users: dict[Output, list[Node]], shape_tensors: set[Output], taken: set[Node]) -> list[Node]:
    """Return the nodes that are computed in one chain with ``root``, which comes first."""
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
                continue  # it is tried again for its last user
            if len(group) < MAX_PARTS and _pays(node, root) and _input_count([*group, node]) <= MAX_INPUTS:
                group.append(node)
                members.add(node)
    return group


def _pays(node: Node, root: Node) -> bool:
    """Return whether computing the node's value for every element of the result costs no more than storing it. An
    extent that is known only at run time is assumed not to be broadcast."""
    mine, result = node.ports[0].spec.shape or (), root.ports[0].spec.shape or ()
    if len(mine) == len(result) and all(isinstance(m, Sym) or equal(m, r) for m, r in zip(mine, result)):
        return True
    if any(isinstance(d, Sym) for d in (*mine, *result)):
        return _is_cheap(node)
    return _is_cheap(node) or bool(product(result) <= MAX_RECOMPUTE_RATIO * product(mine))


def _is_cheap(node: Node) -> bool:
    """Return whether a value costs about as much to compute as to load."""
    op: Any = node.op
    return isinstance(op, Convert) or not _FUNCTION.search(op.cuda_expression(node.sources[-1].spec.type))  # type: ignore[union-attr]


def _input_count(group: Sequence[Node]) -> int:
    computed = {node.ports[0] for node in group}
    return len({s for node in group for s in node.sources if s not in computed and not is_number(s)})


def fused(
    nodes: Sequence[Node], first: Output | None = None, literal: Callable[[Output | None], bool] = is_number
) -> tuple[Fused, list[Output | None]]:
    """Return the op that computes all of the nodes, which are in order, and its inputs. ``first`` is the first input,
    if given; ``literal`` returns whether a constant becomes a literal."""
    _leave_out_codes(nodes)
    numbers: dict[Output | None, int] = {}
    sources = dict.fromkeys(s for s in (first, *(s for node in nodes for s in node.sources)) if s is not None)
    computed = {node.ports[0] for node in nodes}
    literals = [s for s in sources if literal(s)]
    inputs: list[Output | None] = [s for s in sources if s not in computed and not literal(s)]
    for port in (*inputs, *literals, *(node.ports[0] for node in nodes)):
        numbers[port] = len(numbers)
    parts = tuple(Part(op_of(node), tuple(numbers[s] for s in node.sources)) for node in nodes)  # type: ignore[arg-type]
    values: list[np.ndarray[Any, Any]] = [s.node.op.value for s in literals]  # type: ignore[attr-defined]
    chain = Chain(len(inputs), tuple((s.spec.type, v.tobytes()) for s, v in zip(literals, values)), parts)
    return Fused(chain=chain, ranks=tuple(v.ndim for v in values), layers=tuple(map(layer_of, nodes))), inputs


def _leave_out_codes(nodes: Sequence[Node]) -> None:
    """Have each Quantize whose codes are only dequantised by other nodes give whole numbers of f32, and no zero point.
    Results of all nodes but the last stay in the chain."""
    for node in nodes[:-1]:
        users = [user for user in nodes if node.ports[0] in user.sources]
        if isinstance(node.op, Quantize) and all(isinstance(user.op, Dequantize) for user in users):
            zero, *others = (_zero(coded) for coded in (node, *users))
            if zero is not None and all(other == zero for other in others):
                op = node.op
                node.op = replace(op, low=op.low - int(zero), high=op.high - int(zero), kind=Type.f32)
                for changed in (node, *users):
                    changed.sources = changed.sources[:2]


def _zero(node: Node) -> float | None:
    """Return the code of a Quantize or Dequantize that stands for 0, None if it is not one number."""
    return number_of(node.sources[2]) if len(node.sources) > 2 else 0.0


def alone(node: Node) -> Fused:
    """Return the op that computes one elementwise node from the same inputs."""
    op: Any = op_of(node)
    return Fused(chain=Chain.of(op, len(node.sources)), ranks=(), layers=(layer_of(node),))


def layer_of(node: Node) -> Layer:
    """Return the layer of a node whose op becomes part of another op."""
    return Layer(op_of(node), node.friendly_name, node.source_location)
