"""Constants that hold the batch size of the file -> layers that follow the shapes of inputs, before `Model.reshape`.

OpenVINO calls these rewrites SmartReshape: afterwards, a model that has a batch size of 1 in its target shapes takes
other batch sizes. Results stay the same for the shapes in the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.arithmetic.arithmetic import Add
from ovgpu.ops.base.view import equal
from ovgpu.ops.comparison import Equal, Select
from ovgpu.ops.convert import Convert
from ovgpu.ops.detection.proposal import Proposal
from ovgpu.ops.infrastructure.control_flow import Loop, TensorIterator
from ovgpu.ops.infrastructure.graph import Constant, Parameter
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.ops.movement.broadcast import Broadcast3
from ovgpu.ops.movement.gather import Gather8
from ovgpu.ops.movement.movement import Concat, Transpose
from ovgpu.ops.movement.slicing import StridedSlice
from ovgpu.ops.sequence.recurrent import Cell, SequenceOfCells
from ovgpu.ops.shape.reshape import Reshape, Squeeze, Unsqueeze
from ovgpu.ops.shape.shape import Range4, ShapeOf3
from ovgpu.passes._graph import constant_integers, constant_of, fixed_nodes, operands
from ovgpu.types import PartialShape, Type

POSITION_COUNTS = range(6, 500)  # lengths of constants 0, 1, 2 ... that OpenVINO regards as positions
IMAGE_INFO_WIDTHS = (3, 4)  # how many numbers describe an image in the input of a Proposal


def relax_shapes(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again."""
    if _Rewriting(model).run():
        model.validate_nodes_and_infer_types()


class _Rewriting:
    """Rewrites of one model or body."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.fixed = fixed_nodes(model)
        self.users = Counter[Output]()

    def run(self) -> bool:
        """Rewrite all layers; return whether any layer changed."""
        changed = any([_Rewriting(body).run() for node in self.model.ops for body in bodies(node.op)])
        rewrites: Iterable[Callable[[Node], bool]] = (
            self.flatten,
            self.crop_image,
            self.drop_axes_before,
            self.drop_axes_after,
            self.fold_transposes,
            self.follow_positions,
            self.repeat_states,
            self.repeat_states_of_loop,
            self.keep_axes,
            self.free_rows,
        )
        for rewrite in rewrites:
            self.users = Counter(s for node in self.model.ops for s in node.sources if s is not None)
            if any([rewrite(node) for node in self.model.ops]):
                changed = True
                self.model.changed()
        return changed

    def flatten(self, node: Node) -> bool:
        """Reshape to the constant [K] -> Reshape to [-1]."""
        if not isinstance(node.op, Reshape) or node.ports[0].spec.rank != 1:
            return False
        if constant_integers(node.sources[1]) in (None, [-1]):
            return False
        node.sources[1] = _integers([-1])
        return True

    def crop_image(self, node: Node) -> bool:
        """Proposal of an input [N, 3 or 4] that is reshaped to a vector -> Proposal of the first row."""
        if not isinstance(node.op, Proposal):
            return False
        vector = node.sources[2]
        if vector is None or not isinstance(vector.node.op, Reshape) or vector.spec.rank != 1:
            return False
        source = vector.node.sources[0]
        if source is not None and isinstance(source.node.op, Convert):
            source = source.node.sources[0]
        shape = None if source is None or not isinstance(source.node.op, Parameter) else source.spec.shape
        if shape is None or len(shape) != 2 or shape[1] not in IMAGE_INFO_WIDTHS:
            return False
        bounds = (_integers([v]) for v in (0, shape[1], 1))
        node.sources[2] = _add(StridedSlice(begin_mask=(0,), end_mask=(0,)), vector, *bounds)
        return True

    def drop_axes_before(self, node: Node) -> bool:
        """Squeeze -> StridedSlice: StridedSlice alone, which takes the first element of the squeezed axes."""
        squeeze = self.sole_source(node, StridedSlice, Squeeze)
        if squeeze is None:
            return False
        x, axes = squeeze.sources[0], self.axes(squeeze)
        spans = _Spans.of(node)
        if x is None or axes is None or spans is None:
            return False
        for axis in sorted(axes):
            spans.insert(axis)
        spans.write(node, x)
        return True

    def drop_axes_after(self, node: Node) -> bool:
        """StridedSlice -> Squeeze: StridedSlice alone, which takes one element of the squeezed axes."""
        sliced = self.sole_source(node, Squeeze, StridedSlice)
        if sliced is None:
            return False
        x, axes = sliced.sources[0], self.axes(node)
        spans, rank = _Spans.of(sliced), sliced.ports[0].spec.rank
        if x is None or axes is None or spans is None or rank is None:
            return False
        spans.extend(rank)
        for axis in axes:
            spans.take(axis)
        spans.write(node, x)
        return True

    def sole_source(self, node: Node, op: type, source_op: type) -> Node | None:
        """Return the node before this one, None if the two do not have these ops or other nodes take its result."""
        source = node.sources[0] if isinstance(node.op, op) else None
        is_single = source is not None and isinstance(source.node.op, source_op) and self.users[source] == 1
        return source.node if source is not None and is_single else None

    @staticmethod
    def axes(squeeze: Node) -> list[int] | None:
        """Return the constant axes of a Squeeze, counted from the front, or None."""
        source = squeeze.sources[0]
        axes = constant_integers(squeeze.sources[1]) if len(squeeze.sources) > 1 else None
        if source is None or source.spec.rank is None or axes is None:
            return None
        return [axis % source.spec.rank for axis in axes]

    def fold_transposes(self, node: Node) -> bool:
        """Transpose of the last two axes -> MatMul: MatMul with a transposed operand."""
        if not isinstance(node.op, MatMul):
            return False
        flags = {}
        for i, name in enumerate(("transpose_a", "transpose_b")):
            source = node.sources[i]
            rank = None if source is None else source.spec.rank
            if source is None or rank is None or rank < 2 or not isinstance(source.node.op, Transpose):
                continue
            if constant_integers(source.node.sources[1]) == [*range(rank - 2), rank - 1, rank - 2]:
                node.sources[i] = source.node.sources[0]
                flags[name] = not getattr(node.op, name)
        node.op = replace(node.op, **flags)
        return bool(flags)

    def follow_positions(self, node: Node) -> bool:
        """Broadcast of the constant 0, 1, 2 ... n - 1 -> Broadcast of a Range up to the extent in the target shape."""
        op: Any = node.op
        positions = constant_of(node.sources[0]) if isinstance(op, Broadcast3) and op.mode == "bidirectional" else None
        target = node.sources[1] if positions is not None else None
        if positions is None or target is None or target.node in self.fixed or positions.dtype.kind not in "iu":
            return False
        count, rank = positions.size, positions.ndim
        if count not in POSITION_COUNTS or max(positions.shape) != count:
            return False
        if (positions.ravel() != np.arange(count)).any():
            return False
        axis, dtype = positions.shape.index(count), Type.of(positions.dtype)
        extent = _add(Gather8(), target, _scalar(axis - rank), _scalar(0))
        is_one = _add(Equal(), extent, _scalar(1, target.spec.type))
        start, stop, step = (_scalar(v, dtype) for v in (0, count, 1))
        # A target extent of 1 broadcasts the other way, to the length of the constant.
        stop = _add(Select(), is_one, stop, _add(Convert(destination_type=dtype), extent))
        relaxed = _add(Range4(output_type=dtype), start, stop, step)
        others = [a for a in range(rank) if a != axis]
        node.sources[0] = _add(Unsqueeze(), relaxed, _integers(others)) if others else relaxed
        return True

    def repeat_states(self, node: Node) -> bool:
        """Cell or sequence with constant states of one row -> the same with these states repeated for all rows."""
        op: Any = node.op
        x = node.sources[0] if isinstance(op, (Cell, SequenceOfCells)) else None
        if x is None or x.spec.rank is None:
            return False
        stop = 1 + op.states + isinstance(op, SequenceOfCells)  # a sequence has its lengths behind the states
        return any([_repeat(node, i, x, 0) for i in range(1, stop)])

    def repeat_states_of_loop(self, node: Node) -> bool:
        """Loop with such a cell in its body -> the same with its constant initial states repeated for all rows."""
        op: Any = node.op
        if not isinstance(op, (TensorIterator, Loop)):
            return False
        entries = {m.parameter: m for m in op.inputs}
        changed = False
        for states, parameter, axis in _batches(op.body):
            rows = node.sources[entries[parameter].port] if parameter in entries else None
            for state in states if rows is not None else ():
                if state in entries and entries[state].axis is None:
                    changed |= _repeat(node, entries[state].port, rows, axis)
        return changed

    def keep_axes(self, node: Node) -> bool:
        """[B, S, K] -> Reshape to [-1, K] -> MatMul (-> Add) -> Reshape to [1, S, O]: both keep the first axes."""
        target = constant_integers(node.sources[1]) if isinstance(node.op, Reshape) else None
        inner = self.producer(node, 0)
        if inner is not None and isinstance(inner.op, Add):
            pairs = [(a, b) for a, b in operands(inner, Add) if b.node in self.fixed]
            bias = pairs[0][1].spec.shape if pairs else None
            if bias is None or any(d != 1 for d in bias[:-1]):
                return False
            inner = pairs[0][0].node if self.users[pairs[0][0]] == 1 else None
        if target is None or inner is None or not isinstance(inner.op, MatMul) or inner.op.transpose_a:
            return False
        first, weights = self.producer(inner, 0), inner.sources[1]
        if first is None or not isinstance(first.op, Reshape) or weights is None or weights.node not in self.fixed:
            return False
        x, rows = first.sources[0], constant_integers(first.sources[1])
        shape = None if x is None else x.spec.shape
        if shape is None or len(shape) < 3 or len(target) != len(shape) or weights.spec.rank != 2:
            return False
        if rows is None or len(rows) != 2 or rows[0] != -1 or rows[1] != shape[-1] or min(target) <= 0:
            return False
        if not all(map(equal, target[1:-1], shape[1:-1])) or target[-1] != node.ports[0].spec.shape[-1]:  # type: ignore[index]
            return False
        if inner.ports[0].spec.shape is None or inner.ports[0].spec.shape[-1] != target[-1]:
            return False
        first.sources[1] = _integers([*[0] * (len(shape) - 1), rows[1]])
        node.sources[1] = _integers([0, *target[1:]])
        first.op, node.op = Reshape(special_zero=True), Reshape(special_zero=True)
        return True

    def producer(self, node: Node, i: int) -> Node | None:
        """Return the node that computes input ``i`` of this node if no other node takes this tensor, else None."""
        source = node.sources[i] if i < len(node.sources) else None
        return source.node if source is not None and self.users[source] == 1 else None

    def free_rows(self, node: Node) -> bool:
        """Reshape to a constant [1, K] -> MatMul: Reshape to [-1, K], where K is the extent of the other operand."""
        if not isinstance(node.op, MatMul):
            return False
        return any([self.free_rows_of(node, i) for i in range(2)])

    def free_rows_of(self, node: Node, i: int) -> bool:
        """Apply `free_rows` to operand ``i`` of a MatMul."""
        op: Any = node.op
        reshape, other = self.producer(node, i), node.sources[1 - i]
        if reshape is None or not isinstance(reshape.op, Reshape) or other is None or other.spec.rank is None:
            return False
        target = reshape.sources[1]
        if target is None or target.node not in self.fixed or target.spec.constant is None:
            return False
        if isinstance(other.node.op, (Transpose, Reshape)) and other.node not in self.fixed:
            return False  # its shape may depend on this one
        shape = [int(v) for v in target.spec.constant.ravel()]
        transposed, others = (op.transpose_a, op.transpose_b)[:: 1 if i == 0 else -1]
        row = 1 if transposed == (i == 0) else 0
        if len(shape) != 2 or shape[row] < 1:
            return False
        axis = -1 if other.spec.rank == 1 or others == (i == 0) else -2
        assert other.spec.shape is not None
        if other.node in self.fixed:
            extent: Any = other.spec.shape[axis]
            reshape.sources[1] = _integers([extent, -1] if row else [-1, extent])
            return True
        extent = _add(Gather8(), _add(ShapeOf3(), other), _integers([axis]), _scalar(0))
        parts = [_integers([-1]), extent]
        reshape.sources[1] = _add(Concat(axis=0), *parts[:: -1 if row else 1])
        return True


class _Spans:
    """Constant bounds of a StridedSlice with steps of 1 and no masks but begin_mask and end_mask."""

    def __init__(self, begin: list[int], end: list[int], begin_mask: list[int], end_mask: list[int]) -> None:
        self.begin, self.end, self.begin_mask, self.end_mask = begin, end, begin_mask, end_mask
        self.shrink = [0] * len(begin)

    @classmethod
    def of(cls, node: Node) -> _Spans | None:
        """Return the bounds of a StridedSlice, None if they are not constant, or if it has other masks or steps."""
        op: Any = node.op
        bounds = [constant_integers(source) for source in node.sources[1:]]
        if None in bounds or any((*op.new_axis_mask, *op.shrink_axis_mask, *op.ellipsis_mask)):
            return None
        begin, end, *steps = (list(b or ()) for b in bounds)
        if any(step != 1 for step in (steps[0] if steps else ())):
            return None
        count = len(begin)
        masks = ([*mask, *[0] * count][:count] for mask in (op.begin_mask, op.end_mask))
        return cls(begin, end, *masks)

    def extend(self, rank: int) -> None:
        """Append axes that are taken whole until there are ``rank`` axes."""
        for part, value in ((self.begin, 0), (self.end, 0), (self.begin_mask, 1), (self.end_mask, 1), (self.shrink, 0)):
            part += [value] * (rank - len(part))

    def insert(self, axis: int) -> None:
        """Insert an axis whose first element is taken."""
        self.extend(axis)
        for part, value in ((self.begin, 0), (self.end, 1), (self.begin_mask, 0), (self.end_mask, 0), (self.shrink, 1)):
            part.insert(axis, value)

    def take(self, axis: int) -> None:
        """Take one element of an axis: the first of those selected before."""
        if self.begin_mask[axis]:
            self.begin[axis] = 0
        self.begin_mask[axis] = 0
        self.end[axis] = self.begin[axis] + 1
        self.end_mask[axis] = int(self.begin[axis] == -1)
        self.shrink[axis] = 1

    def write(self, node: Node, x: Output) -> None:
        """Make the node a StridedSlice of ``x`` with these bounds."""
        node.op = StridedSlice(
            begin_mask=tuple(self.begin_mask), end_mask=tuple(self.end_mask), shrink_axis_mask=tuple(self.shrink)
        )
        node.sources = [x, *map(_integers, (self.begin, self.end, [1] * len(self.begin)))]


def _batches(body: Model) -> list[tuple[list[int], int, int]]:
    """Return, for each cell in a body, the indices of the parameters that are its states, the index of a parameter that
    has its rows, and the axis of the rows in that parameter."""
    # With all extents unknown, the rows of a cell are equal only to extents that they are computed from.
    body = body.clone()
    for parameter in body.parameters:
        rank = parameter.ports[0].spec.rank
        shape = PartialShape.dynamic() if rank is None else PartialShape.dynamic(rank)
        parameter.op = replace(parameter.op, shape=shape)  # type: ignore[type-var]
    body.validate_nodes_and_infer_types()
    indices = {parameter.ports[0]: i for i, parameter in enumerate(body.parameters)}
    batches = []
    for node in body.ops:
        op: Any = node.op
        x = node.sources[0].spec.shape if isinstance(op, Cell) and node.sources[0] is not None else None
        if x is None:
            continue
        states = [indices[s] for s in node.sources[1 : 1 + op.states] if s in indices]
        places = [(i, axis) for p, i in indices.items() for axis, d in enumerate(p.spec.shape or ()) if equal(d, x[0])]
        if states and places:
            batches.append((states, *places[0]))
    return batches


def _repeat(node: Node, index: int, rows: Output | None, axis: int) -> bool:
    """Broadcast input ``index`` of the node, if it is a constant with one row, to the extent of ``axis`` in ``rows``.

    Return whether it is such a constant.
    """
    source = node.sources[index]
    value = constant_of(source)
    if source is None or value is None or value.ndim == 0 or len(value) != 1:
        return False
    count = _add(Gather8(), _add(ShapeOf3(), rows), _integers([axis]), _scalar(0))
    node.sources[index] = _add(Broadcast3(), source, _add(Concat(axis=0), count, _integers(value.shape[1:])))
    return True


def _add(op: Any, *inputs: Output | None) -> Output:
    return Node(op, inputs).ports[0]


def _integers(values: Iterable[Any]) -> Output:
    return _add(Constant(element_type=Type.i64, value=np.array(list(values), np.int64)))


def _scalar(value: int, dtype: Type = Type.i64) -> Output:
    return _add(Constant(element_type=dtype, value=np.array(value, dtype.storage)))
