"""Uploads of large inputs, which begin while the host still copies the rest of the array to pinned memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgpu.backends.cuda.transfer import PinnedCopy
from ovgpu.ops.base.op import Array
from ovgpu.request import host_copies
from ovgpu.request.pinned import HostDevicePair

LARGE_BYTES = 8 << 20
"""Smallest input that is uploaded in chunks, before the graph of its inference; others are uploaded by the graph."""
CHUNK = 4 << 20  # bytes: a card takes some 0.1 ms for it, and the host as long to start a chunk's copy


class LargeUpload:
    """Upload of one input from pinned memory, chunk by chunk, on the stream of its request."""

    __slots__ = ("_copies", "pair")

    def __init__(self, pair: HostDevicePair, stream: Any) -> None:
        self.pair = pair
        host, device = (array.reshape(-1) for array in pair)
        step = CHUNK // host.itemsize
        self._copies = [
            (
                slice(begin, begin + step),
                PinnedCopy(host[begin : begin + step], device[begin : begin + step], True, stream),
            )
            for begin in range(0, host.size, step)
        ]

    def upload(self) -> None:
        """Enqueue the upload of what the pinned memory holds."""
        for _, copy in self._copies:
            copy()

    def send(self, source: Array) -> None:
        """Copy an array of the input's shape to the pinned memory, and enqueue its upload."""
        host = self.pair.host
        if source.dtype != host.dtype or not source.flags.c_contiguous or np.may_share_memory(host, source):
            host_copies.copy(host, source)
            self.upload()
            return
        flat, target = source.reshape(-1), host.reshape(-1)
        for part, copy in self._copies:
            host_copies.copy(target[part], flat[part])
            copy()


def is_large(array: Array) -> bool:
    """Return whether an input is uploaded by a `LargeUpload`."""
    return bool(array.nbytes >= LARGE_BYTES)
