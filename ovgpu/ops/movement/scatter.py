"""Ops that update elements of a tensor at given indices: the Scatter family.

Updates of one element take effect in order: the last one wins, and sums of floats are reproducible. An index below 0
counts from the end, also where the specification does not provide for it. An index out of range is an error, except if
it is computed on a CUDA device: such indices are not checked, and update nothing if they are out of range. (OpenVINO's
CPU plugin raises for indices past the end, or writes there.)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import at_most, check_integers, constant_axis, integers, normalize_axis
from ovgpu.ops.base.storage import compute_dtype
from ovgpu.ops.base.strided import THREADS, Axes, bits, blocks, strides_of, vectorized
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.convert import Convert
from ovgpu.ops.movement.indices import check_range, from_front, readable
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, Sym, same
from ovgpu.types import Type

MAX_SERIAL_UPDATES = 32  # updates that threads apply in order; for more, the last update of each index is found first
MAX_UPDATES = 2**31 - 1  # updates that kernels can count
MAX_TUPLE = 8  # indices in a tuple that kernels take


class _Scatter(Op):
    """Base of scatter ops: the first inputs are data, indices and updates; the output has the shape of data."""

    supports_symbolic = True
    host_in_decode = True

    @property
    def rule(self) -> str:
        """The reduction that combines an element with its updates."""
        return "none"

    @property
    def includes_data(self) -> bool:
        """Return whether the first update of an element is combined with the value in the data."""
        return True

    def inplace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> tuple[int, ...]:
        return (0,)

    def where(
        self, xp: Adapter, out: Array, indices: Array, updates: Array, *rest: Array
    ) -> tuple[Array, Array, Array]:
        """Return (view of the output, index into it, updates of the indexed shape). Raise OpError if an index is out
        of range."""
        raise NotImplementedError

    def evaluate(self, xp: Adapter, data: Array, indices: Array, updates: Array, *rest: Array) -> tuple[Array, ...]:
        out = data.copy()
        self.update(xp, out, indices, updates, *rest)
        return (out,)

    def update(self, xp: Adapter, out: Array, indices: Array, updates: Array, *rest: Array) -> None:
        """Apply the updates to ``out``, which holds the data, in place."""
        rule = self.rule
        view, where, updates = self.where(xp, out, indices, updates, *rest)
        if rule == "none":
            view[where] = updates
            return
        if not self.includes_data:
            view[where] = neutral(rule, out.dtype)
        combine = {
            "sum": xp.add,
            "mean": xp.add,
            "sub": xp.subtract,
            "prod": xp.multiply,
            "min": xp.minimum,
            "max": xp.maximum,
        }
        if out.dtype == bool:
            combine |= {"sum": xp.logical_or, "sub": xp.logical_xor, "prod": xp.logical_and}
        combine[rule].at(view, where, updates)
        if rule == "mean":
            count = xp.zeros(view.shape, np.int64)
            xp.add.at(count, where, 1)
            count = xp.where(count > 0, count + int(self.includes_data), 1)
            view[...] = (view / count if out.dtype.kind == "f" else view // count).astype(out.dtype)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (data, indices, updates, *rest), out = inputs, outputs[0]
        if self.rule != "none" and compute_dtype(Type.of(out.dtype)) != out.dtype:
            return NotImplemented
        if not np.may_share_memory(data, out):
            k(np.copyto, out, data)
        elif any(np.may_share_memory(x, out) for x in (indices, updates)):
            return NotImplemented
        k(self.update, np, out, indices, updates, *rest)
        return None

    def lines(self, k: KernelRecorder, out: Any, indices: Any, updates: Any, *rest: Any) -> tuple[Any, Any, Any, int]:
        """Return views (out, indices, updates, axis): each update goes to its own position in ``out``, except that
        its coordinate on ``axis`` is the index. Indices broadcast along axes of extent 1."""
        raise NotImplementedError

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (data, indices, updates, *rest), out = inputs, outputs[0]
        if not out.size:
            return None
        if data.data.ptr == out.data.ptr and out.data.ptr in (indices.data.ptr, updates.data.ptr):
            return NotImplemented  # the output reuses the memory of data and of another input
        indices = readable(k, indices)
        if indices is NotImplemented:
            return NotImplemented
        dtype = out.dtype
        compute_type = dtype if self.rule == "none" else compute_dtype(Type.of(dtype))
        if compute_type == dtype:
            if data.data.ptr != out.data.ptr:
                k.copy(data, out)
            if self.rule == "none":  # moves bits only
                out, updates = (x.view(f"u{dtype.itemsize}") for x in (out, updates))
            return self.record(k, *self.lines(k, out, indices, updates, *rest)) if updates.size else None
        # Reductions in an upcast type are rounded once, at the end.
        computed, added = (k.scratch(x.shape, compute_type) for x in (data, updates))
        for x, y in ((data, computed), (updates, added)):
            if Convert(destination_type=Type.of(compute_type)).cuda(k, [x], [y], ()) is NotImplemented:
                return NotImplemented
        if updates.size and self.record(k, *self.lines(k, computed, indices, added, *rest)) is NotImplemented:
            return NotImplemented
        return Convert(destination_type=Type.of(dtype)).cuda(k, [computed], [out], ())

    def record(self, k: KernelRecorder, out: Any, indices: Any, updates: Any, axis: int) -> Any:
        """Record the launches that apply updates along ``axis``."""
        rule, dtype, count = self.rule, out.dtype, updates.shape[axis]
        if rule == "none" and indices.size == count and MAX_SERIAL_UPDATES < count <= MAX_UPDATES:
            return self.record_last(k, out, indices, updates, axis)
        counted = k.scratch(out.shape, np.dtype(np.int32)) if rule == "mean" else None
        operands = [strides_of(x) for x in (out, indices, updates, out if counted is None else counted)]
        length = out.shape[axis]
        reach = max(abs(s[axis]) for s in operands) * max(length, count)
        axes = Axes.collapse(
            np.delete(updates.shape, axis).tolist(), *((*s[:axis], *s[axis + 1 :]) for s in operands), reach=reach
        )
        if not axes.rank:
            return NotImplemented
        # A line holds the elements along ``axis``. A thread per line reads adjacent lines coalesced; lines that are
        # contiguous, or few, are better read by a warp each.
        threads_per_line = (
            32 if count >= 32 and (operands[1][axis] == 1 if indices.size > count else axes.size < 32) else 1
        )
        first = np.zeros((), dtype)[()] if rule == "none" else dtype.type(neutral(rule, dtype))
        name = bits(dtype.itemsize) if rule == "none" else k.c_type(dtype)
        k.kernel(
            "scatter.cu",
            f"scatter_elements<{name}, {k.c_type(indices.dtype)}, {rule.upper()}, {axes.index}, "
            f"{axes.rank}, {threads_per_line}>",
            blocks(axes.size * threads_per_line, THREADS),
            (THREADS,),
            (
                out,
                indices,
                updates,
                counted,
                axes.packed(),
                np.array(axes.numbers(length, *(s[axis] for s in operands))),
                *axes.numbers(axes.size, count),
                first,
                np.bool_(self.includes_data),
            ),
        )
        return None

    def record_last(self, k: KernelRecorder, out: Any, indices: Any, updates: Any, axis: int) -> Any:
        """Record launches that find the last update of every index, then write these in parallel."""
        length, count, step = out.shape[axis], updates.shape[axis], strides_of(indices)[axis]
        last = k.scratch((length,), np.dtype(np.int32))
        for claims in (False, True):
            k.kernel(
                "scatter.cu",
                f"find_last<{k.c_type(indices.dtype)}>",
                blocks(count, THREADS),
                (THREADS,),
                (indices, last, np.int64(count), np.int64(step), np.int64(length), np.bool_(claims)),
            )
        steps = list(strides_of(out))
        row, steps[axis] = steps[axis], 0
        positions = [int(i == axis) for i in range(out.ndim)]
        axes = Axes.collapse(
            updates.shape, strides_of(updates), positions, steps, reach=max(length * abs(row), count * abs(step))
        )
        size = out.dtype.itemsize
        axes, width = vectorized(axes, size, (updates.data.ptr, None, out.data.ptr), row)
        if not axes.rank:
            return NotImplemented
        k.kernel(
            "scatter.cu",
            f"scatter_last<{bits(width)}, {k.c_type(indices.dtype)}, {axes.index}, {axes.rank}>",
            blocks(axes.size),
            (THREADS,),
            (updates, indices, last, out, axes.packed(), *axes.numbers(axes.size, step, length, row * size // width)),
        )
        return None


def neutral(rule: str, dtype: np.dtype[Any]) -> Any:
    """Return the neutral element of reduction ``rule``, from which elements start if the data do not count."""
    if rule in ("sum", "mean", "prod"):
        return int(rule == "prod")
    if dtype.kind == "b":
        return rule == "min"
    if dtype.kind == "f":
        return np.inf if rule == "min" else -np.inf
    limits = np.iinfo(dtype)
    return limits.max if rule == "min" else limits.min


def _merge_axes(k: KernelRecorder, x: Any, first: int, last: int) -> Any:
    """Return ``x`` with axes from ``first`` to before ``last`` merged into one; a copy if its layout requires it."""
    if last - first != 1 and not x.flags.c_contiguous:
        dense = k.scratch(x.shape, x.dtype)
        k.copy(x, dense)
        x = dense
    return x.reshape((*x.shape[:first], prod(x.shape[first:last]), *x.shape[last:]))


class _ScatterElements(_Scatter):
    """Base of all versions of ScatterElementsUpdate."""

    host_inputs = (3,)

    def infer_specs(self, data: Spec, indices: Spec, updates: Spec, axis: Spec) -> tuple[Spec, ...]:
        dtype = merge_types((data, updates))
        check_integers(indices, "indices", ranks=None)
        check_integers(axis, "the axis", ranks=(0, 1))
        for spec, name in ((indices, "indices"), (updates, "updates")):
            if data.rank is not None and spec.rank is not None and spec.rank != data.rank:
                raise OpError(f"{name} have rank {spec.rank}, data has {data.rank}")
        if indices.shape is not None and updates.shape is not None:
            for a, b in zip(indices.shape, updates.shape):
                same(a, b, "indices and updates differ: {0} and {1}")
        where = None if data.rank is None else constant_axis(axis, data.rank)
        if data.shape is not None and where is not None:
            self.check(data.shape, indices.shape or updates.shape or (), where)
            check_range(indices, data.shape[where])
        return (Spec(dtype, data.shape),)

    def check(self, data: Sequence[Int], indices: Sequence[Int], axis: int) -> None:
        """Raise OpError, now or at run time, if the indices exceed the data on another axis."""
        for i, (a, b) in enumerate(zip(indices, data)):
            if i != axis:
                at_most(a, b, f"indices have {{0}} elements on axis {i}, data has {{1}}")

    def where(
        self, xp: Adapter, out: Array, indices: Array, updates: Array, *rest: Array
    ) -> tuple[Array, Array, Array]:
        axis = normalize_axis(integers(rest[0])[0], out.ndim)
        self.check(out.shape, indices.shape, axis)
        grid = list(xp.indices(indices.shape, dtype=np.int64))
        grid[axis] = _inside(xp, indices, out.shape[axis])
        return out, tuple(grid), updates

    def lines(self, k: KernelRecorder, out: Any, indices: Any, updates: Any, *rest: Any) -> tuple[Any, Any, Any, int]:
        axis = normalize_axis(integers(rest[0])[0], out.ndim)
        self.check(out.shape, indices.shape, axis)
        return out, indices, updates, axis


def _inside(xp: Adapter, indices: Array, extent: int) -> Array:
    """Return indices counted from the front. Raise OpError if one is out of range."""
    index, outside = from_front(xp, indices, extent)
    if outside.any():
        raise OpError(f"an index is out of range for extent {extent}")
    return index


@op("ScatterElementsUpdate", "opset3", "movement/scatter-elements-update-3")
class ScatterElementsUpdate(_ScatterElements):
    """``data, indices, updates, axis -> data`` with ``out[.., indices[i], ..] = updates[i]`` along the axis."""

    exact = True


@op("ScatterElementsUpdate", "opset12", "movement/scatter-elements-update-12")
class ScatterElementsUpdate12(_ScatterElements):
    """ScatterElementsUpdate-3 with a reduction of the updates of one element, and of its value if ``use_init_val``.

    The mean of integers is rounded down; OpenVINO's CPU plugin truncates it.

    >>> scatter_elements_update([1, 2, 3], [0, 0], [10, 20], 0, reduction="sum", use_init_val=False)
    [30, 2, 3]
    """

    reduction: Literal["none", "sum", "prod", "min", "max", "mean"] = "none"
    use_init_val: bool = True

    @property
    def rule(self) -> str:
        return self.reduction

    @property
    def includes_data(self) -> bool:
        return self.use_init_val

    def infer_specs(self, data: Spec, indices: Spec, updates: Spec, axis: Spec) -> tuple[Spec, ...]:
        if self.reduction == "mean" and data.type == Type.boolean:
            raise OpError("there is no mean of booleans")
        return super().infer_specs(data, indices, updates, axis)


@op("ScatterUpdate", "opset3", "movement/scatter-update-3")
class ScatterUpdate(_Scatter):
    """``data [A.., n, B..], indices [I..], updates [A.., I.., B..], axis -> data`` with ``out[A, indices[I], B] =
    updates[A, I, B]``, for whole slices.

    >>> scatter_update([[1, 2], [3, 4]], [1], [[10, 20]], 0)
    [[1, 2], [10, 20]]
    """

    exact = True
    host_inputs = (3,)
    half_precision = "promoted"

    def infer_specs(self, data: Spec, indices: Spec, updates: Spec, axis: Spec) -> tuple[Spec, ...]:
        dtype = merge_types((data, updates))
        check_integers(indices, "indices", ranks=None)
        check_integers(axis, "the axis", ranks=(0, 1))
        where = None if data.rank is None else constant_axis(axis, data.rank)
        if data.shape is not None and indices.shape is not None and updates.shape is not None:
            if len(updates.shape) != len(indices.shape) + len(data.shape) - 1:
                raise OpError(
                    f"updates of rank {len(updates.shape)} do not fit data of rank {len(data.shape)} "
                    f"and indices of rank {len(indices.shape)}"
                )
            if where is not None:
                self.check(data.shape, indices.shape, updates.shape, where)
        if data.shape is not None and where is not None:
            check_range(indices, data.shape[where])
        return (Spec(dtype, data.shape),)

    def check(self, data: Sequence[Int], indices: Sequence[Int], updates: Sequence[Int], axis: int) -> None:
        """Raise OpError, now or at run time, unless the updates have the shape that data and indices require."""
        for i, (a, b) in enumerate(zip(updates, (*data[:axis], *indices, *data[axis + 1 :]))):
            same(a, b, f"updates have extent {{0}} on axis {i}, where it should be {{1}}")

    def where(
        self, xp: Adapter, out: Array, indices: Array, updates: Array, *rest: Array
    ) -> tuple[Array, Array, Array]:
        axis = normalize_axis(integers(rest[0])[0], out.ndim)
        self.check(out.shape, indices.shape, updates.shape, axis)
        return out, (slice(None),) * axis + (_inside(xp, indices, out.shape[axis]),), updates

    def lines(self, k: KernelRecorder, out: Any, indices: Any, updates: Any, *rest: Any) -> tuple[Any, Any, Any, int]:
        axis = normalize_axis(integers(rest[0])[0], out.ndim)
        self.check(out.shape, indices.shape, updates.shape, axis)
        indices = _merge_axes(k, indices, 0, indices.ndim)
        updates = _merge_axes(k, updates, axis, axis + updates.ndim - out.ndim + 1)
        return out, indices.reshape((*(1,) * axis, -1, *(1,) * (out.ndim - axis - 1))), updates, axis


class _ScatterND(_Scatter):
    """``data [D1 .. Dk, S..], indices [I.., k], updates [I.., S..] -> data`` with ``out[indices[I]] = updates[I]``.

    Each tuple of k indices selects a slice of the data. The update of a single element may have any rank.
    """

    half_precision = "promoted"

    def infer_specs(self, data: Spec, indices: Spec, updates: Spec) -> tuple[Spec, ...]:
        dtype = merge_types((data, updates))
        check_integers(indices, "indices", ranks=None)
        for spec, what in ((data, "data"), (indices, "indices")):
            if spec.rank == 0:
                raise OpError(f"{what} must not be a scalar")
        if data.shape is None or indices.shape is None or isinstance(indices.shape[-1], Sym):
            return (Spec(dtype, data.shape),)
        count = indices.shape[-1]
        if count > len(data.shape):
            raise OpError(f"tuples of {count} indices do not fit rank {len(data.shape)}")
        if indices.constant is not None:
            for i in range(count):
                check_range(Spec(indices.type, None, indices.constant[..., i]), data.shape[i])
        if updates.shape is not None:
            self.check(data.shape, indices.shape, updates.shape)
        return (Spec(dtype, data.shape),)

    def check(self, data: Sequence[Int], indices: Sequence[Int], updates: Sequence[Int]) -> None:
        """Raise OpError, now or at run time, unless there is an update for every tuple."""
        required_shape = (*indices[:-1], *data[indices[-1] :])
        if not required_shape and all(isinstance(d, Sym) or d == 1 for d in updates):
            for d in updates:
                same(d, 1, "there are {0} updates for one element")
            return
        if len(updates) != len(required_shape):
            raise OpError(f"updates of rank {len(updates)} are given, where {len(required_shape)} is needed")
        for i, (a, b) in enumerate(zip(updates, required_shape)):
            same(a, b, f"updates have extent {{0}} on axis {i}, where it should be {{1}}")

    def where(
        self, xp: Adapter, out: Array, indices: Array, updates: Array, *rest: Array
    ) -> tuple[Array, Array, Array]:
        self.check(out.shape, indices.shape, updates.shape)
        count, flat_index = indices.shape[-1], xp.zeros(indices.shape[:-1], np.int64)
        for i, extent in enumerate(out.shape[:count]):
            flat_index = flat_index * extent + _inside(xp, indices[..., i], extent)
        parts = out.shape[count:]
        return (
            out.reshape((prod(out.shape[:count]), *parts)),
            (flat_index,),
            updates.reshape((*flat_index.shape, *parts)),
        )

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        return super().cuda(k, inputs, outputs, workspace) if inputs[1].shape[-1] <= MAX_TUPLE else NotImplemented

    def lines(self, k: KernelRecorder, out: Any, indices: Any, updates: Any, *rest: Any) -> tuple[Any, Any, Any, int]:
        self.check(out.shape, indices.shape, updates.shape)
        count = indices.shape[-1]
        extents, tuples = out.shape[:count], prod(indices.shape[:-1])
        indices = _merge_axes(k, indices, 0, indices.ndim - 1)
        if count == 1:
            flat_index = indices
        else:  # tuples out of range get an index out of range
            flat_index = k.scratch((tuples, 1), np.dtype(np.int64))
            steps = strides_of(indices)
            padded = np.array([*extents, *(1,) * (MAX_TUPLE - count)], np.int64)
            k.kernel(
                "scatter.cu",
                f"number_tuples<{k.c_type(indices.dtype)}>",
                blocks(tuples, THREADS),
                (THREADS,),
                (indices, flat_index, padded, np.int64(tuples), np.int64(count), *map(np.int64, steps)),
            )
        updates = _merge_axes(k, updates, 0, updates.ndim)
        return out.reshape((prod(extents), -1)), flat_index, updates.reshape((tuples, -1)), 0


@op("ScatterNDUpdate", "opset4", "movement/scatter-nd-update-3")
class ScatterNDUpdate(_ScatterND):
    __doc__ = _ScatterND.__doc__

    exact = True


@op("ScatterNDUpdate", "opset15", "movement/scatter-nd-update-15")
class ScatterNDUpdate15(_ScatterND):
    """ScatterNDUpdate-3 with a reduction of an element and its updates.

    For booleans sum, sub and prod are OR, XOR and AND (in OpenVINO's CPU plugin, sub is OR).

    >>> scatter_nd_update([1, 2, 3], [[0], [0]], [10, 20], reduction="sum")
    [31, 2, 3]
    """

    reduction: Literal["none", "sum", "sub", "prod", "min", "max"] = "none"

    @property
    def rule(self) -> str:
        return self.reduction
