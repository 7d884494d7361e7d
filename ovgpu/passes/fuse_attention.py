"""Decomposed attention, ``softmax(q k^T * scale + mask) v`` -> one ScaledDotProductAttention.

The scale may multiply or divide the scores, q or k. Masks are added, or replace scores by a number that acts like minus
infinity. If other layers take scores or probabilities as well, attention stays decomposed. In 16 bits, the decomposed
layers round the scores before the softmax; the fused layer does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any

from ovgpu.errors import OpError
from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.activation.softmax import Softmax, Softmax8
from ovgpu.ops.arithmetic.arithmetic import Add, Divide, Multiply
from ovgpu.ops.attention._attention import MAX_WIDTH
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.ops.comparison import Select
from ovgpu.ops.convert import Convert, Identity
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.ops.movement.movement import Transpose
from ovgpu.ops.shape.reshape import Unsqueeze
from ovgpu.passes._graph import NodeBuilder, constant_integers, operands, rewrite, scalar_of, users_of
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, Sym
from ovgpu.types import Type

RELATIVE_TOLERANCE = {Type.f32: 1e-6, Type.f16: 1e-3, Type.bf16: 8e-3, Type.f64: 1e-12}  # of the scale, by element type
# Adding a mask of at most this number to a score loses the score by rounding, so that adding equals replacing.
MASKED_SCORE = {Type.f32: -1e30, Type.bf16: -1e30}

Users = dict[Output, list[Node]]
SelectMask = tuple[Output, float, bool]  # a condition, the masked score, and whether true selects the scores


@dataclass(frozen=True)
class Scores:
    """Attention scores: a matrix product, its scale, and masks that are added or select scores."""

    product: Node
    scale: float = 1.0
    masks: tuple[Output | SelectMask, ...] = ()


def fuse_attention(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again."""
    users = _all_users(model)
    rewrite(model, lambda node: type(node.op) is MatMul and _attend(node, users))


def _all_users(model: Model) -> Users:
    """Return `users_of` the model and all bodies in it."""
    users = users_of(model)
    for node in model.ops:
        for body in bodies(node.op):
            users |= _all_users(body)
    return users


def _attend(node: Node, users: Users) -> bool:
    """Make a product of probabilities and values the whole attention; return whether it is such a product."""
    op: Any = node.op
    probabilities, v = node.sources
    if probabilities is None or v is None or op.transpose_a or node.ports[0].spec.type not in RELATIVE_TOLERANCE:
        return False
    for scores in _match_scores(_match_softmax(probabilities, users), users):
        inputs = _attention_inputs(node, scores, v)
        if inputs is not None:
            node.op, node.sources = ScaledDotProductAttention(), inputs
            return True
    return False


def _match_softmax(port: Output | None, users: Users) -> Output | None:
    """Return x if the port is the softmax of x along the last axis, else None.

    Converts may follow the softmax: 16-bit models may compute it in f32.
    """
    while port is not None and len(users.get(port, ())) == 1:
        op, source = port.node.op, port.node.sources[0] if port.node.sources else None
        if isinstance(op, (Softmax, Softmax8)):
            return source if port.spec.rank and op.normalized_axis(port.spec.rank) == port.spec.rank - 1 else None
        if not isinstance(op, (Identity, Convert)):
            source = next((a for a, b in operands(port.node, Multiply) if scalar_of(b) == 1), None)
        port = source
    return None


def _match_scores(port: Output | None, users: Users) -> Iterator[Scores]:
    """Yield all decompositions of the port into a product, a scale and masks."""
    if port is None or len(users.get(port, ())) != 1:
        return
    node = port.node
    if type(node.op) is MatMul:
        yield Scores(node)
    elif isinstance(node.op, (Identity, Convert)):
        yield from _match_scores(node.sources[0], users)
    elif isinstance(node.op, Add):
        for a, b in operands(node, Add):
            yield from (replace(s, masks=(*s.masks, b)) for s in _match_scores(a, users))
    elif isinstance(node.op, Select) and node.op.auto_broadcast == "numpy":
        condition, *values = node.sources
        for score, masked, where in ((values[0], scalar_of(values[1]), True), (values[1], scalar_of(values[0]), False)):
            if condition is not None and masked is not None and masked <= MASKED_SCORE.get(port.spec.type, -inf):
                mask = condition, masked, where
                yield from (replace(s, masks=(*s.masks, mask)) for s in _match_scores(score, users))
    elif (scaling := _match_scaling(port)) is not None:
        x, scale = scaling
        yield from (replace(s, scale=s.scale * scale) for s in _match_scores(x, users) if not s.masks)


def _match_scaling(port: Output) -> tuple[Output, float] | None:
    """Return (x, n) such that the port is x times the number n, else None."""
    for a, b in operands(port.node, Multiply):
        if (factor := scalar_of(b)) is not None and a.spec.rank == port.spec.rank:
            return a, factor
    for a, b in operands(port.node, Divide, ordered=True):
        if (divisor := scalar_of(b)) and a.spec.rank == port.spec.rank:
            return a, 1 / divisor
    return None


def _strip_scale(port: Output) -> tuple[Output, float]:
    """Return (x, n) such that the port is x times the number n; (port, 1) if it is not scaled."""
    scale = 1.0
    while (scaling := _match_scaling(port)) is not None:
        port, scale = scaling[0], scale * scaling[1]
    return port, scale


def _swap_last_axes(graph: NodeBuilder, port: Output) -> Output | None:
    """Return the port with its last two axes swapped if it is the result of a Transpose, else None.

    The swap then costs nothing: it changes the order of the Transpose, or removes it.
    """
    source, order = (*port.node.sources, None, None)[:2]
    axes = constant_integers(order) if isinstance(port.node.op, Transpose) else None
    if source is None or axes is None or len(axes) < 2:
        return None
    *outer, row, column = axes
    swapped = [*outer, column, row]
    if swapped == sorted(swapped):
        return source
    transposed: Output = graph.add(Transpose(), source, graph.constant(swapped))
    return transposed


def _attention_inputs(node: Node, scores: Scores, v: Output) -> list[Output | None] | None:
    """Return the inputs of the attention that ends with this node, None if there is none."""
    graph, dtype = NodeBuilder(node), node.ports[0].spec.type
    first: Any = scores.product.op
    last: Any = node.op
    q, k = scores.product.sources
    if q is None or k is None or first.transpose_a or not _fits(node, scores, v):
        return None
    (q, by_q), (k, by_k) = _strip_scale(q), _strip_scale(k)
    keys = k if first.transpose_b else _swap_last_axes(graph, k)
    values = _swap_last_axes(graph, v) if last.transpose_b else v
    if keys is None or values is None:
        return None
    scale = scores.scale * by_q * by_k
    width: Any = _shape(q.spec)[-1]
    is_default = abs(scale * sqrt(width) - 1) < RELATIVE_TOLERANCE[dtype]
    scale_inputs = [] if is_default else [graph.constant(scale, dtype)]
    return [q, keys, values, _combine_masks(graph, scores.masks, dtype), *scale_inputs]


def _fits(node: Node, scores: Scores, v: Output) -> bool:
    """Return whether a ScaledDotProductAttention takes these shapes and types, and its result is the node's."""
    first: Any = scores.product.op
    last: Any = node.op
    q, k = (port.spec for port in scores.product.sources if port is not None)
    out = node.ports[0].spec
    if any(isinstance(d, Sym) or not 0 < d <= MAX_WIDTH for s in (q, out) for d in (_shape(s) or (0,))[-1:]):
        return False
    inputs: list[Spec | None] = [q, _in_rows(k, not first.transpose_b), _in_rows(v.spec, last.transpose_b)]
    op: Any = ScaledDotProductAttention()
    try:
        for mask in scores.masks or (None,):
            spec = None if mask is None else (mask if isinstance(mask, Output) else mask[0]).spec
            if spec is not None and not 1 <= len(_shape(spec)) <= len(_shape(q)):
                return False
            result = op.infer_specs(*inputs, spec if spec is None else replace(spec, shape=_as_matrix(_shape(spec))))[0]
            if result.type != out.type or result.rank != out.rank:
                return False
    except OpError:
        return False
    return True


def _in_rows(spec: Spec, are_columns: bool) -> Spec:
    """Return the spec of keys or values as [.., s, e]. If ``are_columns``, ``spec`` is [.., e, s]."""
    shape = _shape(spec)
    return replace(spec, shape=(*shape[:-2], *shape[:-3:-1])) if are_columns else spec


def _as_matrix(shape: tuple[Int, ...]) -> tuple[Int, ...]:
    return shape if len(shape) > 1 else (1, *shape)


def _shape(spec: Spec) -> tuple[Int, ...]:
    return spec.shape or ()


def _combine_masks(graph: NodeBuilder, masks: Sequence[Output | SelectMask], dtype: Type) -> Output | None:
    """Return one mask that has the effect of all ``masks``: a boolean condition if that suffices, else a sum."""
    total: Output | None = None
    for mask in masks:
        condition, masked, where = (mask, 0, True) if isinstance(mask, Output) else mask
        term = condition
        if not isinstance(mask, Output) and (len(masks) > 1 or not where or masked != -inf):
            values = [graph.constant(0, dtype), graph.constant(masked, dtype)]
            term = graph.add(Select(), condition, *(values if where else values[::-1]))
        term = term if len(_shape(condition.spec)) > 1 else graph.add(Unsqueeze(), term, graph.constant([0]))
        total = term if total is None else graph.add(Add(), total, term)
    return total
