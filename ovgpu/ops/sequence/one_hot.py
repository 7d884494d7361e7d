"""OneHot: an axis of on and off values from indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import check_integers, integer, normalize_axis
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.strided import THREADS, Axes, bits, blocks, strides_of
from ovgpu.ops.base.xp import NUMPY, Adapter
from ovgpu.ops.movement.indices import readable, signed
from ovgpu.spec import Spec
from ovgpu.symbolic import Sym, maximum, unknown
from ovgpu.types import Type


@op("OneHot", "opset1", "sequence/one-hot-1")
class OneHot(Op):
    """``indices [...], depth, on, off -> [..., depth, ...]``: on where the index is the position along the new
    axis, else off.

    Indices outside ``[0, depth)`` give only off values, also if they exceed 32 bits (see Gather).
    """

    axis: int

    exact = True
    host_inputs = (1,)
    host_in_decode = True

    @property
    def normalizes(self) -> bool:
        """Return whether indices from ``-depth`` to -1 count from the end."""
        return False

    def infer_specs(self, indices: Spec, depth: Spec, on: Spec, off: Spec) -> tuple[Spec, ...]:
        check_integers(indices, "indices", ranks=None)
        check_integers(depth, "the depth", ranks=(0,))
        dtype = merge_types([on, off])
        for spec, what in ((on, "on_value"), (off, "off_value")):
            if spec.rank not in (None, 0):
                raise OpError(f"{what} is no scalar but has rank {spec.rank}")
        known = depth.ints()
        if known is not None and not isinstance(known[0], Sym) and known[0] < 0:
            raise OpError(f"depth {known[0]} is negative")
        if indices.shape is None:
            return (Spec(dtype, None),)
        axis = normalize_axis(self.axis, len(indices.shape) + 1)
        extent = unknown() if known is None else maximum(known[0], 0)
        return (Spec(dtype, (*indices.shape[:axis], extent, *indices.shape[axis:])),)

    def evaluate(self, xp: Adapter, indices: Array, depth: Array, on: Array, off: Array) -> tuple[Array, ...]:
        axis = normalize_axis(self.axis, indices.ndim + 1)
        expanded, classes = self.aligned(xp, signed(xp, indices), integer(depth, "the depth"), axis)
        hit = expanded == classes
        if self.normalizes:
            hit |= expanded == classes - classes.size
        return (xp.where(hit, on, off),)

    def aligned(self, xp: Adapter, indices: Array, depth: int, axis: int) -> tuple[Array, Array]:
        """Return the indices and the positions along the new axis, reshaped to broadcast to the output."""
        shape = indices.shape
        return (
            indices.reshape(*shape[:axis], 1, *shape[axis:]),
            xp.arange(depth).reshape(-1, *(1,) * (len(shape) - axis)),
        )

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        assert outputs[0].shape is not None
        return ((Type.boolean, outputs[0].shape),)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (indices, _, on, off), out = inputs, outputs[0]
        if not is_plain(indices.dtype):
            return NotImplemented
        axis = normalize_axis(self.axis, out.ndim)
        expanded, classes = self.aligned(NUMPY, indices, out.shape[axis], axis)
        hit = workspace[0].reshape(out.shape)
        k(np.copyto, out, off)
        k(np.equal, expanded, classes, hit)
        k(np.copyto, out, on, where=hit)
        if self.normalizes:
            k(np.equal, expanded, classes - classes.size, hit)
            k(np.copyto, out, on, where=hit)
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (indices, _, on, off), out = inputs, outputs[0]
        if not out.size:
            return None
        indices = readable(k, indices)
        if indices is NotImplemented:
            return NotImplemented
        axis, steps = normalize_axis(self.axis, out.ndim), strides_of(indices)
        axes = Axes.collapse(out.shape, (*steps[:axis], 0, *steps[axis:]), [int(i == axis) for i in range(out.ndim)])
        if not axes.rank:
            return NotImplemented
        k.kernel(
            "onehot.cu",
            f"onehot<{bits(out.dtype.itemsize)}, {k.c_type(indices.dtype)}, {axes.index}, {axes.rank}>",
            blocks(axes.size),
            (THREADS,),
            (
                indices,
                on,
                off,
                out,
                axes.packed(),
                *axes.numbers(axes.size, out.shape[axis]),
                np.bool_(self.normalizes),
            ),
        )
        return None


@op("OneHot", "opset16", "sequence/one-hot-16")
class OneHot16(OneHot):
    """OneHot-1, in which negative indices may count from the end.

    >>> one_hot([0, -1], 3, 1, 0, axis=-1, negative_indices_mode="normalize")
    [[1, 0, 0], [0, 0, 1]]
    """

    negative_indices_mode: Literal["ignore_negative", "normalize", "ignore-negative"] = "ignore_negative"

    @property
    def normalizes(self) -> bool:
        return self.negative_indices_mode == "normalize"
