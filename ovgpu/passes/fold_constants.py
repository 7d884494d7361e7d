"""Constant folding: layers whose inputs are all constants become Constants, and so do integers that follow from shapes,
such as the rank of a tensor."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.base.op import evaluate
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.convert import Convert
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.passes._derived import derived
from ovgpu.passes._graph import HALVES, op_key, users_of
from ovgpu.types import Type
from ovgpu.types.mapped import let_go

MAX_SIZE_RATIO = 8  # a result may have this many times the bytes of its inputs ...
SMALL_BYTES = 1 << 20  # ... or this many bytes: a larger Broadcast of one number stays a layer


def fold_constants(model: Model, halves: bool = True) -> None:
    """Rewrite the model in place. Port specs must be inferred beforehand.

    Without ``halves``, conversions of large 16-bit weights stay layers; `downcast` then takes the weights as they are.
    """
    constants: dict[Output, Output] = {}
    skipped = set() if halves else _weight_conversions(model)
    for node in model.ops:
        if node in skipped:
            continue
        node.sources = [None if s is None else constants.get(s, s) for s in node.sources]
        for old, value in zip(node.ports, _fold(node)):
            op: Any = Constant(element_type=old.spec.type, value=value)
            new = Node(op, [], name=node.friendly_name, layer_id=node.layer_id).ports[0]
            new.names, new.spec = old.names, op.infer_specs()[0]
            constants[old] = new
    if constants:
        model.changed()


def _weight_conversions(model: Model) -> set[Node]:
    """Return the Converts of large 16-bit weights whose users also take a computed tensor."""
    users = users_of(model)
    conversions = set()
    for node in model.ops:
        source = node.sources[0] if isinstance(node.op, Convert) else None
        if source is not None and source.spec.type in HALVES and isinstance(source.node.op, Constant):
            others = [s.node.op for user in users.get(node.ports[0], ()) for s in user.sources if s is not None]
            is_large = source.node.op.value.nbytes > SMALL_BYTES
            if is_large and any(not isinstance(op, (Constant, Convert)) for op in others):
                conversions.add(node)
    return conversions


def _fold(node: Node) -> list[np.ndarray[Any, Any]]:
    """Return the node's results if the node can be folded, else an empty list."""
    op: Any = node.op
    if not op.effect and op.name not in ("Constant", "Result"):
        known = [
            value.astype(port.spec.type.storage)
            for port in node.ports
            if port.spec.type in (Type.i32, Type.i64) and (value := port.spec.constant) is not None
        ]
        if known and len(known) == len(node.ports):
            return known
    sources = [s for s in node.sources if s is not None]
    if (
        not sources
        or len(sources) < len(node.sources)
        or op.effect
        or op.name == "Result"
        or any(s.node.op.name != "Constant" for s in sources)
        or bodies(op)
    ):
        return []
    values = [s.node.op.value for s in sources]  # type: ignore[attr-defined]
    sizes = [_nbytes(port) for port in node.ports]
    if any(size is None or size > max(SMALL_BYTES, MAX_SIZE_RATIO * sum(v.nbytes for v in values)) for size in sizes):
        return []
    types = [port.spec.type for port in node.ports]
    rule = op_key(op) if len(types) == 1 else None
    try:
        if rule is None:
            results = list(map(np.asarray, evaluate(op, NUMPY, values, types)))
        else:
            rule = rule, *types, *[source.spec.type for source in sources]
            results = [derived(rule, values, lambda: np.asarray(evaluate(op, NUMPY, values, types)[0]))]
    except OpError as e:
        raise e.at(op.name, node.source_location) from None
    for value in values:
        let_go(value)
    return results


def _nbytes(port: Output) -> int | None:
    spec = port.spec
    if spec.shape is None or not all(isinstance(d, int) for d in spec.shape) or spec.type.is_dynamic():
        return None
    return prod(spec.shape) * spec.type.storage.itemsize
