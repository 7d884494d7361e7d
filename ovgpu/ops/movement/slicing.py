"""Ops that take, or replace, regular parts of a tensor: Slice, SliceScatter, StridedSlice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Op, op
from ovgpu.ops.base.shapes import at_most, check_integers, constants, integers, length, normalize_axis, unknowns
from ovgpu.ops.base.view import View
from ovgpu.symbolic import Int, Shape, Spec, Sym, apply, bounds, ceildiv, maximum, minimum, same, unknown

END = 2**31 - 1  # from here on a bound means "to the end": the specification's INT_MAX, of either width


@dataclass(frozen=True)
class Span:
    """``data[start:stop:step]`` along an axis by Python's rules, or ``data[start]`` if the axis is not kept.

    None is the end where the step comes from or goes to.
    """

    start: Int | None = None
    stop: Int | None = None
    step: Int = 1
    keep: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.step, Sym):  # in bytes it must fit into 64 bits
            object.__setattr__(self, "step", max(-END, min(self.step, END)))

    @property
    def index(self) -> Any:
        """What NumPy takes it with, where all is known."""
        return slice(self.start, self.stop, self.step) if self.keep else self.start


Spans = list[Span | None]  # by output axis and dropped input axis; None is a new axis


def sliced(extent: Int, span: Span) -> tuple[Int, Int]:
    """First index and number of elements of a span whose step is known."""
    if span.step == 0:
        raise OpError("a step is 0")
    if span.step > 0:
        return _sliced_forwards(extent, span)
    # Along the reversed axis, whose index i is -1 - i, the step is positive.
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
    if from_back:  # the length is stop - max(start, 0), spelled so that what cancels does
        first, count = maximum(start, 0), minimum(stop - start, stop)
    else:
        first, count = minimum(start, extent), stop - start
    return first, ceildiv(maximum(count, 0), span.step)


def _from_front(index: Int, extent: Int) -> tuple[Int, bool]:
    """An index counted from the front; whether it came from the back, and so may still be negative."""
    lo, hi = bounds(index)
    if lo >= 0:
        return index, False
    if hi is not None and hi < 0:
        return index + extent, True
    return maximum(_wrapped(index, extent), 0), False


def _wrapped(index: Int, extent: Int) -> Int:
    return apply("select", apply("lt", index, 0), index + extent, index)


def picked(index: Int, extent: Int) -> Int:
    """One index of an axis, counted from the front; OpError, now or when run, if it is out of range."""
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
    supports_symbolic = True

    def spans(self, rank: int, start: Sequence[Int], stop: Sequence[Int], step: Sequence[Int] | None = None,
              axes: Sequence[Int] | None = None) -> Spans:
        """What is taken of a tensor of that rank. OpError if the inputs do not fit each other or the rank."""
        raise NotImplementedError

    def shape(self, x: Spec, count: int | None, *given: Spec | None) -> Shape:
        """The output's shape, where ``count`` axes are given."""
        values = [None if s is None else s.ints() for s in given]
        if x.shape is None:
            return None
        if all(v is not None or s is None for v, s in zip(values, given)):
            return extents(x.shape, self.spans(len(x.shape), *values))  # type: ignore[arg-type]
        if count is None:
            return None
        spans = self.spans(len(x.shape), [0] * count, [0] * count)
        return tuple(unknown() for span in spans if span is None or span.keep)

    def evaluate(self, xp: Any, x: Any, *given: Any) -> tuple[Any, ...]:
        spans = self.spans(x.ndim, *(None if g is None else integers(g) for g in given))  # type: ignore[arg-type]
        extents(x.shape, spans)
        return (x[tuple(None if s is None else s.index for s in spans)],)

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> None:
        k.copy(*self.evaluate(None, *inputs), outputs[0])

    def view(self, inputs: Sequence[View | None], specs: Sequence[Spec | None],
             outputs: Sequence[Spec]) -> Sequence[View | None] | None:
        x = inputs[0]
        given = [None if s is None else s.ints() for s in specs[1:]]
        if x is None or any(v is None and s is not None for v, s in zip(given, specs[1:])):
            return None
        if len(given) > 3 and any(isinstance(axis, Sym) for axis in given[3] or ()):
            return None
        shape: list[Int] = []
        strides: list[Int] = []
        offset, axis = x.offset, 0
        for span in self.spans(len(x.shape), *given):  # type: ignore[arg-type]
            if span is None:
                shape.append(1)
                strides.append(0)
                continue
            extent, stride = x.shape[axis], x.strides[axis]
            axis += 1
            if not span.keep:
                offset = offset + picked(span.start, extent) * stride
            elif isinstance(span.step, Sym):
                return None
            else:
                first, count = sliced(extent, span)
                offset = offset + first * stride
                shape.append(count)
                strides.append(stride * span.step)
        return [View(tuple(shape), tuple(strides), offset)]


def extents(shape: Sequence[Int], spans: Spans) -> tuple[Int, ...]:
    """The extents of what the spans take."""
    result: list[Int] = []
    axes = iter(shape)
    for span in spans:
        if span is None:
            result.append(1)
        elif not span.keep:
            picked(span.start, next(axes))
        elif isinstance(span.step, Sym):
            result.append(unknown(0, bounds(next(axes))[1]))
        else:
            result.append(sliced(next(axes), span)[1])
    return tuple(result)


@op("Slice", "opset8")
class Slice(_Slicing):
    """``data, start [n], stop [n], step [n] (, axes [n]) -> data[start:stop:step]`` on those axes.

    Python's rules; the axes are the first ones unless given. Bounds from 2**31 - 1 on (or its negative, going
    backwards) mean the end.
    """

    host_inputs = (1, 2, 3, 4)

    def infer(self, x: Spec, start: Spec, stop: Spec, step: Spec,
              axes: Spec | None = None) -> tuple[Spec, ...]:
        given = (start, stop, step) if axes is None else (start, stop, step, axes)
        for spec, what in zip(given, ("start", "stop", "step", "axes")):
            check_integers(spec, what)
        if x.rank == 0:
            raise OpError("a scalar cannot be sliced")
        if (axes is not None and constants(axes) is None) or x.shape is None:
            return (Spec(x.type, unknowns(x.rank)),)
        return (Spec(x.type, self.shape(x, min(len(x.shape), 1), *given)),)

    def spans(self, rank: int, start: Sequence[Int], stop: Sequence[Int], step: Sequence[Int] | None = None,
              axes: Sequence[Int] | None = None) -> Spans:
        step = [1] * len(start) if step is None else step
        axes = range(len(start)) if axes is None else axes
        if not len(start) == len(stop) == len(step) == len(axes):
            raise OpError(f"start, stop, step and axes have {len(start)}, {len(stop)}, {len(step)} and "
                          f"{len(axes)} elements")
        where = [normalize_axis(a, rank) for a in axes]
        if len(set(where)) < len(where):
            raise OpError(f"axes {list(axes)} are not distinct")
        spans: Spans = [Span()] * rank
        for axis, a, b, c in zip(where, start, stop, step):
            spans[axis] = Span(a, b, c)
        return spans


@op("SliceScatter", "opset15")
class SliceScatter(Op):
    """``data, updates, start [n], stop [n], step [n] (, axes [n]) -> data`` in which the updates have taken the place
    of ``Slice(data, start, stop, step, axes)``, whose shape they have."""

    exact = True
    supports_symbolic = True
    host_inputs = (2, 3, 4, 5)

    def infer(self, x: Spec, updates: Spec, start: Spec, stop: Spec, step: Spec,
              axes: Spec | None = None) -> tuple[Spec, ...]:
        kind = merge_types((x, updates))
        given = (start, stop, step) if axes is None else (start, stop, step, axes)
        (part,) = Slice().infer(x, *given)
        if x.rank is not None and updates.rank not in (None, x.rank):
            raise OpError(f"updates have rank {updates.rank}, data has {x.rank}")
        known = all(spec.ints() is not None for spec in given) and step.constant is not None
        if known and part.shape is not None and updates.shape is not None:
            self.check(part.shape, updates.shape)
        return (Spec(kind, x.shape),)

    def check(self, part: Sequence[Int], updates: Sequence[Int]) -> None:
        """OpError, now or when run, unless the updates fit."""
        for i, (a, b) in enumerate(zip(part, updates, strict=True)):
            same(a, b, f"the slice has {{0}} elements on axis {i}, updates have {{1}}")

    def part(self, out: Any, updates: Any, *given: Any) -> Any:
        """What of the output the updates replace."""
        (found,) = Slice().evaluate(None, out, *given)
        self.check(found.shape, updates.shape)
        return found

    def evaluate(self, xp: Any, x: Any, updates: Any, *given: Any) -> tuple[Any, ...]:
        out = x.copy()
        self.part(out, updates, *given)[...] = updates
        return (out,)

    def inplace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> tuple[int, ...]:
        return (0,)

    def numpy(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        (x, updates, *given), out = inputs, outputs[0]
        if not np.may_share_memory(x, out):
            k(np.copyto, out, x)
        elif np.may_share_memory(updates, out):
            return NotImplemented
        k(np.copyto, self.part(out, updates, *given), updates)
        return None

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        (x, updates, *given), out = inputs, outputs[0]
        if x.data.ptr != out.data.ptr:
            k.copy(x, out)
        elif updates.data.ptr == out.data.ptr:  # the output took over the memory of both
            return NotImplemented
        k.copy(updates, self.part(out, updates, *given))
        return None


@op("StridedSlice", "opset1")
class StridedSlice(_Slicing):
    """``data, begin [n], end [n] (, strides [n]) -> data[begin:end:stride, ...]`` by Python's rules.

    The masks say of element ``i`` of begin, end and strides: start from (``begin_mask``) or go to
    (``end_mask``) the end of the axis; insert an axis; take the element at begin and drop the axis; skip the
    axes that no other element is about. An ellipsis goes before a new axis, and that before a dropped one.
    """

    begin_mask: tuple[int, ...]
    end_mask: tuple[int, ...]
    new_axis_mask: tuple[int, ...] = ()
    shrink_axis_mask: tuple[int, ...] = ()
    ellipsis_mask: tuple[int, ...] = ()

    host_inputs = (1, 2, 3)

    def infer(self, x: Spec, begin: Spec, end: Spec, strides: Spec | None = None) -> tuple[Spec, ...]:
        given = (begin, end) if strides is None else (begin, end, strides)
        for spec, what in zip(given, ("begin", "end", "strides")):
            check_integers(spec, what)
        counts = {length(spec) for spec in given} - {None}
        if len(counts) > 1:
            raise OpError(f"begin, end and strides have {', '.join(str(length(s)) for s in given)} elements")
        return (Spec(x.type, self.shape(x, next(iter(counts), None), *given)),)

    def spans(self, rank: int, start: Sequence[Int], stop: Sequence[Int], step: Sequence[Int] | None = None,
              axes: Sequence[Int] | None = None) -> Spans:
        count = len(start)
        step = [1] * count if step is None else step
        begins, ends, inserted, dropped, ellipses = (
            {i for i, bit in enumerate(mask[:count]) if bit}
            for mask in (self.begin_mask, self.end_mask, self.new_axis_mask, self.shrink_axis_mask,
                         self.ellipsis_mask))
        if len(ellipses) > 1:
            raise OpError("there is more than one ellipsis")
        taken = count - len(inserted | ellipses)
        if taken > rank:
            raise OpError(f"{taken} axes are sliced of a tensor of rank {rank}")
        spans: Spans = []
        for i in range(count):
            if i in ellipses:
                spans += [Span()] * (rank - taken)
            elif i in inserted:
                spans.append(None)
            else:
                first = None if i in begins else start[i]
                last = None if i in ends else stop[i]
                spans.append(Span(first, last, step[i]) if i not in dropped
                             else Span(0 if first is None else first, keep=False))
        return spans + [Span()] * (0 if ellipses else rank - taken)
