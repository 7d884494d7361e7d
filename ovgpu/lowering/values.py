"""Values of a program that is being built, and which nodes compute them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ovgpu.errors import OpError
from ovgpu.lowering import loops
from ovgpu.lowering.host_values import CONTROL, HostTensors
from ovgpu.lowering.program import Body, MemoryKind, Program, Value
from ovgpu.model import Model, Node, Output
from ovgpu.ops.base.op import op_of
from ovgpu.ops.base.shape_inputs import host_indices
from ovgpu.ops.base.view import View
from ovgpu.ops.fused.kv_cache import growing
from ovgpu.ops.infrastructure.state import ReadValue3
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, Table, atoms
from ovgpu.types import Type

UNRANKED = View((), ())  # view of a variable whose rank is known only from its current value


class ProgramValues:
    """Values of a program that is being built: its inputs, its variables, and the operands of its steps.

    It infers the shapes of the model for parameters with ``specs``. ``build_body`` builds the program of a loop's body.
    """

    def __init__(
        self,
        model: Model,
        specs: Sequence[Spec],
        table: Table,
        layouts: loops.Layouts,
        build_body: Callable[..., Program],
    ) -> None:
        self.model, self.table, self.layouts = model, table, layouts
        self.program = Program([], [], [], [], {}, {}, {}, set(), source=model.source)
        self.values = self.program.values
        self.hosts = HostTensors(model, table)
        if layouts.counter is not None:
            counter, count = layouts.counter
            self.hosts.bounds[model.parameters[counter].ports[0]] = 0, count - 1
        model.infer(specs, table, self.hosts.refine)
        self.value_of: dict[Output, int] = {}  # port -> value
        self.owners = self._owners()
        self.reads = {n.op.variable_id: n for n in model.ops if isinstance(n.op, ReadValue3)}
        self.growing = growing(model)
        self._build_body = build_body
        self._bodies: dict[Node, tuple[Body, ...] | None] = {}

    def value(
        self,
        port: Output | None,
        view: View,
        memory: MemoryKind,
        source: Any = None,
        *,
        element_type: Type | None = None,
        root: int = -1,
    ) -> int:
        """Add a value and return its id. It is a root with memory of its own unless ``root`` is given."""
        index = len(self.values)
        element_type = element_type or (port.spec.type if port is not None else Type.f32)
        name = port.node.friendly_name if port is not None else ""
        self.values.append(Value(index, element_type, view, index if root < 0 else root, memory, source, name))
        return index

    def add_input(self, parameter: Node, index: int) -> int:
        """Add the value of a model's input, and return its id."""
        port = parameter.ports[0]
        shape = port.spec.shape
        assert shape is not None, "a program is built for known ranks"
        value = self.value(port, View.dense(shape), "input", index)
        given = self.layouts.inputs.get(index)
        if given is not None:
            self.values[value].view = View(shape, self.strides(value, given, port.spec.type))
        self.value_of[port] = value
        return value

    def strides(self, value: int, given: Sequence[Int | None], element_type: Type) -> tuple[Int, ...]:
        """Return the strides in elements, with a symbol for each one that is None."""
        # Strides are at least 1, because they belong to parts of dense tensors.
        return tuple(
            self.table.atom("stride", value, axis, element_type.storage.itemsize, lo=1) if s is None else s
            for axis, s in enumerate(given)
        )

    def add_state(self, node: Node) -> None:
        """Add the value of a ReadValue's variable, unless another ReadValue has added it."""
        port, variable = node.ports[0], node.op.variable_id  # type: ignore[attr-defined]
        if port.spec.type.is_dynamic():
            raise OpError(f"variable '{variable}' has neither an element type nor an initial value").at(
                node.op.name, node.source_location
            )
        view = UNRANKED if port.spec.shape is None else View.dense(port.spec.shape)
        if variable not in self.program.states:
            value = self.program.states[variable] = self.value(port, view, "state", variable)
            axis = self.growing.get(variable, 0)
            if axis and port.spec.shape is not None:
                stride = self.table.atom("stride", value, axis - 1, port.spec.type.storage.itemsize, lo=1)
                self.values[value].view = View.with_capacity(port.spec.shape, axis, stride)
        self.value_of[port] = self.program.states[variable]

    def needed_nodes(self) -> set[Node]:
        """Return the nodes whose results are needed as tensors, not only in the shape function."""
        needed: set[Node] = set()
        stack = [*self.model.results, *self.model.sinks]
        while stack:
            node = stack.pop()
            if node in needed:
                continue
            needed.add(node)
            if node.op.name == "ReadValue":  # a separate program computes the initial value
                continue
            hosts = host_indices(op_of(node), len(node.sources))
            for i, s in enumerate(node.sources):
                if s is not None:
                    on_host = i in hosts or self.hosts.is_known(s)
                    stack += [p.node for p in self.hosts.ports_to_fetch(s)] if on_host else [s.node]
                    for value in self.hosts.symbolic_values(s) if on_host else ():
                        stack += self._producers(value.ravel())
            stack += self._producers(d for port in node.ports for d in port.spec.shape or ())
        return needed

    def _producers(self, extents: Iterable[Int]) -> list[Node]:
        """Return the nodes that must run before these extents are known."""
        extent_atoms = dict.fromkeys(a for d in extents for a in atoms(d))
        return [
            self.owners[a.index] if a.op == "unknown" else self.reads[a.args[0]]
            for a in extent_atoms
            if a.op == "unknown" or (a.op == "dim" and isinstance(a.args[0], str))
        ]

    def is_bound(self, node: Node) -> bool:
        """Return whether the node becomes a step that writes into given memory."""
        if node.op.name in ("Parameter", "Constant", "ReadValue") or any(self.data_dependent(p) for p in node.ports):
            return False
        return not isinstance(node.op, CONTROL) or self.bodies(node) is not None

    def data_dependent(self, port: Output) -> bool:
        """Return whether an eager step, which allocates its own results, computes the port's tensor."""
        spec = port.spec
        if spec.shape is None or spec.type == Type.string:
            return True
        return (
            bool(self.owners)
            and any(a.op == "unknown" and self.owners[a.index] is port.node for d in spec.shape for a in atoms(d))
        ) or (isinstance(port.node.op, CONTROL) and self.bodies(port.node) is None)

    def _owners(self) -> dict[int, Node]:
        """Return a map from the index of an unknown extent to the first node whose results have it."""
        owners: dict[int, Node] = {}
        for node in self.model.ops:
            for port in node.ports:
                for dim in port.spec.shape or ():
                    for atom in atoms(dim):
                        if atom.op == "unknown":
                            owners.setdefault(atom.index, node)
        return owners

    def bodies(self, node: Node) -> tuple[Body, ...] | None:
        """Return the bodies of a control node whose iterations are bound ahead, or None if it runs dynamically."""
        if node not in self._bodies:
            self._bodies[node] = loops.static_bodies(node, self._build_body)
        return self._bodies[node]
