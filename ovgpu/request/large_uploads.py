"""Uploads of large inputs: several threads copy chunks to pinned memory, and upload each while they copy the next."""

from __future__ import annotations

import numpy as np

from ovgpu.backends.cuda import pinned_arrays
from ovgpu.backends.cuda.transfer import PinnedCopy, set_device
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.tasks import Worker, side_by_side
from ovgpu.request import host_copies
from ovgpu.request.pinned import HostDevicePair
from ovgpu.runtime.backend import RemoteBackend

LARGE_BYTES = 8 << 20
"""Smallest input that is uploaded in chunks, before the graph of its inference; others are uploaded by the graph."""
CHUNK = 2 << 20  # bytes: a card takes some 50 us for it, and a thread of the host 200


class LargeUpload:
    """Upload of one input from pinned memory, chunk by chunk, on the stream of its request."""

    __slots__ = ("_copies", "_device", "_stream", "pair")

    def __init__(self, pair: HostDevicePair, backend: RemoteBackend) -> None:
        self.pair, self._device, self._stream = pair, backend.number, backend.stream
        host, device = (array.reshape(-1) for array in pair)
        step = CHUNK // host.itemsize
        parts = [slice(begin, begin + step) for begin in range(0, host.size, step)]
        self._copies = [(part, PinnedCopy(host[part], device[part], True, self._stream)) for part in parts]

    def upload(self) -> None:
        """Enqueue the upload of what the pinned memory holds."""
        for _, copy in self._copies:
            copy()

    def lend(self, source: Array) -> None:
        """Enqueue the upload of an array that stays as it is until the inference is over.

        It is read in place if it is often used, and CUDA has pinned its memory; else like `send`.
        """
        if source.dtype == self.pair.host.dtype and source.flags.c_contiguous and pinned_arrays.use(source):
            PinnedCopy(source, self.pair.device, True, self._stream)()
        else:
            self.send(source)

    def send(self, source: Array) -> None:
        """Copy an array of the input's shape to the pinned memory, and enqueue its upload."""
        host = self.pair.host
        if source.dtype != host.dtype or not source.flags.c_contiguous or np.may_share_memory(host, source):
            host_copies.copy(host, source)
            self.upload()
            return
        flat, target = source.reshape(-1), host.reshape(-1)
        threads = [Worker() for _ in range(min(host_copies.THREADS, len(self._copies)))]
        for thread in threads:
            thread(set_device, self._device)
        for index, (part, copy) in enumerate(self._copies):
            thread = threads[index % len(threads)]
            thread(np.copyto, target[part], flat[part])
            thread(copy)
        side_by_side(threads)


def is_large(array: Array) -> bool:
    """Return whether an input is uploaded by a `LargeUpload`."""
    return bool(array.nbytes >= LARGE_BYTES)
