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
MAX_CLUSTER = 16  # blocks of a cluster, as in attention_cluster.cuh


@dataclass(frozen=True)
class Splits:
    """Parts of the keys of a block of rows: ``count`` blocks, a cluster or not, with scratch for the parts' sums and
    counters of finished blocks unless there is one part or a cluster."""

    count: int = 1
    is_cluster: bool = False
    scratch: tuple[Array | None, Array | None] = (None, None)

    @staticmethod
    def of(
        k: KernelRecorder,
        blocks: int,
        most: int,
        part: tuple[int, int],
        counters: int = 1,
        per_sm: int = BLOCKS_PER_SM,
        dtype: Any = np.float32,
    ) -> Splits:
        """Return splits, at most ``most``, that aim at ``per_sm`` blocks per multiprocessor. ``part`` is the shape of a
        block's sums, ``counters`` the number of counters of a block."""
        count = max(1, min(per_sm * k.multiprocessors // blocks, most, MAX_SPLITS))
        if count == 1:
            return Splits()
        arrived = k.scratch((blocks, counters), np.dtype(np.uint32))
        arrived.data.memset_async(0, arrived.nbytes, k.stream)
        return Splits(count, False, (k.scratch((blocks, count, *part), np.dtype(dtype)), arrived))

    @staticmethod
    def of_cluster(k: KernelRecorder, blocks: int, most: int, per_sm: int = BLOCKS_PER_SM) -> Splits | None:
        """Return a cluster of blocks per block of rows, or None if that leaves more than two thirds of the device idle
        where more splits would not."""
        count = min(per_sm * k.multiprocessors // blocks, most, k.max_cluster, MAX_CLUSTER)
        if count < 2:
            return None
        count = 1 << count.bit_length() - 1
        return Splits(count, True) if count > most // 2 or 3 * blocks * count >= k.multiprocessors else None

    def grid(self, blocks: int) -> tuple[int, int]:
        return (self.count, blocks) if self.is_cluster else (blocks, self.count)

    def shared(self, rows: int, width: int) -> int:
        """Return the bytes of shared memory to merge rows in a cluster."""
        return cluster_bytes(rows, width) if self.is_cluster else 0

    @property
    def cluster(self) -> int:
        return self.count if self.is_cluster else 1


def cluster_bytes(rows: int, width: int) -> int:
    """Return the bytes of shared memory to merge rows in a cluster, as in attention_cluster.cuh."""
    return 16 + 4 * max(rows, MAX_CLUSTER) * (width + 4)
