"""Nodes with inferred specs that do not belong to a model yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.model import Node, Output
from ovgpu.ops import lookup
from ovgpu.ops.infrastructure.graph import Constant, Parameter
from ovgpu.spec import Spec, dims_of
from ovgpu.symbolic import Table
from ovgpu.types import PartialShape, Type


class NodeFactory:
    """Factory of nodes. Raises OpError for an op that does not accept its inputs."""

    def __init__(self) -> None:
        self.table = Table()
        self.parameters = 0

    def parameter(self, dtype: Type, shape: PartialShape, name: str) -> Output:
        port = Node(Parameter(element_type=dtype, shape=shape), [], 1, name=name).ports[0]
        port.spec = Spec(dtype, dims_of(shape, self.table, "new", self.parameters))
        self.parameters += 1
        return port

    def constant(self, value: Any, dtype: Type = Type.i64) -> Output:
        array = np.asarray(value, np.float64 if dtype.is_real() else np.int64).astype(dtype.storage)
        return self.with_spec(Node(Constant(element_type=dtype, value=array), [], 1).ports[0])

    def add(self, name: str, version: str, *inputs: Output, **attributes: Any) -> Output:
        """Return the output of a new node of the op ``name`` in an opset, such as "opset1"."""
        cls = lookup(name, version)
        assert cls is not None
        return self.with_spec(
            Node(cls(**attributes), inputs, 1, name=f"{inputs[0].node.friendly_name}/{name}").ports[0]
        )

    def transpose(self, x: Output, order: Sequence[int]) -> Output:
        return self.add("Transpose", "opset1", x, self.constant(order))

    def with_spec(self, port: Output) -> Output:
        """Return the port itself, after inferring its spec if it has none yet, and its producers' specs."""
        node = port.node
        if port.spec.shape is not None or not port.spec.type.is_dynamic() or node.op.name == "Parameter":
            return port
        specs = [None if source is None else self.with_spec(source).spec for source in node.sources]
        with self.table:
            inferred = node.infer(specs)
        for output, spec in zip(node.ports, inferred):
            output.spec = spec
        return port
