"""Class SequenceBatcher: many sequences, each with its own states, in the batch of one request."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any, Self
from weakref import finalize

from ovgpu._util import forks
from ovgpu._util.unpicklable import Unpicklable
from ovgpu.api.compiled_model import CompiledModel
from ovgpu.batching.compilation import compile_batched
from ovgpu.batching.gathering import BatchRun, Gatherer, Observer, Work, begin, complete, observe, report, run
from ovgpu.batching.model import BatchedModel
from ovgpu.batching.paged_request import PagedRequest
from ovgpu.batching.pages import pages_for
from ovgpu.batching.pools import Pools, SharedPools
from ovgpu.batching.request import BatchRequest
from ovgpu.batching.row_inputs import RowInputs, RowOutputs
from ovgpu.batching.smaller_batches import SmallerBatches, power_of_two
from ovgpu.compile.compilation import Compilation
from ovgpu.errors import Error, OpError
from ovgpu.ops.fused.kv_cache import PAGE_TOKENS
from ovgpu.request.results import OVDict
from ovgpu.tensor import Tensor

MAX_SEQUENCES = 4096
CLOSED = "the sequence is closed"


class BatchFullError(Error):
    """Error for a sequence that cannot be opened because all slots of the batch are taken."""


class SequenceBatcher(Unpicklable):
    """Batch of sequences with independent states, which run side by side in one request.

    ``model`` is a model of ovgpu, a file, or a `CompiledModel`, whose model and properties are taken. Its inputs,
    states and outputs must have a batch axis, of extent 1 or dynamic, and every row must be computed from that row
    alone. The batcher analyses the model when it is made, and raises OpError if a layer mixes rows. A model for one
    sequence at a time (batch 1) qualifies.

    Steps of different sequences are gathered until all open sequences have one, or until ``max_wait_ms`` after the
    first one arrived, and run in one inference. A sequence without a step keeps its state to the last bit. The outputs
    of a sequence do not depend on the values of the others. Each open sequence has a slot, which is a row of the batch.
    The number of slots is a power of two. If few of them have a step, a smaller batch runs these steps. While only one
    sequence is open, its steps by `BatchedSequence.infer` run in the calling thread. Threads may share a batcher and
    its sequences. Close it, or use it as a context.

    Results stay valid after later steps. Those of a batch are views of the same arrays, which stay in memory as long as
    one of them does. Copy results that you keep for long.

    ``batch_axes`` maps inputs, by name or index, to their batch axes, or to None for an input that all rows share.
    Steps that differ in shared inputs run in different inferences. By default, the batch axis is the axis N of an
    input's layout, or else its first axis of extent 1 or of dynamic extent.

    KV caches lie in pages of 16 tokens, so that each sequence takes memory, and time on the device, for its own length.
    Steps with equally many new tokens run together. First steps, such as prompts, run apart from other steps.

    On several devices (``MULTI:A,B``), each device has a batch with slots of its own. A sequence is opened on the
    device with the fewest open sequences, and stays there.

    The memory of KV caches grows as needed. With ``max_tokens``, each device has pages for so many tokens, rounded up
    to whole pages, from the first step on, and no more: a step that needs more raises PoolFullError, and leaves all
    states as they are. The caller may then close or reset sequences, and repeat the step. Batchers of models with the
    same KV caches, on the same devices, share their memory if they get the same ``pools``.

    ``observer`` is called with the measurements of every batch.

    Raises: OpError that names the layer for a model that mixes the rows of a batch; Error for a model without a batch
    axis, or with states whose size changes, except KV caches.
    """

    def __init__(
        self,
        model: Any,
        max_sequences: int = 64,
        device: str | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        max_wait_ms: float = 2.0,
        batch_axes: Mapping[Any, int | None] | None = None,
        observer: Observer | None = None,
        decode_strings: bool | None = True,
        max_tokens: int | None = None,
        pools: SharedPools | None = None,
    ) -> None:
        if not 1 <= max_sequences <= MAX_SEQUENCES:
            raise ValueError(f"max_sequences is {max_sequences}, not 1 to {MAX_SEQUENCES}")
        compiled, batched = compile_batched(model, device, config, batch_axes)
        batched.decode_strings = decode_strings
        self._compiled, self._batched = compiled, batched
        compilations = compiled._compilations[:max_sequences]
        shares = [(max_sequences + i) // len(compilations) for i in reversed(range(len(compilations)))]
        pools = pools or SharedPools()
        self._slots = [
            _Slots(compilation, batched, share, max_wait_ms / 1000, observer, pools.of(number))
            for number, (compilation, share) in enumerate(zip(compilations, shares))
        ]
        if max_tokens is not None:
            self.max_tokens = max_tokens
        for slots in self._slots:
            threading.Thread(target=slots.work, name="ovgpu-sequences", daemon=True).start()
        self._opening = threading.Lock()
        self._closing = finalize(self, _close, self._slots)
        self._closing.atexit = False  # in a forked process another thread may have held the lock

    @property
    def compiled_model(self) -> CompiledModel:
        """The compiled model with a dynamic batch."""
        return self._compiled

    @property
    def max_sequences(self) -> int:
        """The most sequences that can be open at a time."""
        return sum(slots.most for slots in self._slots)

    def open(self) -> BatchedSequence:
        """Return a new sequence, which begins with the initial state. Raise BatchFullError if too many are open."""
        self._slots[0].check_process()
        with self._opening:
            free = [slots for slots in self._slots if len(slots.opened) < slots.most]
            if not free:
                raise BatchFullError(f"all {self.max_sequences} sequences are open")
            slots = min(free, key=lambda slots: len(slots.opened))
            return BatchedSequence(self, slots, slots.open())

    @property
    def max_tokens(self) -> int | None:
        """The most tokens in the KV caches of a device, None without a limit. It can be set.

        Memory that a device has already is not given back. Raises: ValueError for less than 1.
        """
        return self._slots[0].pools.max_tokens

    @max_tokens.setter
    def max_tokens(self, tokens: int | None) -> None:
        if tokens is not None and tokens < 1:
            raise ValueError(f"max_tokens is {tokens}, not 1 or more")
        for slots in self._slots:
            slots.pools.max_tokens = tokens

    def reserve(self, tokens: int) -> int:
        """Have memory on each device for KV caches of so many tokens.

        Returns: the number of tokens for which there is memory: fewer at the limit, or if memory is short.
        """
        return min(slots.reserve(tokens) for slots in self._slots)

    def fork(self, sequence: BatchedSequence, tokens: int | None = None) -> BatchedSequence:
        """Return a new sequence, as `BatchedSequence.fork` does, also of one of a batcher with the same pools."""
        source = sequence._slots
        slots = next((own for own in self._slots if own.running is source.running), None)
        if slots is None:
            raise Error("the sequence is one of another batcher, which does not share its memory")
        source.wait_for_steps(sequence._entry)  # before the lock, which their callbacks may take
        with self._opening:
            if len(slots.opened) >= slots.most:
                raise BatchFullError(f"all {slots.most} sequences of the device are open")
            forked = BatchedSequence(self, slots, slots.open())
        try:
            slots.copy(source, sequence._entry, forked._entry, tokens)
        except BaseException:
            forked.close()
            raise
        return forked

    def __repr__(self) -> str:
        return f"<SequenceBatcher: {len(self)} of {self.max_sequences} sequences open, batch axes {self.batch_axes}>"

    def __len__(self) -> int:
        """Return the number of open sequences."""
        return sum(len(slots.opened) for slots in self._slots)

    @property
    def has_pages(self) -> bool:
        """True if the states are KV caches, whose tokens sequences can share, see `BatchedSequence.fork`."""
        return self._slots[0].grows

    @property
    def waiting(self) -> int:
        """The number of steps that wait for a batch."""
        return sum(slots.waiting for slots in self._slots)

    @property
    def batch_size(self) -> int:
        """The number of slots of all devices."""
        return sum(slots.request.rows for slots in self._slots)

    @property
    def batch_axes(self) -> tuple[int | None, ...]:
        """The batch axis of each input, None for one that all rows share."""
        return self._batched.inputs

    @property
    def output_batch_axes(self) -> tuple[int, ...]:
        """The batch axis of each output."""
        return self._batched.outputs

    @property
    def optional_inputs(self) -> frozenset[int]:
        """Indices of inputs that steps may leave out: the beams, since each sequence continues its own state."""
        beams = self._batched.beams
        return frozenset() if beams is None else frozenset({beams})

    @contextmanager
    def together(self) -> Iterator[None]:
        """Return a context for submitting steps. They run in one batch when it ends: do not wait for results in it."""
        with ExitStack() as held:
            for slots in self._slots:
                held.enter_context(slots.gatherer.together())
            yield

    def close(self) -> None:
        """Refuse further steps, and return when those that wait have run, or at once in a callback of a step."""
        if self._slots[0].is_forked:
            return
        self._closing()
        if threading.get_ident() not in [slots.thread for slots in self._slots]:
            for slots in self._slots:
                slots.done.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class BatchedSequence:
    """Sequence of a `SequenceBatcher`, with its own state. Its steps run in the order in which they were submitted."""

    def __init__(self, batcher: SequenceBatcher, slots: _Slots, entry: _Entry) -> None:
        self._batcher = batcher  # which closes itself when nothing refers to it
        self._slots, self._entry = slots, entry
        self._closing = finalize(self, slots.close, entry)

    def infer(self, inputs: Any = None) -> OVDict:
        """Run a step and return its outputs. ``inputs`` are those of `InferRequest.infer`, for a batch of one row.

        Raises: RuntimeError for inputs that do not fit the model, for errors of the step, and for a sequence that is
        closed. The state then stays unchanged.
        """
        return self._slots.infer(self._entry, inputs)

    def try_infer(self, inputs: Any = None) -> OVDict | None:
        """Run a step in this thread, as `infer` does, if no other sequence is open; else return None at once."""
        return self._slots.infer_alone(self._entry, inputs)

    def submit(self, inputs: Any = None) -> Future[OVDict]:
        """Submit a step, and return the future of its outputs. A step that is cancelled before it runs is left out."""
        return self._slots.submit(self._entry, inputs)

    def fork(self, tokens: int | None = None) -> BatchedSequence:
        """Return a new sequence with the state that this one has after the steps that were submitted before.

        KV caches are shared: only the last page of 16 tokens is copied, once one of the sequences appends to it. With
        ``tokens``, the new sequence has only so many of the first tokens in the caches. Raises: BatchFullError if too
        many sequences are open, and RuntimeError for a sequence that is closed, and for ``tokens`` if the sequence has
        fewer, or states that are no KV caches.
        """
        return self._batcher.fork(self, tokens)

    def reset(self) -> None:
        """Reset the state to the initial one, after the steps that were submitted before."""
        self._slots.reset(self._entry)

    @property
    def state(self) -> dict[str, Tensor]:
        """A copy of the state by variable, for one row, after the steps that were submitted before.

        A sequence of another batcher of the same model can take it, and so can `VariableState.state` of a request with
        batch 1. Values that depend on inputs are zeros before the first step.
        """
        return self._slots.read(self._entry)

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        """Set the values of all variables, which are tensors or arrays for one row."""
        self._slots.write(self._entry, state)

    def close(self) -> None:
        """End the sequence, and cancel its steps that have not begun."""
        self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _close(shared: Sequence[_Slots]) -> None:
    for slots in shared:
        slots.gatherer.close()


class _Entry:
    """An open sequence: its slot, and its steps. The gatherer has the first step; the others wait behind it."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.steps: deque[Work] = deque()
        self.initial = True  # True if the next step begins with the initial state
        self.closed = False


class _Slots:
    """Slots of a device's batch, and the loop that runs it. The batcher, its sequences and its thread share it.

    The gatherer's condition guards ``opened`` and the entries, ``running`` guards the request, and with KV caches also
    the other requests with the same pools.
    """

    def __init__(
        self,
        compilation: Compilation,
        batched: BatchedModel,
        most: int,
        max_wait: float,
        observer: Observer | None,
        pools: Pools,
    ) -> None:
        self._compilation, self._batched, self.most, self._observer = compilation, batched, most, observer
        self.pools = pools
        self.grows = any(info.axis for info in compilation.current.initial.infos.values())
        self.request = self._new_request()
        self._smaller = None if self.grows else SmallerBatches(self.request, self._new_request)
        self._rows = 0  # rows of the last inference
        self._changed = True  # whether sequences were opened, closed or reset since the last `_resize`
        self.inputs = RowInputs(compilation.inputs, batched, 1, self.request.unstacked)
        self.outputs = RowOutputs(compilation.outputs, batched)
        self.opened: dict[int, _Entry] = {}  # by slot
        self.gatherer = Gatherer(max_wait, 1)
        self.running = pools.lock if self.grows else threading.Lock()
        self.advanced = threading.Condition(self.gatherer.lock)  # steps of a sequence have ended
        self.done = threading.Event()  # the thread has ended
        self.thread = 0  # id of the thread in `work`
        self._forks = forks.count

    def _new_request(self) -> BatchRequest:
        if not self.grows:
            return BatchRequest(self._compilation.current, self._batched)
        return PagedRequest(self._compilation.current, self._batched, self.pools, self._free_closed)

    # ---- sequences

    @property
    def waiting(self) -> int:
        with self.gatherer.lock:
            return self.gatherer.waiting + sum(max(len(entry.steps) - 1, 0) for entry in self.opened.values())

    def open(self) -> _Entry:
        with self.gatherer.changed:
            if self.gatherer.closed:
                raise Error("the batcher is closed")
            slot = next(i for i in range(self.most) if i not in self.opened)
            entry = self.opened[slot] = _Entry(slot)
            self.gatherer.capacity = len(self.opened)
            self._changed = True
            return entry

    def close(self, entry: _Entry) -> None:
        with self.gatherer.changed:
            entry.closed = True
            for step in entry.steps:
                step.cancel()
            if self.opened.get(entry.slot) is entry:
                del self.opened[entry.slot]
                self.gatherer.capacity = max(len(self.opened), 1)
                self._changed = True
            self.advanced.notify_all()
            self.gatherer.changed.notify()  # fewer sequences may be enough for a batch

    def infer(self, entry: _Entry, inputs: Any) -> OVDict:
        """Run a step, in this thread if the sequence is the only one, else as part of a batch."""
        alone = self.infer_alone(entry, inputs)
        return self.submit(entry, inputs).result() if alone is None else alone

    def infer_alone(self, entry: _Entry, inputs: Any) -> OVDict | None:
        """Run a step in this thread if the sequence is the only one, else return None.

        It is also None in a context of `together`, which holds the gatherer's lock: the batcher's thread may wait for
        that while it runs a batch, and this one for the end of the batch.
        """
        request = self.request
        if request.rows != 1 or self._forks != forks.count or self.running.locked() or self.gatherer.is_together:
            return None
        with self.running:
            # If nothing has changed since the last `_resize`, no other sequence is open.
            if self._changed or entry.initial or entry.steps or entry.closed or request.rows != 1:
                return None
            plain = None if self.gatherer.closed else self.inputs.plain(inputs, False)
            if plain is None:
                return None
            arrays, shapes = plain
            self.inputs.check(shapes)
            started = time.perf_counter()
            results = request.infer_alone(arrays)
            if self._observer is not None:
                observe(self._observer, BatchRun(1, 1, (0.0,), time.perf_counter() - started))
            return results

    def submit(self, entry: _Entry, inputs: Any) -> Future[OVDict]:
        arrays, rows, key = self.inputs.convert(inputs)
        if self._forks != forks.count:
            self.check_process()
        gatherer = self.gatherer
        step = Work(key, arrays, rows, gatherer.lock, entry)
        with gatherer.lock:
            if entry.closed:
                raise Error(CLOSED)
            if gatherer.closed:
                raise Error("the batcher is closed")
            try:
                if not entry.steps:
                    gatherer.put_next(self._keyed(step) if self.grows else step)
                entry.steps.append(step)
            except BaseException:  # a signal handler may raise when the gatherer has the step
                step.cancel()
                raise
        return step

    @property
    def is_forked(self) -> bool:
        """True in a process that was forked from the batcher's, and does not have its thread."""
        return self._forks != forks.count

    def check_process(self) -> None:
        if self.is_forked:
            raise Error("the batcher was made in the process that this one was forked from")

    # ---- states

    def wait_for_steps(self, entry: _Entry) -> None:
        """Wait for the steps that were submitted. Raise Error if the sequence is closed."""
        self.check_process()
        if threading.get_ident() == self.thread and entry.steps:
            raise Error("a callback of a step would wait for the next step of its sequence")
        with self.gatherer.changed:
            self.advanced.wait_for(lambda: not entry.steps or entry.closed)
            if entry.closed:
                raise Error(CLOSED)

    def copy(self, slots: _Slots, source: _Entry, target: _Entry, tokens: int | None) -> None:
        """Copy the state of a sequence, one of ``slots``, to another one here, with all tokens in its KV caches or the
        first ones."""
        with self.running:
            self._resize()
            if slots is not self:
                slots._resize()
            if source.closed:
                raise Error(CLOSED)
            if not source.initial:
                self.request.copy_states(slots.request, [(source.slot, target.slot)], tokens)
                target.initial = False
            elif tokens:
                raise Error(f"the sequence has no tokens, of which {tokens} could be copied")

    def reserve(self, tokens: int) -> int:
        """Have memory for KV caches of so many tokens; see `SequenceBatcher.reserve`."""
        if not isinstance(self.request, PagedRequest):
            return tokens
        with self.running:
            return self.request.reserve(pages_for(tokens)) * PAGE_TOKENS

    def _free_closed(self) -> None:
        """Free the slots of sequences that have been closed."""
        if self._changed:
            self._resize()

    def reset(self, entry: _Entry) -> None:
        self.wait_for_steps(entry)
        entry.initial = self._changed = True

    def read(self, entry: _Entry) -> dict[str, Tensor]:
        self.wait_for_steps(entry)
        with self.running:
            return self.request.read_row(None if entry.initial else entry.slot)

    def write(self, entry: _Entry, state: Mapping[str, Any]) -> None:
        self.wait_for_steps(entry)
        with self.running:
            self._resize()
            self.request.write_row(entry.slot, state)
            entry.initial = False

    # ---- running

    def work(self) -> None:
        """Run batches until the gatherer is closed and empty."""
        self.thread = threading.get_ident()
        while (batch := self.gatherer.take()) is not None:
            self.run(batch)
        self.done.set()

    def run(self, batch: Sequence[Work]) -> None:
        """Run a batch of the gatherer."""
        steps = begin(batch)
        started = time.perf_counter()
        with self.running:
            results = run(steps, self._infer)
        report(self._observer, steps, self._rows, started)
        with self.gatherer.lock:
            self._advance(batch)
            self.advanced.notify_all()
        complete(steps, results)  # last, because callbacks may read the states of sequences whose steps have ended

    def _advance(self, batch: Sequence[Work]) -> None:
        """Hand the next step of each sequence to the gatherer."""
        for step in batch:
            steps = step.owner.steps
            if steps and steps[0] is step:  # it is not if its submission was interrupted
                steps.popleft()
                if steps:
                    self.gatherer.put_next(self._keyed(steps[0]) if self.grows else steps[0])

    def _keyed(self, step: Work) -> Work:
        """Return the next step of a sequence with KV caches with its final key: first steps stay apart from others."""
        step.key = (step.key, step.owner.initial)
        return step

    def _infer(self, steps: Sequence[Work]) -> list[OVDict]:
        if self._changed:
            self._resize()
        entries: list[_Entry] = [step.owner for step in steps]
        if [entry for entry in entries if entry.closed]:  # another sequence may have its slot
            raise OpError(CLOSED)  # this type of error has `run` compute the other steps without it
        slots, arrays = [entry.slot for entry in entries], [step.arrays for step in steps]
        begin = [entry.slot for entry in entries if entry.initial]
        smaller = None if self._smaller is None else self._smaller.request(len(steps))
        self._rows, rows = self.request.places(slots) if smaller is None else smaller.places(list(range(len(steps))))
        inputs = self.inputs.stack(arrays, self._rows, steps[0].key, rows)
        if self._smaller is None or smaller is None:
            outputs = self.request.infer_rows(inputs, slots, arrays, begin)
        else:
            outputs = self._smaller.infer(smaller, inputs, slots, arrays, begin)
        if begin:
            for entry in entries:
                entry.initial = False
        return self.outputs.single(outputs, rows)

    def _resize(self) -> None:
        """Give the batch a slot for each open sequence, and free the slots of closed ones.

        The number of slots, a power of two, grows at once, and shrinks only if a quarter or less of them is needed.
        """
        rows = self.request.rows
        with self.gatherer.lock:
            self._changed = False
            entries = sorted(self.opened.values(), key=lambda entry: entry.slot)
            needed = power_of_two(entries[-1].slot + 1) if entries else 1
            fewest = power_of_two(len(entries))
            moves = [(entry.slot, entry.slot) for entry in entries if entry.slot < rows and not entry.initial]
            if fewest <= rows // 4:
                moves = [
                    (entry.slot, slot) for slot, entry in enumerate(entries) if entry.slot < rows and not entry.initial
                ]
                self.opened = {slot: entry for slot, entry in enumerate(entries)}
                for slot, entry in self.opened.items():
                    entry.slot = slot
                needed = fewest
            elif needed <= rows:
                self._free_rows(set(range(rows)).difference([slot for slot, _ in moves]))
                return
        self.request.resize(needed, moves)

    def _free_rows(self, rows: Collection[int]) -> None:
        """Free slots of the request; again at the next `_resize`, if it is interrupted."""
        try:
            self.request.free_rows(rows)
        except BaseException:
            self._changed = True
            raise
