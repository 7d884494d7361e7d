"""Attentions whose masks are computed alike share one mask.

Models repeat for every attention what turns the one mask into what it takes, and so do the passes that rewrite
attentions. A decoder's step would compute, convert and upload each of them.
"""

from __future__ import annotations

from typing import Any

from ovgpu.model import Model, Node, Output
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.ops.base.op import SMALL_ELEMENTS, is_own, op_of

NEVER_MERGED = frozenset({"Parameter", "Result", "Constant", "ReadValue", "Assign"})


def merge_masks(model: Model) -> None:
    """Keeps one of the layers that compute the same for masks from the same tensors, in place; ports' specs stay as
    they are. Bodies are left alone."""
    kept: dict[Any, Node] = {}
    moved: dict[int, Output] = {}
    masks = _masks(model)
    for node in model.ops if masks else ():
        node.inputs = [None if s is None else moved.get(id(s), s) for s in node.inputs]
        first = kept.setdefault(_key(node), node) if id(node) in masks else node
        if first is not node:
            for old, new in zip(node.outputs, first.outputs):
                moved[id(old)] = new
                new.add_names(old.own_names)
    if moved:
        model.changed()


def _masks(model: Model) -> set[int]:
    """Ids of the nodes that masks of attentions are made of, and that may be merged."""
    stack = [node.inputs[3] for node in model.ops
             if isinstance(node.op, ScaledDotProductAttention) and len(node.inputs) > 3]
    seen: set[int] = set()
    found: set[int] = set()
    while stack:
        port = stack.pop()
        if port is not None and id(port.node) not in seen:
            seen.add(id(port.node))
            stack += port.node.inputs
            if _key(port.node) is not None:
                found.add(id(port.node))
    return found


def _key(node: Node) -> Any:
    """Equal for nodes that compute the same; None for a node that is kept in any case."""
    op = op_of(node)
    if op.name in NEVER_MERGED or op.effect or op.updates or not node.inputs or not is_own(type(op)):
        return None
    attributes = [(name, type(value), repr(value) if isinstance(value, float) else value)
                  for name, value in op.attributes().items()]
    key = (type(op), len(node.outputs), *attributes, *map(_source, node.inputs))
    try:
        hash(key)
    except TypeError:  # bodies, arrays
        return None
    return key


def _source(port: Output | None) -> Any:
    """Equal for one port, and for small constants that are alike."""
    op: Any = None if port is None else port.node.op
    if op is not None and op.name == "Constant" and op.value.size <= SMALL_ELEMENTS and op.value.dtype != object:
        return op.element_type, op.value.shape, op.value.tobytes()
    return id(port)
