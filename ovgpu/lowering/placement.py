"""Placement: reservations of the memory that steps write to, so that results need no copies.

The memory of a model's result, of a variable's new value or of a part of a Concat is reserved for the step that
computes it, which then writes there directly. A tensor without such a step (a parameter, a view, a second use) is
copied later. A Reshape of a Transpose reserves its memory as well: attention then writes its heads side by side. So
does a convolution of tensors whose channels are last: elementwise layers before it then write that layout. A Concat of
such tensors has their layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ovgpu.lowering.values import ProgramValues
from ovgpu.model import Node, Output
from ovgpu.ops.base.op import Op, op_of
from ovgpu.ops.base.shapes import constant_axis
from ovgpu.ops.base.strided import CHUNK_BYTES
from ovgpu.ops.base.view import IMAGE_RANK, View, equal
from ovgpu.ops.movement.movement import permutation
from ovgpu.symbolic import Int, apply, atoms, maximum, product
from ovgpu.types import Type


@dataclass(frozen=True)
class Reservation:
    """Reserved memory of a tensor: a view of the memory of value ``root``."""

    root: int
    view: View


@dataclass(frozen=True)
class Placement:
    """Reserved memory by port, and the values that are the memory of results (by index) and of the new values of
    variables (by id). ``channels_last``: the values in that layout that are reserved for inputs of convolutions, or for
    a Concat. ``adjacent``: the results of convolutions in that layout, and of the layers behind them that keep it."""

    reserved: dict[Output, Reservation] = field(default_factory=dict)
    results: dict[int, int] = field(default_factory=dict)
    variables: dict[str, int] = field(default_factory=dict)
    channels_last: set[int] = field(default_factory=set)
    adjacent: set[Output] = field(default_factory=set)


def reserve_memory(p: ProgramValues, nodes: Sequence[Node]) -> Placement:
    """Reserve memory for results, then for variables, then for other nodes, from the last one backwards."""
    placement = Placement(adjacent=_adjacent(nodes))
    for index in p.layouts.order(len(p.model.results)):
        _reserve_result(p, placement, index, p.model.results[index])
    for sink in p.model.sinks:
        _reserve_assign(p, placement, sink)
    for node in reversed(nodes):
        if node.op.name == "Concat" and p.is_bound(node):
            _reserve_parts(p, placement, node)
        elif node.op.name == "Reshape" and p.is_bound(node):
            _reserve_transposed(p, placement, node)
        elif op_of(node).layout == "channels_last":
            _reserve_channels_last(p, placement, node)
    return placement


def _adjacent(nodes: Sequence[Node]) -> set[Output]:
    """Return the ports of convolutions of tensors whose channels are last, and of layers behind them that keep the
    layout."""
    adjacent: set[Output] = set()
    for node in nodes:
        op = op_of(node)
        if op.layout == "channels_last" or (op.keeps_layout and not adjacent.isdisjoint(node.sources)):
            adjacent.update(port for port in node.ports if port.spec.rank == IMAGE_RANK)
    return adjacent


def _reserve_result(p: ProgramValues, placement: Placement, index: int, result: Node) -> None:
    source = result.sources[0]
    assert source is not None
    if source.spec.shape is None or p.data_dependent(source):
        return
    view = View.dense(source.spec.shape)
    value = p.value(source, view, "output", index)
    caller_strides = p.layouts.outputs.get(index)
    if caller_strides is not None:
        p.values[value].view = view = View(view.shape, p.strides(value, caller_strides, source.spec.type))
    placement.results[index] = value
    _claim(p, placement, source, Reservation(value, view))


def _reserve_assign(p: ProgramValues, placement: Placement, sink: Node) -> None:
    source, variable = sink.sources[0], sink.op.variable_id  # type: ignore[attr-defined]
    assert source is not None
    if source.spec.shape is None or p.data_dependent(source):
        return
    view, axis = View.dense(source.spec.shape), p.growing.get(variable, 0)
    if axis and variable in p.program.states:
        old_stride = p.values[p.program.states[variable]].view.strides[axis - 1]
        shape = view.shape
        token_size = maximum(product(shape[axis + 1 :]), 1)
        view = View.with_capacity(shape, axis, apply("capacity", product(shape[axis:]), old_stride, token_size))
    value = p.value(source, view, "variable", variable)
    placement.variables[variable] = value
    _claim(p, placement, source, Reservation(value, p.values[value].view))


def _reserve_parts(p: ProgramValues, placement: Placement, concat: Node) -> None:
    port = concat.ports[0]
    axis = concat.op.axis  # type: ignore[attr-defined]
    reservation = placement.reserved.get(port)
    if reservation is None:
        is_adjacent = port in placement.adjacent
        view = (View.channels_last if is_adjacent else View.dense)(port.spec.shape or ())
        value = p.value(port, view, "buffer")
        if is_adjacent:
            placement.channels_last.add(value)
        reservation = placement.reserved[port] = Reservation(value, view)
    axis += len(reservation.view.shape) if axis < 0 else 0
    start: Int = 0
    for source in _parts(concat, axis):
        assert source.spec.shape is not None
        length = source.spec.shape[axis]
        _claim(p, placement, source, Reservation(reservation.root, reservation.view.slice(axis, start, length)))
        start = start + length


def _parts(concat: Node, axis: int) -> Iterator[Output]:
    """Yield the inputs of a Concat along ``axis``. All parts of a split tensor in order are yielded as that tensor."""
    sources = [s for s in concat.sources if s is not None]
    while sources:
        part, count = _divided(sources, axis) or (sources[0], 1)
        yield part
        sources = sources[count:]


def _divided(sources: Sequence[Output], axis: int) -> tuple[Output, int] | None:
    """Return (tensor, number of its parts) if ``sources`` begin with all parts of a tensor split along ``axis``."""
    node = sources[0].node
    if node.op.name not in ("Split", "VariadicSplit") or [*sources[: len(node.ports)]] != node.ports:
        return None
    x, axis_port = node.sources[:2]
    assert x is not None and x.spec.rank is not None and axis_port is not None
    return (x, len(node.ports)) if constant_axis(axis_port.spec, x.spec.rank) == axis else None


def _reserve_transposed(p: ProgramValues, placement: Placement, reshape: Node) -> None:
    port, source = reshape.ports[0], reshape.sources[0]
    if port in placement.reserved or source is None or source.node.op.name != "Transpose":
        return
    value = p.value(port, View.dense(port.spec.shape or ()), "buffer")
    _claim(p, placement, port, Reservation(value, p.values[value].view))


def _reserve_channels_last(p: ProgramValues, placement: Placement, node: Node) -> None:
    source = node.sources[0]
    if source is None or source in placement.reserved or not op_of(source.node).keeps_layout:
        return
    value = p.value(source, View.channels_last(source.spec.shape or ()), "buffer")
    placement.channels_last.add(value)
    _claim(p, placement, source, Reservation(value, p.values[value].view))


def _claim(p: ProgramValues, placement: Placement, port: Output, reservation: Reservation) -> None:
    """Reserve memory for the step that computes ``port``, if it can write there.

    A reshape or Transpose passes the reservation on to its source.
    """
    while (_keeps_order(port.node) or port.node.op.name == "Transpose") and port not in placement.reserved:
        source = port.node.sources[0]
        view = None if source is None else _source_view(port.node, source, reservation.view)
        if source is None or view is None:
            return
        port, reservation = source, Reservation(reservation.root, view)
    node = port.node
    if port in placement.reserved or port in p.value_of or p.hosts.is_known(port) or not p.is_bound(node):
        return
    if _is_view(node):
        return
    view, root_view = reservation.view, p.values[reservation.root].view
    if _runtime_atoms(p, (*view.strides, view.offset, *root_view.shape)) - _runtime_atoms(p, port.spec.shape or ()):
        return  # the target depends on run-time numbers that the result's shape does not depend on
    op = op_of(node)
    takes = op.strided_outputs
    if op.layout in ("channels_last", "image") and len(view.shape) == IMAGE_RANK:
        takes = takes_channels(op, view, port.spec.type)
    if takes or (view.is_dense and op.layout != "channels_last"):
        placement.reserved[port] = reservation


def takes_channels(op: Op, view: View, dtype: Type) -> bool:
    """Return whether an op takes a tensor of rank 4 as it lies in memory, without a copy.

    The op's layout is "channels_last", or "image" with adjacent channels. It takes tensors whose channels are last, and
    some ops take a part of their channels.
    """
    return view.is_channels_last or (op.takes_parts(dtype) and view.has_pixels(CHUNK_BYTES * 8 // dtype.bitwidth))


def _keeps_order(node: Node) -> bool:
    """Return whether the result has the input's elements in the same order in memory."""
    return op_of(node).is_reshape or node.op.name in ("Result", "Identity")


def _source_view(node: Node, source: Output, view: View) -> View | None:
    """Return the view of ``source`` that makes the result of a reshape or Transpose lie at ``view``.

    Return None if there is none, or if its last axis would not be dense.
    """
    if source.spec.shape is None:
        return None
    if _keeps_order(node):
        return view.reshape(source.spec.shape)
    order = None if node.sources[1] is None else node.sources[1].spec.constant
    if order is None:
        return None
    axes = permutation(order.reshape(-1).tolist(), len(view.shape))
    before = view.permute([axes.index(i) for i in range(len(axes))])
    return before if not axes or equal(before.strides[-1], 1) else None


def _is_view(node: Node) -> bool:
    """Return whether the node's result would be a view of its inputs if they were dense."""
    op = op_of(node)
    if type(op).view is Op.view:
        return False
    specs = [None if s is None else s.spec for s in node.sources]
    views = [None if s is None or s.shape is None else View.dense(s.shape) for s in specs]
    return op.view(views, specs, [p.spec for p in node.ports]) is not None


def _runtime_atoms(p: ProgramValues, expressions: Sequence[Int]) -> set[int]:
    """Return the indices of atoms known only at run time: data-dependent extents, and values read back."""
    return {
        a.index
        for expression in expressions
        for a in atoms(expression)
        if a.op == "unknown" or (a.op == "item" and p.hosts.ports_to_fetch(p.hosts.items[a.args[0]]))
    }
