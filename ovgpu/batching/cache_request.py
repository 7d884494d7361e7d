"""Class CacheRequest: a request for a batch of sequences with KV caches, each of a length of its own.

All slots of the caches have the same capacity. The device part of the model (`ovgpu.passes.split_decode`) appends new
tokens to all slots at the same place, behind the longest sequence, and attends to all tokens before them. The host part
computes the mask of each sequence as if it were alone, and `CacheRequest` hides the tokens that the sequence does not
have. Afterwards one kernel moves the new tokens to the end of their sequences, and clears them in slots without a step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

from ovgpu.batching.model import BatchedModel
from ovgpu.batching.request import BatchRequest, RowPairs
from ovgpu.batching.row_inputs import part
from ovgpu.cache_capacity import cache_capacity
from ovgpu.compile.compilation import Compilation
from ovgpu.errors import Error, OpError
from ovgpu.lowering.program_for import program_for
from ovgpu.model import Output
from ovgpu.ops.attention.attention import CachedAttention
from ovgpu.ops.base.op import Array
from ovgpu.ops.convert import converted
from ovgpu.ops.fused.copy_rows import MoveRows
from ovgpu.ops.shape.reshape import Unsqueeze
from ovgpu.passes._graph import users_of
from ovgpu.passes.split_decode import Cache
from ovgpu.request.device_io import backend_array, tensor_copy
from ovgpu.request.kv_decode import HOST_BACKEND, HostPart, placeholder
from ovgpu.request.pinned import HostDevicePair, StagingBuffer
from ovgpu.runtime.backend import FreshMemory
from ovgpu.runtime.executor import Executor
from ovgpu.runtime.state import Snapshot
from ovgpu.symbolic import Sym
from ovgpu.tensor import Tensor
from ovgpu.types import Type

MAX_CACHED_VALUES = 8192  # entries of the cache in `_host_values`
Extents = tuple[int, ...]


class CacheRequest(BatchRequest):
    """Request that runs a batch of sequences with KV caches. See `BatchRequest`."""

    def __init__(self, compilation: Compilation, batched: BatchedModel) -> None:
        super().__init__(compilation, batched)
        self._arrays: list[Array] = []
        self._lengths: list[int] = []  # tokens in the caches, for each slot
        self._new_tokens = 0  # tokens that the last inference appended to each slot
        self._inputs_of_rows: Mapping[int, Sequence[Any]] = {}
        self._lengths_pair = self._staged(StagingBuffer(self.session.backend, False), (2,), Type.i64)
        self._use(compilation)
        self._check_caches()

    def check_states(self) -> None:
        pass

    def _update(self) -> None:
        """Take the current compilation of the model. The caches keep their values, converted to its types."""
        self.session.update()
        if self.session.compilation is not self._compilation:
            self._use(self.session.compilation)
            xp = self.session.backend.xp
            self._arrays = [converted(xp, x, cache.type) for x, cache in zip(self._arrays, self._caches)]

    def _use(self, compilation: Compilation) -> None:
        """Take the programs of a compilation of the model."""
        programs = compilation.new_append_programs()
        if programs is None:
            raise Error(
                "other layers than attention read the KV caches: sequences of different lengths cannot share a batch"
            )
        self._compilation, self._programs = compilation, programs
        self._caches, self._axis = programs.parts.caches, programs.parts.caches[0].axis
        # Inputs that only the host part reads, such as masks, are not stacked: it runs for one sequence at a time.
        inputs = len(self.session.inputs)
        self.unstacked = frozenset(range(inputs)) - {*programs.read, self.batched.beams}
        self._host_parts: dict[Any, HostPart] = {}
        self._cached_values: dict[Any, Sequence[tuple[Extents, Any]]] = {}
        self._feeds = [StagingBuffer(self.session.backend, True) for _ in programs.parts.feeds]
        host = programs.parts.host
        users = users_of(host)
        self._read_by_host = [i for i, p in enumerate(host.parameters[:inputs]) if users.get(p.ports[0])]

    def _check_caches(self) -> None:
        """Raise Error if sequences of different lengths cannot share the caches."""
        parts, names = self._programs.parts, {cache.name for cache in self._caches}
        for name in self.session.variables.all:
            if name not in names:
                raise Error(f"variable '{name}' is no KV cache, but others are: such a model has no batch of sequences")
        for cache in self._caches:
            fixed = [d for axis, d in enumerate(cache.shape) if axis not in (0, cache.axis)]
            if self.batched.variables[cache.name] or any(isinstance(d, Sym) for d in fixed):
                raise Error(
                    f"variable '{cache.name}' has a batch axis other than the first one, or rows of unknown size"
                )
        if any(cache.axis != self._axis for cache in self._caches):
            raise Error("the KV caches grow along different axes")
        fed = {p.ports[0]: feed for p, feed in zip(parts.device.parameters[len(self.session.inputs) :], parts.feeds)}
        for feed in parts.feeds:
            shape = feed.port.spec.shape or ()
            if not shape or not isinstance(shape[0], Sym):
                raise OpError(
                    "the layer's result depends on the length of the KV caches, but is the same for all "
                    "sequences of a batch"
                ).at(feed.port.node.op.name, feed.port.node.source_location)
        for node in parts.device.ops:
            if isinstance(node.op, CachedAttention):
                mask = _fed(node.sources[3])
                if mask is None or mask not in fed or not fed[mask].grows:
                    raise OpError("attention has no mask that hides the rows of longer sequences in the batch").at(
                        node.op.name, node.source_location
                    )

    # ---- running

    def infer_rows(
        self, inputs: Mapping[int, Any], active: Mapping[int, Sequence[Any]], begun: Collection[int]
    ) -> list[Any]:
        session, self._inputs_of_rows = self.session, active
        with session.backend.active():
            for row in range(self.rows):
                if row not in begun:
                    self._clear(row)
        try:
            session.set_inputs(inputs, not session.backend.remote)
            session.wait_for_producers()
            session.state = session.run(self._append)
            results = session.results(True, self.batched.decode_strings)
        except BaseException:
            with suppress(Exception):
                self._move_tokens(())
            raise
        self._move_tokens(active)
        for row in active:
            self._lengths[row] += self._new_tokens
        return list(results.to_tuple())

    def _clear(self, row: int) -> None:
        """Remove the tokens of a slot. Zeros replace them, because a mask does not hide NaN or infinite elements."""
        if self._lengths[row]:
            for array in self._arrays:
                self._write(np.zeros((), array.dtype), array[row])
            self._lengths[row] = 0

    def _append(self) -> Snapshot:
        """Run the device part, which appends tokens to all slots of the caches behind the longest sequence."""
        self._update()
        session, programs = self.session, self._programs
        pairs = [
            self._stand_in(i) if i in self.unstacked else request_input.pair(request_input.read())
            for i, request_input in enumerate(session.inputs)
        ]
        shapes = programs.shapes([pair.host.shape for pair in pairs])
        self._new_tokens, past = shapes[0][self._axis], max(self._lengths)
        self._reserve(past + self._new_tokens)
        self._lengths_pair.host[:] = past, past + self._new_tokens
        pairs += [*self._fill_feeds(past), self._lengths_pair, *(HostDevicePair(x, x) for x in self._arrays)]
        key = session.binding_key([pairs[i] for i in programs.read])
        session.execute(session.executor(programs.device), pairs, {}, key)
        return session.state

    def _move_tokens(self, active: Collection[int]) -> None:
        """Move the tokens that were appended to active slots to the end of their sequences. In other slots they become
        zeros, because a mask does not hide NaN or infinite elements."""
        past = max(self._lengths)
        moves = tuple((row, self._lengths[row]) for row in active if self._lengths[row] < past)
        cleared = tuple(row for row in range(self.rows) if row not in active)
        capacity = self._arrays[0].shape[self._axis] if self._arrays else 0
        count = min(self._new_tokens, capacity - past)  # if the inference failed, there may be no capacity for them
        if count > 0 and (moves or cleared):
            op = MoveRows(axis=self._axis, source=past, count=count, moves=moves, cleared=cleared)
            with self.session.backend.active():
                for call in self.session.backend.bind(op, self._arrays, (), (), ()):
                    call()

    def _stand_in(self, input_index: int) -> HostDevicePair:
        """Return an array with the shape of an input for all rows. The device part does not read its elements."""
        array = next(iter(self._inputs_of_rows.values()))[input_index]
        axis = self.batched.inputs[input_index]
        shape = array.shape if axis is None else (*array.shape[:axis], self.rows, *array.shape[axis + 1 :])
        zeros = np.ndarray(shape, array.dtype, bytes(array.itemsize), 0, (0,) * len(shape))  # one element, strides of 0
        return HostDevicePair(zeros, zeros)

    def _fill_feeds(self, past: int) -> list[HostDevicePair]:
        """Return the tensors that the host computes for the device, with the values of each sequence in its row.

        ``past`` is the length of the longest sequence, where new tokens begin in all slots.
        """
        parts, capacity = self._programs.parts, self._arrays[0].shape[self._axis]
        pairs: list[HostDevicePair] = []
        for row, arrays in self._inputs_of_rows.items():
            values = self._host_values(arrays, self._lengths[row])
            for i, (feed, (shape, value)) in enumerate(zip(parts.feeds, values)):
                if len(pairs) <= i:
                    whole = (self.rows, *shape[1:-1], capacity if feed.grows else shape[-1])
                    pairs.append(self._staged(self._feeds[i], whole, feed.port.spec.type))
                target = pairs[i].host[row]
                if not feed.grows:
                    target[...] = value if np.ndim(value) == 0 else value[0]
                    continue
                length, new = self._lengths[row], slice(past, past + self._new_tokens)
                target[..., : new.stop] = False if target.dtype == bool else -np.inf
                if np.ndim(value) == 0:
                    target[..., :length] = target[..., new] = value
                else:
                    target[..., :length], target[..., new] = value[0, ..., :length], value[0, ..., length:]
        first = next(iter(self._inputs_of_rows))
        idle = [row for row in range(self.rows) if row not in self._inputs_of_rows]
        for pair in pairs:  # rows that are not active compute something finite as well
            pair.host[idle] = pair.host[first]
        return pairs

    def _staged(self, staging: StagingBuffer, shape: Extents, dtype: Type) -> HostDevicePair:
        """Return arrays on the host and on the device; the same array twice if the device is the host."""
        pair = staging.pair(shape, dtype)
        return pair if self.session.backend.remote else HostDevicePair(pair.host, pair.host)

    def _host_values(self, arrays: Sequence[Any], length: int) -> Sequence[tuple[Extents, Any]]:
        """Return (shape, elements or the number that fills it) of each feed for a sequence of ``length`` tokens.

        If all elements of each input are equal, such numbers are cached, because sequences reach the same lengths,
        mostly with a mask of ones.
        """
        read = [arrays[i] for i in self._read_by_host if arrays[i] is not None]
        if not all(x.size and (x == x.flat[0]).all() for x in read):
            return self._compute_values(arrays, length)
        key = (length, *(None if x is None else x.shape for x in arrays), *(x.flat[0] for x in read))
        values = self._cached_values.get(key)
        if values is None:
            values = self._compute_values(arrays, length)
            if all(np.ndim(value) == 0 for _, value in values):
                if len(self._cached_values) >= MAX_CACHED_VALUES:
                    self._cached_values.clear()
                self._cached_values[key] = values
        return values

    def _compute_values(self, arrays: Sequence[Any], length: int) -> Sequence[tuple[Extents, Any]]:
        """Run the host part for one sequence; see `_host_values`."""
        parts = self._programs.parts
        inputs = [
            np.zeros(1, request_input.port.element_type.storage) if array is None else array
            for request_input, array in zip(self.session.inputs, arrays)
        ]
        inputs += [placeholder(self._shape(self._caches[i], 1, 0), length, self._caches[i]) for i in parts.shape_caches]
        self.batched.check(
            [*(inputs[key].shape[axis] if isinstance(key, int) else length for key, axis in self.batched.dims)]
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
            if feed.grows and shape[-1] != length + self._new_tokens:
                raise OpError(f"the mask has {shape[-1]} columns for {length + self._new_tokens} keys").at(
                    feed.port.node.op.name, feed.port.node.source_location
                )
        return values[: len(parts.feeds)]

    # ---- caches

    def _reserve(self, needed: int) -> None:
        """Give every slot capacity for ``needed`` tokens."""
        old = self._arrays[0].shape[self._axis] if self._arrays else 0
        if old < needed or not self._arrays:
            elements = max(min(prod(cache.shape[self._axis + 1 :]) for cache in self._caches), 1)
            capacity = cache_capacity(needed * elements, old * elements, elements) // elements
            self._replace(capacity, self.rows, [(row, row) for row in range(self.rows)])

    def _shape(self, cache: Cache, rows: int, capacity: int) -> Extents:
        """Return the shape of a cache with ``rows`` slots of ``capacity`` tokens."""
        return (rows, *cache.shape[1 : self._axis], capacity, *cache.shape[self._axis + 1 :])

    def _replace(self, capacity: int, rows: int, moves: RowPairs) -> None:
        """Replace the caches by larger or smaller ones. ``moves`` are pairs (old slot, new slot) of sequences."""
        new = [
            self.session.backend.xp.zeros(self._shape(cache, rows, capacity), cache.type.storage)
            for cache in self._caches
        ]
        for source, target in zip(self._arrays, new):
            for a, b in moves:
                if self._lengths[a]:
                    self._write(source[a], target[(b, *part(self._axis - 1, slice(0, source.shape[self._axis])))])
        self._arrays = new

    def copy_states(self, source: BatchRequest, rows: RowPairs) -> None:
        assert isinstance(source, CacheRequest)
        self._update()
        source._update()
        with self.session.backend.active():
            if rows:
                self._reserve(max(source._lengths[a] for a, _ in rows))
            for a, b in rows:
                self._clear(b)
                length = self._lengths[b] = source._lengths[a]
                part_of_row = part(self._axis - 1, slice(0, length))
                for array, target in zip(source._arrays, self._arrays):
                    self._write(array[(a, *part_of_row)], target[(b, *part_of_row)])
            self.session.backend.synchronize()

    def _write(self, source: Array, target: Array) -> None:
        for call in self.session.backend.copy(source, target):
            call()

    def resize(self, rows: int, moves: RowPairs) -> None:
        lengths = [0] * rows
        for old, new in moves:
            lengths[new] = self._lengths[old]
        with self.session.backend.active():
            if self._arrays:
                self._replace(self._arrays[0].shape[self._axis], rows, moves)
            self.session.backend.synchronize()
        self._lengths, self.rows = lengths, rows

    def read_row(self, row: int | None) -> dict[str, Tensor]:
        state = {}
        with self.session.backend.active():
            for i, cache in enumerate(self._caches):
                if row is None or not self._arrays:
                    value = self.session.backend.xp.zeros(self._shape(cache, 1, 0), cache.type.storage)
                else:
                    value = self._arrays[i][row : row + 1][part(self._axis, slice(0, self._lengths[row]))]
                variable = self.session.variables.all[cache.name]
                state[cache.name] = tensor_copy(*variable.in_public_type(value), self.session.backend)
        return state

    def write_row(self, row: int, state: Mapping[str, Any]) -> None:
        values = list[Array]()
        with self.session.backend.active():
            for cache in self._caches:
                if cache.name not in state:
                    raise Error(f"the state has no value of variable '{cache.name}'")
                given = state[cache.name]
                value = self.session.variables.all[cache.name].accept(
                    backend_array(given if isinstance(given, Tensor) else Tensor(given), self.session.backend)
                )
                expected = self._shape(cache, 1, (values or [value])[0].shape[self._axis])
                if value.shape != expected:
                    raise Error(
                        f"variable '{cache.name}' of one sequence has shape {list(expected)}, the new value "
                        f"{list(value.shape)}"
                    )
                values.append(value)
            length = values[0].shape[self._axis]
            self._reserve(length)
            self._clear(row)
            for array, value in zip(self._arrays, values):
                self._write(value[0], array[(row, *part(self._axis - 1, slice(0, length)))])
            self.session.backend.synchronize()
        self._lengths[row] = length


def _fed(mask: Output | None) -> Output | None:
    """Return the tensor from which a mask is made by Unsqueeze, or the mask itself."""
    while mask is not None and isinstance(mask.node.op, Unsqueeze):
        mask = mask.node.sources[0]
    return mask
