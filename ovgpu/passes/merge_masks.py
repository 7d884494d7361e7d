"""Equal layers that compute the masks of several attentions -> one set of layers, whose mask the attentions share.

Models repeat the layers that prepare a mask for every attention, and passes that rewrite attention add more. Without
this pass, a decode step would compute, convert and upload each copy.
"""

from __future__ import annotations

from typing import Any

from ovgpu.model import Model, Node, Output
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.passes._graph import layer_key


def merge_masks(model: Model) -> None:
    """Merge equal layers in front of masks that take the same tensors, in place. Port specs stay valid. Bodies of
    layers are left alone."""
    unique: dict[Any, Node] = {}
    moved: dict[Output, Output] = {}
    masks = _find_mask_nodes(model)
    for node in model.ops if masks else ():
        node.sources = [None if s is None else moved.get(s, s) for s in node.sources]
        first = unique.setdefault(layer_key(node), node) if node in masks else node
        if first is not node:
            for old, new in zip(node.ports, first.ports):
                moved[old] = new
                new.add_names(old.own_names)
    if moved:
        model.changed()


def _find_mask_nodes(model: Model) -> set[Node]:
    """Return the nodes that attention masks depend on, if they may be merged."""
    stack = [
        node.sources[3]
        for node in model.ops
        if isinstance(node.op, ScaledDotProductAttention) and len(node.sources) > 3
    ]
    seen: set[Node] = set()
    mergeable: set[Node] = set()
    while stack:
        port = stack.pop()
        if port is not None and port.node not in seen:
            seen.add(port.node)
            stack += port.node.sources
            if layer_key(port.node) is not None:
                mergeable.add(port.node)
    return mergeable
