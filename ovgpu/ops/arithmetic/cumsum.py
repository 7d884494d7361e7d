"""CumSum: cumulative sums along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base import launch
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import check_integers, constant_axis, integers, one_axis
from ovgpu.ops.base.strided import strides_of
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec
from ovgpu.types import Type


@op("CumSum", "opset3", "arithmetic/cumsum-3")
class CumSum(Op):
    """``x [...], axis [] -> [...]``: the cumulative sums along the axis.

    With ``exclusive``, a sum leaves out the element at its own position. With ``reverse``, sums begin at the end.
    Integers wrap around.

    >>> cum_sum([1, 2, 3], 0, exclusive=True, reverse=True)
    [5, 3, 0]
    """

    exclusive: bool = False
    reverse: bool = False

    host_inputs = (1,)
    supports_symbolic = True
    strided_outputs = True
    host_in_decode = True

    def infer_specs(self, x: Spec, axis: Spec) -> tuple[Spec, ...]:
        if x.type in (Type.boolean, Type.string):
            raise OpError(f"element type {x.type.get_type_name()} is not numeric")
        check_integers(axis, "the axis", ranks=(0, 1))
        if x.rank is not None:
            constant_axis(axis, max(x.rank, 1))  # as in OpenVINO, a scalar has an axis of one element
        return (Spec(x.type, x.shape),)

    def evaluate(self, xp: Adapter, x: Array, axis: Array) -> tuple[Array, ...]:
        if x.ndim == 0:
            return (self.evaluate(xp, x.reshape(1), axis)[0].reshape(()),)
        scan_axis = one_axis(integers(axis), x.ndim)
        x = xp.flip(x, scan_axis) if self.reverse else x
        if self.exclusive:
            total = xp.zeros_like(x)
            first, rest = _ends(scan_axis)
            total[rest] = xp.cumsum(x[first], axis=scan_axis, dtype=x.dtype)
        else:
            total = xp.cumsum(x, axis=scan_axis, dtype=x.dtype)
        return (xp.flip(total, scan_axis) if self.reverse else total,)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out = inputs[0], outputs[0]
        if x.ndim == 0 or out.dtype.kind not in "iuf" or (out.dtype.kind == "f" and out.dtype.itemsize < 4):
            return NotImplemented
        scan_axis = one_axis(integers(inputs[1]), x.ndim)
        if self.reverse:
            x, out = np.flip(x, scan_axis), np.flip(out, scan_axis)
        if self.exclusive:
            first, rest = _ends(scan_axis)
            k(out[(slice(None),) * scan_axis + (slice(1),)].fill, 0)
            x, out = x[first], out[rest]
        k(np.add.accumulate, x, scan_axis, out.dtype, out)
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out = inputs[0], outputs[0]
        if x.ndim == 0:
            x, out = x.reshape(1), out.reshape(1)
        axis = one_axis(integers(inputs[1]), x.ndim)
        axes = list(zip(x.shape, strides_of(x), strides_of(out)))
        n, step, out_step = axes.pop(axis)
        outer = launch.merged(launch.by_stride(axes))
        if not launch.is_plain(x) or not launch.fit(outer, [(n, step, out_step)]):
            return NotImplemented
        if not x.size:
            return None
        source, target = x.data, out.data
        if self.reverse:
            source, target = source + (n - 1) * step * x.itemsize, target + (n - 1) * out_step * x.itemsize
            step, out_step = -step, -out_step
        rows = launch.size(outer)
        along_rows = abs(step) == 1 or outer[-1][1] != 1
        if along_rows:
            block = max(launch.row_block(k.multiprocessors, rows, n), (32, 8))
        else:  # few columns need several threads each to occupy the device; these read the column twice
            few = rows < k.multiprocessors * launch.THREADS
            block = launch.column_block(k.multiprocessors, rows, n // 8 if few else 1)
        k.kernel(
            "cumsum.cu",
            f"cumsum_{'rows' if along_rows else 'columns'}<{k.c_type(x.dtype)}>",
            (launch.ceildiv(rows, block[along_rows]),),
            block,
            (
                source,
                target,
                launch.packed(outer),
                np.uint32(rows),
                np.uint32(n),
                np.int64(step),
                np.int64(out_step),
                np.bool_(self.exclusive),
            ),
            0 if along_rows else 8 * block[0] * block[1],
        )
        return None


def _ends(axis: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return indices of all elements except the last, and of all except the first, along an axis."""
    lead = (slice(None),) * axis
    return (*lead, slice(-1)), (*lead, slice(1, None))
