"""Class Pools: the memory of KV caches in pages (`ovgpu.batching.pages`), which requests share."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

from ovgpu.batching.pages import PageAllocator, PoolFullError, Tokens, pages_for
from ovgpu.batching.smaller_batches import power_of_two
from ovgpu.errors import Error
from ovgpu.ops.base.op import Array
from ovgpu.ops.convert import converted
from ovgpu.ops.fused.kv_cache import NULL_PAGE, host_pool
from ovgpu.runtime.backend import Backend
from ovgpu.types import Type

HOST_PAGES = 64  # the least pages of a pool on the host that may grow


class PooledCache(NamedTuple):
    """KV cache whose pool has pages of this shape. ``axis`` of the pool is that of the tokens of a page."""

    name: str
    page: tuple[int, ...]
    axis: int


class Holder(Protocol):
    """Request whose sequences hold pages of pools."""

    @property
    def held(self) -> Sequence[Tokens]:
        """The tokens of each sequence."""

    def forget(self) -> None:
        """Drop graphs and bindings, which have the arrays of the pools."""

    def free_closed(self) -> None:
        """Release the pages of sequences that have been closed."""


class Pools:
    """Pools of a device, one for each KV cache, and which of their pages are free.

    Requests for models with the same caches may share them, also their pages. ``lock`` is held while a request uses
    them. They have pages for ``max_tokens`` tokens at most; None stands for no limit.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.max_tokens: int | None = None
        self.allocator = PageAllocator()
        self.types: tuple[Type, ...] = ()
        self._caches: list[PooledCache] = []
        self._holders = WeakSet[Holder]()
        self._whole: list[Array] = []  # of at least as many pages as the allocator has
        self._arrays: list[Array] | None = None
        self._unsettled = False  # whether the allocator may count pages that no holder has

    def join(self, holder: Holder, caches: list[PooledCache], types: tuple[Type, ...]) -> None:
        """Add a request with these caches. Raise Error if those of others differ, except in their types."""
        with self.lock:
            if not self._caches:
                self._caches, self.types = caches, types
            elif self._caches != caches:
                raise Error("the KV caches differ from those of the requests that have the pools")
            self._holders.add(holder)

    @property
    def arrays(self) -> list[Array]:
        """The pools, in the order of the caches. They are other arrays after the pools have grown."""
        if self._arrays is None:
            count = self.allocator.capacity
            self._arrays = [pool if len(pool) == count else pool[:count] for pool in self._whole]
        return self._arrays

    def convert(self, backend: Backend, types: tuple[Type, ...]) -> None:
        """Convert the values of all pools to other types. It may be repeated after an interruption."""
        if types == self.types:
            return
        self._release_arrays()
        for i, element_type in enumerate(types[: len(self._whole)]):
            self._whole[i] = converted(backend.xp, self._whole[i], element_type)
            backend.synchronize()  # before another request, which has another stream, frees the former array
        self.types = types

    # ---- pages

    def settle(self) -> None:
        """Undo what an operation that failed, or was interrupted, has taken and released. `commit` ends the next."""
        if self._unsettled:
            self.allocator.recount(tokens for holder in self._holders for tokens in holder.held)
        self._unsettled = True

    def commit(self, freed: Sequence[Tokens]) -> None:
        """End an operation, whose holder has its new pages by now, and those in ``freed`` no longer."""
        for tokens in freed:
            self.allocator.release(tokens.pages)
        self._unsettled = False

    def reclaim(self, holder: Holder) -> None:
        """Free pages that only closed sequences of other requests have, or requests that are gone. Begins anew the
        operation of ``holder``."""
        for other in [other for other in self._holders if other is not holder]:
            other.free_closed()
        self._unsettled = True
        self.settle()

    def spread(self, backend: Backend) -> None:
        """Let half of the pages of pools without a limit stay free on the host.

        Most sequences then find consecutive pages. Pages to which nothing was written take little memory of the host.
        """
        if self.max_tokens is not None or backend.remote:
            return
        with suppress(MemoryError):
            while self.allocator.free < max(HOST_PAGES, self.allocator.capacity) // 2:
                self.grow(backend, HOST_PAGES // 2)

    def grow(self, backend: Backend, missing: int, careful: bool = False) -> None:
        """Double the pools, or add as many pages as are ``missing``. With a limit, add all pages at once, so that
        nothing is ever copied. If memory is short, add fewer.

        If it is ``careful``, and there is no limit, inferences get the other half of the free memory, and pools grow by
        a sixteenth at least. ``backend`` is active. Raises: PoolFullError for pages beyond the limit; MemoryError if
        there is no memory for those that are missing. The pools then stay as they are.
        """
        old, least = self.allocator.capacity, missing
        if self.max_tokens is None:
            added = max(power_of_two(old + missing), 2 * old) - old
            least = max(missing, old // 16) if careful else missing
        else:
            added, careful = 1 + pages_for(self.max_tokens) - old, False
        if added < missing:
            raise PoolFullError(missing)
        while added > least:
            try:
                self._extend(backend, old + added, careful)
                return
            except MemoryError:
                added = max(added // 2, least)
        self._extend(backend, old + added, careful)

    def _release_arrays(self) -> None:
        for holder in self._holders:
            holder.forget()
        self._arrays = None

    def _extend(self, backend: Backend, capacity: int, careful: bool) -> None:
        """Add pages, to one pool after the other, so that there is only one at a time whose old array exists as well.

        If it is ``careful``, there must be as much memory again. If it fails, some pools have more pages than the
        allocator, which the next attempt takes.
        """
        old = self.allocator.capacity
        sizes = [prod(cache.page) * kind.storage.itemsize for cache, kind in zip(self._caches, self.types)]
        lengths = [len(pool) for pool in self._whole] + [0] * (len(sizes) - len(self._whole))
        added = sum(size * max(capacity - length, 0) for size, length in zip(sizes, lengths))
        # NOTE: The memory of bindings counts as used, although they are dropped: the next inferences need it again.
        backend.require(added * (1 + careful) + max(size * length for size, length in zip(sizes, lengths)))
        self._release_arrays()
        for i, cache in enumerate(self._caches):
            if lengths[i] >= capacity:
                continue
            shape, dtype = (capacity, *cache.page), self.types[i].storage
            pool = backend.xp.empty(shape, dtype) if backend.remote else host_pool(shape, cache.axis, dtype)
            if i < len(self._whole):
                copy(backend, self._whole[i][:old], pool[:old])
            else:
                pool[NULL_PAGE] = 0
            backend.synchronize()  # requests have streams of their own
            self._whole[i : i + 1] = [pool]
        self._arrays = None
        self.allocator.extend(capacity)


class SharedPools:
    """Pools that batchers share: those of each device, by its number in the list of devices."""

    def __init__(self) -> None:
        self._pools: dict[int, Pools] = {}

    def of(self, number: int) -> Pools:
        """Return the pools of a device."""
        return self._pools.setdefault(number, Pools())


def copy(backend: Backend, source: Array, target: Any) -> None:
    """Copy an array to another one of the same shape and type."""
    for call in backend.copy(source, target):
        call()
