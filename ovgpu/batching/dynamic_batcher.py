"""Class DynamicBatcher: inferences of many threads in the batch of one request."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from itertools import accumulate
from typing import Any, Self
from weakref import finalize

from ovgpu._util import forks
from ovgpu._util.unpicklable import Unpicklable
from ovgpu.api.compiled_model import CompiledModel
from ovgpu.batching.compilation import compile_batched
from ovgpu.batching.gathering import Gatherer, Observer, Work, begin, complete, report, run
from ovgpu.batching.model import BatchedModel
from ovgpu.batching.request import BatchRequest
from ovgpu.batching.row_inputs import RowInputs, RowOutputs
from ovgpu.errors import Error
from ovgpu.request.results import OVDict


class DynamicBatcher(Unpicklable):
    """Batches of inferences that arrive from many threads, for models without states.

    ``model`` is a model of ovgpu, a file, or a `CompiledModel`, whose model and properties are taken. Its inputs and
    outputs must have a batch axis, of extent 1 or dynamic, and every row must be computed from that row alone. The
    batcher proves this when it is made, or raises OpError.

    Inferences are gathered if the shapes of their inputs differ on the batch axes only, until they have
    ``max_batch_size`` rows, or until ``max_wait_ms`` after the first one arrived. The batch is padded to the next of
    ``batch_sizes``, by default the powers of two and ``max_batch_size``. Up to ``requests`` batches run in parallel on
    each device (several with ``MULTI:A,B``). Threads may share a batcher. Close it, or use it as a context. See
    `SequenceBatcher` for ``batch_axes``, ``observer``, errors, and how long results live.
    """

    def __init__(
        self,
        model: Any,
        max_batch_size: int = 32,
        device: str | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        max_wait_ms: float = 2.0,
        batch_sizes: Sequence[int] | None = None,
        requests: int = 1,
        batch_axes: Mapping[Any, int | None] | None = None,
        observer: Observer | None = None,
        decode_strings: bool | None = True,
    ) -> None:
        if max_batch_size < 1 or requests < 1:
            raise ValueError(f"max_batch_size {max_batch_size} and requests {requests} must be positive")
        sizes = [1 << i for i in range(max_batch_size.bit_length())] if batch_sizes is None else list(batch_sizes)
        if any(size < 1 for size in sizes):
            raise ValueError(f"batch_sizes {sizes} must be positive")
        compiled, batched = compile_batched(model, device, config, batch_axes)
        batched.decode_strings = decode_strings
        if batched.variables:
            raise Error(f"the model has states, such as '{next(iter(batched.variables))}': use a SequenceBatcher")
        self._batches = _Batches(
            compiled,
            batched,
            sorted({n for n in sizes if n < max_batch_size} | {max_batch_size}),
            max_wait_ms / 1000,
            observer,
        )
        self._threads = [
            threading.Thread(target=self._batches.work, name="ovgpu-batches", daemon=True, args=(request,))
            for request in self._batches.requests(requests)
        ]
        for thread in self._threads:
            thread.start()
        self._closing = finalize(self, self._batches.gatherer.close)
        self._closing.atexit = False  # in a forked process another thread may have held the lock

    @property
    def compiled_model(self) -> CompiledModel:
        """The compiled model with a dynamic batch."""
        return self._batches.compiled

    @property
    def max_batch_size(self) -> int:
        """The most rows of a batch."""
        return self._batches.sizes[-1]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The sizes to which batches are padded."""
        return tuple(self._batches.sizes)

    @property
    def batch_axes(self) -> tuple[int | None, ...]:
        """The batch axis of each input, None for one that all rows share."""
        return self._batches.batched.inputs

    @property
    def output_batch_axes(self) -> tuple[int, ...]:
        """The batch axis of each output."""
        return self._batches.batched.outputs

    @property
    def waiting(self) -> int:
        """The number of inferences that wait for a batch."""
        return self._batches.gatherer.waiting

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, self.batch_sizes))
        return f"<DynamicBatcher: batches of {sizes} rows, batch axes {self.batch_axes}>"

    def infer(self, inputs: Any = None) -> OVDict:
        """Run an inference as part of a batch and return its outputs.

        ``inputs`` are those of `InferRequest.infer`, with one row or several, up to ``max_batch_size``.

        Raises: RuntimeError for inputs that do not fit the model and for errors of the inference.
        """
        return self.submit(inputs).result()

    def submit(self, inputs: Any = None) -> Future[OVDict]:
        """Submit an inference, and return the future of its outputs. An inference that is cancelled before it runs is
        left out."""
        return self._batches.submit(inputs)

    def together(self) -> AbstractContextManager[Any]:
        """Return a context for submitting inferences. They run in one batch, as far as they fit, when the context ends.
        Do not wait for their results in it."""
        return self._batches.gatherer.together()

    def close(self) -> None:
        """Refuse further inferences, and return when those that wait have run, or at once in a callback of one."""
        if self._batches.is_forked:
            return
        self._closing()
        if threading.current_thread() not in self._threads:
            for thread in self._threads:
                thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Batches:
    """Queue of inferences and the loop that runs them, shared by the batcher and its threads."""

    def __init__(
        self,
        compiled: CompiledModel,
        batched: BatchedModel,
        sizes: list[int],
        max_wait: float,
        observer: Observer | None,
    ) -> None:
        self.compiled, self.sizes, self._observer = compiled, sizes, observer
        self.batched = batched
        self._ports = compiled._compilation.inputs
        self._inputs, self._outputs = RowInputs(self._ports, batched, sizes[-1]), RowOutputs(compiled.outputs, batched)
        self.gatherer = Gatherer(max_wait, sizes[-1])
        self._forks = forks.count

    def submit(self, inputs: Any) -> Future[OVDict]:
        if self.is_forked:
            raise Error("the batcher was made in the process that this one was forked from")
        arrays, rows, key = self._inputs.convert(inputs)
        work = Work(key, arrays, rows, self.gatherer.lock)
        self.gatherer.put(work)
        return work

    @property
    def is_forked(self) -> bool:
        """True in a process that was forked from the batcher's, and does not have its threads."""
        return self._forks != forks.count

    def requests(self, count: int) -> list[BatchRequest]:
        """Return new requests for batches, ``count`` for each device."""
        return [
            BatchRequest(compilation.current, self.batched)
            for compilation in self.compiled._compilations
            for _ in range(count)
        ]

    def work(self, request: BatchRequest) -> None:
        """Run batches with a request until the gatherer is closed and empty."""
        inputs = RowInputs(self._ports, self.batched, self.sizes[-1])
        while (batch := self.gatherer.take()) is not None:
            batch = begin(batch)
            started = time.perf_counter()
            results = run(batch, partial(self._infer, request, inputs))
            report(self._observer, batch, self._size(sum(work.rows for work in batch)), started)
            complete(batch, results)

    def _size(self, rows: int) -> int:
        """Return the size to which a batch of ``rows`` rows is padded."""
        return next(size for size in self.sizes if size >= rows)

    def _infer(self, request: BatchRequest, inputs: RowInputs, batch: Sequence[Work]) -> list[OVDict]:
        counts, arrays = [work.rows for work in batch], [work.arrays for work in batch]
        starts, size = [0, *accumulate(counts[:-1])], self._size(sum(counts))
        outputs = request.infer_rows(inputs.stack(arrays, size, batch[0].key), range(size), arrays, ())
        return self._outputs.of(outputs, starts, counts)
