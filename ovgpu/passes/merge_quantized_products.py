"""Products of the same codes by several constant matrices -> one product and a VariadicSplit, whose parts are views.

Examples are the projections to queries, keys and values. The epilogue of the merged product adds the merged bias. It
also quantises and dequantises the results that a FakeQuantize takes, each with its own step. Products stay apart if
elementwise layers take a result, since these become the epilogue of a single product, and under the conditions for
which `merge_products` leaves products apart.
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
from ovgpu.passes._graph import NodeBuilder, redirect, scalar_of, users_of
from ovgpu.passes._merged import (
    Users,
    bias_of,
    count_extra_copies,
    first_use_depths,
    group_by_first_use,
    join_constants,
    other_operand,
    views_side_by_side,
)
from ovgpu.types import Type


@dataclass(frozen=True)
class _Projection:
    """A product, the Add of its bias, and the Quantize and Dequantize of the FakeQuantize that follows, if any."""

    product: Node
    bias: Node | None
    quantize: Node | None
    dequantize: Node | None

    @property
    def result(self) -> Output:
        return (self.dequantize or self.bias or self.product).ports[0]

    @property
    def grid(self) -> tuple[Any, ...] | None:
        """The parameters of the Quantize that merged results must share; None without a Quantize."""
        if self.quantize is None:
            return None
        return self.quantize.op, *map(scalar_of, self.quantize.sources[2:])


def merge_quantized_products(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again."""
    if _merge_all(model):
        model.validate_nodes_and_infer_types()


def _merge_all(model: Model) -> bool:
    """Merge products of the model and its bodies; return whether there were any."""
    changed = any([_merge_all(body) for node in model.ops for body in bodies(node.op)])
    products = [node for node in model.ops if isinstance(node.op, QuantizedMatMul)]
    if not products:
        return changed
    users, first_use, moved = users_of(model), first_use_depths(model), dict[Output, Output]()
    alike: dict[tuple[Any, ...], list[Node]] = {}
    for node in products:
        if all(s is not None and isinstance(s.node.op, Constant) and users[s] == [node] for s in node.sources[1:]):
            alike.setdefault((node.sources[0], node.op.zero), []).append(node)  # type: ignore[attr-defined]
    for nodes in alike.values():
        for group in group_by_first_use(nodes, first_use):
            projections = [_projection(node, users) for node in group]
            if len(projections) > 1 and _pays(projections, users):
                _merge(projections, moved)
    redirect(model, moved)
    model.changed()
    return changed or bool(moved)


def _projection(node: Node, users: Users) -> _Projection:
    bias = bias_of(node.ports[0], users)
    quantize = _only_user(bias or node, Quantize, users)
    dequantize = None if quantize is None else _only_user(quantize, Dequantize, users)
    if quantize is None or dequantize is None:
        return _Projection(node, bias, None, None)
    if None in map(scalar_of, (*quantize.sources[1:], *dequantize.sources[1:])):
        return _Projection(node, bias, None, None)
    return _Projection(node, bias, quantize, dequantize)


def _only_user(node: Node, op: type, users: Users) -> Node | None:
    """Return the only user of a node's result if it has this op, else None."""
    takers = users.get(node.ports[0], [])
    return takers[0] if len(takers) == 1 and isinstance(takers[0].op, op) else None


def _pays(group: Sequence[_Projection], users: Users) -> bool:
    """Return whether one epilogue can compute all results, and merging saves more products than it adds copies."""
    if len({p.result.spec.type for p in group}) > 1 or len({p.grid for p in group} - {None}) > 1:
        return False
    if any(isinstance(user.op, Elementwise) for p in group for user in users.get(p.result, ())):
        return False
    views = views_side_by_side([p.product for p in group])
    return sum(count_extra_copies(p.result, view, users) for p, view in zip(group, views)) < len(group) - 1


def _merge(group: Sequence[_Projection], moved: dict[Output, Output]) -> None:
    first = group[0].product
    graph, op = NodeBuilder(first), cast("QuantizedMatMul", op_of(first))
    widths = [p.product.sources[1].spec.shape[0] for p in group]  # type: ignore[union-attr, index]
    quantized = next((p for p in group if p.quantize is not None), None)
    dtype = Type.f32 if quantized is not None else group[0].result.spec.type
    weights = [join_constants(graph, ports, 0, None) for ports in zip(*(p.product.sources[1:] for p in group))]
    merged = graph.add(replace(op, dtype=dtype), first.sources[0], *weights)
    biased = next((p.bias for p in group if p.bias is not None), None)
    if biased is not None:
        values = [
            np.zeros(width) if p.bias is None else other_operand(p.bias, p.product.ports[0]).node.op.value.ravel()
            for p, width in zip(group, widths)
        ]
        merged = NodeBuilder(biased).add(Add(), merged, graph.constant(np.concatenate(values), dtype))
    if quantized is not None:
        merged = _quantize_columns(group, quantized, merged, widths)
    parts = graph.add(VariadicSplit(), merged, graph.constant(-1), graph.constant(widths), outputs=len(group))
    for p, port in zip(group, parts):
        port.names = p.result.own_names
        moved[p.result] = port


def _quantize_columns(group: Sequence[_Projection], like: _Projection, merged: Output, widths: Sequence[int]) -> Output:
    """Return the merged results, quantised and dequantised in the columns that a FakeQuantize takes.

    ``like``: a projection with a FakeQuantize, whose ops and zero point the merged layers get.
    """
    quantize, dequantize = like.quantize, like.dequantize
    assert quantize is not None and dequantize is not None
    graph, result_type = NodeBuilder(dequantize), like.result.spec.type

    def by_column(elements: Sequence[Any], dtype: Type = Type.f32) -> Output:
        return graph.constant(np.repeat(elements, widths), dtype)

    def factors(nodes: Sequence[Node | None]) -> Output:
        return by_column([1.0 if node is None else scalar_of(node.sources[1]) for node in nodes])

    reciprocals, steps = factors([p.quantize for p in group]), factors([p.dequantize for p in group])
    codes = NodeBuilder(quantize).add(op_of(quantize), merged, reciprocals, *quantize.sources[2:])
    values: Output = graph.add(op_of(dequantize), codes, steps, *dequantize.sources[2:])
    if all(p.quantize is not None for p in group):
        return values
    others = merged if result_type == Type.f32 else graph.add(ConvertDown(destination_type=result_type), merged)
    quantized = by_column([p.quantize is not None for p in group], Type.boolean)
    selected: Output = graph.add(Select(), quantized, values, others)
    return selected
