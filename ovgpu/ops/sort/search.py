"""Binary search in sorted sequences: Bucketize, SearchSorted."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.storage import decoded_dtype, is_plain
from ovgpu.ops.base.strided import THREADS, Axes, blocks, strides_of
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import same
from ovgpu.types import Type

RULES: dict[str, Callable[[Any, Any], Any]] = {
    "LESS": operator.lt,
    "AT_MOST": operator.le,
    "NOT_GREATER": lambda element, value: ~(element > value),
}
"""Tests of whether an element lies before a value; the last two differ only for NaN."""


class _Searching(Op):
    """Base: binary search for the number of elements of a sorted sequence, along the last axis, before each value."""

    output_type: Type = Type.i64

    def output_spec(self, bounds: Spec, values: Spec) -> tuple[Spec, ...]:
        """Return the spec of the output. Raises OpError for types without an order."""
        if self.output_type not in (Type.i32, Type.i64):
            raise OpError(f"output_type {self.output_type.get_type_name()} is neither i32 nor i64")
        for spec in (bounds, values):
            if spec.type in (Type.boolean, Type.string):
                raise OpError(f"element type {spec.type.get_type_name()} is not numeric")
        return (Spec(self.output_type, values.shape),)

    @property
    def rule(self) -> str:
        """The name in `RULES` of the comparison."""
        raise NotImplementedError

    def search(self, xp: Adapter, bounds: Array, values: Array) -> Array:
        """Return the number of elements of ``bounds`` before each value, i64."""
        extent = bounds.shape[-1]
        low, high = xp.zeros(values.shape, np.int64), xp.full(values.shape, extent, np.int64)
        for _ in range(extent.bit_length()):
            middle = (low + high) // 2
            index = xp.minimum(middle, extent - 1)
            element = bounds[index] if bounds.ndim == 1 else xp.take_along_axis(bounds, index, axis=-1)
            before = RULES[self.rule](element, values) & (low < high)
            low, high = xp.where(before, middle + 1, low), xp.where(before, high, middle)
        return low

    def record(self, k: KernelRecorder, bounds: Any, values: Any, out: Any) -> Any:
        """Record the launch of the search kernel."""
        if not is_plain(bounds.dtype) or not is_plain(values.dtype):
            return NotImplemented
        if not out.size:
            return None
        *lines, step = strides_of(bounds)
        axes = Axes.collapse(
            out.shape,
            strides_of(values),
            (*lines, 0) if lines else (0,) * out.ndim,
            strides_of(out),
            reach=bounds.shape[-1] * abs(step),
        )
        if not axes.rank:
            return NotImplemented
        compared = np.result_type(decoded_dtype(bounds.dtype), decoded_dtype(values.dtype))
        types = ", ".join(k.c_type(dtype) for dtype in (bounds.dtype, values.dtype, compared, out.dtype))
        k.kernel(
            "search.cu",
            f"search<{types}, {self.rule}, {axes.index}, {axes.rank}>",
            blocks(out.size, THREADS),
            (THREADS,),
            (bounds, values, out, axes.packed(), *axes.numbers(out.size, bounds.shape[-1], step)),
        )
        return None


@op("Bucketize", "opset3", "condition/bucketize-3")
class Bucketize(_Searching):
    """``data [..], buckets [n] -> [..]``: the index of each element's bucket; ascending bounds separate the buckets.

    A bucket includes its right bound (``with_right_bound``) or its left bound. Numbers of different types are compared
    in their common type; OpenVINO's CPU plugin converts integers to f32 first.

    >>> bucketize([1, 2, 3], [2], with_right_bound=True)
    [0, 0, 1]
    """

    with_right_bound: bool = True

    host_in_decode = True

    def infer_specs(self, x: Spec, buckets: Spec) -> tuple[Spec, ...]:
        if buckets.rank not in (None, 1):
            raise OpError(f"the buckets must have rank 1, not {buckets.rank}")
        return self.output_spec(buckets, x)

    @property
    def rule(self) -> str:
        return "LESS" if self.with_right_bound else "NOT_GREATER"

    def evaluate(self, xp: Adapter, x: Array, buckets: Array) -> tuple[Array, ...]:
        return (self.search(xp, buckets, x),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        return self.record(k, inputs[1], inputs[0], outputs[0])


@op("SearchSorted", "opset15", "sort/search-sorted-15")
class SearchSorted(_Searching):
    """``sorted [.., n], values [.., m] -> [.., m]``: the index at which to insert each value into its row to keep the
    row sorted. All values share a sorted sequence of rank 1.

    Of several possible indices it is the first, or the last with ``right_mode``, which the specification calls
    ``right``. For NaN it is the first.

    >>> search_sorted([1, 3, 3, 5], [3, 4], right_mode=True)
    [3, 3]
    """

    right_mode: bool = False
    right: bool = False

    def infer_specs(self, bounds: Spec, values: Spec) -> tuple[Spec, ...]:
        merge_types((bounds, values))
        if bounds.shape is not None and values.shape is not None:
            if not bounds.shape:
                raise OpError("the sorted sequence is a scalar")
            if len(bounds.shape) > 1:
                if len(bounds.shape) != len(values.shape):
                    raise OpError(
                        f"sorted sequences of rank {len(bounds.shape)} do not fit values of rank {len(values.shape)}"
                    )
                for i, (a, b) in enumerate(zip(bounds.shape[:-1], values.shape[:-1])):
                    same(a, b, f"extents {{0}} of the sorted sequences and {{1}} of the values differ on axis {i}")
        return self.output_spec(bounds, values)

    @property
    def rule(self) -> str:
        return "AT_MOST" if self.right_mode or self.right else "LESS"

    def evaluate(self, xp: Adapter, bounds: Array, values: Array) -> tuple[Array, ...]:
        return (self.search(xp, bounds, values),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        return self.record(k, inputs[0], inputs[1], outputs[0])
