"""Scattering: ScatterElementsUpdate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops._elementwise import merge_types
from ovgpu.ops._op import Op, op
from ovgpu.ops._shapes import integers
from ovgpu.ops._strided import THREADS, Axes, bits, blocks, strides_of
from ovgpu.ops.indexing import check_range, readable, signed
from ovgpu.ops.reduction import is_float
from ovgpu.symbolic import Spec, same


class _Scatter(Op):
    host_inputs = (3,)

    def infer(self, data: Spec, indices: Spec, updates: Spec, axis: Spec) -> tuple[Spec, ...]:
        kind = merge_types((data, updates))
        for spec, name in ((indices, "indices"), (axis, "the axis")):
            if not (spec.type.is_integral_number() or spec.type.is_dynamic()):
                raise OpError(f"{name} must be integers, not {spec.type.get_type_name()}")
        for spec, name in ((indices, "indices"), (updates, "updates")):
            if data.rank is not None and spec.rank is not None and spec.rank != data.rank:
                raise OpError(f"{name} have rank {spec.rank}, data has {data.rank}")
        if indices.shape is not None and updates.shape is not None:
            for a, b in zip(indices.shape, updates.shape):
                same(a, b, "indices and updates differ: {0} and {1}")
        if axis.rank not in (None, 0) and axis.shape != (1,):
            raise OpError("the axis must be one number")
        if axis.constant is not None and data.rank is not None:
            found = int(axis.constant.reshape(-1)[0])
            if not -data.rank <= found < data.rank:
                raise OpError(f"axis {found} is out of range for rank {data.rank}")
            if data.shape is not None:
                check_range(indices, data.shape[found])
        return (Spec(kind, data.shape),)

    def inplace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> tuple[int, ...]:
        return (0,)

    def record(self, k: Any, inputs: Sequence[Any], out: Any, reduction: str = "none", keeps: bool = True,
               neutral: Any = 0) -> Any:
        """The launches; elements that are updated start from ``neutral`` unless ``keeps``.

        Updates at indices out of range, which `evaluate` refuses, are passed over: a kernel cannot raise.
        """
        data, indices, updates, axis = inputs
        kind = out.dtype
        if data.data.ptr != out.data.ptr:
            k.copy(data, out)
        elif out.data.ptr in (indices.data.ptr, updates.data.ptr):  # the output took over the memory of all of them
            return NotImplemented
        if not indices.size:
            return None
        indices = readable(k, indices)
        if indices is NotImplemented:
            return NotImplemented
        where = integers(axis)[0] % data.ndim
        count = k.scratch(data.shape, np.dtype(np.int32)) if reduction == "mean" else out
        operands = [strides_of(x) for x in (out, indices, updates, count)]
        length, updated = data.shape[where], indices.shape[where]
        reach = max(abs(s[where]) for s in operands) * max(length, updated)
        axes = Axes.collapse(np.delete(indices.shape, where).tolist(),
                             *((*s[:where], *s[where + 1 :]) for s in operands), reach=reach)
        if not axes.rank:
            return NotImplemented
        # Threads read side by side if lines do; a few lines that lie densely are better read by warps.
        lanes = 32 if operands[1][where] == 1 and updated >= 32 else 1
        name = k.c_type(kind) if reduction != "none" else bits(kind.itemsize)
        first = np.zeros((), f"u{kind.itemsize}")[()] if reduction == "none" else kind.type(neutral)
        k.kernel("scatter.cu", f"scatter_elements<{name}, {k.c_type(indices.dtype)}, {reduction.upper()}, "
                 f"{axes.index}, {axes.rank}, {lanes}>", blocks(axes.size * lanes, THREADS), (THREADS,),
                 (out, indices, updates, count if reduction == "mean" else None, axes.packed(),
                  np.array(axes.numbers(length, *(s[where] for s in operands))), *axes.numbers(axes.size, updated),
                  first, np.bool_(keeps)))
        return None

    def where(self, xp: Any, data: Any, indices: Any, axis: Any) -> tuple[Any, ...]:
        """The index arrays of the elements to update. OpError if one lies outside."""
        number = int(np.asarray(axis).reshape(-1)[0]) % data.ndim
        length, indices = data.shape[number], signed(xp, indices)
        if bool(((indices < -length) | (indices >= length)).any()):
            raise OpError(f"an index is out of range for extent {length}")
        grid = list(xp.indices(indices.shape, dtype=np.int64))
        grid[number] = xp.where(indices < 0, indices + length, indices)
        return tuple(grid)


@op("ScatterElementsUpdate", "opset3")
class ScatterElementsUpdate(_Scatter):
    """``data, indices, updates, axis -> data`` with ``out[.., indices[i], ..] = updates[i]`` along the axis.

    Of updates of one element the last one stays. An index below 0 counts from the end; one that is out of range is
    an error, except on a CUDA device, where indices that are computed there are not looked at before they are used:
    those out of range update nothing. (OpenVINO's CPU plugin raises past the end, and is undefined before the start.)
    """

    exact = True

    def evaluate(self, xp: Any, data: Any, indices: Any, updates: Any, axis: Any) -> tuple[Any, ...]:
        out = data.copy()
        out[self.where(xp, data, indices, axis)] = updates
        return (out,)

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        return self.record(k, inputs, outputs[0])


@op("ScatterElementsUpdate", "opset12")
class ScatterElementsUpdate12(_Scatter):
    """ScatterElementsUpdate-3, in which updates of one element are reduced, with the element if ``use_init_val``."""

    reduction: Literal["none", "sum", "prod", "min", "max", "mean"] = "none"
    use_init_val: bool = True

    def evaluate(self, xp: Any, data: Any, indices: Any, updates: Any, axis: Any) -> tuple[Any, ...]:
        out, where = data.copy(), self.where(xp, data, indices, axis)
        if self.reduction == "none":
            out[where] = updates
            return (out,)
        if not self.use_init_val:
            out[where] = self._neutral(out.dtype)
        combine = {"sum": xp.add, "mean": xp.add, "prod": xp.multiply, "min": xp.minimum, "max": xp.maximum}
        if out.dtype == bool:
            combine |= {"sum": xp.logical_or, "prod": xp.logical_and}
        combine[self.reduction].at(out, where, updates)
        if self.reduction == "mean":
            out = self._mean(xp, out, where)
        return (out,)

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        kind = outputs[0].dtype
        if self.reduction == "none":
            return self.record(k, inputs, outputs[0])
        if not is_float(kind) and kind.kind not in ("iu" if self.reduction == "mean" else "iub"):
            return NotImplemented  # sums of short floats are rounded once, at the end
        return self.record(k, inputs, outputs[0], self.reduction, self.use_init_val, self._neutral(kind))

    def _neutral(self, dtype: np.dtype[Any]) -> Any:
        if self.reduction in ("sum", "mean"):
            return 0
        if self.reduction == "prod":
            return 1
        if dtype.kind == "b":
            return self.reduction == "min"
        limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        return limits.max if self.reduction == "min" else limits.min

    def _mean(self, xp: Any, total: Any, where: tuple[Any, ...]) -> Any:
        count = xp.zeros(total.shape, np.int64)
        xp.add.at(count, where, 1)
        count = xp.where(count > 0, count + int(self.use_init_val), 1)
        if total.dtype.kind == "f":
            return (total / count).astype(total.dtype)
        return (xp.sign(total) * (xp.abs(total) // count)).astype(total.dtype)  # truncates, as Divide does
