"""Canonicalisation: of several ways to say the same, the one that later passes and backends know."""

from __future__ import annotations

from ovgpu.model import Model, Node
from ovgpu.ops.convert import Convert


def canonicalise(model: Model) -> None:
    """Rewrites the model and the bodies in it, in place; ports' specs must be inferred.

    ConvertLike becomes Convert where the type is known: the second tensor itself is needed no longer.
    """
    for node in model.ops:
        for body in vars(node.op).values():
            if isinstance(body, Model):
                canonicalise(body)
        if node.op.name == "ConvertLike":
            _convert(node)
    model.changed()


def _convert(node: Node) -> None:
    x, like = node.inputs
    if like is not None and like.spec.type.is_static():
        node.op, node.inputs = Convert(destination_type=like.spec.type), [x]
