"""Gather: slices of a tensor along one axis, chosen by index."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import check_integers, constant_axis, constants, integers, one_axis, unknowns
from ovgpu.ops.base.storage import is_plain, zero_of
from ovgpu.ops.base.strided import THREADS, Axes, bits, blocks, strides_of, vectorized
from ovgpu.ops.base.view import View
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.movement.indices import from_front, readable
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import bounds, same
from ovgpu.types import Type

MAX_LOOPED_BATCHES = 64  # batches up to which a gather on the CPU makes one call each


@op("Gather", "opset1", "movement/gather-1")
class Gather(Op):
    """``data, indices, axis -> data[:axis] + indices + data[axis + 1:]`` in shapes, data of any element type.

    An index below 0 counts from the end; one that is out of range gives zeros (empty strings). All bits of an index
    count, while OpenVINO's CPU plugin reads only the low 32. Before opset 8, the plugin also gives zeros for most
    indices below 0, but its constant folding counts them from the end.
    """

    exact = True
    supports_symbolic = True
    layout = "dense"
    strided_outputs = True
    host_inputs = (2,)
    half_precision = "promoted"
    host_in_decode = True
    partial_inputs = (0,)

    def infer_specs(self, x: Spec, indices: Spec, axis: Spec) -> tuple[Spec, ...]:
        check_integers(indices, "indices", ranks=None)
        check_integers(axis, "the axis", ranks=(0, 1))
        return (Spec(x.type, self.shape(x, indices, axis)),)

    def shape(self, x: Spec, indices: Spec, axis: Spec) -> Shape:
        """Return the output's shape as far as it is known."""
        if x.shape is None or indices.shape is None:
            return None
        where = constant_axis(axis, len(x.shape))
        batch = self.batch(len(indices.shape))
        if where is None:
            return unknowns(len(x.shape) + len(indices.shape) - batch - 1)
        if batch > where:
            raise OpError(f"{batch} batch dims reach past axis {where}")
        for i in range(batch):
            same(x.shape[i], indices.shape[i], f"batch dim {i} is {{0}} of the data and {{1}} of the indices")
        return (*x.shape[:where], *indices.shape[batch:], *x.shape[where + 1 :])

    def batch(self, rank: int) -> int:
        """Return the number of leading axes that data and indices share, for indices of rank ``rank``."""
        return 0

    def evaluate(self, xp: Adapter, x: Array, indices: Array, axis: Array) -> tuple[Array, ...]:
        where = one_axis(integers(axis), x.ndim)
        batch = self.batch(indices.ndim)
        extent = x.shape[where]
        shape = (*x.shape[:where], *indices.shape[batch:], *x.shape[where + 1 :])
        if extent == 0:
            return (xp.full(shape, zero_of(x), x.dtype),)
        index, outside = from_front(xp, indices, extent)
        if batch:
            lead, rest = index.shape[:batch], index.shape[batch:]
            flat = _with_data_axes(index.reshape(*lead, prod(rest)), batch, where, x.ndim)
            out = xp.take_along_axis(x, flat, axis=where).reshape(shape)
        else:
            out = xp.take(x, index, axis=where)
        if outside.any():
            out = xp.asarray(out)  # for one index and one axis NumPy returns a scalar
            out[xp.broadcast_to(_with_data_axes(outside, batch, where, x.ndim), shape)] = zero_of(x)
        return (out,)

    def view(
        self, inputs: Sequence[View | None], specs: Sequence[Spec | None], outputs: Sequence[Spec]
    ) -> Sequence[View | None] | None:
        x, indices, axis = inputs[0], specs[1], specs[2]
        if x is None or indices is None or indices.shape is None or self.batch(len(indices.shape)):
            return None
        index, where = constants(indices), None if axis is None else constant_axis(axis, len(x.shape))
        if index is None or where is None or len(index) != 1:
            return None
        extent = x.shape[where]
        if not -bounds(extent)[0] <= index[0] < bounds(extent)[0]:
            return None
        x = x.slice(where, index[0] if index[0] >= 0 else extent + index[0], 1)
        ones = (1,) * len(indices.shape)
        return [
            View(
                (*x.shape[:where], *ones, *x.shape[where + 1 :]),
                (*x.strides[:where], *ones, *x.strides[where + 1 :]),
                x.offset,
            )
        ]

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        assert inputs[1] is not None and inputs[1].shape is not None
        return ((Type.i64, inputs[1].shape),)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, indices, axis), out = inputs, outputs[0]
        if not is_plain(indices.dtype):
            return NotImplemented
        where = one_axis(integers(axis), x.ndim)
        batch, extent = self.batch(indices.ndim), x.shape[where]
        if batch == 0 and indices.size == 1 and extent:
            if indices.ndim != 1:
                out = out.reshape((*x.shape[:where], 1, *x.shape[where + 1 :]))
            k(_take_one, x, indices, where, out)
            return None
        lead = x.shape[:batch]
        if indices.dtype == np.uint64 or (where > batch > 0 and prod(lead) > MAX_LOOPED_BATCHES):
            return NotImplemented
        if extent == 0:
            k(np.copyto, out, np.zeros((), out.dtype))
        else:
            index = workspace[0].reshape(indices.shape)
            k(_take, x, indices, where, batch, index, out)
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, indices, axis), out = inputs, outputs[0]
        if not out.size:
            return None
        indices = readable(k, indices)
        if indices is NotImplemented:
            return NotImplemented
        where, steps = one_axis(integers(axis), x.ndim), strides_of(x)
        batch, index = self.batch(indices.ndim), strides_of(indices)
        axes = Axes.collapse(
            out.shape,
            (*steps[:where], *(0,) * (indices.ndim - batch), *steps[where + 1 :]),
            (*index[:batch], *(0,) * (where - batch), *index[batch:], *(0,) * (x.ndim - where - 1)),
            strides_of(out),
            reach=(x.shape[where] - 1) * abs(steps[where]),
        )
        row = steps[where]
        axes, width = vectorized(axes, out.dtype.itemsize, (x.data.ptr, None, out.data.ptr), row)
        if not axes.rank:
            return NotImplemented
        k.kernel(
            "gather.cu",
            f"gather<{bits(width)}, {k.c_type(indices.dtype)}, {axes.index}, {axes.rank}>",
            blocks(axes.size),
            (THREADS,),
            (
                x,
                indices,
                out,
                axes.packed(),
                *axes.numbers(axes.size, x.shape[where], row * out.dtype.itemsize // width),
            ),
            early=True,
        )
        return None


def _take_one(x: Any, indices: Any, where: int, out: Any) -> None:
    """Gather a single slice: reordering a cache of one beam then costs no more than the copy."""
    i, extent = indices.item(), x.shape[where]
    i += extent if i < 0 else 0
    if extent == 1 and i == 0:
        np.copyto(out, x)
    elif 0 <= i < extent:
        np.copyto(out, x[(*(slice(None),) * where, slice(i, i + 1))])
    else:
        out[...] = 0


def _take(x: Any, indices: Any, where: int, batch: int, index: Any, out: Any) -> None:
    """Gather along axis ``where``; ``index`` is scratch of the indices' shape."""
    extent = x.shape[where]
    np.copyto(index, indices)
    low, high = (index.min(), index.max()) if index.size else (0, 0)
    outside = None
    if low < -extent or high >= extent:  # rare: these elements become zeros
        outside = (index < -extent) | (index >= extent)
        index[outside] = 0
    if low < 0:
        np.add(index, extent, out=index, where=index < 0)
    lead = x.shape[:batch]
    if batch == 0:
        np.take(x, index, where, out, "clip")
    elif where == batch:  # one take of rows, which are numbered across all batches
        first = (np.arange(prod(lead)) * extent).reshape(*lead, *(1,) * (index.ndim - batch))
        np.add(index, first, index)
        np.take(x.reshape(-1, *x.shape[where + 1 :]), index, 0, out, "clip")
    else:
        for i in np.ndindex(lead):
            np.take(x[i], index[i], where - batch, out[i], "clip")
    if outside is not None:
        out[np.broadcast_to(_with_data_axes(outside, batch, where, x.ndim), out.shape)] = 0


def _with_data_axes(x: Any, batch: int, where: int, rank: int) -> Any:
    """Return an array of the indices' shape with new axes of 1 where a gather's output has the data's axes."""
    return x.reshape((*x.shape[:batch], *(1,) * (where - batch), *x.shape[batch:], *(1,) * (rank - where - 1)))


@op("Gather", "opset7", "movement/gather-7")
class Gather7(Gather):
    """Gather-1 with ``batch_dims`` leading axes that data and indices share; below 0, the indices' rank is added."""

    batch_dims: int = 0

    def batch(self, rank: int) -> int:
        """Return the number of leading axes that data and indices share, for indices of rank ``rank``."""
        batch = self.batch_dims + rank if self.batch_dims < 0 else self.batch_dims
        if not 0 <= batch <= rank:
            raise OpError(f"batch_dims {self.batch_dims} is out of range for indices of rank {rank}")
        return batch


@op("Gather", "opset8", "movement/gather-8")
class Gather8(Gather7):
    __doc__ = f"""{Gather7.__doc__}

    >>> gather([[1, 2], [3, 4]], [[0], [-1]], 1, batch_dims=1)
    [[1], [4]]
    """
