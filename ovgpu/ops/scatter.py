"""Scattering: ScatterElementsUpdate."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops._elementwise import merge_types
from ovgpu.ops._op import Op, op
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
        return (Spec(kind, data.shape),)

    def where(self, xp: Any, data: Any, indices: Any, axis: Any) -> tuple[Any, ...]:
        """The index arrays of the elements to update. OpError if one lies outside."""
        number = int(np.asarray(axis).reshape(-1)[0]) % data.ndim
        length = data.shape[number]
        if bool(((indices < -length) | (indices >= length)).any()):
            raise OpError(f"an index is out of range for an axis of {length}")
        grid = list(xp.indices(indices.shape, dtype=np.int64))
        grid[number] = xp.where(indices < 0, indices + length, indices).astype(np.int64)
        return tuple(grid)


@op("ScatterElementsUpdate", "opset3")
class ScatterElementsUpdate(_Scatter):
    """``data, indices, updates, axis -> data`` with ``out[.., indices[i], ..] = updates[i]`` along the axis."""

    exact = True

    def evaluate(self, xp: Any, data: Any, indices: Any, updates: Any, axis: Any) -> tuple[Any, ...]:
        out = data.copy()
        out[self.where(xp, data, indices, axis)] = updates
        return (out,)


@op("ScatterElementsUpdate", "opset12")
class ScatterElementsUpdate12(_Scatter):
    """ScatterElementsUpdate-12: updates of one element are reduced, with the element if ``use_init_val``."""

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
