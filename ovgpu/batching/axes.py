"""Batch axes: the axis of each tensor of a model along which the rows of a batch lie.

`Batch` follows them through a model whose shapes were inferred with a symbolic number of rows, by the rules in `RULES`.
`ovgpu.batching.rules` declares a rule for each op that computes each row from that row alone. Other ops are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ovgpu.batching.row_numbers import RowNumbers, computed, counted
from ovgpu.errors import OpError
from ovgpu.model import Model, Node, Output
from ovgpu.ops.base.op import Op, op_of
from ovgpu.ops.base.shapes import constant_axis
from ovgpu.ops.base.view import equal
from ovgpu.ops.movement.gather import Gather
from ovgpu.ops.movement.scatter import _ScatterND
from ovgpu.spec import Spec
from ovgpu.symbolic import Check, Int, Sym, atoms


@dataclass(frozen=True)
class BatchAxis:
    """Axis of a tensor on which the rows of a batch lie.

    Element ``(o * rows + row) * inner + i`` belongs to ``row``, for ``o`` below ``outer`` and ``i`` below ``inner``.
    """

    axis: int
    outer: Int = 1
    inner: Int = 1

    def moved(self, axis: int) -> BatchAxis:
        """Return the same rows on another axis."""
        return BatchAxis(axis, self.outer, self.inner)


Axes = Sequence[BatchAxis | None]
"""The batch axis of each input or output of a node, None for tensors that all rows share."""


class Batch:
    """Batch of a symbolic number of rows, ``size``.

    ``variables`` maps ids of variables to their batch axes. `follow` sets, in ``assigned`` by id, the batch axis of
    each value that is assigned to a variable.
    """

    def __init__(self, size: Sym, variables: Mapping[str, int] | None = None) -> None:
        self.size, self.variables = size, variables or {}
        self.assigned: dict[str, BatchAxis | None] = {}
        self.row_numbers: dict[Output, RowNumbers] = {}  # of tensors whose elements have this form
        self.required: list[tuple[Int, Int]] = []  # pairs (a, b): rows are independent if a <= b
        (self._atom,) = atoms(size)

    def trace(self, model: Model, parameters: Axes) -> list[BatchAxis | None]:
        """Return the batch axes of a model's results, given those of its parameters. Shapes are already inferred.

        Raises: OpError for a node that mixes rows.
        """
        axes: dict[Output, BatchAxis | None] = {p.ports[0]: a for p, a in zip(model.parameters, parameters)}
        for node in model.ops:
            if node.op.name != "Parameter":
                self.follow(node, axes)
        return [axes[result.ports[0]] for result in model.results]

    def follow(self, node: Node, axes: dict[Output, BatchAxis | None]) -> None:
        """Add the batch axes of a node's outputs. Raise OpError if the node mixes rows."""
        input_axes = [None if source is None else axes[source] for source in node.sources]
        specs = [None if source is None else source.spec for source in node.sources]
        outputs = [port.spec for port in node.ports]
        try:
            output_axes = self._follow(node, input_axes, specs, outputs)
            for axis, spec in zip(output_axes, outputs, strict=True):
                self._check(axis, spec)
        except OpError as error:
            raise error.at(node.op.name, node.source_location) from None
        axes.update(zip(node.ports, output_axes))

    def _follow(self, node: Node, axes: Axes, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Axes:
        op: Any = op_of(node)
        if op.name == "ReadValue":
            axis = self.variables.get(op.variable_id)
            return [None if axis is None else BatchAxis(axis)]
        if op.name == "Assign":
            self.assigned[op.variable_id] = axes[0]
            return axes
        if op.effect:
            raise OpError("the layer's random numbers would be the same for all rows of a batch")
        if all(spec.value is not None for spec in outputs):  # shape arithmetic
            return [None] * len(outputs)
        count = counted(op, inputs, self.size)
        if count is not None:
            self.row_numbers[node.ports[0]] = count
            return [None if equal(count.step, 0) else BatchAxis(0, 1, count.step)]
        operands = [None if source is None else self.row_numbers.get(source) for source in node.sources]
        if any(operands):
            result = computed(op, operands, inputs)
            if result is not None:
                self.row_numbers[node.ports[0]] = result
            if isinstance(op, Gather) and axes[1] is not None and operands[1] is not None:
                return [self._gathered(op, axes[0], axes[1], operands[1], inputs)]
            if isinstance(op, _ScatterND) and axes[1] is not None and operands[1] is not None:
                return [self._scattered(axes, operands[1], inputs)]
        for i, spec in enumerate(inputs):
            if self._counts(spec) and not (i in op.host_inputs and isinstance(op, tuple(SHAPED))):
                raise OpError("the layer computes with the number of rows in the batch")
        if not any(axes) and not any(self.depends(d) for spec in outputs for d in spec.shape or ()):
            return [None] * len(outputs)
        rule = _rule_of(op)
        if rule is None:
            raise OpError("the layer may mix the rows of a batch")
        if any(spec is not None and spec.shape is None for spec in (*inputs, *outputs)):
            raise OpError("the layer may mix the rows of a batch: the rank of a tensor is known only at run time")
        return rule(self, op, axes, inputs, outputs)

    def _gathered(
        self, op: Gather, data: BatchAxis | None, indices: BatchAxis, numbers: RowNumbers, inputs: Sequence[Any]
    ) -> BatchAxis:
        """Return the batch axis of the result of a Gather whose flat indices contain the row to which they belong."""
        where = constant_axis(inputs[2], inputs[0].rank)
        if where is None or op.batch(inputs[1].rank) or not self._stays(data, where, numbers):
            raise OpError("the layer gathers rows of the batch by index")
        return indices.moved(where + indices.axis)

    def _scattered(self, axes: Axes, numbers: RowNumbers, inputs: Sequence[Any]) -> BatchAxis:
        """Return the batch axis of the result of a ScatterNDUpdate whose flat indices contain the row to which they
        and their updates belong."""
        data = axes[0]
        if data is None or inputs[1].shape[-1] != 1 or axes[2] != axes[1] or not self._stays(data, 0, numbers):
            raise OpError("the layer writes rows of the batch by index")
        return data

    def _stays(self, data: BatchAxis | None, axis: int, numbers: RowNumbers) -> bool:
        """Return whether flat indices on an axis of ``data`` are elements of the row to which the indices belong."""
        if data is None or data != BatchAxis(axis, 1, data.inner) or not equal(numbers.step, data.inner):
            return False
        beyond = numbers.below - data.inner  # larger indices would be elements of the next row
        if isinstance(beyond, Sym):
            self.required.append((numbers.below, data.inner))
        return isinstance(beyond, Sym) or beyond <= 0

    def require(self, checks: Iterable[Check]) -> None:
        """Raise OpError for a check of shapes that holds for some numbers of rows only."""
        for check in checks:
            if self.depends(check.a) or self.depends(check.b):
                error = OpError(f"{check.message.format(check.a, check.b)} for any number of rows in a batch")
                raise error if check.where is None else error.at(*check.where)

    def depends(self, value: Int) -> bool:
        """Return whether an integer depends on the number of rows."""
        return self._atom in atoms(value)

    def _counts(self, spec: Spec | None) -> bool:
        """Return whether a tensor's value depends on the number of rows."""
        return spec is not None and spec.symbolic and any(self.depends(v) for v in spec.ints() or ())

    def _check(self, axis: BatchAxis | None, spec: Spec) -> None:
        """Raise OpError unless the batch axis, and no other one, has the extent of the batch."""
        for i, extent in enumerate(spec.shape or ()):
            expected = axis.outer * self.size * axis.inner if axis is not None and i == axis.axis else None
            if self.depends(extent) if expected is None else not equal(extent, expected):
                raise OpError(f"axis {i} of a result does not have one part for each row of the batch")


Specs = Sequence[Any]  # Sequence[Spec | None]; a rule knows which inputs its op has
Rule = Callable[[Batch, Any, Axes, Specs, Sequence[Spec]], Axes]
"""A function that takes the batch axes of a node's inputs and returns those of its outputs. It raises OpError where a
row of a result would depend on other rows, or on its position in the batch."""

RULES: dict[type[Op], Rule] = {}
"""The rule of each class of ops, which also applies to derived classes. An op without a rule is refused."""

SHAPED: set[type[Op]] = set()
"""Ops that may read the number of rows in the batch, because they use it as an extent of their result."""


def rule(*classes: type[Op], shaped: bool = False) -> Callable[[Rule], Rule]:
    """Return a decorator for the rule of op classes. With ``shaped``, it adds the classes to `SHAPED`."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(classes, function))
        SHAPED.update(classes if shaped else ())
        return function

    return register


def _rule_of(op: Op) -> Rule | None:
    """Return the rule of an op's class or of its nearest base that has one."""
    return next((RULES[cls] for cls in type(op).__mro__ if cls in RULES), None)


def shared(axes: Iterable[BatchAxis | None]) -> BatchAxis:
    """Return the one batch axis of several tensors. Raise OpError if they differ."""
    distinct = {axis for axis in axes if axis is not None}
    if not distinct:
        raise OpError("no result has the rows of the batch")
    if len(distinct) > 1:
        raise OpError("the rows of the batch lie on different axes of the inputs")
    return distinct.pop()
