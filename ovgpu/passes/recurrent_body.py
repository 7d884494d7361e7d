"""Analysis of the body of a TensorIterator or Loop for `fuse_recurrent_loops`: its inputs and the states it carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.base.op import op_of
from ovgpu.ops.base.view import equal
from ovgpu.ops.infrastructure.control_flow import InputMap, Loop, TensorIterator
from ovgpu.ops.movement.movement import permutation
from ovgpu.passes._graph import NodeBuilder
from ovgpu.spec import Shape
from ovgpu.symbolic import Int


@dataclass(frozen=True)
class Slices:
    """Slices of extent 1 along ``axis`` of ``source``, a tensor outside the loop: one for each of ``trips`` iterations.

    ``shape`` is the shape of the source, except that the extent of ``axis`` may differ.
    """

    source: Output
    shape: tuple[Int, ...]
    axis: int
    reverse: bool
    trips: Int


class Body:
    """Body of a loop whose number of iterations is known before it runs."""

    def __init__(self, loop: Node) -> None:
        op: Any = loop.op
        self.graph, self.loop = NodeBuilder(loop), loop
        self.model: Model = op.body
        self.trips = op.trips([None if s is None else s.spec for s in loop.sources])
        self.entering: dict[Output, InputMap] = {self._parameter(m.parameter): m for m in op.inputs}
        self.carried: dict[Output, Output] = {
            self._parameter(b.parameter): self.result(b.result) for b in op.back_edges
        }
        counter = getattr(op, "current_iteration", None)
        self.counter = None if counter is None else self._parameter(counter)
        self._hoisted: dict[Output, Output | None] = {}

    def _parameter(self, index: int) -> Output:
        return self.model.parameters[index].ports[0]

    def result(self, index: int) -> Output:
        """Return the tensor that a result of the body takes, before reshapes."""
        source = self.model.results[index].sources[0]
        assert source is not None
        return strip_reshapes(source)

    def initial(self, parameter: Output) -> Output | None:
        """Return the tensor that a parameter holds in the first iteration, None if that is a slice."""
        m = self.entering.get(parameter)
        return None if m is None or m.axis is not None else self.loop.sources[m.port]

    def slices(self, port: Output) -> Slices | None:
        """Return the slices that a port holds, one in each iteration and perhaps reshaped, else None.

        The loop cuts them from an input, or a Gather takes them by the index of the iteration.
        """
        port = strip_reshapes(port)
        m = self.entering.get(port)
        if m is not None and m.axis is not None and port not in self.carried:
            return self._slices_of_input(m)
        node = port.node
        if node.op.name != "Gather" or self.counter is None or strip_reshapes(node.sources[1]) is not self.counter:
            return None
        table, axis_port = node.sources[0], node.sources[2]
        axis = None if axis_port is None else axis_port.spec.constant
        source = None if table is None or table in self.carried else self.initial(table)
        if source is None or source.spec.shape is None or axis is None or getattr(node.op, "batch_dims", False):
            return None
        gather_axis = int(axis.reshape(-1)[0]) % len(source.spec.shape)
        is_whole = equal(source.spec.shape[gather_axis], self.trips)
        return Slices(source, source.spec.shape, gather_axis, False, self.trips) if is_whole else None

    def _slices_of_input(self, m: InputMap) -> Slices | None:
        source = self.loop.sources[m.port]
        if source is None or source.spec.shape is None or m.axis is None or m.part_size != 1 or abs(m.stride) != 1:
            return None
        shape = source.spec.shape
        axis = m.axis % len(shape)
        extent = shape[axis]
        if not equal(m.trips(extent), self.trips):
            return None
        low, high = (m.start, m.end) if m.stride > 0 else (m.end, m.start)
        if not equal(self.trips, extent):
            if not isinstance(extent, int):
                return None
            bounds = (v if v >= 0 else extent + 1 + v for v in (low, high))
            source = self.graph.cut(source, axis, *bounds)
        return Slices(source, shape, axis, m.stride < 0, self.trips)

    def hoisted(self, port: Output) -> Output | None:
        """Return the tensor of a port computed outside the loop, by copies of its layers.

        Return None unless it depends on constants and invariant inputs alone.
        """
        if port not in self._hoisted:
            self._hoisted[port] = self._hoist(port)
        return self._hoisted[port]

    def _hoist(self, port: Output) -> Output | None:
        node = port.node
        if node.op.name == "Parameter":
            return None if port in self.carried else self.initial(port)
        if op_of(node).effect or bodies(node.op):
            return None
        inputs = [None if s is None else self.hoisted(s) for s in node.sources]
        if any(new is None for new, old in zip(inputs, node.sources) if old is not None):
            return None
        twin = Node(node.op, inputs, len(node.ports), name=node.friendly_name, layer_id=node.layer_id)
        for old, new in zip(node.ports, twin.ports):
            self._hoisted[old] = new
        return twin.ports[port.index]


def has_trip_count(node: Node) -> bool:
    """Return whether the node is a loop without Assigns whose number of iterations follows from shapes."""
    op = node.op
    if not isinstance(op, (TensorIterator, Loop)) or op.body.sinks:
        return False
    return op.trips([None if s is None else s.spec for s in node.sources]) is not None


def strip_reshapes(port: Output | None) -> Output:
    """Return the tensor before reshapes, which has the same elements in the same order."""
    assert port is not None
    while (
        port.node.sources
        and port.node.sources[0] is not None
        and (op_of(port.node).is_reshape or port.node.op.name == "Identity" or _keeps_order(port.node))
    ):
        port = port.node.sources[0]
    return port


def _keeps_order(node: Node) -> bool:
    """Return whether the node is a Transpose that only moves axes of extent 1."""
    if node.op.name != "Transpose" or node.sources[0] is None or node.sources[1] is None:
        return False
    shape, order = node.sources[0].spec.shape, node.sources[1].spec.constant
    if shape is None or order is None:
        return False
    moved = [i for i in permutation(order.reshape(-1).tolist(), len(shape)) if not equal(shape[i], 1)]
    return moved == sorted(moved)


def is_rows(shape: Shape, batch: Int, width: int) -> bool:
    """Return whether a tensor is ``[batch, width]`` except for axes of extent 1."""
    if not shape or not equal(shape[-1], width):
        return False
    others = [d for d in shape[:-1] if not equal(d, 1)]
    return [*others] == [] if equal(batch, 1) else len(others) == 1 and equal(others[0], batch)


def batch_of(shape: Shape) -> Int | None:
    """Return the batch of a tensor that is ``[batch, width]`` except for axes of extent 1; None if it is not."""
    others = [d for d in (shape or ())[:-1] if not equal(d, 1)]
    return None if not shape or len(others) > 1 else others[0] if others else 1
