"""Indices of gather and scatter ops: their types, negative ones, and checks of their range."""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.shapes import at_most
from ovgpu.ops.base.storage import decode, is_plain
from ovgpu.ops.base.xp import NUMPY, Adapter
from ovgpu.ops.convert import Convert
from ovgpu.spec import Spec
from ovgpu.symbolic import Int
from ovgpu.types import Type

MAX_I64 = np.uint64(2**63 - 1)


def signed(xp: Adapter, indices: Array) -> Array:
    """Return indices of any integer type as i64. Larger u64 ones become the largest i64, which is never in range."""
    if indices.dtype == np.uint64:
        indices = xp.minimum(indices, MAX_I64)
    return decode(indices, xp).astype(np.int64)


def readable(k: KernelRecorder, indices: Any) -> Any:
    """Return indices in a type that kernels compute with; those of fewer than 8 bits are converted to i8.

    NotImplemented if `Convert` has no kernel for them.
    """
    if is_plain(indices.dtype):
        return indices
    converted = k.scratch(indices.shape, np.dtype(np.int8))
    result = Convert(destination_type=Type.i8).cuda(k, [indices], [converted], ())
    return NotImplemented if result is NotImplemented else converted


def from_front(xp: Adapter, indices: Array, extent: int) -> tuple[Array, Array]:
    """Return indices counted from the front of an axis, with 0 for those out of range, and a mask of these."""
    index = signed(xp, indices)
    index = xp.where(index < 0, index + extent, index)
    outside = (index < 0) | (index >= extent)
    return xp.where(outside, 0, index), outside


def check_range(indices: Spec, extent: Int) -> None:
    """Raise OpError, now or at run time, if a known index is out of range."""
    if indices.constant is None or not indices.constant.size:
        return
    values = signed(NUMPY, indices.constant)
    lowest, highest = int(values.min()), int(values.max())
    at_most(-lowest, extent, f"index {lowest} is out of range for extent {{1}}")
    at_most(highest + 1, extent, f"index {highest} is out of range for extent {{1}}")
