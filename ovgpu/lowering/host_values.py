"""Analysis of the values that a model needs on the host: shape functions compute some, others are read back.

Target shapes, axes and lengths are tracked symbolically where possible. A value that symbols cannot express is a
*host tensor*. The shape function evaluates it if it is cheap (small, and computed from parameters and constants
alone). Otherwise a step computes it like any other tensor and it is read back, which ends a segment.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgpu.model import Model, Output
from ovgpu.ops.base.op import SMALL_ELEMENTS, op_of
from ovgpu.ops.base.shape_inputs import shape_tensor_ports
from ovgpu.ops.infrastructure.control_flow import If, Loop, TensorIterator
from ovgpu.spec import Spec
from ovgpu.symbolic import Table, atoms, product
from ovgpu.types import Type

CONTROL = (TensorIterator, Loop, If)


class HostTensors:
    """Host tensors of a model. Pass `refine` to `Model.infer` first; the other methods may be called afterwards."""

    def __init__(self, model: Model, table: Table) -> None:
        self.model, self.table = model, table
        self.items: list[Output] = []  # host tensors whose elements are symbols; "item" atoms hold the index
        self.bounds: dict[Output, tuple[int, int]] = {}  # port -> known (lowest, highest) value of its elements
        self._shape_tensors = shape_tensor_ports(model)
        self._cheap: set[Output] | None = None

    def refine(self, port: Output, spec: Spec) -> Spec:
        """Return ``spec`` with one symbol per element for a small, integral host tensor of unknown value.

        Other specs are returned unchanged.
        """
        if port not in self._shape_tensors or spec.value is not None or not spec.type.is_integral():
            return spec
        if spec.shape is None or not _is_small(spec):
            return spec
        index = len(self.items)
        self.items.append(port)
        lo, hi = (0, 1) if spec.type == Type.boolean else self.bounds.get(port, (-(2**63), None))
        elements = [self.table.atom("item", index, i, lo=lo, hi=hi) for i in range(product(spec.shape))]
        value = np.empty(len(elements), object)
        value[:] = elements
        return Spec(spec.type, spec.shape, value.reshape(spec.shape))

    def is_read(self, port: Output) -> bool:
        """Return whether the host needs the port's elements and symbol values do not give them."""
        return port in self._shape_tensors and not self.is_known(port)

    def is_cheap(self, port: Output) -> bool:
        """Return whether the shape function can compute the port's value from parameters and constants alone."""
        if self._cheap is None:
            self._cheap = self._cheap_ports()
        return port in self._cheap

    def _cheap_ports(self) -> set[Output]:
        cheap: set[Output] = set()
        for node in self.model.ops:
            if node.op.name == "Parameter":
                cheap.add(node.ports[0])
            elif not (op_of(node).effect or isinstance(node.op, CONTROL)) and all(
                s is None or s in cheap or self.is_known(s) for s in node.sources
            ):
                cheap |= {p for p in node.ports if p in self._shape_tensors and _is_small(p.spec)}
        return cheap

    def is_known(self, port: Output) -> bool:
        """Return whether symbol values or a constant give the port's value, so that it needs no host tensor."""
        value = port.spec.value
        if value is None:
            return False
        return not any(self.items[n] is port for n in _item_indices(value))

    def ports_to_fetch(self, port: Output) -> list[Output]:
        """Return the ports that must be read back from the device before this port's value is known."""
        return [p for p in self._host_dependencies(port) if not (self.is_known(p) or self.is_cheap(p))]

    def symbolic_values(self, port: Output) -> list[np.ndarray[Any, Any]]:
        """Return the symbolic values that the host evaluates to get the port's value."""
        return [p.spec.value for p in self._host_dependencies(port) if p.spec.value is not None and p.spec.symbolic]

    def _host_dependencies(self, port: Output) -> list[Output]:
        """Return the port and every port that the host evaluates or reads back to get its value."""
        dependencies: dict[Output, None] = {}  # in order
        stack = [port]
        while stack:
            p = stack.pop()
            if p in dependencies:
                continue
            dependencies[p] = None
            if self.is_known(p) and p.spec.value is not None:
                stack += [self.items[n] for n in _item_indices(p.spec.value)]
            elif self.is_cheap(p):
                stack += [s for s in p.node.sources if s is not None]
        return list(dependencies)


def _is_small(spec: Spec) -> bool:
    static = spec.shape is not None and all(isinstance(d, int) for d in spec.shape)
    return static and product(spec.shape or ()) <= SMALL_ELEMENTS


def _item_indices(value: np.ndarray[Any, Any]) -> set[int]:
    """Return the indices in `HostTensors.items` of the host tensors that an array of Ints depends on."""
    if value.dtype != object:
        return set()
    return {a.args[0] for v in value.ravel().tolist() for a in atoms(v) if a.op == "item"}
