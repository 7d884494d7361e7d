"""Inferences of a decoder that append a few rows to its caches in place: see `ovgpu.passes.split_decode`.

Such an inference computes masks on the host, writes them and two numbers where the device reads them, and runs a
program in which nothing else has changed since the last one. All others, the first one and those that find no room
among them, run the model's own program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from ovgpu.backends.cpu import CpuBackend
from ovgpu.lowering.build import build
from ovgpu.lowering.program import Program
from ovgpu.lowering.program_for import program_for
from ovgpu.ops.base.op import Array
from ovgpu.passes import combine
from ovgpu.passes.rotary_append import append_rotated
from ovgpu.passes.split_decode import Cache, DecodeSplit, Feed, split_decode
from ovgpu.request.pinned import HostDevicePair, StagingBuffer
from ovgpu.request.replays import Replay
from ovgpu.runtime.backend import Backend, Fresh
from ovgpu.runtime.binding import Constants
from ovgpu.runtime.cancellation import Cancellation
from ovgpu.runtime.executor import Executor
from ovgpu.runtime.intervals import Intervals, Unknown
from ovgpu.runtime.state import Variables
from ovgpu.symbolic import HELPERS, ExpressionCodegen, Int, Table
from ovgpu.types import Type

MAX_APPENDED_ROWS = 16  # rows that an inference may append: the host computes the masks of many more rows too slowly

Shapes = Sequence[tuple[int, ...]]


class DecodePrograms:
    """The programs of the two parts of a model, shared by its requests. ``read`` are the numbers of the inputs that the
    device reads, ``seen`` of those and the ones whose shapes matter to what it runs."""

    def __init__(self, parts: DecodeSplit, backend: Backend) -> None:
        self.parts = parts
        table = Table()
        specs = parts.specs(table)
        append_rotated(parts.device)
        combine(parts.device, fuse=backend.fuses, epilogues=not backend.remote)
        self.device = build(parts.device, specs, table, uploads=backend.remote, downloads=backend.remote)
        first = len(specs) - len(parts.caches)
        self.device.caches = {number: cache.name for number, cache in enumerate(parts.caches, first)}
        self.hosts: dict[tuple[Any, ...], Program] = {}
        roots = {v.root for step in self.device.steps for i in step.inputs if i >= 0 for v in [self.device.values[i]]}
        self.read = [number for number, value in enumerate(self.device.inputs) if value in roots]
        shape_functions = " ".join(segment.shape_function_source for segment in self.device.segments)
        self.seen = [number for number, value in enumerate(self.device.inputs)
                     if number in self.read or f"A[{value}]" in shape_functions]
        self.shapes = _shapes([cache.shape for cache in parts.caches])

    @staticmethod
    def of(model: Any, backend: Backend) -> DecodePrograms | None:
        """Those of a model; None if it does not split."""
        parts = split_decode(model)
        return None if parts is None else DecodePrograms(parts, backend)


def _shapes(wanted: Sequence[tuple[Int, ...]]) -> Callable[[Shapes], Shapes]:
    """A function from the shapes of a model's inputs to shapes that are made of them."""
    codegen = ExpressionCodegen(lambda atom: "S[{}][{}]".format(*atom.args))
    rows = ["".join(f"{codegen.expression(d)}, " for d in shape) for shape in wanted]
    body = "; ".join([*codegen.lines, f"return ({', '.join(f'({row})' for row in rows)},)"])
    names: dict[str, Any] = dict(HELPERS)
    exec(f"def shapes(S): {body}", names)
    return names["shapes"]  # type: ignore[no-any-return]


class DecodeSteps:
    """Decode steps of one request, bound once per capacity of the caches."""

    def __init__(self, programs: DecodePrograms, backend: Backend, variables: Variables, constants: Constants,
                 cancellation: Cancellation) -> None:
        self.programs, self._backend = programs, backend
        self._variables = variables
        self.executor = Executor(programs.device, backend, constants, cancellation)
        self._feeds = [_FeedMemory(backend, feed) for feed in programs.parts.feeds]
        self._host: dict[Any, _HostPart] = {}
        self._on_host: Constants = {}
        self._cached_replay: tuple[list[Array], Replay] | None = None
        self._last: tuple[Shapes, list[Array], int] | None = None  # what `_rows_left` said last, and for how many rows
        self._cache_arguments: tuple[list[Array], list[HostDevicePair]] | None = None  # caches, and arguments for them

    @cached_property
    def _lengths(self) -> HostDevicePair:
        return StagingBuffer(self._backend, False).pair((2,), Type.i64)

    def take(self, hosts: Sequence[Array]) -> list[HostDevicePair] | None:
        """Return the executor's arguments after the model's inputs, or None if the inference is no decode step.

        After the inference the caches have `rows` rows. Only inputs among ``programs.seen`` have to be uploaded.
        """
        for x in hosts:
            if not isinstance(x, np.ndarray) or x.dtype == object:
                return None
        wholes = self._rows_left([x.shape for x in hosts])
        if wholes is None:
            return None
        parts = self.programs.parts
        had, keys = self._lengths.host.tolist()
        inputs = [*hosts, *[_shaped(wholes[i].shape, had, parts.caches[i]) for i in parts.asks]]
        part, capacity = self._part(inputs), wholes[0].shape[parts.caches[0].axis]
        count = len(parts.feeds)
        uniform = part.uniform(inputs)
        if uniform is not None:
            if (not all([value for _, value in uniform[count:]])
                    or any([f.grows and x[0][-1] != keys for f, x in zip(parts.feeds, uniform)])):
                return None
            given = [feed.fill(shape, value, capacity) for feed, (shape, value) in zip(self._feeds, uniform)]
        else:
            found = part.executor.run(inputs, {}, Fresh(HOST))
            if not all(map(bool, found[count:])) or any(f.grows and x.shape[-1] != keys
                                                        for f, x in zip(parts.feeds, found)):
                return None  # a mask of other keys: the model's own program says what is wrong, or broadcasts it
            given = [feed.copy(value, capacity) for feed, value in zip(self._feeds, found)]
        if self._cache_arguments is None or self._cache_arguments[0] is not wholes:
            self._cache_arguments = wholes, [self._lengths, *(HostDevicePair(whole, whole) for whole in wholes)]
        return [*given, *self._cache_arguments[1]]

    def _part(self, inputs: Sequence[Array]) -> _HostPart:
        """The host's part for inputs of these ranks and types."""
        key = tuple([(x.ndim, x.dtype) for x in inputs])
        found = self._host.get(key)
        if found is None:
            program = program_for(self.programs.parts.host, inputs, self.programs.hosts)
            found = self._host[key] = _HostPart(Executor(program, HOST, self._on_host))
        return found

    def _rows_left(self, shapes: Shapes) -> list[Array] | None:
        """The caches whole, if all have as many rows, and room for as many more; these numbers as lengths."""
        wanted, first = self.programs.shapes(shapes), self.programs.parts.caches[0].axis
        rows, had = wanted[0][first], int(self._lengths.host[1])
        if self._last is None or self._last[0] != wanted or self._variables.now.rows != had:
            had = self._rows()
            self._last = self._look(wanted, had, rows) if had and 0 < rows <= MAX_APPENDED_ROWS else None
        if self._last is None or had + rows > self._last[2]:
            self._last = None
            return None
        self._lengths.host[:] = had, had + rows
        return self._last[1]

    def _rows(self) -> int:
        """Of the first cache."""
        cache = self.programs.parts.caches[0]
        now = self._variables.value(cache.name).array
        return 0 if now is None else now.shape[cache.axis]

    def _look(self, wanted: Shapes, had: int, rows: int) -> tuple[Shapes, list[Array], int] | None:
        """At all caches, whether they are alike and can take ``rows`` more: they whole, and how many rows they can
        have."""
        wholes, extents, bounds = list[Array](), set[int](), list[int]()
        for cache, shape in zip(self.programs.parts.caches, wanted):
            axis, variable = cache.axis, self._variables.all[cache.name]
            now, buffer = self._variables.value(cache.name)
            whole = variable.whole(now, buffer)
            if (now is None or whole is None or shape[axis] != rows
                    or now.shape != (*shape[:axis], had, *shape[axis + 1 :])
                    or not variable.admits((*shape[:axis], had + rows, *shape[axis + 1 :]))):
                return None
            wholes.append(whole)
            extents.add(whole.shape[axis])
            bounds.append(variable.most(axis))
        return (wanted, wholes, min(*extents, *bounds)) if len(extents) == 1 else None

    def replay(self, pairs: Sequence[HostDevicePair]) -> Replay | None:
        """The last step, if the one that `take` has told of is to be run with the same arrays."""
        if self._cached_replay is None:
            return None
        arrays, replay = self._cached_replay
        for number, array in zip(self.programs.seen, arrays):
            if pairs[number].device is not array:
                return None
        return replay if replay.matches() else None

    def keep(self, pairs: Sequence[HostDevicePair], replay: Replay | None) -> None:
        """Remembers the step just run, if it can be run again."""
        program = self.executor.program
        self._cached_replay = None
        if replay is not None and not program.states and not program.assigns:
            self._cached_replay = [pairs[number].device for number in self.programs.seen], replay

    @property
    def rows(self) -> int:
        """Rows that the caches have after the step that `take` has told of."""
        return int(self._lengths.host[1])


class _HostPart:
    """Host values for the device: one number for each result where intervals tell it, else computed in full."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._intervals: Intervals | None = None
        with suppress(Unknown):
            self._intervals = Intervals(executor.program)

    def uniform(self, inputs: Sequence[Array]) -> list[tuple[tuple[int, ...], Any]] | None:
        """The shape of each result and the number that all its elements are, None if one has several."""
        if self._intervals is None:
            return None
        self.executor.take(inputs, {})
        slots, _ = self.executor.program.segments[0].shape_function(self.executor.arrays)
        return self._intervals.uniform(slots, inputs)


class _FeedMemory:
    """Memory of one feed on either side. Where the last axis grows, it has room for as many columns as the caches have
    rows, and the device reads those that there are keys for."""

    def __init__(self, backend: Backend, feed: Feed) -> None:
        self._staging, self._grows, self._type = StagingBuffer(backend, True), feed.grows, feed.port.spec.type
        # an array, the number that fills it, and the column up to which it does
        self._filled: tuple[HostDevicePair, Any, int] | None = None

    def copy(self, value: Array, capacity: int) -> HostDevicePair:
        """The feed with these elements."""
        pair, self._filled = self._pair(value.shape, capacity), None
        np.copyto(pair.host[..., : value.shape[-1]] if self._grows else pair.host, value)
        return pair

    def fill(self, shape: tuple[int, ...], number: Any, capacity: int) -> HostDevicePair:
        """The feed full of one number; written where it is not already."""
        pair, columns = self._pair(shape, capacity), shape[-1] if self._grows else 0
        filled, begin = self._filled, 0
        if filled is not None and filled[0] is pair and filled[1] == number:
            begin = filled[2]
            if begin >= columns:
                return pair
        self._filled = None
        (pair.host[..., begin:columns] if self._grows else pair.host).fill(number)
        self._filled = pair, number, columns
        return pair

    def _pair(self, shape: tuple[int, ...], capacity: int) -> HostDevicePair:
        return self._staging.pair((*shape[:-1], capacity) if self._grows else shape, self._type)


HOST = CpuBackend()


def _shaped(whole: tuple[int, ...], rows: int, cache: Cache) -> Array:
    """An array of the shape of a cache with so many rows, of which nothing else is read."""
    dtype = cache.type.storage
    shape = (*whole[: cache.axis], rows, *whole[cache.axis + 1 :])
    return np.ndarray(shape, dtype, bytes(dtype.itemsize), 0, (0,) * len(shape))
