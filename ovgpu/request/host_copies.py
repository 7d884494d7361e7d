"""Copies of large arrays on the host by several threads: one does not fill the memory's bandwidth."""

from __future__ import annotations

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.tasks import Worker, cores, shares, side_by_side

PARALLEL_BYTES = 2 << 20
"""Smallest copy that is shared: starting threads takes some 50 us, in which one thread copies half a megabyte."""
THREADS = min(cores(), 4)


def copy(target: Array, source: Array) -> None:
    """Copy an array into another one of the same shape. Elements are converted to its dtype."""
    alone = target.nbytes < PARALLEL_BYTES or THREADS == 1 or target.dtype == object
    if alone or np.may_share_memory(target, source):  # which only a single call of NumPy copies right
        np.copyto(target, source, casting="unsafe")
        return
    axis = max(range(target.ndim), key=lambda i: min(target.shape[i], THREADS))  # the first that is long enough
    work = []
    for part in shares(target.shape[axis], THREADS):
        index = (*(slice(None),) * axis, part)
        worker = Worker()
        worker(_copy_part, target[index], source[index])
        work.append(worker)
    side_by_side(work)


def _copy_part(target: Array, source: Array) -> None:
    np.copyto(target, source, casting="unsafe")
