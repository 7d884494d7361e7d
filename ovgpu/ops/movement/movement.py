"""Ops that reorder, join and split tensors: Transpose, Reverse, ReverseSequence, Roll, Concat, Split, VariadicSplit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import (
    at_most,
    axes_of_scalar,
    check_axes,
    check_integers,
    constant_axis,
    constants,
    integers,
    is_read,
    length,
    normalize_axes,
    normalize_axis,
    one_axis,
    unknowns,
)
from ovgpu.ops.base.storage import decode, is_plain
from ovgpu.ops.base.strided import THREADS, Axes, bits, blocks, strides_of
from ovgpu.ops.base.view import View, equal
from ovgpu.ops.base.xp import NUMPY, Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, Sym, apply, maximum, same, unknown
from ovgpu.types import Type


@op("Transpose", "opset1", "movement/transpose-1")
class Transpose(Op):
    """``data [...], order [n] ->`` data with axis ``order[i]`` moved to ``i``; an empty order reverses all axes.

    >>> transpose([[1, 2, 3]], i64([]))
    [[1], [2], [3]]
    """

    exact = True
    supports_symbolic = True
    host_inputs = (1,)
    half_precision = "promoted"
    host_in_decode = True
    moves_elements = True

    def infer_specs(self, x: Spec, order: Spec) -> tuple[Spec, ...]:
        check_integers(order, "the order")
        count, known = length(order), constants(order)
        if x.shape is None:
            return (Spec(x.type, unknowns(count or None)),)
        if count not in (None, 0, len(x.shape)):
            raise OpError(f"an order of {count} axes does not fit rank {len(x.shape)}")
        if known is None:
            return (Spec(x.type, unknowns(len(x.shape))),)
        return (Spec(x.type, tuple(x.shape[i] for i in permutation(known, len(x.shape)))),)

    def evaluate(self, xp: Adapter, x: Array, order: Array) -> tuple[Array, ...]:
        return (x.transpose(permutation(integers(order), x.ndim)),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        (moved,) = self.evaluate(NUMPY, *inputs)
        k.copy(moved, outputs[0])

    def view(
        self, inputs: Sequence[View | None], specs: Sequence[Spec | None], outputs: Sequence[Spec]
    ) -> Sequence[View | None] | None:
        x, order = inputs[0], specs[1]
        known = None if order is None else constants(order)
        return None if x is None or known is None else [x.permute(permutation(known, len(x.shape)))]


def permutation(order: Sequence[int], rank: int) -> Sequence[int]:
    """Return the order of the axes, reversed if ``order`` is empty. Raise OpError unless it has every axis once."""
    if not order:
        return tuple(range(rank)[::-1])
    if sorted(order) != list(range(rank)):
        raise OpError(f"order {list(order)} is no permutation of the axes of rank {rank}")
    return order


@op("Reverse", "opset1", "movement/reverse-1")
class Reverse(Op):
    """``data [...], axes [n] ->`` data reversed along axes, given as indices or as a mask of all axes."""

    mode: Literal["index", "mask"]

    exact = True
    supports_symbolic = True
    host_inputs = (1,)
    half_precision = "promoted"

    def infer_specs(self, x: Spec, axes: Spec) -> tuple[Spec, ...]:
        if self.mode == "index":
            check_integers(axes, "axes")
        elif axes.type not in (Type.boolean, Type.dynamic) or axes.rank not in (1, None):
            raise OpError("a mask of axes must be a vector of booleans")
        values = constants(axes)
        if values is not None and x.shape is not None:
            self.reversed(values, len(x.shape))
        return (Spec(x.type, x.shape),)

    def evaluate(self, xp: Adapter, x: Array, axes: Array) -> tuple[Array, ...]:
        reversed_axes = self.reversed(integers(axes), x.ndim)
        return (x[tuple(slice(None, None, -1 if i in reversed_axes else 1) for i in range(x.ndim))],)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        (moved,) = self.evaluate(NUMPY, *inputs)
        k.copy(moved, outputs[0])

    def view(
        self, inputs: Sequence[View | None], specs: Sequence[Spec | None], outputs: Sequence[Spec]
    ) -> Sequence[View | None] | None:
        x, axes = inputs[0], specs[1]
        known = None if axes is None else constants(axes)
        if x is None or known is None:
            return None
        for axis in self.reversed(known, len(x.shape)):
            extent = x.shape[axis]
            x = x.slice(axis, maximum(extent - 1, 0), extent, -1)
        return [x]

    def reversed(self, values: Sequence[int], rank: int) -> list[int]:
        """Return the axes to reverse, counted from the front. Raise OpError if ``values`` do not fit ``rank``."""
        if self.mode == "index":
            return normalize_axes(values, rank)
        if len(values) != rank:
            raise OpError(f"a mask of {len(values)} axes does not fit rank {rank}")
        return [i for i, v in enumerate(values) if v]


@op("ReverseSequence", "opset1", "movement/reverse-sequence-1")
class ReverseSequence(Op):
    """``data [..], seq_lengths [batch] ->`` data with the first ``seq_lengths[i]`` elements along ``seq_axis``
    reversed in slice ``i`` along ``batch_axis``.

    Lengths are truncated to integers. A length out of range is an error on the CPU, and is clamped on a CUDA device.

    >>> reverse_sequence([[1, 2, 3], [4, 5, 6]], [2, 3], batch_axis=0, seq_axis=1)
    [[2, 1, 3], [6, 5, 4]]
    """

    batch_axis: int = 0
    seq_axis: int = 1

    exact = True

    def infer_specs(self, x: Spec, lengths: Spec) -> tuple[Spec, ...]:
        is_numeric = lengths.type.is_real() or (lengths.type.is_integral_number() and lengths.type != Type.string)
        if not (is_numeric or lengths.type.is_dynamic()):
            raise OpError(f"the lengths must be numbers, not {lengths.type.get_type_name()}")
        if lengths.rank not in (None, 1):
            raise OpError(f"the lengths must have rank 1, not {lengths.rank}")
        if x.shape is not None:
            if len(x.shape) < 2:
                raise OpError(f"rank {len(x.shape)} is less than 2")
            batch, along = self.axes(len(x.shape))
            if batch == along:
                raise OpError(f"batch_axis and seq_axis are both {batch}")
            if lengths.shape is not None:
                same(lengths.shape[0], x.shape[batch], "there are {0} lengths for {1} slices")
        return (Spec(x.type, x.shape),)

    def axes(self, rank: int) -> tuple[int, int]:
        """Return (batch axis, sequence axis), counted from the front."""
        return normalize_axis(self.batch_axis, rank), normalize_axis(self.seq_axis, rank)

    def evaluate(self, xp: Adapter, x: Array, lengths: Array) -> tuple[Array, ...]:
        batch, along = self.axes(x.ndim)
        extent = x.shape[along]
        lengths = decode(lengths, xp).astype(np.int64)
        if ((lengths < 0) | (lengths > extent)).any():
            raise OpError(f"a length is out of range for extent {extent}")
        lengths = lengths.reshape([-1 if i == batch else 1 for i in range(x.ndim)])
        index = xp.arange(extent).reshape([-1 if i == along else 1 for i in range(x.ndim)])
        return (xp.take_along_axis(x, xp.where(index < lengths, lengths - 1 - index, index), axis=along),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, lengths), out = inputs, outputs[0]
        if not out.size:
            return None
        if not is_plain(lengths.dtype):
            return NotImplemented
        batch, along = self.axes(x.ndim)
        steps, extent = list(strides_of(x)), x.shape[along]
        row, steps[along] = steps[along], 0
        per_slice = [strides_of(lengths)[0] if i == batch else 0 for i in range(x.ndim)]
        axes = Axes.collapse(
            x.shape,
            steps,
            per_slice,
            [int(i == along) for i in range(x.ndim)],
            strides_of(out),
            reach=extent * abs(row),
        )
        if not axes.rank:
            return NotImplemented
        k.kernel(
            "reverse.cu",
            f"reverse_sequence<{bits(x.dtype.itemsize)}, {k.c_type(lengths.dtype)}, {axes.index}, {axes.rank}>",
            blocks(axes.size),
            (THREADS,),
            (x, lengths, out, axes.packed(), *axes.numbers(axes.size, extent, row)),
        )
        return None


@op("Roll", "opset7", "movement/roll-7")
class Roll(Op):
    """``data [..], shift [n] or scalar, axes [n] or scalar ->`` data shifted circularly, towards larger indices.

    A scalar shift applies to all axes; the shifts of an axis that is repeated add up.

    >>> roll([1, 2, 3, 4], 1, 0)
    [4, 1, 2, 3]
    """

    exact = True
    supports_symbolic = True
    strided_outputs = True
    host_inputs = (1, 2)
    half_precision = "promoted"

    def infer_specs(self, x: Spec, shift: Spec, axes: Spec) -> tuple[Spec, ...]:
        check_integers(shift, "shifts", ranks=(0, 1))
        if not axes_of_scalar(constants(axes) or (), -1 if x.rank is None else x.rank):
            check_axes(axes, x.rank, ranks=(0, 1))
        if shift.rank == 1 and None not in (length(shift), length(axes)) and length(shift) != length(axes):
            raise OpError(f"there are {length(shift)} shifts for {length(axes)} axes")
        return (Spec(x.type, x.shape),)

    def shifts(self, shape: Sequence[int], shift: Any, axes: Any) -> list[int]:
        """Return for each axis by how many elements data of ``shape`` move along it, in ``[0, extent)``."""
        totals, amounts, where = [0] * len(shape), integers(shift), integers(axes)
        if np.ndim(shift) == 0:
            amounts *= len(where)
        if len(amounts) != len(where):
            raise OpError(f"there are {len(amounts)} shifts for {len(where)} axes")
        for axis, n in zip(where, amounts) if not axes_of_scalar(where, len(shape)) else ():
            totals[normalize_axis(axis, len(shape))] += n
        return [n % d if d else 0 for n, d in zip(totals, shape)]

    def evaluate(self, xp: Adapter, x: Array, shift: Array, axes: Array) -> tuple[Array, ...]:
        return (xp.roll(x, self.shifts(x.shape, shift, axes), axis=tuple(range(x.ndim))),)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        (x, *parameters), out = inputs, outputs[0]
        pieces = [
            [(slice(None, -n), slice(n, None)), (slice(-n, None), slice(None, n))]
            if n
            else [(slice(None), slice(None))]
            for n in self.shifts(x.shape, *parameters)
        ]
        if not pieces:
            k(np.copyto, out, x)
        for chosen in itertools.product(*pieces) if pieces else ():
            k(np.copyto, out[tuple(target for _, target in chosen)], x[tuple(source for source, _ in chosen)])

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, *parameters), out = inputs, outputs[0]
        shifts = self.shifts(x.shape, *parameters)
        if not any(shifts) or not out.size:
            return k.copy(x, out)
        collapsed = Axes.collapse(x.shape, strides_of(x), strides_of(out), [int(n > 0) for n in shifts])
        axes, nonzero_shifts = Axes(collapsed.extents, collapsed.strides[:2]), iter([n for n in shifts if n])
        if not axes.rank:
            return NotImplemented
        per_axis = [0] * (axes.rank - len(axes.extents)) + [
            next(nonzero_shifts) if is_shifted else 0 for is_shifted in collapsed.strides[2]
        ]
        k.kernel(
            "reverse.cu",
            f"roll<{bits(x.dtype.itemsize)}, {axes.index}, {axes.rank}>",
            blocks(out.size),
            (THREADS,),
            (x, out, axes.packed(), np.array(axes.numbers(*per_axis)), *axes.numbers(out.size)),
        )
        return None


@op("Concat", "opset1", "movement/concat-1")
class Concat(Op):
    """``[..., a, ...], [..., b, ...], ... -> [..., a + b + ..., ...]`` along ``axis``.

    It has no fast form: producers write into the output by placement, or the program copies the inputs there.

    >>> concat(([[1], [2]], [[3, 4], [5, 6]]), axis=1)
    [[1, 3, 4], [2, 5, 6]]
    """

    axis: int = 0

    exact = True
    keeps_layout = True
    supports_symbolic = True
    strided_outputs = True
    half_precision = "promoted"
    host_in_decode = True

    def infer_specs(self, *inputs: Spec) -> tuple[Spec, ...]:
        if not inputs:
            raise OpError("there is nothing to concatenate")
        dtype = merge_types(inputs)
        shapes = [s.shape for s in inputs if s.shape is not None]
        if not shapes:
            return (Spec(dtype, None),)
        rank = len(shapes[0])
        if any(len(s) != rank for s in shapes):
            raise OpError(f"ranks {', '.join(str(len(s)) for s in shapes)} differ")
        axis = normalize_axis(self.axis, rank)
        out = list(shapes[0])
        for shape in shapes[1:]:
            for i, extent in enumerate(shape):
                if i == axis:
                    out[i] = out[i] + extent
                else:
                    out[i] = same(out[i], extent, f"extents {{0}} and {{1}} of axis {i} differ")
        if len(shapes) < len(inputs):
            out[axis] = unknown()
        return (Spec(dtype, tuple(out)),)

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        return (xp.concatenate(inputs, axis=self.axis),)


class _Splitting(Op):
    """Base of ops that split a tensor into parts along an axis."""

    exact = True
    keeps_layout = True
    supports_symbolic = True
    half_precision = "promoted"
    host_in_decode = True

    def parts(self, axis: int, extent: Int, *specs: Spec | None) -> list[Int] | None:
        """Return the lengths of the parts, or None if they are known only at run time."""
        raise NotImplementedError

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        x, axis = inputs[0], integers(inputs[1])[0]
        start = 0
        for out in outputs:
            stop = start + out.shape[axis]
            k.copy(x[(slice(None),) * (axis % x.ndim) + (slice(start, stop),)], out)
            start = stop

    def view(
        self, inputs: Sequence[View | None], specs: Sequence[Spec | None], outputs: Sequence[Spec]
    ) -> Sequence[View | None] | None:
        x, where = inputs[0], specs[1]
        axis = None if x is None or where is None else constant_axis(where, len(x.shape))
        if x is None or axis is None:
            return None
        parts = self.parts(axis, x.shape[axis], *specs[2:])
        return None if parts is None else split_view(x, axis, parts)


def split_view(x: View, axis: int, parts: Sequence[Int]) -> list[View]:
    """Return views of consecutive parts of an axis, with these lengths."""
    views, start = [], 0
    for part in parts:
        views.append(x.slice(axis, start, part))
        start = start + part
    return views


def _with_extent(shape: Sequence[Int], axis: int, extent: Int) -> tuple[Int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


MAX_PARTS = 1 << 16  # outputs: more are a mistake in the model, and would exhaust memory


@op("Split", "opset1", "movement/split-1")
class Split(_Splitting):
    """``data [..., n * num_splits, ...], axis -> num_splits x [..., n, ...]``.

    >>> split([1, 2, 3, 4], 0, num_splits=2)
    ([1, 2], [3, 4])
    """

    num_splits: int

    host_inputs = (1,)

    def infer_specs(self, x: Spec, axis: Spec) -> tuple[Spec, ...]:
        check_integers(axis, "the axis", ranks=(0,))
        if self.num_splits < 1:
            raise OpError(f"num_splits {self.num_splits} is not positive")
        if self.num_splits > MAX_PARTS:
            raise OpError(f"num_splits {self.num_splits} is larger than {MAX_PARTS}")
        if x.shape is None:
            return (Spec(x.type, None),) * self.num_splits
        if not x.shape:
            raise OpError("a scalar has no axis to split along")
        where = constant_axis(axis, len(x.shape))
        if where is None:
            return (Spec(x.type, unknowns(len(x.shape))),) * self.num_splits
        part = self.parts(where, x.shape[where])[0]
        return (Spec(x.type, _with_extent(x.shape, where, part)),) * self.num_splits

    def evaluate(self, xp: Adapter, x: Array, axis: Array) -> tuple[Array, ...]:
        where = one_axis(integers(axis), x.ndim)
        self.parts(where, x.shape[where])
        return tuple(xp.split(x, self.num_splits, axis=where))

    def parts(self, axis: int, extent: Int, *specs: Spec | None) -> list[Int]:
        part = extent // self.num_splits
        same(
            extent,
            part * self.num_splits,
            f"extent {{0}} of axis {axis} is no multiple of num_splits {self.num_splits}",
        )
        return [part] * self.num_splits


@op("VariadicSplit", "opset1", "movement/variadic-split-1")
class VariadicSplit(_Splitting):
    """``data [..., n, ...], axis, lengths [m] -> m x [..., length, ...]``; one length may be -1, for the rest.

    >>> variadic_split([1, 2, 3, 4], 0, [1, -1])
    ([1], [2, 3, 4])
    """

    host_inputs = (1, 2)

    def infer_specs(self, x: Spec, axis: Spec, lengths: Spec) -> tuple[Spec, ...]:
        check_integers(axis, "the axis", ranks=(0, 1))
        check_integers(lengths, "the split lengths")
        count = length(lengths)
        if count is None:
            raise OpError("the number of split lengths is not known, so neither is that of the outputs")
        if count > MAX_PARTS:
            raise OpError(f"{count} split lengths are more than {MAX_PARTS}")
        if x.shape is None:
            return (Spec(x.type, None),) * count
        if not x.shape:
            raise OpError("a scalar has no axis to split along")
        where = constant_axis(axis, len(x.shape))
        if where is None:
            return tuple(Spec(x.type, unknowns(len(x.shape))) for _ in range(count))
        parts = self.parts(where, x.shape[where], lengths) or [unknown() for _ in range(count)]
        return tuple(Spec(x.type, _with_extent(x.shape, where, part)) for part in parts)

    def evaluate(self, xp: Adapter, x: Array, axis: Array, lengths: Array) -> tuple[Array, ...]:
        where = one_axis(integers(axis), x.ndim)
        parts = split_lengths(integers(lengths), x.shape[where])
        return tuple(xp.split(x, np.cumsum(parts[:-1]).tolist(), axis=where)) if parts else ()

    def parts(self, axis: int, extent: Int, *specs: Spec | None) -> list[Int] | None:
        known = None if specs[0] is None else specs[0].ints()
        return None if known is None else split_lengths(known, extent)


def split_lengths(lengths: Sequence[Int], extent: Int) -> list[Int]:
    """Return the lengths with -1 replaced by the rest. Raise OpError unless they add up to ``extent``."""
    known = [v for v in lengths if not isinstance(v, Sym)]
    if any(v < -1 for v in known) or known.count(-1) > 1:
        raise OpError(f"split lengths {list(lengths)} are neither lengths nor a single -1")
    total: Int = sum(lengths)
    rest = extent - total - 1  # the length that replaces -1
    if -1 in known:
        at_most(total + 1, extent, f"split lengths {list(lengths)} are more than extent {{1}}")
        return [rest if equal(v, -1) else v for v in lengths]
    parts = [maximum(apply("select", apply("eq", v, -1), rest, v), 0) if is_read(v) else v for v in lengths]
    same(sum(parts), extent, "split lengths add up to {0}, not to the axis' extent {1}")
    return parts
