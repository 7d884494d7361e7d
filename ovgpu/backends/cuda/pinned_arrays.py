"""Arrays of the caller whose memory CUDA has pinned: a device reads them without a copy on the host.

Pinning takes milliseconds, so only memory that comes back is pinned, at its third use. It is released before the array
that owns it is freed, which a weak reference tells. NumPy does not move memory while there is one. A process that forks
releases all of it, because the system may give the parent other pages then. ``OVGPU_PIN_ARRAYS=0`` turns pinning off.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from ovgpu.backends.cuda import rt
from ovgpu.ops.base.op import Array

SWITCH = "OVGPU_PIN_ARRAYS"
USES = 3
MAX_BYTES = 1 << 30  # in all: pinned memory is lost to the rest of the machine
MAX_RANGES = 64
PORTABLE = 1  # cudaHostRegisterPortable: for all devices


class _Range:
    """Memory of one array that was used."""

    __slots__ = ("nbytes", "owner", "pinned", "uses")

    def __init__(self, owner: weakref.ref[Array], nbytes: int) -> None:
        self.owner, self.nbytes = owner, nbytes
        self.uses, self.pinned = 1, False


_ranges: OrderedDict[int, _Range] = OrderedDict()  # by address, least recently used first
_lock = threading.RLock()  # an array may be freed, and its range released, while this thread holds it


def use(array: Array) -> bool:
    """Count a use of a contiguous array. Return whether its memory is pinned, now or since an earlier use."""
    owner = _owner(array)
    if owner is None or os.environ.get(SWITCH) == "0":
        return False
    address, nbytes = array.ctypes.data, array.nbytes
    with _lock:
        known = _ranges.get(address)
        if known is None or known.owner() is not owner or known.nbytes != nbytes:
            _release(address)
            _ranges[address] = _Range(weakref.ref(owner, partial(_freed, address)), nbytes)
            if len(_ranges) > MAX_RANGES:
                _release(next(iter(_ranges)))
            return False
        _ranges.move_to_end(address)
        known.uses += 1
        if known.uses == USES and nbytes + sum(each.nbytes for each in _ranges.values() if each.pinned) <= MAX_BYTES:
            known.pinned = _pin(address, nbytes)
        return known.pinned


def _owner(array: Array) -> Array | None:
    """Return the array that owns the memory of a view; None if it is no array of NumPy."""
    base: Any = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    return base if base.flags.owndata else None


def _pin(address: int, nbytes: int) -> bool:
    runtime = rt.cupy().cuda.runtime
    try:
        runtime.hostRegister(address, nbytes, PORTABLE)
    except runtime.CUDARuntimeError:  # the system limits it, or other code has pinned the memory
        return False
    return True


def _freed(address: int, owner: weakref.ref[Array]) -> None:
    with _lock:
        known = _ranges.get(address)
        if known is not None and known.owner is owner:
            _release(address)


def _release(address: int) -> None:
    """Forget a range. Inferences that read it are over: their requests refer to the array."""
    known = _ranges.pop(address, None)
    if known is not None and known.pinned:
        with suppress(Exception):  # the device has failed, or the interpreter ends
            rt.cupy().cuda.runtime.hostUnregister(address)


def release_all() -> None:
    """Release the memory of all arrays, after the work that may read it."""
    with _lock:
        if any(each.pinned for each in _ranges.values()):
            cuda = rt.cupy().cuda
            for number in range(cuda.runtime.getDeviceCount()):
                with suppress(Exception), cuda.Device(number):
                    cuda.runtime.deviceSynchronize()
        for address in list(_ranges):
            _release(address)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=release_all)
