"""Variables that are declared without a rank, and keep their initial values, have the rank of these.

The state of cross-attention is exported so. What follows a variable of unknown rank is a program of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ovgpu.model import Model, Node
from ovgpu.types import PartialShape


def infer_state_rank(model: Model) -> None:
    """Declares the ranks in place; ports' specs must be inferred."""
    while found := [(node, rank) for node in model.ops if (rank := _initial_rank(model, node)) is not None]:
        for node, rank in found:
            op: Any = node.op
            node.op = replace(op, variable_shape=PartialShape.dynamic(rank))
        model.validate_nodes_and_infer_types()  # other initial values may be computed from these


def _initial_rank(model: Model, node: Node) -> int | None:
    """The rank that a node reads, if it does not say so."""
    op: Any = node.op
    if op.name != "ReadValue" or node.outputs[0].spec.shape is not None or not node.inputs or node.inputs[0] is None:
        return None
    for sink in model.sinks:
        source: Any = sink.inputs[0]
        if sink.op.variable_id == op.variable_id and source.node is not node:  # type: ignore[attr-defined]
            return None
    return node.inputs[0].spec.rank
