"""Ops with data-dependent output sizes: NonZero, Unique, Bincount."""

from __future__ import annotations

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Op, op
from ovgpu.ops.base.shapes import check_integers, constant_axis, integers, one_axis, unknowns
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, bounds, product, same, unknown
from ovgpu.types import Type


@op("NonZero", "opset3", "condition/nonzero-3")
class NonZero(Op):
    """``x [d1 .. dR] -> [R, N]``: a column of coordinates for each of the N non-zero elements, in row-major order.

    A scalar counts as a vector of one element, as in OpenVINO.

    >>> non_zero([[0, 5], [7, 0]])
    [[0, 1], [1, 0]]
    """

    output_type: Type = Type.i64

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        if self.output_type not in (Type.i32, Type.i64):
            raise OpError(f"output_type {self.output_type.get_type_name()} is neither i32 nor i64")
        if x.shape is None:
            return (Spec(self.output_type, None),)
        return (Spec(self.output_type, (max(len(x.shape), 1), unknown(0, bounds(product(x.shape))[1]))),)

    def evaluate(self, xp: Adapter, x: Array) -> tuple[Array, ...]:
        return (xp.stack(xp.nonzero(x.reshape(x.shape or 1))).astype(self.output_type.storage),)


@op("Unique", "opset10", "movement/unique-10")
class Unique(Op):
    """``x [..], axis (optional) -> values, indices [n], inverse [N], counts [n]`` of the n distinct values among N
    elements, or slices along the axis: the values, the index of each first occurrence in x, the index into the values
    for each element of x, and the number of occurrences.

    Values are in ascending order (slices are compared element by element), or in the order of x. NaN differs from all
    values, and comes last. Slices without elements are all equal.

    >>> unique([3, 1, 3])
    ([1, 3], [1, 0], [1, 0, 1], [1, 2])
    """

    sorted: bool = True
    index_element_type: Type = Type.i64
    count_element_type: Type = Type.i64

    host_inputs = (1,)
    takes_strings = True

    def infer_specs(self, x: Spec, axis: Spec | None = None) -> tuple[Spec, ...]:
        for what in ("index_element_type", "count_element_type"):
            if getattr(self, what) not in (Type.i32, Type.i64):
                raise OpError(f"{what} {getattr(self, what).get_type_name()} is neither i32 nor i64")
        if axis is not None:
            check_integers(axis, "the axis", ranks=(0, 1))
        where = None if axis is None or x.rank is None else constant_axis(axis, x.rank)
        shape, total = unknowns(x.rank if axis is not None else 1), unknown()
        count = unknown()
        if x.shape is not None and (axis is None or where is not None):
            total = product(x.shape) if where is None else x.shape[where]
            least, most = bounds(total)
            count = unknown(min(least, 1), most)
            shape = (count,) if where is None else (*x.shape[:where], count, *x.shape[where + 1 :])
        per_value: tuple[Int, ...] = (count,)
        return (
            Spec(x.type, shape),
            Spec(self.index_element_type, per_value),
            Spec(self.index_element_type, (total,)),
            Spec(self.count_element_type, per_value),
        )

    def evaluate(self, xp: Adapter, x: Array, axis: Array | None = None) -> tuple[Array, ...]:
        where = 0 if axis is None else one_axis(integers(axis), x.ndim)
        x = x.reshape(-1) if axis is None else x
        rows = xp.moveaxis(x, where, 0).reshape((x.shape[where], -1) if x.size else (x.shape[where], 0))
        count, width = rows.shape
        if width == 0:
            order = xp.arange(count)
        elif width == 1:
            order = xp.argsort(rows[:, 0], kind="stable")
        else:
            order = xp.lexsort(xp.ascontiguousarray(rows.T[::-1]))
        ordered = rows[order]
        begins = xp.ones(count, bool)
        begins[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        first, (start,) = order[begins], xp.nonzero(begins)
        inverse = xp.empty((count,), np.int64)
        inverse[order] = xp.cumsum(begins) - 1
        counts = xp.diff(start, append=xp.asarray([count]))
        if not self.sorted:
            order = xp.argsort(first)
            position = xp.empty(order.shape, np.int64)
            position[order] = xp.arange(order.size)
            first, counts, inverse = first[order], counts[order], position[inverse]
        return xp.take(x, first, axis=where), first, inverse, counts


@op("Bincount", "opset17", "condition/bincount-17")
class Bincount(Op):
    """``data [N], weights [N] (optional) -> [max(max(data) + 1, minlength)]``: how often each integer from 0 on occurs
    in the data, or the sum of the weights of its occurrences. A negative integer is an error."""

    minlength: int = 0

    def infer_specs(self, data: Spec, weights: Spec | None = None) -> tuple[Spec, ...]:
        if self.minlength < 0:
            raise OpError(f"minlength {self.minlength} is negative")
        check_integers(data, "the data")
        if weights is None:
            return (Spec(Type.i64, (unknown(self.minlength),)),)
        if weights.type not in (Type.dynamic, Type.f32, Type.f64, Type.i32, Type.i64):
            raise OpError(f"weights must be f32, f64, i32 or i64, not {weights.type.get_type_name()}")
        if weights.rank not in (None, 1):
            raise OpError(f"weights must have rank 1, not {weights.rank}")
        if data.shape is not None and weights.shape is not None:
            same(data.shape[0], weights.shape[0], "there are {0} numbers and {1} weights")
        return (Spec(weights.type, (unknown(self.minlength),)),)

    def evaluate(self, xp: Adapter, data: Array, weights: Array | None = None) -> tuple[Array, ...]:
        data = data.astype(np.int64)
        if data.size and data.min() < 0:
            raise OpError(f"number {int(data.min())} is negative")
        if weights is None or weights.dtype.kind == "f":
            totals = xp.bincount(data, weights, self.minlength)  # in f64
            return (totals.astype(np.int64 if weights is None else weights.dtype),)
        length = max(int(data.max()) + 1 if data.size else 0, self.minlength)
        order = xp.argsort(data)
        sums = xp.concatenate([xp.zeros(1, weights.dtype), xp.cumsum(weights[order], dtype=weights.dtype)])
        starts = xp.searchsorted(data[order], xp.arange(length + 1))
        return (xp.diff(sums[starts]),)
