"""Products of the same codes by several constant matrices -> one product and a VariadicSplit, whose parts are views.

Examples are the projections to queries, keys and values. The merged product's epilogue adds the merged bias, and
simulates the quantisation of those results that a FakeQuantize follows, each in its own steps. Products stay apart if
elementwise layers take a result, which are then the product's epilogue, and where `merge_products` leaves products of
real numbers apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.arithmetic.arithmetic import Add
from ovgpu.ops.base.elementwise import Elementwise
from ovgpu.ops.base.op import op_of
from ovgpu.ops.comparison import Select
from ovgpu.ops.convert import ConvertDown
from ovgpu.ops.fused.quantized import QuantizedMatMul
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.ops.movement.movement import VariadicSplit
from ovgpu.ops.quantization import Dequantize, Quantize
from ovgpu.passes._graph import NodeBuilder, number_of, redirect, users_of
from ovgpu.passes._merged import Users, at_once, bias_of, copied, joined, needed_by, other_operand, side_by_side
from ovgpu.types import Type


@dataclass(frozen=True)
class _Projection:
    """A product, the Add of its bias, and the two halves of the FakeQuantize behind them, of which all but the product
    may be absent."""

    product: Node
    bias: Node | None
    codes: Node | None
    values: Node | None

    @property
    def result(self) -> Output:
        return (self.values or self.bias or self.product).ports[0]

    @property
    def grid(self) -> tuple[Any, ...] | None:
        """The numbers of the FakeQuantize that all columns must share; None without one."""
        if self.codes is None:
            return None
        return self.codes.op, *map(number_of, self.codes.sources[2:])


def merge_quantized_products(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again."""
    if _merged(model):
        model.validate_nodes_and_infer_types()


def _merged(model: Model) -> bool:
    changed = any([_merged(body) for node in model.ops for body in bodies(node.op)])
    products = [node for node in model.ops if isinstance(node.op, QuantizedMatMul)]
    if not products:
        return changed
    users, needed, moved = users_of(model), needed_by(model), dict[Output, Output]()
    alike: dict[tuple[Any, ...], list[Node]] = {}
    for node in products:
        if all(s is not None and isinstance(s.node.op, Constant) and users[s] == [node] for s in node.sources[1:]):
            alike.setdefault((node.sources[0], node.op.zero), []).append(node)  # type: ignore[attr-defined]
    for nodes in alike.values():
        for group in at_once(nodes, needed):
            found = [_projection(node, users) for node in group]
            if len(found) > 1 and _pays(found, users):
                _merge(found, moved)
    redirect(model, moved)
    model.changed()
    return changed or bool(moved)


def _projection(node: Node, users: Users) -> _Projection:
    bias = bias_of(node.ports[0], users)
    codes = _only(bias or node, Quantize, users)
    values = None if codes is None else _only(codes, Dequantize, users)
    if codes is None or values is None or None in map(number_of, (*codes.sources[1:], *values.sources[1:])):
        return _Projection(node, bias, None, None)
    return _Projection(node, bias, codes, values)


def _only(node: Node, op: type, users: Users) -> Node | None:
    """Return the only user of a node's result if it is of that op."""
    found = users.get(node.ports[0], [])
    return found[0] if len(found) == 1 and isinstance(found[0].op, op) else None


def _pays(group: Sequence[_Projection], users: Users) -> bool:
    """Return whether one epilogue computes all results, and fewer layers copy them than products are saved."""
    if len({p.result.spec.type for p in group}) > 1 or len({p.grid for p in group} - {None}) > 1:
        return False
    if any(isinstance(user.op, Elementwise) for p in group for user in users.get(p.result, ())):
        return False
    views = side_by_side([p.product for p in group])
    return sum(copied(p.result, view, users) for p, view in zip(group, views)) < len(group) - 1


def _merge(group: Sequence[_Projection], moved: dict[Output, Output]) -> None:
    first = group[0].product
    graph, op = NodeBuilder(first), cast("QuantizedMatMul", op_of(first))
    widths = [p.product.sources[1].spec.shape[0] for p in group]  # type: ignore[union-attr, index]
    quantized = next((p for p in group if p.codes is not None), None)
    kind = Type.f32 if quantized is not None else group[0].result.spec.type
    weights = [joined(graph, ports, 0, None) for ports in zip(*(p.product.sources[1:] for p in group))]
    found = graph.add(replace(op, kind=kind), first.sources[0], *weights)
    biased = next((p.bias for p in group if p.bias is not None), None)
    if biased is not None:
        values = [
            np.zeros(width) if p.bias is None else other_operand(p.bias, p.product.ports[0]).node.op.value.ravel()
            for p, width in zip(group, widths)
        ]
        found = NodeBuilder(biased).add(Add(), found, graph.constant(np.concatenate(values), kind))
    if quantized is not None:
        found = _simulated(group, quantized, found, widths)
    cut = graph.add(VariadicSplit(), found, graph.constant(-1), graph.constant(widths), outputs=len(group))
    for p, port in zip(group, cut):
        port.names = p.result.own_names
        moved[p.result] = port


def _simulated(group: Sequence[_Projection], like: _Projection, found: Output, widths: Sequence[int]) -> Output:
    """Return the merged results, with those in steps that a FakeQuantize follows."""
    assert like.codes is not None and like.values is not None
    graph, result = NodeBuilder(like.values), like.result.spec.type

    def by_column(numbers: Sequence[Any], kind: Type = Type.f32) -> Output:
        return graph.constant(np.repeat(numbers, widths), kind)

    def factors(halves: Sequence[Node | None]) -> Output:
        return by_column([1.0 if node is None else number_of(node.sources[1]) for node in halves])

    reciprocals, steps = factors([p.codes for p in group]), factors([p.values for p in group])
    codes = NodeBuilder(like.codes).add(op_of(like.codes), found, reciprocals, *like.codes.sources[2:])
    values: Output = graph.add(op_of(like.values), codes, steps, *like.values.sources[2:])
    if all(p.codes is not None for p in group):
        return values
    others = found if result == Type.f32 else graph.add(ConvertDown(destination_type=result), found)
    quantized = by_column([p.codes is not None for p in group], Type.boolean)
    selected: Output = graph.add(Select(), quantized, values, others)
    return selected
