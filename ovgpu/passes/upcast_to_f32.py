"""f16 or bf16 models -> f32 models: inputs and results keep their types, all tensors between them become f32.

Variables become f32 as well; requests show them in the declared type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.base.op import is_own, op_of
from ovgpu.ops.convert import Convert
from ovgpu.ops.generation.random import RandomUniform
from ovgpu.ops.shape.shape import ShapeOf
from ovgpu.ops.sparse.segments import SegmentMax
from ovgpu.passes._graph import HALVES, NodeBuilder, fixed_nodes
from ovgpu.types import Type


def upcast_to_f32(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again.

    Layers of constants alone stay as they are, and so do layers that are not ovgpu's own. Random numbers stay, too,
    because they depend on the type.
    """
    types = _types(model)
    if types & set(HALVES) and Type.dynamic not in types:
        _upcast(model, [*model.parameters, *model.results])
        model.validate_nodes_and_infer_types()


def _types(model: Model) -> set[Type]:
    """Return the types of tensors that are not computed from constants alone."""
    fixed = fixed_nodes(model)
    types = {port.spec.type for node in model.ops if node not in fixed for port in node.ports}
    return types.union(*(_types(body) for node in model.ops for body in bodies(node.op)))


def _upcast(model: Model, kept: Sequence[Node] = ()) -> None:
    """Upcast a model or body in place, except for ``kept``: Parameters and Results that keep their types."""
    unchanged = fixed_nodes(model) | {node for node in (*kept, *filter(_keeps_types, model.ops))}
    casts: dict[Output, Output] = {}
    for node in model.ops:
        for i, source in enumerate(node.sources):
            is_upcast = source is None or source.node not in unchanged
            if source is None or source.spec.type not in HALVES or is_upcast != (node in unchanged):
                continue
            if is_upcast:
                node.sources[i] = _cast(source, source.spec.type, node)
            elif not isinstance(node.op, (Convert, ShapeOf)):  # these take any type
                if source not in casts:
                    casts[source] = _cast(source, Type.f32, source.node)
                node.sources[i] = casts[source]
        if node not in unchanged:
            node.op = _upcast_op(node.op, node.ports[0].spec.type if node.ports else Type.dynamic)
            for body in bodies(node.op):
                _upcast(body)
    model.changed()


def _keeps_types(node: Node) -> bool:
    """Return whether a layer keeps the types of its inputs and outputs."""
    return not is_own(type(op_of(node))) or isinstance(node.op, RandomUniform)


def _cast(port: Output, dtype: Type, around: Node) -> Output:
    converted: Output = NodeBuilder(around).add(Convert(destination_type=dtype), port)
    return converted


def _upcast_op(op: Any, result_type: Type) -> Any:
    """Return the op with f32 for all attributes that are f16 or bf16; ``result_type`` is the type of its result."""
    if isinstance(op, SegmentMax) and result_type in HALVES:
        return op.widened(result_type)
    types = {
        f.name: Type.f32
        for f in (fields(op) if is_dataclass(op) else ())
        if isinstance(value := getattr(op, f.name), Type) and value in HALVES
    }
    return replace(op, **types) if types else op
