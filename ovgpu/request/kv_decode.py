"""Decode steps: inferences that append a few tokens to KV caches in place, see `ovgpu.passes.split_decode`.

A decode step computes masks on the host, writes them and two lengths to memory that the device reads, and runs a
program in which nothing else has changed since the last step. All other inferences run the model's own program, such as
the first one and those that exceed the capacity of the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from ovgpu.backends.cpu import CpuBackend
from ovgpu.compile.decode_programs import MAX_APPENDED_TOKENS, DecodePrograms, Shapes
from ovgpu.compile.interval_analysis import Intervals, Unknown
from ovgpu.lowering.program_for import program_for
from ovgpu.ops.base.op import Array
from ovgpu.passes.split_decode import Cache, Feed
from ovgpu.request.pinned import HostDevicePair, StagingBuffer
from ovgpu.request.replays import Replay
from ovgpu.runtime.backend import Backend, FreshMemory
from ovgpu.runtime.binding import Constants
from ovgpu.runtime.cancellation import Cancellation
from ovgpu.runtime.executor import Executor
from ovgpu.runtime.state import Variables
from ovgpu.types import Type


class DecodeSteps:
    """Decode steps of one request, bound (and captured) once per capacity of the caches."""

    def __init__(
        self,
        programs: DecodePrograms,
        backend: Backend,
        variables: Variables,
        constants: Constants,
        cancellation: Cancellation,
    ) -> None:
        self.programs, self._backend = programs, backend
        self._variables = variables
        self.executor = Executor(programs.device, backend, constants, cancellation)
        self._feeds = [_FeedMemory(backend, feed) for feed in programs.parts.feeds]
        self._host_parts: dict[Any, HostPart] = {}
        self._host_constants: Constants = {}
        self._cached_replay: tuple[list[Array], Replay] | None = None
        self._last: tuple[Shapes, list[Array], int] | None = None  # see `_inspect_caches`
        self._cache_arguments: tuple[list[Array], list[HostDevicePair]] | None = None  # whole caches, arguments

    @cached_property
    def _lengths(self) -> HostDevicePair:
        return StagingBuffer(self._backend, False).pair((2,), Type.i64)

    def prepare(self, hosts: Sequence[Array]) -> list[HostDevicePair] | None:
        """Prepare a decode step, after which the caches have `tokens` tokens. Return None if the inference is not one.

        ``hosts`` are the model's inputs; only inputs in ``programs.used`` have to be uploaded. The returned pairs are
        the arguments that the executor takes after these inputs: feeds, lengths and caches.
        """
        for x in hosts:
            if not isinstance(x, np.ndarray) or x.dtype == object:
                return None
        whole_caches = self._reserve_tokens([x.shape for x in hosts])
        if whole_caches is None:
            return None
        parts = self.programs.parts
        past_tokens, keys = self._lengths.host.tolist()
        inputs = [
            *hosts,
            *[placeholder(whole_caches[i].shape, past_tokens, parts.caches[i]) for i in parts.shape_caches],
        ]
        part, capacity = self._host_part(inputs), whole_caches[0].shape[parts.caches[0].axis]
        count = len(parts.feeds)
        uniform = part.uniform(inputs)
        if uniform is not None:
            if not all([value for _, value in uniform[count:]]) or any(
                [f.grows and x[0][-1] != keys for f, x in zip(parts.feeds, uniform)]
            ):
                return None
            feed_pairs = [feed.fill(shape, value, capacity) for feed, (shape, value) in zip(self._feeds, uniform)]
        else:
            results = part.executor.run(inputs, {}, FreshMemory(HOST_BACKEND))
            if not all(map(bool, results[count:])) or any(
                f.grows and x.shape[-1] != keys for f, x in zip(parts.feeds, results)
            ):
                return None  # a mask for another number of keys: the model's own program broadcasts it or raises
            feed_pairs = [feed.copy(value, capacity) for feed, value in zip(self._feeds, results)]
        if self._cache_arguments is None or self._cache_arguments[0] is not whole_caches:
            self._cache_arguments = (
                whole_caches,
                [self._lengths, *(HostDevicePair(whole, whole) for whole in whole_caches)],
            )
        return [*feed_pairs, *self._cache_arguments[1]]

    def _host_part(self, inputs: Sequence[Array]) -> HostPart:
        """Return the host part for inputs of these ranks and types."""
        key = tuple([(x.ndim, x.dtype) for x in inputs])
        part = self._host_parts.get(key)
        if part is None:
            program = program_for(self.programs.parts.host, inputs, self.programs.hosts)
            part = self._host_parts[key] = HostPart(Executor(program, HOST_BACKEND, self._host_constants))
        return part

    def _reserve_tokens(self, shapes: Shapes) -> list[Array] | None:
        """Return the caches with their spare capacity, and set `_lengths`; None if the new tokens do not fit."""
        append_shapes, first = self.programs.shapes(shapes), self.programs.parts.caches[0].axis
        new_tokens, past_tokens = append_shapes[0][first], int(self._lengths.host[1])
        if self._last is None or self._last[0] != append_shapes or self._variables.now.tokens != past_tokens:
            past_tokens = self._cached_tokens()
            self._last = (
                self._inspect_caches(append_shapes, past_tokens, new_tokens)
                if past_tokens and 0 < new_tokens <= MAX_APPENDED_TOKENS
                else None
            )
        if self._last is None or past_tokens + new_tokens > self._last[2]:
            self._last = None
            return None
        self._lengths.host[:] = past_tokens, past_tokens + new_tokens
        return self._last[1]

    def _cached_tokens(self) -> int:
        """Return the number of tokens in the first cache."""
        cache = self.programs.parts.caches[0]
        now = self._variables.value(cache.name).array
        return 0 if now is None else now.shape[cache.axis]

    def _inspect_caches(
        self, append_shapes: Shapes, past_tokens: int, new_tokens: int
    ) -> tuple[Shapes, list[Array], int] | None:
        """Return (append_shapes, caches with their spare capacity, maximum number of tokens).

        Return None if the caches differ in tokens or capacity, or if a variable does not admit ``new_tokens`` more.
        """
        whole_caches, extents, bounds = list[Array](), set[int](), list[int]()
        for cache, shape in zip(self.programs.parts.caches, append_shapes):
            axis, variable = cache.axis, self._variables.all[cache.name]
            now, buffer = self._variables.value(cache.name)
            whole = variable.with_spare_capacity(now, buffer)
            if (
                now is None
                or whole is None
                or shape[axis] != new_tokens
                or now.shape != (*shape[:axis], past_tokens, *shape[axis + 1 :])
                or not variable.admits((*shape[:axis], past_tokens + new_tokens, *shape[axis + 1 :]))
            ):
                return None
            whole_caches.append(whole)
            extents.add(whole.shape[axis])
            bounds.append(variable.max_extent(axis))
        return (append_shapes, whole_caches, min(*extents, *bounds)) if len(extents) == 1 else None

    def replay(self, pairs: Sequence[HostDevicePair]) -> Replay | None:
        """Return the replay of the last step if the step prepared by `prepare` uses the same arrays, else None."""
        if self._cached_replay is None:
            return None
        arrays, replay = self._cached_replay
        for index, array in zip(self.programs.used, arrays):
            if pairs[index].device is not array:
                return None
        return replay if replay.matches() else None

    def store(self, pairs: Sequence[HostDevicePair], replay: Replay | None) -> None:
        """Cache the replay of the step that has just run, if it can be replayed."""
        program = self.executor.program
        self._cached_replay = None
        if replay is not None and not program.states and not program.assigns:
            self._cached_replay = [pairs[index].device for index in self.programs.used], replay

    @property
    def tokens(self) -> int:
        """The number of tokens in the caches after the step prepared by `prepare`."""
        return int(self._lengths.host[1])


class HostPart:
    """Host part of decode steps: a result is one number if intervals prove it uniform, else computed in full."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._intervals: Intervals | None = None
        with suppress(Unknown):
            self._intervals = Intervals(executor.program)

    def uniform(self, inputs: Sequence[Array]) -> list[tuple[tuple[int, ...], Any]] | None:
        """Return each result's shape and the number that fills it, or None unless all results are proven uniform."""
        if self._intervals is None:
            return None
        self.executor.set_inputs(inputs, {})
        symbol_values, _ = self.executor.program.segments[0].shape_function(self.executor.arrays)
        return self._intervals.uniform(symbol_values, inputs)


class _FeedMemory:
    """Staging buffer of one feed. If the feed's last axis grows, the buffer has a column for each token of the caches'
    capacity, and the device reads only the columns of existing keys."""

    def __init__(self, backend: Backend, feed: Feed) -> None:
        self._staging, self._grows, self._type = StagingBuffer(backend, True), feed.grows, feed.port.spec.type
        # the array filled last, its value, and the end of the filled columns
        self._filled: tuple[HostDevicePair, Any, int] | None = None

    def copy(self, value: Array, capacity: int) -> HostDevicePair:
        """Return the feed with these elements."""
        pair, self._filled = self._pair(value.shape, capacity), None
        np.copyto(pair.host[..., : value.shape[-1]] if self._grows else pair.host, value)
        return pair

    def fill(self, shape: tuple[int, ...], value: Any, capacity: int) -> HostDevicePair:
        """Return the feed filled with one value; only columns that do not have it yet are written."""
        pair, columns = self._pair(shape, capacity), shape[-1] if self._grows else 0
        filled, begin = self._filled, 0
        if filled is not None and filled[0] is pair and filled[1] == value:
            begin = filled[2]
            if begin >= columns:
                return pair
        self._filled = None  # stays None if the fill is interrupted
        (pair.host[..., begin:columns] if self._grows else pair.host).fill(value)
        self._filled = pair, value, columns
        return pair

    def _pair(self, shape: tuple[int, ...], capacity: int) -> HostDevicePair:
        return self._staging.pair((*shape[:-1], capacity) if self._grows else shape, self._type)


HOST_BACKEND = CpuBackend()


def placeholder(whole: tuple[int, ...], tokens: int, cache: Cache) -> Array:
    """Return an array with type and shape of a cache of ``tokens`` tokens. Its elements are never read."""
    dtype = cache.type.storage
    shape = (*whole[: cache.axis], tokens, *whole[cache.axis + 1 :])
    return np.ndarray(shape, dtype, bytes(dtype.itemsize), 0, (0,) * len(shape))
