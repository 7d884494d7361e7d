"""Constants with the same memory -> one constant, and equal layers of it alone -> one layer.

A model file stores equal weights once. So a tied embedding is two Constants with the same bytes, each with the layers
that decompress it. Without this pass, a card would hold it twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgpu.ir._constants import PackedConstant
from ovgpu.model import Model, Node, Output
from ovgpu.ops.infrastructure.graph import Constant, Result
from ovgpu.passes._graph import layer_key, users_of
from ovgpu.types.mapped import memory_of

MIN_BYTES = 4096  # of a constant; smaller ones do not matter


def merge_constants(model: Model) -> None:
    """Rewrite the model in place. Bodies of layers are left alone. Tensors of results keep their names."""
    unique: dict[Any, Node] = {}
    moved: dict[Output, Output] = {}
    of_constants: set[Node] = set()  # large constants, and layers of these and of small constants
    users = users_of(model)
    for node in model.ops:
        node.sources = [None if s is None else moved.get(s, s) for s in node.sources]
        if isinstance(node.op, Constant):
            key = _memory_of(node.op)
        else:
            sources = [s.node for s in node.sources if s is not None]
            is_derived = not of_constants.isdisjoint(sources) and all(
                source in of_constants or isinstance(source.op, Constant) for source in sources
            )
            key = layer_key(node) if is_derived else None
        if key is None or any(isinstance(user.op, Result) for port in node.ports for user in users.get(port, ())):
            continue
        of_constants.add(node)
        first = unique.setdefault(key, node)
        if first is not node:
            for old, new in zip(node.ports, first.ports):
                moved[old] = new
                new.add_names(old.own_names)
    if moved:
        model.changed()


def _memory_of(constant: Constant) -> Any:
    """Return a key that is equal for constants of the same elements in the same memory; None for small ones."""
    array: Any = constant.packed if isinstance(constant, PackedConstant) else constant.value
    if not isinstance(array, np.ndarray) or array.nbytes < MIN_BYTES or array.dtype == object:
        return None
    shape = constant.shape if isinstance(constant, PackedConstant) else array.shape
    return constant.element_type, shape, memory_of(array)
