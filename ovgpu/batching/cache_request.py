"""Class CacheRequest: a request for a batch of sequences with KV caches, each of a length of its own.

All slots of the caches have the same capacity. The device part of the model (`ovgpu.passes.split_decode`) appends new
tokens to all slots at the same place, behind the longest sequence, and attends to all tokens before them. The host part
computes the mask of each sequence as if it were alone, and `CacheRequest` hides the tokens that the sequence does not
have. Afterwards one kernel moves the new tokens to the end of their sequences, and clears them in slots without a step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ovgpu.batching.model import BatchedModel
from ovgpu.batching.request import BatchRequest, RowPairs
from ovgpu.batching.row_feeds import RowFeeds, Tokens
from ovgpu.batching.row_inputs import part
from ovgpu.cache_capacity import cache_capacity
from ovgpu.compile.compilation import Compilation
from ovgpu.errors import Error, OpError
from ovgpu.model import Output
from ovgpu.ops.attention.attention import CachedAttention
from ovgpu.ops.base.op import Array
from ovgpu.ops.convert import converted
from ovgpu.ops.fused.copy_rows import CopyTokens, MoveRows
from ovgpu.ops.shape.reshape import Unsqueeze
from ovgpu.passes.split_decode import Cache
from ovgpu.request.device_io import backend_array, tensor_copy
from ovgpu.request.inputs import RequestInput
from ovgpu.request.pinned import HostDevicePair, StagingBuffer
from ovgpu.request.replays import Replay
from ovgpu.request.results import OVDict
from ovgpu.runtime.state import Snapshot
from ovgpu.symbolic import Sym
from ovgpu.tensor import Tensor
from ovgpu.types import Type

Extents = tuple[int, ...]


class CacheRequest(BatchRequest):
    """Request that runs a batch of sequences with KV caches. See `BatchRequest`."""

    def __init__(self, compilation: Compilation, batched: BatchedModel) -> None:
        super().__init__(compilation, batched)
        self._arrays: list[Array] = []
        self._lengths = np.zeros(0, np.int64)  # tokens in the caches, for each slot; replaced, not changed
        self._tokens = Tokens(self._lengths, 0, 0, 0)  # of the last inference
        self._unsettled = False  # whether slots may have tokens of an inference that failed
        self._given: tuple[Sequence[Any], Sequence[int], Sequence[Sequence[Any]]] = ((), (), ())
        self._lengths_pair = self._staged(StagingBuffer(self.session.backend, False), (2,), Type.i64)
        self._use(compilation)
        self._compilation = compilation
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
            self._compilation = self.session.compilation  # last: if interrupted before it, all this is done again

    def _use(self, compilation: Compilation) -> None:
        """Take the programs of a compilation of the model."""
        programs = compilation.new_append_programs()
        if programs is None:
            raise Error(
                "other layers than attention read the KV caches: sequences of different lengths cannot share a batch"
            )
        self._programs = programs
        self._caches, self._axis = programs.parts.caches, programs.parts.caches[0].axis
        # Inputs that only the host part reads, such as masks, are not stacked: it runs for one sequence at a time.
        self.unstacked = frozenset(range(len(self.session.inputs))) - {*programs.read, self.batched.beams}
        self._feeds = RowFeeds(programs, self.batched, self.session.backend, sorted(self.unstacked))
        self._shapes_used = sorted(self.unstacked.intersection(programs.used))
        self._replay: tuple[Sequence[Any], Replay] | None = None

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
        self, inputs: Sequence[Any], rows: Sequence[int], arrays: Sequence[Sequence[Any]], begin: Collection[int]
    ) -> Sequence[Any]:
        session = self.session
        self._settle()
        self.free_rows(begin)
        self._given = inputs, rows, arrays
        for request_input, x in zip(session.inputs, inputs):
            if x is not None:
                request_input.set(x, not session.backend.remote)
        self._unsettled = True
        session.state = session.run(self._append)
        results = session.results(False, self.batched.decode_strings)
        self._move_tokens(rows)
        lengths = self._lengths.copy()
        lengths[rows] += self._tokens.end - self._tokens.past
        self._lengths, self._unsettled, self._given = lengths, False, ((), (), ())
        return results.to_tuple()

    def infer_alone(self, inputs: Sequence[Any]) -> OVDict:
        backend, stacked = self.session.backend, [None if i in self.unstacked else x for i, x in enumerate(inputs)]
        nesting = backend.nesting()
        try:
            return OVDict(self._keys, self.infer_rows(stacked, [0], [inputs], ()))
        except BaseException:  # also of a signal handler, after which the device may still be current
            backend.restore(nesting)
            raise

    def free_rows(self, rows: Collection[int]) -> None:
        """Remove the tokens of slots. Zeros replace them, because a mask does not hide NaN or infinite elements."""
        lengths = self._lengths
        cleared = [(row, row, 0, int(lengths[row])) for row in rows if lengths[row]]
        if cleared:
            with self.session.backend.active():
                self._copy_tokens(self._arrays, self._arrays, cleared)
            self._lengths = _with(lengths, [row for row, *_ in cleared], 0)

    def _settle(self) -> None:
        """Make the tokens zero that an inference which failed may have appended or moved."""
        if self._unsettled and self._arrays:
            end = min(self._tokens.end, self._arrays[0].shape[self._axis])
            with self.session.backend.active():
                self._copy_tokens(
                    self._arrays, self._arrays, [(row, row, n, end) for row, n in enumerate(self._lengths.tolist())]
                )
        self._unsettled = False

    def _append(self) -> Snapshot:
        """Run the device part, which appends tokens to all slots of the caches behind the longest sequence."""
        self._update()
        session, programs, (inputs, rows, arrays) = self.session, self._programs, self._given
        shapes = [self._whole_shape(i, arrays[0][i].shape) if x is None else x.shape for i, x in enumerate(inputs)]
        new_tokens, past = programs.shapes(shapes)[0][self._axis], max(self._lengths.tolist())
        self._reserve(past + new_tokens)
        tokens = self._tokens = Tokens(self._lengths, past, past + new_tokens, self._arrays[0].shape[self._axis])
        self._lengths_pair.host[:] = past, tokens.end
        appended = [*self._feeds.fill(arrays, rows, tokens), self._lengths_pair]
        # The device part may depend on shapes of inputs that are not stacked, and on these arrays.
        key = [*[pair.device for pair in appended], *self._arrays, *[shapes[i] for i in self._shapes_used]]
        if self._replay is not None and all(map(_equal, self._replay[0], key)) and session.repeat(self._replay[1]):
            return session.state
        pairs = [
            _stand_in(shapes[i], request_input) if i in self.unstacked else request_input.pair(request_input.read())
            for i, request_input in enumerate(session.inputs)
        ]
        pairs += [*appended, *(HostDevicePair(x, x) for x in self._arrays)]
        executor = session.executor(programs.device)
        results = session.execute(executor, pairs, {}, session.binding_key([pairs[i] for i in programs.read]))
        stacked = [i for i in range(len(inputs)) if i in programs.read]
        replay = session.replay_of(executor, [pairs[i] for i in stacked], [session.inputs[i] for i in stacked], results)
        self._replay = None if replay is None else (key, replay)
        return session.state

    def _whole_shape(self, input_index: int, shape: Extents) -> Extents:
        """Return the shape of an input for all rows, if it has ``shape`` for one."""
        axis = self.batched.inputs[input_index]
        return shape if axis is None else (*shape[:axis], self.rows, *shape[axis + 1 :])

    def _move_tokens(self, rows: Sequence[int]) -> None:
        """Move the tokens that were appended to ``rows`` to the end of their sequences. In other slots they become
        zeros, because a mask does not hide NaN or infinite elements."""
        lengths, past, end, _ = self._tokens
        moves = [(row, n) for row, n in zip(rows, lengths[rows].tolist()) if n < past]
        idle = sorted(set(range(self.rows)).difference(rows)) if len(rows) < self.rows else ()
        if moves or idle:
            op = MoveRows(axis=self._axis, source=past, count=end - past, moves=tuple(moves), cleared=tuple(idle))
            with self.session.backend.active():
                for call in self.session.backend.bind(op, self._arrays, (), (), ()):
                    call()

    def _staged(self, staging: StagingBuffer, shape: Extents, dtype: Type) -> HostDevicePair:
        """Return arrays on the host and on the device; the same array twice if the device is the host."""
        pair = staging.pair(shape, dtype)
        return pair if self.session.backend.remote else HostDevicePair(pair.host, pair.host)

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
        xp, lengths = self.session.backend.xp, self._lengths.tolist()
        if self._arrays:
            new = [xp.empty(self._shape(cache, rows, capacity), cache.type.storage) for cache in self._caches]
            sources = {b: a for a, b in moves}
            copies = [(a, b, lengths[a], capacity) for b, a in sources.items()]
            copies += [(0, b, 0, capacity) for b in range(rows) if b not in sources]
            self._copy_tokens(self._arrays, new, copies)
        else:
            new = [xp.zeros(self._shape(cache, rows, capacity), cache.type.storage) for cache in self._caches]
        self._arrays = new

    def _copy_tokens(
        self, sources: Sequence[Array], targets: Sequence[Array], slots: Sequence[tuple[int, int, int, int]]
    ) -> None:
        """Copy tokens between slots of all caches; see `CopyTokens`."""
        op = CopyTokens(axis=self._axis, slots=tuple(slots))
        for call in self.session.backend.bind(op, [x for pair in zip(sources, targets) for x in pair], (), (), ()):
            call()

    def copy_states(self, source: BatchRequest, rows: RowPairs) -> None:
        assert isinstance(source, CacheRequest)
        self._update()
        source._update()
        if not rows:
            return
        with self.session.backend.active():
            lengths = source._lengths.tolist()
            self._reserve(max(lengths[a] for a, _ in rows))
            copies = [(a, b, lengths[a], max(lengths[a], int(self._lengths[b]))) for a, b in rows]
            if any(end for *_, end in copies):
                self._copy_tokens(source._arrays, self._arrays, copies)
            self.session.backend.synchronize()
        self._lengths = _with(self._lengths, [b for _, b in rows], [lengths[a] for a, _ in rows])

    def _write(self, source: Array, target: Array) -> None:
        for call in self.session.backend.copy(source, target):
            call()

    def resize(self, rows: int, moves: RowPairs) -> None:
        with self.session.backend.active():
            if self._arrays:
                self._replace(self._arrays[0].shape[self._axis], rows, moves)
            self.session.backend.synchronize()
        kept = [self._lengths[old] for old, _ in moves]
        self._lengths, self.rows = _with(np.zeros(rows, np.int64), [new for _, new in moves], kept), rows

    def read_row(self, row: int | None) -> dict[str, Tensor]:
        state = {}
        with self.session.backend.active():
            for i, cache in enumerate(self._caches):
                if row is None or not self._arrays:
                    value = self.session.backend.xp.zeros(self._shape(cache, 1, 0), cache.type.storage)
                else:
                    value = self._arrays[i][row : row + 1][part(self._axis, slice(0, int(self._lengths[row])))]
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
            self.free_rows([row])
            for array, value in zip(self._arrays, values):
                self._write(value[0], array[(row, *part(self._axis - 1, slice(0, length)))])
            self.session.backend.synchronize()
        self._lengths = _with(self._lengths, [row], [length])


def _fed(mask: Output | None) -> Output | None:
    """Return the tensor from which a mask is made by Unsqueeze, or the mask itself."""
    while mask is not None and isinstance(mask.node.op, Unsqueeze):
        mask = mask.node.sources[0]
    return mask


def _with(lengths: Array, rows: Sequence[int], values: Any) -> Array:
    """Return a copy of ``lengths`` with other values in ``rows``."""
    changed = lengths.copy()
    changed[rows] = values
    return changed


def _equal(known: Any, now: Any) -> bool:
    """Return whether arrays are the same, or shapes are equal."""
    return known is now or (known.__class__ is tuple and known == now)


def _stand_in(shape: Extents, request_input: RequestInput) -> HostDevicePair:
    """Return an array with the shape of an input for all rows. The device part does not read its elements."""
    dtype = request_input.port.element_type.storage
    zeros = np.ndarray(shape, dtype, bytes(dtype.itemsize), 0, (0,) * len(shape))  # one element, strides of 0
    return HostDevicePair(zeros, zeros)
