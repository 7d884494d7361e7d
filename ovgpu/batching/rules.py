"""Batching rules: ops that compute each row of a batch from that row alone, and the batch axes of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ovgpu.batching.axes import RULES, Axes, Batch, BatchAxis, Specs, rule, shared
from ovgpu.errors import OpError
from ovgpu.ops.activation.activation import Parametrised, PRelu
from ovgpu.ops.activation.softmax import _Softmax
from ovgpu.ops.arithmetic.cumsum import CumSum
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.ops.base.elementwise import Elementwise
from ovgpu.ops.base.op import Op
from ovgpu.ops.base.shapes import constant_axis, constants, normalize_axis
from ovgpu.ops.base.view import equal
from ovgpu.ops.convert import ConvertLike, Identity
from ovgpu.ops.convolution.convolution import _Convolution
from ovgpu.ops.generation.sampling import SampleToken, TokenCounts
from ovgpu.ops.image.grid_sample import GridSample
from ovgpu.ops.image.interpolate import Interpolate, Interpolate4
from ovgpu.ops.infrastructure.control_flow import If, InputMap, Loop, OutputMap, TensorIterator, _Iterating
from ovgpu.ops.infrastructure.graph import Result
from ovgpu.ops.matrix.einsum import Einsum
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.ops.movement.broadcast import _Broadcast
from ovgpu.ops.movement.gather import Gather
from ovgpu.ops.movement.gather_elements import GatherElements, _GatherND
from ovgpu.ops.movement.movement import Concat, Reverse, ReverseSequence, Roll, Transpose, _Splitting, permutation
from ovgpu.ops.movement.pad import Pad
from ovgpu.ops.movement.patches import ExtractImagePatches
from ovgpu.ops.movement.scatter import ScatterUpdate, _ScatterElements, _ScatterND
from ovgpu.ops.movement.slicing import END, Slice, SliceScatter, Span, _Slicing
from ovgpu.ops.movement.space import ShuffleChannels, _Blocks
from ovgpu.ops.movement.tile import Tile
from ovgpu.ops.normalization.channel_normalization import GRN, LRN, BatchNorm
from ovgpu.ops.normalization.group_normalization import GroupNormalization
from ovgpu.ops.normalization.normalization import _MVN, NormalizeL2
from ovgpu.ops.pooling.pooling import MaxPool8, _Pool
from ovgpu.ops.reduction import Reduction
from ovgpu.ops.sequence._cells import AUGRU
from ovgpu.ops.sequence.one_hot import OneHot
from ovgpu.ops.sequence.recurrent import Cell, SequenceOfCells
from ovgpu.ops.shape.reshape import Squeeze, _Reshaping
from ovgpu.ops.signal.fourier import _Fourier
from ovgpu.ops.signal.stft import STFT
from ovgpu.ops.sort.topk import TopK
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, Sym, product


def _in_place(
    cls: type[Op],
    mixed: Callable[[Any, Specs, int], Iterable[int]],
    batched: Callable[[Any], Iterable[int]] = lambda op: (0,),
) -> None:
    """Declare the rule of ops whose outputs have the same batch axis as their inputs.

    ``mixed(op, inputs, rank)`` returns the axes along which elements depend on each other or on their position.
    ``batched(op)`` returns the indices of the inputs that may differ between rows.
    """

    def keep(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
        allowed = list(batched(op))
        _only(axes, allowed)
        axis = shared(axes)
        rank = inputs[allowed[0]].rank
        apart(axis, [normalize_axis(a, rank) for a in mixed(op, inputs, rank)])
        return [axis] * len(outputs)

    RULES[cls] = keep


def _only(axes: Axes, allowed: Iterable[int]) -> None:
    """Raise OpError if an input differs between rows and its index is not in ``allowed``."""
    for i, axis in enumerate(axes):
        if axis is not None and i not in allowed:
            raise OpError(f"input {i} differs between the rows of the batch")


def apart(axis: BatchAxis, mixed: Iterable[int]) -> None:
    """Raise OpError if the batch axis is one of the axes ``mixed``, along which a layer mixes elements."""
    if axis.axis in mixed:
        raise OpError(f"the layer mixes the rows of the batch, which lie on axis {axis.axis} of its input")


def _known(values: list[int] | None) -> list[int]:
    """Return ``values``. Raise OpError if they are None, that is, known only at run time."""
    if values is None:
        raise OpError("the layer may mix the rows of a batch: its axes are known only at run time")
    return values


def _axis(spec: Spec, rank: int) -> int:
    """Return the axis that a tensor of one element holds."""
    axis = constant_axis(spec, rank)
    return _known(None if axis is None else [axis])[0]


def _listed(op: Any, inputs: Specs, rank: int) -> Iterable[int]:
    """Return the axes that input 1 lists."""
    return _known(constants(inputs[1]))


def _own(op: Any, inputs: Specs, rank: int) -> Iterable[int]:
    """Return the attribute ``axis``."""
    return (op.axis,)


def _inner(op: Any, inputs: Specs, rank: int) -> Iterable[int]:
    """Return all axes but the first one."""
    return range(1, rank)


_in_place(_Softmax, lambda op, inputs, rank: (op.normalized_axis(rank),))
_in_place(CumSum, _listed)
_in_place(TopK, _own)
_in_place(ShuffleChannels, _own)
_in_place(_Splitting, _listed)
_in_place(Reverse, lambda op, inputs, rank: op.reversed(_known(constants(inputs[1])), rank))
_in_place(Roll, lambda op, inputs, rank: _known(constants(inputs[2])))
_in_place(_Fourier, lambda op, inputs, rank: op.axes(_known(constants(inputs[1])), rank if op.real_input else rank - 1))
_in_place(STFT, _inner)
_in_place(
    Pad,
    lambda op, inputs, rank: [
        i
        for i, pads in enumerate(zip(_known(inputs[1].ints()), _known(inputs[2].ints())))
        if not all(equal(pad, 0) for pad in pads)
    ],
)
_in_place(_MVN, lambda op, inputs, rank: op.axes(rank, _known(constants(inputs[1])) if len(inputs) > 1 else None))
_in_place(NormalizeL2, _listed)
_in_place(LRN, _listed)
_in_place(BatchNorm, lambda op, inputs, rank: (1,), lambda op: (op.data,))
# Its indices count elements from `axis` on: if that is 0, they depend on the row.
_in_place(MaxPool8, lambda op, inputs, rank: range(int(normalize_axis(op.axis, rank) > 0), rank))
for _cls in (_Convolution, _Pool, _Blocks, ExtractImagePatches, GRN, GroupNormalization):
    _in_place(_cls, _inner)
_in_place(GridSample, _inner, lambda op: (0, 1))
# Rows differ in X, in the states, in the lengths of sequences, and in AUGRU's attention, which is the last input.
_in_place(Cell, _inner, lambda op: (*range(1 + op.states), *([5] if isinstance(op, AUGRU) else [])))
_in_place(SequenceOfCells, _inner, lambda op: (*range(2 + op.states), *([6] if isinstance(op, AUGRU) else [])))
_in_place(GatherElements, _own, lambda op: (0, 1))
_in_place(TokenCounts, _inner, lambda op: range(3))
_in_place(SampleToken, _inner, lambda op: range(6))
_in_place(Interpolate, lambda op, inputs, rank: op.axes)
_in_place(
    Interpolate4,
    lambda op, inputs, rank: op.axes(
        None if op.targets(inputs[1:])[2] is None else _known(constants(op.targets(inputs[1:])[2])), rank
    ),
)
_in_place(Identity, lambda op, inputs, rank: ())
_in_place(Result, lambda op, inputs, rank: ())
_in_place(ConvertLike, lambda op, inputs, rank: ())


@rule(Elementwise)
def _elementwise(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    if isinstance(op, (PRelu, Parametrised)):  # the other inputs are parameters
        _only(axes, (0,))
        if isinstance(op, PRelu) and axes[0] is not None and inputs[1].rank == 1 and not equal(inputs[1].shape[0], 1):
            apart(axes[0], (1,))  # the slopes may be those of channels
        return [axes[0]]
    rank = len(outputs[0].shape or ())
    at_start = getattr(op, "auto_broadcast", "numpy") == "pdpd"
    return [
        shared(
            None if a is None else a.moved(a.axis + (0 if at_start else rank - inputs[i].rank))
            for i, a in enumerate(axes)
        )
    ]


@rule(Reduction)
def _reduction(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    _only(axes, (0,))
    axis, rank = shared(axes), inputs[0].rank
    reduced = {normalize_axis(a, rank) for a in _known(constants(inputs[1]))}
    apart(axis, reduced)
    return [axis if op.keep_dims else axis.moved(axis.axis - sum(a < axis.axis for a in reduced))]


@rule(MatMul)
def _matmul(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    (a, b), rank, moved = inputs, len(outputs[0].shape or ()), list[BatchAxis | None]()
    for axis, spec, transposed, kept in zip(axes, (a, b), (op.transpose_a, op.transpose_b), (-2, -1)):
        if axis is None:
            continue
        if axis.axis < spec.rank - 2:  # an axis of a batch of matrices, which precedes the axes of the matrices
            matrix_axes = min(a.rank - 1, 1) + min(b.rank - 1, 1)  # of the result; a vector contributes none
            moved.append(axis.moved(axis.axis + rank - matrix_axes - (spec.rank - 2)))
            continue
        place = axis.axis - spec.rank  # -2 or -1
        if spec.rank > 1 and transposed:
            place = -3 - place
        if spec.rank == 1 or place != kept:
            raise OpError("the layer sums over the rows of the batch")
        moved.append(axis.moved(rank - 1 if kept == -1 or b.rank == 1 else rank - 2))
    return [shared(moved)]


@rule(Einsum)
def _einsum(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    *terms, output = op.labels([spec.rank for spec in inputs])
    labels = [term[axis.axis] for term, axis in zip(terms, axes) if axis is not None]
    if any(label != labels[0] for label in labels) or labels[0] not in output:
        raise OpError("the layer sums over the rows of the batch, or combines those of several inputs")
    place = output.index(labels[0])
    return [shared(None if axis is None else axis.moved(place) for axis in axes)]


@rule(ScaledDotProductAttention)
def _attention(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    rank, moved = len(outputs[0].shape or ()), list[BatchAxis | None]()
    for i, (axis, spec) in enumerate(zip(axes, inputs)):
        if axis is None or (i == 3 and op.mask(spec) is None):  # a mask that is not applied
            continue
        if i == 4 or axis.axis >= spec.rank - 2:  # input 4 is the scale, one number for all rows
            raise OpError("the layer attends from one row of the batch to others")
        moved.append(axis.moved(axis.axis + rank - spec.rank))
    return [shared(moved)]


@rule(_Reshaping, shaped=True)
def _reshaping(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    _only(axes, (0,))
    axis, shape = shared(axes), outputs[0].shape or ()
    if isinstance(op, Squeeze):
        removed = None if len(inputs) < 2 or inputs[1] is None else constants(inputs[1])
        if not removed or axis.axis in [normalize_axis(a, inputs[0].rank) for a in removed]:
            raise OpError("the layer removes the axis of a batch of one row")
    before = product((inputs[0].shape or ())[: axis.axis]) * axis.outer
    for i, extent in enumerate(shape):
        if batch.depends(extent):
            outer = _quotient(before, product(shape[:i]))
            return [BatchAxis(i, outer, _quotient(extent, outer * batch.size))]
    raise OpError("no axis of the result has the rows of the batch")


def _quotient(a: Int, b: Int) -> Int:
    """Return ``a / b``. Raise OpError unless it is an integer for all values of the symbols."""
    quotient = None if equal(b, 0) else a // b
    if quotient is None or not equal(quotient * b, a):
        raise OpError("the layer splits the rows of the batch")
    return quotient


@rule(Transpose)
def _transpose(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    axis = shared(axes)
    order = permutation(_known(constants(inputs[1])), inputs[0].rank)
    return [axis.moved(list(order).index(axis.axis))]


@rule(Concat)
def _concat(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    if None in axes:
        raise OpError("some inputs differ between the rows of the batch, others do not")
    axis = shared(axes)
    apart(axis, (normalize_axis(op.axis, inputs[0].rank),))
    return [axis]


@rule(_Slicing)
def _slicing(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    _only(axes, (0,))
    axis, position = shared(axes), 0
    spans = op.spans(inputs[0].rank, *(_ints(spec) for spec in inputs[1:]))
    for i, span in enumerate(spans):
        if span is None:
            continue
        if position == axis.axis:
            if not _whole(span):
                raise OpError("the layer takes some rows of the batch")
            kept = sum(s is None or s.keep for s in spans[:i])
            return [axis.moved(kept)]
        position += 1
    raise OpError("the rank of the data is not known")


def _ints(spec: Spec | None) -> list[Int] | None:
    return None if spec is None else _known(spec.ints())


def _whole(span: Span) -> bool:
    """Return whether a span takes all of an axis, of any extent."""
    starts = span.start is None or equal(span.start, 0)
    ends = span.stop is None or (not isinstance(span.stop, Sym) and span.stop >= END)
    return span.keep and starts and ends and equal(span.step, 1)


@rule(SliceScatter)
def _slice_scatter(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    _only(axes, (0, 1))
    if axes[0] is None or axes[1] not in (None, axes[0]):
        raise OpError("data and updates have the rows of the batch on different axes")
    _slicing(batch, Slice(), (axes[0],), (inputs[0], *inputs[2:]), outputs)
    return [axes[0]]


@rule(_Broadcast, shaped=True)
def _broadcast(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    _only(axes, (0,))
    mapping = op.axes_mapping(*inputs[2:])
    known = None if mapping is None else _known(constants(mapping))
    if axes[0] is None:
        return [_repeated(batch, outputs[0])]
    places, _ = op.align_axes(inputs[0].shape, _known(inputs[1].ints()), known)
    return [axes[0].moved(places[axes[0].axis])]


@rule(Tile, shaped=True)
def _tile(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    _only(axes, (0,))
    if axes[0] is None:
        return [_repeated(batch, outputs[0], inputs[0])]
    place = axes[0].axis + len(outputs[0].shape or ()) - inputs[0].rank
    times = _quotient((outputs[0].shape or ())[place], (inputs[0].shape or ())[axes[0].axis])
    return [BatchAxis(place, times * axes[0].outer, axes[0].inner)]


def _repeated(batch: Batch, output: Spec, data: Spec | None = None) -> BatchAxis:
    """Return the batch axis of a tensor that is repeated for each row."""
    (axis,) = [i for i, extent in enumerate(output.shape or ()) if batch.depends(extent)]
    extents = () if data is None else data.shape or ()
    place = axis - len(output.shape or ()) + len(extents)
    if data is not None and place >= 0 and not equal(extents[place], 1):
        return BatchAxis(axis, 1, extents[place])  # [n] tiled for each row: n elements of one row, then of the next
    return BatchAxis(axis, 1, _quotient((output.shape or ())[axis], batch.size))


@rule(Gather)
def _gather(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    x, indices, axis = inputs
    where, batch_dims = _axis(axis, x.rank), op.batch(indices.rank)
    inserted = indices.rank - batch_dims - 1  # axes that the indices add to those of the data
    if axes[0] is not None and axes[1] is None:
        apart(axes[0], (where, *range(batch_dims)))
        return [axes[0] if axes[0].axis < where else axes[0].moved(axes[0].axis + inserted)]
    if axes[0] is None and axes[1] is not None and axes[1].axis >= batch_dims:
        return [axes[1].moved(where + axes[1].axis - batch_dims)]
    if axes[0] is None or axes[0] != axes[1] or axes[0].axis >= batch_dims:
        raise OpError("the layer gathers rows of the batch by index")
    return [axes[0]]


@rule(_GatherND)
def _gather_nd(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    if axes[0] is None and axes[1] is not None and op.batch_dims == 0 and axes[1].axis < inputs[1].rank - 1:
        return [axes[1]]
    if axes[0] is None or axes[0] != axes[1] or axes[0] != BatchAxis(0) or op.batch_dims != 1:
        raise OpError("the layer gathers rows of the batch by index")
    return [axes[0]]


@rule(_ScatterElements)
def _scatter_elements(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    axis = shared(axes)
    if None in axes[:3] or axes[3] is not None:
        raise OpError("some inputs differ between the rows of the batch, others do not")
    apart(axis, _known(constants(inputs[3])))
    return [axis]


@rule(ScatterUpdate)
def _scatter_update(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    _only(axes, (0, 2))
    data, indices, _, axis = inputs
    where = _axis(axis, data.rank)
    if axes[0] is None:
        raise OpError("data and updates have the rows of the batch on different axes")
    apart(axes[0], (where,))
    moved = axes[0] if axes[0].axis < where else axes[0].moved(axes[0].axis + indices.rank - 1)
    if axes[2] != moved:
        raise OpError("data and updates have the rows of the batch on different axes")
    return [axes[0]]


@rule(_ScatterND)
def _scatter_nd(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    _only(axes, (0, 2))
    count = inputs[1].shape[-1]
    if axes[0] is None or isinstance(count, Sym) or axes[2] is None:
        raise OpError("data and updates have the rows of the batch on different axes")
    apart(axes[0], range(count))
    if axes[2] != axes[0].moved(axes[0].axis - count + inputs[1].rank - 1):
        raise OpError("data and updates have the rows of the batch on different axes")
    return [axes[0]]


@rule(ReverseSequence)
def _reverse_sequence(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    along, across = (normalize_axis(a, inputs[0].rank) for a in (op.batch_axis, op.seq_axis))
    if axes[0] is None or axes[1] not in (None, axes[0].moved(0)) or (axes[1] is not None and axes[0].axis != along):
        raise OpError("data and lengths have the rows of the batch on different axes")
    apart(axes[0], (across,))
    return [axes[0]]


@rule(OneHot)
def _one_hot(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    _only(axes, (0,))
    axis = shared(axes)
    return [axis.moved(axis.axis + int(axis.axis >= normalize_axis(op.axis, inputs[0].rank + 1)))]


# ---- bodies


@rule(TensorIterator, Loop)
def _iterating(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    if isinstance(op, Loop):
        _only(axes, range(2, len(axes)))  # the trip count and the condition are the same for all rows
    parameters = _parameters(op, op.inputs, axes, inputs, len(op.body.parameters))
    results = batch.trace(op.body, parameters)
    for edge in op.back_edges:
        if results[edge.result] != parameters[edge.parameter]:
            raise OpError(
                f"the rows of the batch lie on another axis of result {edge.result} of the body than of the "
                f"parameter that it becomes"
            )
    if isinstance(op, Loop) and op.condition is not None and results[op.condition] is not None:
        raise OpError("the number of iterations depends on the rows of the batch")
    return _outputs(op, op.outputs, op.body, results, len(outputs))


@rule(If)
def _if(batch: Batch, op: Any, axes: Axes, inputs: Specs, outputs: Sequence[Spec]) -> Axes:
    _only(axes, range(1, len(axes)))  # the condition is the same for all rows
    branches = []
    for body, entries, exits in (
        (op.then_body, op.then_inputs, op.then_outputs),
        (op.else_body, op.else_inputs, op.else_outputs),
    ):
        results = batch.trace(body, _parameters(op, entries, axes, inputs, len(body.parameters)))
        branches.append(_outputs(op, exits, body, results, len(outputs)))
    if branches[0] != branches[1]:
        raise OpError("the branches have the rows of the batch on different axes of their results")
    return branches[0]


def _parameters(
    op: _Iterating | If, entries: Sequence[InputMap], axes: Axes, inputs: Specs, count: int
) -> list[BatchAxis | None]:
    """Return the batch axes of a body's parameters."""
    parameter_axes: list[BatchAxis | None] = [None] * count
    for entry in entries:
        axis = parameter_axes[entry.parameter] = axes[entry.port]
        if axis is not None and entry.axis is not None:
            apart(axis, (normalize_axis(entry.axis, inputs[entry.port].rank),))
    return parameter_axes


def _outputs(
    op: _Iterating | If, exits: Sequence[OutputMap], body: Any, results: Axes, count: int
) -> list[BatchAxis | None]:
    """Return the batch axes of a node's outputs, given those of its body's results."""
    output_axes: list[BatchAxis | None] = [None] * count
    for entry in exits:
        axis = output_axes[entry.port] = results[entry.result]
        if axis is not None and entry.axis is not None:
            apart(axis, (normalize_axis(entry.axis, body.results[entry.result].ports[0].spec.rank),))
    return output_axes
