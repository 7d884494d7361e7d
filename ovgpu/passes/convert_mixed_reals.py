"""Layers whose inputs have different floating-point types -> layers of the widest of these types, between Converts.

Model Optimizer wrote PReLU of f16 data with f32 slopes, and OpenVINO accepts mixed types for several operations
(`Op.mixed_reals`). The results keep their declared types.
"""

from __future__ import annotations

from collections.abc import Sequence

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.base.op import MIXED_REALS, op_of
from ovgpu.ops.convert import Convert
from ovgpu.passes._graph import HALVES, NodeBuilder, redirect
from ovgpu.types import Type


def convert_mixed_reals(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again."""
    if _rewrite(model):
        model.validate_nodes_and_infer_types()


def _rewrite(model: Model) -> bool:
    """Rewrite the model and its bodies in place, and return whether any layer changed."""
    changed = False
    converted: dict[Output, Output] = {}
    for node in model.ops:
        changed |= any([_rewrite(body) for body in bodies(node.op)])
        mixed = [i for i in (0, *op_of(node).mixed_reals) if i < len(node.sources) and node.sources[i] is not None]
        types = [source.spec.type for i in mixed if (source := node.sources[i]) is not None]
        if len(mixed) > 1 and len(set(types)) > 1 and set(types) <= MIXED_REALS:
            changed = True
            converted.update(_unify(node, types[0], _widest(types)))
    if changed:
        redirect(model, converted)
        for port, result in converted.items():
            result.node.sources = [port]
        model.changed()
    return changed


def _widest(types: Sequence[Type]) -> Type:
    """Return the narrowest type that holds all values of these types. For f16 with bf16 that is f32."""
    largest = max(types, key=lambda dtype: dtype.storage.itemsize)
    return Type.f32 if largest in HALVES else largest


def _unify(node: Node, declared: Type, widest: Type) -> dict[Output, Output]:
    """Convert the floating-point inputs of a node to ``widest``. Return a dict from each result that had the
    ``declared`` type to a port that is converted back to it."""
    graph = NodeBuilder(node)
    for i, source in enumerate(node.sources):
        if source is not None and source.spec.type in MIXED_REALS and source.spec.type != widest:
            node.sources[i] = graph.add(Convert(destination_type=widest), source)
    if declared == widest:
        return {}
    return {
        port: graph.add(Convert(destination_type=declared), port) for port in node.ports if port.spec.type == declared
    }
