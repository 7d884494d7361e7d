"""Count of objects, files and memory that a process holds, to find leaks of dropped models and requests."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import NamedTuple

from ovgpu.backends.cuda import rt


class Held(NamedTuple):
    """Objects, open files, mapped bytes of weights, and bytes of device memory: in use, and held by CuPy's pool."""

    objects: int
    files: int
    mapped: int
    device: int
    pool: int


def held(device: str) -> Held:
    """Collect garbage, and count what the process holds."""
    gc.collect()
    gc.collect()  # the first collection frees object arrays, whose elements only the second one can see
    objects = len(gc.get_objects())
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    extents = [m[0].split("-") for m in maps if m[-1].endswith(".bin")]
    pool = None if device == "CPU" else rt.cupy().get_default_memory_pool()
    return Held(
        objects,
        len(os.listdir("/proc/self/fd")),
        sum(int(end, 16) - int(start, 16) for start, end in extents),
        pool.used_bytes() if pool else 0,
        pool.total_bytes() if pool else 0,
    )
