"""Variables without a declared rank that keep their initial values -> variables with the rank of these values.

The state of cross-attention is exported like this. Without the rank, the layers behind the variable would become a
program of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ovgpu.model import Model, Node
from ovgpu.types import PartialShape


def infer_state_rank(model: Model) -> None:
    """Declare the ranks in place. Port specs must be inferred beforehand; they are inferred again."""
    while unranked := [(node, rank) for node in model.ops if (rank := _initial_rank(model, node)) is not None]:
        for node, rank in unranked:
            op: Any = node.op
            node.op = replace(op, variable_shape=PartialShape.dynamic(rank))
        # Again, since initial values of other variables may be computed from these.
        model.validate_nodes_and_infer_types()


def _initial_rank(model: Model, node: Node) -> int | None:
    """Return the rank of the value that a ReadValue without a declared rank reads, None if unknown."""
    op: Any = node.op
    if op.name != "ReadValue" or node.ports[0].spec.shape is not None or not node.sources or node.sources[0] is None:
        return None
    for sink in model.sinks:
        source: Any = sink.sources[0]
        if sink.op.variable_id == op.variable_id and source.node is not node:  # type: ignore[attr-defined]
            return None
    return node.sources[0].spec.rank
