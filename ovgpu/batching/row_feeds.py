"""Class RowFeeds: the tensors, such as masks, that the host computes for the device part of a batch of decoders.

The host part of the model (`ovgpu.passes.split_decode`) computes them for each sequence as if it were alone. Usually
each is one number, for all sequences the same. Then arrays for all rows are filled at once, as far as they change.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from ovgpu.batching.model import BatchedModel
from ovgpu.compile.decode_programs import DecodePrograms
from ovgpu.errors import OpError
from ovgpu.lowering.program_for import program_for
from ovgpu.model import Node, Output
from ovgpu.ops.base.op import Array
from ovgpu.passes.split_decode import DecodeSplit, Feed
from ovgpu.request.kv_decode import HOST_BACKEND, HostPart, placeholder
from ovgpu.request.pinned import HostDevicePair, StagingBuffer
from ovgpu.runtime.backend import Backend, FreshMemory
from ovgpu.runtime.executor import Executor
from ovgpu.symbolic import OPAQUE, atoms
from ovgpu.types import Type

MAX_CACHED_KINDS = 8192
UNKNOWN = object()
Extents = tuple[int, ...]
Value = tuple[Extents, Any]
"""The shape of a feed for one sequence, and its elements or the number that fills it."""
Kind = tuple[Value, ...]
"""Feeds of one sequence that one number fills each. The shapes do not have the axis that grows."""


class RowFeeds:
    """Feeds of batches. ``unstacked`` are the indices of the inputs that have no array of all rows."""

    def __init__(self, programs: DecodePrograms, batched: BatchedModel, unstacked: Sequence[int]) -> None:
        self._programs, self._batched, self._unstacked = programs, batched, unstacked
        self._numbers = [(i, _Number()) for i in sorted(_read_inputs(programs.parts))]
        self._host_parts: dict[Any, HostPart] = {}
        self._kinds: dict[Hashable, Kind | None] = {}  # see `_kinds_of`
        self._interned: dict[Kind, Kind] = {}
        self._stacked: Hashable = None  # the shapes for which the kinds are cached

    def fill(
        self,
        feeds: Sequence[FeedOfRows],
        rows: int,
        arrays: Sequence[Sequence[Any]],
        lengths: Sequence[int],
        new_tokens: int,
        capacity: int,
    ) -> list[HostDevicePair]:
        """Return the feeds of a batch of ``rows`` rows, in the memory of ``feeds``.

        ``arrays`` are the inputs of the first rows. Their sequences have ``lengths`` tokens before the inference, and
        ``new_tokens`` more afterwards. Feeds that grow have a column for each of ``capacity`` tokens.
        """
        kinds = self._kinds_of(arrays, lengths, new_tokens)
        first = kinds[0]
        if first is not None and kinds.count(first) == len(kinds):
            end = max(lengths) + new_tokens
            return [feed.fill(value, rows, end, capacity) for feed, value in zip(feeds, first)]
        pairs: list[HostDevicePair] = []
        for row, (given, length) in enumerate(zip(arrays, lengths)):
            values = self._compute(given, length, new_tokens)
            pairs = [feed.fill_row(row, value, rows, capacity) for feed, value in zip(feeds, values)]
        for feed, pair in zip(feeds, pairs):
            feed.fill_rest(pair, len(arrays))
        return pairs

    def _kinds_of(self, arrays: Sequence[Sequence[Any]], lengths: Sequence[int], new_tokens: int) -> list[Kind | None]:
        """Return, for each sequence, its feeds if each is one number, else None.

        They are cached, because sequences reach the same lengths, mostly with a mask of ones: if all elements of each
        input are equal, they follow from these numbers, the length, and shapes. Equal results are the same object.
        """
        stacked = tuple([x.shape for i, x in enumerate(arrays[0]) if i not in self._unstacked])
        if stacked != self._stacked or len(self._kinds) > MAX_CACHED_KINDS:
            self._stacked = stacked
            self._kinds.clear()
            self._interned.clear()
        numbers = [number.of([given[i] for given in arrays]) for i, number in self._numbers]
        shapes = [[given[i].shape for given in arrays] for i in self._unstacked]
        keys = list(zip(lengths, *numbers, *shapes))
        kinds: list[Any] = [self._kinds.get(key, UNKNOWN) for key in keys]
        while UNKNOWN in kinds:
            i = kinds.index(UNKNOWN)
            # The elements of inputs that differ are not part of the key.
            kind = None if None in keys[i] else self._kind(self._compute(arrays[i], lengths[i], new_tokens))
            self._kinds[keys[i]] = kind
            kinds = [kind if key == keys[i] else known for key, known in zip(keys, kinds)]
        return kinds

    def _kind(self, values: Sequence[Value]) -> Kind | None:
        """Return the feeds of a sequence if each is one number, else None."""
        if not all([np.ndim(value) == 0 for _, value in values]):
            return None
        feeds = self._programs.parts.feeds
        kind = tuple([(shape[:-1] if feed.grows else shape, value) for feed, (shape, value) in zip(feeds, values)])
        return self._interned.setdefault(kind, kind)

    def _compute(self, arrays: Sequence[Any], length: int, new_tokens: int) -> Sequence[Value]:
        """Run the host part for one sequence of ``length`` tokens."""
        parts = self._programs.parts
        inputs = list(arrays)
        for i in parts.shape_caches:
            cache = parts.caches[i]
            whole = (1, *cache.shape[1 : cache.axis], 0, *cache.shape[cache.axis + 1 :])
            inputs.append(placeholder(whole, length, cache))
        self._batched.check(
            [*(inputs[key].shape[axis] if isinstance(key, int) else length for key, axis in self._batched.dims)]
        )
        key = tuple([(x.ndim, x.dtype) for x in inputs])
        host = self._host_parts.get(key)
        if host is None:
            program = program_for(parts.host, inputs, self._programs.hosts)
            host = self._host_parts[key] = HostPart(Executor(program, HOST_BACKEND, {}))
        values = host.uniform(inputs)
        if values is None:
            values = [(x.shape, x) for x in host.executor.run(inputs, {}, FreshMemory(HOST_BACKEND))]
        for feed, (shape, _) in zip(parts.feeds, values):
            if feed.grows and shape[-1] != length + new_tokens:
                raise OpError(f"the mask has {shape[-1]} columns for {length + new_tokens} keys").at(
                    feed.port.node.op.name, feed.port.node.source_location
                )
        return values[: len(parts.feeds)]


class FeedOfRows:
    """Array of one feed for all rows of a batch, in memory that the device reads.

    If the feed grows, it has a column for each token of a sequence. The device reads those of tokens that the row's
    sequence has.
    """

    def __init__(self, backend: Backend, feed: Feed) -> None:
        self._backend, self._feed, self._staging = backend, feed, StagingBuffer(backend, True)
        # the array filled last by one number, the number, and the end of the filled columns
        self._filled: tuple[Array, Any, int] | None = None

    def fill(self, value: Value, rows: int, end: int, capacity: int) -> HostDevicePair:
        """Return the array with one number for all rows, whose sequences have up to ``end`` tokens. ``value`` has the
        shape without the axis that grows."""
        shape, number = value
        pair, begin = self._pair((rows, *shape[1:]), capacity), 0
        target, filled, grows = pair.host, self._filled, self._feed.grows
        if filled is not None and filled[0] is target and filled[1] == number:
            begin = filled[2]
            if begin >= end or not grows:
                return pair
        self._filled = None  # stays None if the fill is interrupted
        (target[..., begin:end] if grows else target).fill(number)
        self._filled = target, number, end
        return pair

    def fill_row(self, row: int, value: Value, rows: int, capacity: int) -> HostDevicePair:
        """Return the array after the value of one sequence was put in its row."""
        shape, elements = value
        columns = shape[-1]
        pair, self._filled = self._pair((rows, *(shape[1:-1] if self._feed.grows else shape[1:])), capacity), None
        target = pair.host[row]
        (target[..., :columns] if self._feed.grows else target)[...] = (
            elements if np.ndim(elements) == 0 else elements[0]
        )
        return pair

    def fill_rest(self, pair: HostDevicePair, count: int) -> None:
        """Fill the rows behind the first ``count`` ones, which no sequence has, so that they compute something finite:
        a mask hides nothing from them."""
        if not self._feed.grows:
            pair.host[count:] = pair.host[0]
        else:
            pair.host[count:, ..., :1] = self._feed.port.spec.type is Type.boolean

    def _pair(self, shape: Extents, capacity: int) -> HostDevicePair:
        pair = self._staging.pair((*shape, capacity) if self._feed.grows else shape, self._feed.port.spec.type)
        return pair if self._backend.remote else HostDevicePair(pair.host, pair.host)


class _Number:
    """The number that all elements of an array are. Bytes are compared with those of the last such array, which takes a
    tenth of the time of comparing elements."""

    def __init__(self) -> None:
        self._last: tuple[bytes, Any] = b"", None  # the number as often as elements were compared, and the number

    def of(self, arrays: Sequence[Array]) -> list[Any]:
        """Return the number of each array, None if its elements differ or there are none."""
        found = []
        for array in arrays:
            data, (known, number) = array.tobytes(), self._last
            found.append(number if data and known.startswith(data) else self._compared(array))
        return found

    def _compared(self, array: Array) -> Any:
        if array.size == 1:
            return array.item()
        if not array.size or not (array == array.flat[0]).all():
            return None
        number = array.flat[0].item()
        self._last = array.reshape(-1)[:1].tobytes() * (1 << array.size.bit_length()), number
        return number


def _read_inputs(parts: DecodeSplit) -> set[int]:
    """Return the indices of the inputs on whose elements feeds depend. Of the others, at most the shapes are read."""
    indices = {parameter: i for i, parameter in enumerate(parts.host.parameters)}
    found: set[int] = set()
    seen: set[Node] = set()
    stack = parts.host.results[: len(parts.feeds)]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in indices:
            found.add(indices[node])
        elif node.op.name != "ShapeOf" or not _has_shape_of_inputs(node.sources[0]):
            stack += [source.node for source in node.sources if source is not None]
    return found


def _has_shape_of_inputs(port: Output | None) -> bool:
    """Return whether a tensor's shape follows from the shapes of inputs alone."""
    shape = None if port is None else port.spec.shape
    return shape is not None and all(a.op not in OPAQUE or a.op == "dim" for d in shape for a in atoms(d))
