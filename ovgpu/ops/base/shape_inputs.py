"""Tensors of a model that are needed on the host because they decide shapes, lengths and axes."""

from __future__ import annotations

from ovgpu.model import Model, Output
from ovgpu.ops.base.op import Op, op_of


def host_indices(op: Op, count: int) -> set[int]:
    """Return the indices of an op's host inputs if it has ``count`` inputs, with -1 expanded; see `Op.host_inputs`."""
    listed = op.host_inputs
    indices = {i for i in listed if 0 <= i < count}
    if -1 in listed:
        indices |= set(range(max((i for i in listed if i >= 0), default=-1) + 1, count))
    return indices


def shape_tensor_ports(model: Model) -> set[Output]:
    """Return the shape tensors: all ports that host inputs depend on, back to ShapeOf, Constant, Parameter and
    ReadValue."""
    stack = [p for n in model.ops for i in host_indices(op_of(n), len(n.sources)) if (p := n.sources[i]) is not None]
    shape_tensors: set[Output] = set()
    while stack:
        port = stack.pop()
        if port not in shape_tensors:
            shape_tensors.add(port)
            if port.node.op.name not in ("ShapeOf", "Constant", "Parameter", "ReadValue"):
                stack += [s for s in port.node.sources if s is not None]
    return shape_tensors
