"""Proof that rows of a batch are independent, by symbolic shape inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ovgpu.batching import rules  # noqa: F401  # declares the rules that `Batch` follows
from ovgpu.batching.axes import Batch, BatchAxis
from ovgpu.batching.rewriting import rewrite
from ovgpu.errors import OpError
from ovgpu.model import Model, Node, Output
from ovgpu.ops.infrastructure.control_flow import If, Loop, TensorIterator
from ovgpu.ops.infrastructure.state import ReadValue3
from ovgpu.spec import Spec, dims_of
from ovgpu.symbolic import HELPERS, OPAQUE, ExpressionCodegen, Int, Sym, Table, active, atoms
from ovgpu.types import PartialShape

BATCH = "batch"  # the atom that stands for the number of rows

Dim = tuple[Any, int]
"""A dynamic extent other than the batch: (index of an input or id of a variable, axis)."""

ALL_DIFFER: tuple[int, ...] = ()
"""Equalities of a proof that takes no extents to be equal, and thus holds for all."""


def equalities_of(extents: Sequence[int]) -> tuple[int, ...]:
    """Return, for each extent, the index of the first extent that is equal to it, or -1 for an extent of 1."""
    return tuple([-1 if extent == 1 else extents.index(extent) for extent in extents])


def dynamic_dims(model: Model, inputs: Sequence[int | None], variables: Mapping[str, int]) -> list[Dim]:
    """Return the dynamic extents of inputs and variables other than the batch."""
    shapes: list[tuple[Any, PartialShape, int | None]] = [
        (i, p.op.shape, axis)  # type: ignore[attr-defined]
        for i, (p, axis) in enumerate(zip(model.parameters, inputs))
    ]
    shapes += [(name, node.ports[0].partial_shape, variables[name]) for name, node in reads(model).items()]
    return [
        (key, axis)
        for key, shape, batch in shapes
        for axis, extent in enumerate(shape)
        if extent.is_dynamic and axis != batch
    ]


def reads(model: Model) -> dict[str, Node]:
    """Return a ReadValue node of each variable, by id."""
    return {node.op.variable_id: node for node in model.ops if isinstance(node.op, ReadValue3)}


def bodies_of(node: Node) -> Iterator[tuple[Model, list[tuple[int, Spec]]]]:
    """Yield pairs of a node's body and its parameters: (index of the node's input, spec in the first iteration) each.
    The index is -1 for the counter of a loop."""
    op: Any = node.op
    if isinstance(op, If):
        entries = [(op.then_body, op.then_inputs), (op.else_body, op.else_inputs)]
    elif isinstance(op, (Loop, TensorIterator)):
        entries = [(op.body, op.inputs)]
    else:
        return
    for body, inputs in entries:
        # The key of these symbols is a new object, so that they differ from all others.
        parameters = [(-1, _declared(parameter, object())) for parameter in body.parameters]
        for entry in inputs:
            source = node.sources[entry.port]
            if source is not None and source.spec.shape is not None:
                shape = list(source.spec.shape)
                if entry.axis is not None:
                    shape[entry.axis] = entry.part_size
                parameters[entry.parameter] = entry.port, Spec(source.spec.type, tuple(shape))
        yield body, parameters


def _declared(parameter: Node, key: Any) -> Spec:
    """Return the spec that a parameter declares, with symbols of ``key``."""
    op: Any = parameter.op
    return Spec(op.element_type, dims_of(op.shape, active(), key))


class _SharedTable(Table):
    """Symbols of a proof, in which the batch axes of inputs and variables have the same extent. ``others`` maps other
    dynamic extents to the extent whose symbol they get, since the proof takes them to be equal, or to 1."""

    def __init__(self, batch: set[Dim], others: Mapping[Dim, Dim | int]) -> None:
        super().__init__()
        self._batch_dims, self._others = batch, others
        self.batch: Sym = super().atom(BATCH, lo=2)  # at least 2, so that it is never an extent of 1 that is broadcast

    def atom(self, op: str, *args: Any, lo: int = 0, hi: int | None = None) -> Int:
        if op == "dim" and args in self._batch_dims:
            return self.batch
        other = self._others.get(args) if op == "dim" else None
        if isinstance(other, int):
            return other
        return super().atom(op, *(args if other is None else other), lo=lo, hi=hi)


class Proof:
    """Proof that a model computes each row of a batch from that row alone.

    It follows the batch axes through the model, and rewrites nodes on the way that are for a batch of 1. It holds for
    dynamic extents with these ``equalities``: `ALL_DIFFER`, or a result of `equalities_of`.
    """

    def __init__(
        self,
        model: Model,
        inputs: Sequence[int | None],
        variables: Mapping[str, int],
        beams: int | None,
        equalities: tuple[int, ...],
    ) -> None:
        self.model, self.inputs, self.beams, self.equalities = model, inputs, beams, equalities
        self._batch_dims = {(i, axis) for i, axis in enumerate(inputs) if axis is not None} | set(variables.items())
        self._variables = variables
        self._dims = dynamic_dims(model, inputs, variables)
        self._others: dict[Dim, Dim | int] = {
            dim: 1 if first < 0 else self._dims[first] for dim, first in zip(self._dims, equalities)
        }
        self.axes: dict[Output, BatchAxis | None] = {}

    def run(self) -> bool:
        """Infer shapes and batch axes. Return False if a node was rewritten, so that the proof has to begin again."""
        table = _SharedTable(self._batch_dims, self._others)
        self.batch = Batch(table.batch, self._variables)
        self.axes.clear()
        with table:
            for node in self.model.parameters:
                self._begin(node)
            if not self._walk(self.model, self._batch_source()):
                return False
        self.batch.require(table.checks)
        return True

    def _walk(self, model: Model, source: tuple[Output, int] | None) -> bool:
        """Infer shapes and batch axes of a model or body whose parameters already have them. Return False if a node was
        rewritten. ``source`` is an input of the model with a batch axis, and that axis; None for a body."""
        table = active()
        for node in model.ops:
            if node.op.name == "Parameter":
                continue
            table.layer = node
            if rewrite(node, [None if s is None else self.axes[s] for s in node.sources], self.batch, source):
                model.changed()
                return False
            for body, parameters in bodies_of(node):
                if not self._walk_body(node, body, parameters):
                    return False
            specs = node.infer([None if s is None else s.spec for s in node.sources])
            for port, spec in zip(node.ports, specs):
                port.spec = spec
            self._follow(node)
        table.layer = None
        return True

    def _walk_body(self, node: Node, body: Model, parameters: Sequence[tuple[int, Spec]]) -> bool:
        """Rewrite nodes of a body that are for a batch of 1. Return False if there was one.

        ``parameters`` are those of `bodies_of`. The node's own rule then traces the body for all iterations.
        """
        table, layer = active(), active().layer
        checks = len(table.checks)
        for parameter, (input_index, spec) in zip(body.parameters, parameters):
            source = node.sources[input_index] if input_index >= 0 else None
            parameter.ports[0].spec = spec
            self.axes[parameter.ports[0]] = None if source is None else self.axes[source]
        done = self._walk(body, None)
        self.batch.require(table.checks[checks:])
        del table.checks[checks:]  # a body that never runs need not pass its checks
        table.layer = layer
        return done

    def changed_axes(self) -> dict[str, BatchAxis | None]:
        """Return the batch axes of assigned values, by id, that differ from the batch axes of their variables."""
        return {name: axis for name, axis in self.batch.assigned.items() if axis != BatchAxis(self._variables[name])}

    def conditions(self) -> Callable[[Sequence[int]], bool]:
        """Return a function that takes the extents of `BatchedModel.dims`, and returns whether rows are independent
        with these extents."""
        sources = {atom for pair in self.batch.required for value in pair for atom in atoms(value)}
        if any(atom.op in OPAQUE and atom.args not in self._dims for atom in sources):
            raise OpError("a layer gathers by flat indices, and how many there are is known only at run time")
        codegen = ExpressionCodegen(lambda atom: f"E[{self._dims.index(atom.args)}]")
        tests = [f"{codegen.expression(a)} <= {codegen.expression(b)}" for a, b in self.batch.required]
        namespace: dict[str, Any] = dict(HELPERS)
        exec("\n ".join(["def conditions(E):", *codegen.lines, f"return {' and '.join(tests) or True}"]), namespace)
        return namespace["conditions"]  # type: ignore[no-any-return]

    def outputs(self) -> tuple[int, ...]:
        """Return the batch axes of the outputs. Raise OpError for an output that is not one value for each row."""
        axes = []
        for result in self.model.results:
            axis = self.axes[result.ports[0]]
            if axis is None or axis != BatchAxis(axis.axis):
                raise OpError("the output is not one value for each row of the batch").at(
                    result.op.name, result.source_location
                )
            axes.append(axis.axis)
        return tuple(axes)

    def _begin(self, parameter: Node) -> None:
        input_index = self.model.parameters.index(parameter)
        parameter.ports[0].spec = _declared(parameter, input_index)
        axis = self.inputs[input_index]
        self.axes[parameter.ports[0]] = None if axis is None else BatchAxis(axis)

    def _follow(self, node: Node) -> None:
        if self.beams is not None and node.sources[1:2] == [self.model.parameters[self.beams].ports[0]]:
            state = node.sources[0]  # every row continues its own state
            assert state is not None
            self.axes[node.ports[0]] = self.axes[state]
        else:
            self.batch.follow(node, self.axes)

    def _batch_source(self) -> tuple[Output, int]:
        """Return an input with a batch axis, and that axis."""
        return next((p.ports[0], axis) for p, axis in zip(self.model.parameters, self.inputs) if axis is not None)
