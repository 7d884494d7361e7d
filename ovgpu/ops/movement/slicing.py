"""Ops that read or replace regular parts of a tensor: Slice, SliceScatter, StridedSlice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import at_most, check_integers, constants, integers, length, normalize_axis, unknowns
from ovgpu.ops.base.view import View
from ovgpu.ops.base.xp import NUMPY, Adapter
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import Int, Sym, apply, bounds, ceildiv, maximum, minimum, same, unknown

END = 2**31 - 1  # a bound from here on means "to the end": the specification's INT_MAX, also for i64


@dataclass(frozen=True)
class Span:
    """Slice of one axis by Python's rules: ``data[start:stop:step]``, or ``data[start]`` if the axis is not kept.

    A bound of None is the end of the axis where the step starts (``start``) or stops (``stop``).
    """

    start: Int | None = None
    stop: Int | None = None
    step: Int = 1
    keep: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.step, Sym):  # the stride in bytes must fit into 64 bits
            object.__setattr__(self, "step", max(-END, min(self.step, END)))

    @property
    def index(self) -> Any:
        """The NumPy index of a span whose bounds are known."""
        return slice(self.start, self.stop, self.step) if self.keep else self.start


Spans = list[Span | None]  # one for each output axis and each dropped input axis; None is a new axis


def sliced(extent: Int, span: Span) -> tuple[Int, Int]:
    """Return the first index and the number of elements of a span whose step is known; OpError if it is 0."""
    if span.step == 0:
        raise OpError("a step is 0")
    if span.step > 0:
        return _sliced_forwards(extent, span)
    # On the reversed axis, where index i becomes -1 - i, the step is positive.
    start, stop = (None if i is None else -1 - i for i in (span.start, span.stop))
    first, count = _sliced_forwards(extent, Span(start, stop, -span.step))
    return maximum(extent - 1 - first, 0), count


def _sliced_forwards(extent: Int, span: Span) -> tuple[Int, Int]:
    start, from_back = _from_front(0 if span.start is None else span.start, extent)
    if span.stop is None or (not isinstance(span.stop, Sym) and span.stop >= END):
        stop = extent
    else:
        stop, before = _from_front(span.stop, extent)
        stop = stop if before else minimum(stop, extent)
    if from_back:  # the length is stop - max(start, 0), written so that symbols cancel
        first, count = maximum(start, 0), minimum(stop - start, stop)
    else:
        first, count = minimum(start, extent), stop - start
    return first, ceildiv(maximum(count, 0), span.step)


def _from_front(index: Int, extent: Int) -> tuple[Int, bool]:
    """Return an index counted from the front, and whether it came from the back and may still be negative."""
    lo, hi = bounds(index)
    if lo >= 0:
        return index, False
    if hi is not None and hi < 0:
        return index + extent, True
    return maximum(_wrapped(index, extent), 0), False


def _wrapped(index: Int, extent: Int) -> Int:
    return apply("select", apply("lt", index, 0), index + extent, index)


def element_index(index: Int, extent: Int) -> Int:
    """Return an index counted from the front. Raise OpError, now or at run time, if it is out of range."""
    lo, hi = bounds(index)
    message = f"index {'of an element' if isinstance(index, Sym) else index} is out of range for extent {{1}}"
    if hi is not None and hi < 0:
        at_most(-index, extent, message)
        return index + extent
    if lo < 0:
        index = _wrapped(index, extent)
        at_most(0, index, "index of an element is more than the extent before the end")
    at_most(index + 1, extent, message)
    return index


class _Slicing(Op):
    """Base of ops that take a span of each axis."""

    exact = True
    keeps_layout = True
    supports_symbolic = True
    half_precision = "promoted"
    host_in_decode = True

    def spans(
        self,
        rank: int,
        start: Sequence[Int],
        stop: Sequence[Int],
        step: Sequence[Int] | None = None,
        axes: Sequence[Int] | None = None,
    ) -> Spans:
        """Return the spans of a tensor of ``rank``. Raise OpError if the inputs do not fit each other or the rank."""
        raise NotImplementedError

    def shape(self, x: Spec, count: int | None, *parameters: Spec | None) -> Shape:
        """Return the output's shape as far as it is known, for ``count`` elements of start and stop."""
        values = [None if s is None else s.ints() for s in parameters]
        if x.shape is None:
            return None
        if all(v is not None or s is None for v, s in zip(values, parameters)):
            return extents(x.shape, self.spans(len(x.shape), *values))  # type: ignore[arg-type]
        if count is None:
            return None
        spans = self.spans(len(x.shape), [0] * count, [0] * count)
        return tuple(unknown() for span in spans if span is None or span.keep)

    def evaluate(self, xp: Adapter, x: Array, *parameters: Array) -> tuple[Array, ...]:
        spans = self.spans(x.ndim, *(None if g is None else integers(g) for g in parameters))  # type: ignore[arg-type]
        extents(x.shape, spans)
        return (x[tuple(None if s is None else s.index for s in spans)],)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        (moved,) = self.evaluate(NUMPY, *inputs)
        k.copy(moved, outputs[0])

    def view(
        self, inputs: Sequence[View | None], specs: Sequence[Spec | None], outputs: Sequence[Spec]
    ) -> Sequence[View | None] | None:
        x = inputs[0]
        parameters = [None if s is None else s.ints() for s in specs[1:]]
        if x is None or any(v is None and s is not None for v, s in zip(parameters, specs[1:])):
            return None
        if len(parameters) > 3 and any(isinstance(axis, Sym) for axis in parameters[3] or ()):
            return None
        shape: list[Int] = []
        strides: list[Int] = []
        offset, axis = x.offset, 0
        for span in self.spans(len(x.shape), *parameters):  # type: ignore[arg-type]
            if span is None:
                shape.append(1)
                strides.append(0)
                continue
            extent, stride = x.shape[axis], x.strides[axis]
            axis += 1
            if not span.keep:
                offset = offset + element_index(span.start, extent) * stride
            elif isinstance(span.step, Sym):
                return None
            else:
                first, count = sliced(extent, span)
                offset = offset + first * stride
                shape.append(count)
                strides.append(stride * span.step)
        return [View(tuple(shape), tuple(strides), offset)]


def extents(shape: Sequence[Int], spans: Spans) -> tuple[Int, ...]:
    """Return the extents of the slice that ``spans`` take of a tensor of ``shape``."""
    result: list[Int] = []
    axes = iter(shape)
    for span in spans:
        if span is None:
            result.append(1)
        elif not span.keep:
            element_index(span.start, next(axes))
        elif isinstance(span.step, Sym):
            result.append(unknown(0, bounds(next(axes))[1]))
        else:
            result.append(sliced(next(axes), span)[1])
    return tuple(result)


@op("Slice", "opset8", "movement/slice-8")
class Slice(_Slicing):
    """``data, start [n], stop [n], step [n] (, axes [n]) -> data[start:stop:step]`` on those axes.

    Bounds follow Python's rules; the default axes are the first n. A bound from 2**31 - 1 on (or its negative, for
    a negative step) means the end of the axis.

    >>> slice([0, 1, 2, 3, 4], [-1], [0], [-2])
    [4, 2]
    """

    host_inputs = (1, 2, 3, 4)
    moves_elements = True

    def infer_specs(self, x: Spec, start: Spec, stop: Spec, step: Spec, axes: Spec | None = None) -> tuple[Spec, ...]:
        parameters = (start, stop, step) if axes is None else (start, stop, step, axes)
        for spec, what in zip(parameters, ("start", "stop", "step", "axes")):
            check_integers(spec, what)
        if x.rank == 0:
            raise OpError("a scalar cannot be sliced")
        if (axes is not None and constants(axes) is None) or x.shape is None:
            return (Spec(x.type, unknowns(x.rank)),)
        return (Spec(x.type, self.shape(x, min(len(x.shape), 1), *parameters)),)

    def spans(
        self,
        rank: int,
        start: Sequence[Int],
        stop: Sequence[Int],
        step: Sequence[Int] | None = None,
        axes: Sequence[Int] | None = None,
    ) -> Spans:
        step = [1] * len(start) if step is None else step
        axes = range(len(start)) if axes is None else axes
        if not len(start) == len(stop) == len(step) == len(axes):
            raise OpError(
                f"start, stop, step and axes have {len(start)}, {len(stop)}, {len(step)} and {len(axes)} elements"
            )
        where = [normalize_axis(a, rank) for a in axes]
        if len(set(where)) < len(where):
            raise OpError(f"axes {list(axes)} are not distinct")
        spans: Spans = [Span()] * rank
        for axis, a, b, c in zip(where, start, stop, step):
            spans[axis] = Span(a, b, c)
        return spans


@op("SliceScatter", "opset15", "movement/slice-scatter-15")
class SliceScatter(Op):
    """``data, updates, start [n], stop [n], step [n] (, axes [n]) ->`` data in which ``Slice(data, start, stop, step,
    axes)`` is replaced by the updates, which have its shape.

    >>> slice_scatter([0, 1, 2, 3], [70, 80], [0], [4], [2])
    [70, 1, 80, 3]
    """

    exact = True
    mixed_reals = (1,)
    supports_symbolic = True
    host_inputs = (2, 3, 4, 5)

    def infer_specs(
        self, x: Spec, updates: Spec, start: Spec, stop: Spec, step: Spec, axes: Spec | None = None
    ) -> tuple[Spec, ...]:
        dtype = merge_types((x, updates))
        parameters = (start, stop, step) if axes is None else (start, stop, step, axes)
        (part,) = Slice().infer_specs(x, *parameters)
        if x.rank is not None and updates.rank not in (None, x.rank):
            raise OpError(f"updates have rank {updates.rank}, data has {x.rank}")
        known = all(spec.ints() is not None for spec in parameters) and step.constant is not None
        if known and part.shape is not None and updates.shape is not None:
            self.check(part.shape, updates.shape)
        return (Spec(dtype, x.shape),)

    def check(self, part: Sequence[Int], updates: Sequence[Int]) -> None:
        """Raise OpError, now or at run time, unless the updates have the shape of the slice."""
        for i, (a, b) in enumerate(zip(part, updates, strict=True)):
            same(a, b, f"the slice has {{0}} elements on axis {i}, updates have {{1}}")

    def part(self, out: Any, updates: Any, *parameters: Any) -> Any:
        """Return the view of the output that the updates replace."""
        (target,) = Slice().evaluate(NUMPY, out, *parameters)
        self.check(target.shape, updates.shape)
        return target

    def evaluate(self, xp: Adapter, x: Array, updates: Array, *parameters: Array) -> tuple[Array, ...]:
        out = x.copy()
        self.part(out, updates, *parameters)[...] = updates
        return (out,)

    def inplace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> tuple[int, ...]:
        return (0,)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, updates, *parameters), out = inputs, outputs[0]
        if not np.may_share_memory(x, out):
            k(np.copyto, out, x)
        elif np.may_share_memory(updates, out):
            return NotImplemented
        k(np.copyto, self.part(out, updates, *parameters), updates)
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, updates, *parameters), out = inputs, outputs[0]
        if x.data.ptr != out.data.ptr:
            k.copy(x, out)
        elif updates.data.ptr == out.data.ptr:  # the output reuses the memory of both inputs
            return NotImplemented
        k.copy(updates, self.part(out, updates, *parameters))
        return None


@op("StridedSlice", "opset1", "movement/strided-slice-1")
class StridedSlice(_Slicing):
    """``data, begin [n], end [n] (, strides [n]) -> data[begin:end:stride, ...]`` by Python's rules.

    Entry ``i`` of a mask changes element ``i`` of begin, end and strides: ``begin_mask`` and ``end_mask`` ignore that
    bound, ``new_axis_mask`` inserts an axis, ``shrink_axis_mask`` takes the element at begin and drops the axis, and
    ``ellipsis_mask`` skips the axes that no other element addresses. If several masks apply to one element, the
    ellipsis takes precedence, then the new axis.

    >>> strided_slice([[1, 2], [3, 4]], [0, 1], [0, 2], [1, 1],
    ...               begin_mask=[1, 0], end_mask=[1, 0], shrink_axis_mask=[0, 1])
    [2, 4]
    """

    begin_mask: tuple[int, ...]
    end_mask: tuple[int, ...]
    new_axis_mask: tuple[int, ...] = ()
    shrink_axis_mask: tuple[int, ...] = ()
    ellipsis_mask: tuple[int, ...] = ()

    host_inputs = (1, 2, 3)
    moves_elements = True

    def infer_specs(self, x: Spec, begin: Spec, end: Spec, strides: Spec | None = None) -> tuple[Spec, ...]:
        parameters = (begin, end) if strides is None else (begin, end, strides)
        for spec, what in zip(parameters, ("begin", "end", "strides")):
            check_integers(spec, what)
        counts = {length(spec) for spec in parameters} - {None}
        if len(counts) > 1:
            raise OpError(f"begin, end and strides have {', '.join(str(length(s)) for s in parameters)} elements")
        return (Spec(x.type, self.shape(x, next(iter(counts), None), *parameters)),)

    def spans(
        self,
        rank: int,
        start: Sequence[Int],
        stop: Sequence[Int],
        step: Sequence[Int] | None = None,
        axes: Sequence[Int] | None = None,
    ) -> Spans:
        count = len(start)
        step = [1] * count if step is None else step
        begins, ends, inserted, dropped, ellipses = (
            {i for i, bit in enumerate(mask[:count]) if bit}
            for mask in (self.begin_mask, self.end_mask, self.new_axis_mask, self.shrink_axis_mask, self.ellipsis_mask)
        )
        if len(ellipses) > 1:
            raise OpError("there is more than one ellipsis")
        addressed = count - len(inserted | ellipses)
        if addressed > rank:
            raise OpError(f"{addressed} axes are sliced of a tensor of rank {rank}")
        spans: Spans = []
        for i in range(count):
            if i in ellipses:
                spans += [Span()] * (rank - addressed)
            elif i in inserted:
                spans.append(None)
            else:
                first = None if i in begins else start[i]
                last = None if i in ends else stop[i]
                spans.append(
                    Span(first, last, step[i]) if i not in dropped else Span(0 if first is None else first, keep=False)
                )
        return spans + [Span()] * (0 if ellipses else rank - addressed)
