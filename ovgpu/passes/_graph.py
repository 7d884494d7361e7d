"""What rewrites ask of a graph."""

from __future__ import annotations

from ovgpu.model import Model, Node


def users_of(model: Model) -> dict[int, list[Node]]:
    """The nodes that take a tensor, by the id of its port; who asks for its shape does not count."""
    users: dict[int, list[Node]] = {}
    for node in model.ops:
        if node.op.name != "ShapeOf":
            for source in node.inputs:
                if source is not None:
                    users.setdefault(id(source), []).append(node)
    return users
