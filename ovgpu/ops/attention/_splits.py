"""Division of the keys of an attention among blocks (flash-decoding, Dao et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import KernelRecorder

WARPS = 4  # warps per block
BLOCKS_PER_SM = 2  # blocks per multiprocessor that splitting the keys aims at
MAX_SPLITS = 128  # as in attention.cuh
MAX_CLUSTER = 16  # the most blocks of a cluster, as in attention_cluster.cuh


@dataclass(frozen=True)
class Splits:
    """Division of the keys for a block of rows among ``count`` thread blocks. Unless these are one block or a cluster,
    ``scratch`` has memory for their sums, and counters of finished blocks."""

    count: int = 1
    is_cluster: bool = False
    scratch: tuple[Array | None, Array | None] = (None, None)

    @staticmethod
    def of(
        k: KernelRecorder,
        blocks: int,
        max_splits: int,
        part: tuple[int, int],
        counters: int = 1,
        per_sm: int = BLOCKS_PER_SM,
        dtype: Any = np.float32,
    ) -> Splits:
        """Divide the keys of each of ``blocks`` blocks of rows into at most ``max_splits`` parts, aiming at ``per_sm``
        thread blocks per multiprocessor. ``part`` is the shape of the sums of a thread block. Each block of rows has
        ``counters`` counters."""
        count = max(1, min(per_sm * k.multiprocessors // blocks, max_splits, MAX_SPLITS))
        if count == 1:
            return Splits()
        arrived = k.scratch((blocks, counters), np.dtype(np.uint32))
        arrived.data.memset_async(0, arrived.nbytes, k.stream)
        return Splits(count, False, (k.scratch((blocks, count, *part), np.dtype(dtype)), arrived))

    @staticmethod
    def of_cluster(k: KernelRecorder, blocks: int, max_splits: int, per_sm: int = BLOCKS_PER_SM) -> Splits | None:
        """Divide the keys of each block of rows among the blocks of a cluster. Return None if clusters do not fit, or
        would use less than a third of the multiprocessors where at least twice as many splits are possible."""
        count = min(per_sm * k.multiprocessors // blocks, max_splits, k.max_cluster, MAX_CLUSTER)
        if count < 2:
            return None
        count = 1 << count.bit_length() - 1
        return Splits(count, True) if count > max_splits // 2 or 3 * blocks * count >= k.multiprocessors else None

    def grid(self, blocks: int) -> tuple[int, int]:
        return (self.count, blocks) if self.is_cluster else (blocks, self.count)

    def shared(self, rows: int, width: int) -> int:
        """Return the bytes of shared memory for merging sums in a cluster: of ``rows`` rows, ``width`` elements
        wide."""
        return cluster_bytes(rows, width) if self.is_cluster else 0

    @property
    def cluster(self) -> int:
        return self.count if self.is_cluster else 1


def cluster_bytes(rows: int, width: int) -> int:
    """Return the bytes of shared memory for merging the sums of ``rows`` rows, ``width`` elements wide, in a cluster;
    as in attention_cluster.cuh."""
    return 16 + 4 * max(rows, MAX_CLUSTER) * (width + 4)
