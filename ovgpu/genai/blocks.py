"""Class Blocks: the blocks of KV caches that texts have, within a limit and within memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ovgpu.batching.pages import PageAllocator, PoolFullError, with_room
from ovgpu.errors import Error
from ovgpu.genai.places import Sequences
from ovgpu.genai.runs import Slot
from ovgpu.ops.fused.kv_cache import PAGE_TOKENS

log = logging.getLogger(__name__)


class OutOfBlocksError(Error, MemoryError):
    """Error for a text that needs more blocks than memory suffices for."""

    def __init__(self, blocks: int) -> None:
        super().__init__(
            f"out of memory: KV caches have {blocks} blocks of {PAGE_TOKENS} tokens, and the text needs more"
        )


class Blocks:
    """Blocks of 16 tokens that texts have, a ledger which the pools of KV caches follow in each step.

    There are at most ``most``, None for no limit. If memory runs out, the blocks that there are become the limit, and
    `is_short` is true. ``pool`` are the sequences of a form of the decoder, which have the memory; None for none.
    """

    def __init__(self, most: int | None) -> None:
        self.most, self.is_short = most, False
        self.pool: Sequences | None = None
        self._reserved = 0  # blocks for which there is memory
        self._ledger = PageAllocator(1 + (most or 0))

    @property
    def used(self) -> int:
        """The number of blocks that texts have."""
        return self._ledger.capacity - 1 - self._ledger.free

    def take(self, slots: Iterable[Slot], count: int) -> bool:
        """Give each slot the blocks for more tokens. Return False if there are too few."""
        for slot in slots:
            while True:
                try:
                    slot.held = with_room(slot.held, count, self._ledger)[0]
                    break
                except PoolFullError as error:
                    if self.most is not None:
                        return False
                    self._ledger.extend(2 * self._ledger.capacity + error.missing)
        return True

    def share(self, pages: Iterable[int]) -> None:
        """Count one more holder of each block."""
        self._ledger.share(pages)

    def release(self, pages: Iterable[int]) -> None:
        """Count one holder of each block less. Blocks without holders are free."""
        self._ledger.release(pages)

    def release_all(self) -> None:
        """Free the blocks of all texts, also after an operation that was interrupted."""
        self._ledger.recount([])

    def have_memory(self) -> bool:
        """Return whether there is memory for the blocks of all texts. If not, it is the limit from now on."""
        used = self.used
        if self.most is not None and used > self.most:
            return False
        if self.pool is None or used <= self._reserved:
            return True
        self._reserved = self.pool.reserve(used, self.most)
        if used <= self._reserved:
            return True
        log.warning("memory is short: KV caches have %d blocks of %d tokens, and no more", self._reserved, PAGE_TOKENS)
        self.most, self.is_short = self._reserved, True
        return False
