"""Class AsyncInferQueue: a pool of requests that process a stream of inputs."""

from __future__ import annotations

import operator
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from weakref import ref

from ovgpu._util import forks
from ovgpu._util.claim import Claim
from ovgpu._util.unpicklable import Unpicklable
from ovgpu.api.compiled_model import CompiledModel
from ovgpu.api.in_flight import InFlight, first_to_end
from ovgpu.api.infer_request import CALLER, InferRequest
from ovgpu.api.watchers import Watchers


class AsyncInferQueue(Unpicklable):
    """Pool of requests that run in parallel. `start_async` uses the next idle request, and waits while there is none.

    ``jobs`` is the number of requests; 0 stands for the device's OPTIMAL_NUMBER_OF_INFER_REQUESTS. A request is idle
    again when its callback has returned. Without a callback, an inference on a device ends in the thread that waits for
    it, or for an idle request. If an inference or a callback raises, the other requests go on, and `wait_all` raises
    the first error. Several threads may use the queue. In a forked process all requests are idle.
    """

    def __init__(self, model: CompiledModel, jobs: int = 0) -> None:
        if not isinstance(model, CompiledModel):
            raise TypeError(f"AsyncInferQueue takes an ovgpu.CompiledModel, got {type(model).__name__}")
        jobs = operator.index(jobs)
        if jobs < 0:
            raise TypeError(f"the number of jobs is not negative, got {jobs}")
        jobs = jobs or model.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        self._requests = [model.create_infer_request() for _ in range(jobs)]
        self._userdata: list[Any] = [None] * jobs
        self._callback: Callable[[InferRequest, Any], Any] | None = None
        self._reset()

    def _reset(self) -> None:
        """Initialize the state in which all requests are idle and no thread uses the queue."""
        self._forks = forks.count
        self._watchers = Watchers("ovgpu-callbacks", one_by_one=False)  # end inferences with callbacks
        self._idle = deque(range(len(self._requests)))
        # Guards the fields below. It is taken by ``with`` itself: a signal handler that raises in Python code between
        # would leave it taken.
        self._lock = threading.RLock()
        self._running: dict[int, int] = {}  # index of a request -> number of its inference, in the order of starts
        self._started = 0  # number of inferences started
        self._error: BaseException | None = None
        self._callback_threads: set[int] = set()  # ids of the threads in a callback
        self._blocked_callbacks = 0  # number of callbacks that wait for an idle request
        # Locks on which threads wait until a request becomes idle, or has an inference in flight. A `Condition` raises
        # an error of its own if a signal handler raises in `wait`.
        self._waiters: set[threading.Lock] = set()

    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:
        """Start an inference with the next idle request; see `InferRequest.infer` for the inputs.

        Wait until a request is idle. In a callback, raise RuntimeError if no request can ever become idle.
        """
        self._check_process()
        request_id, inference_id, runner, callback = -1, 0, Claim(), self._callback
        try:
            while request_id < 0:
                if not self._idle:
                    self._await_idle()
                with self._lock:
                    if self._idle:
                        request_id = self._idle[0]
                        self._started = inference_id = self._started + 1
                        self._running[request_id] = inference_id
                        self._idle.popleft()  # only now: if a signal handler raises before, the request is still idle
                        self._userdata[request_id] = userdata
            on_done = (
                partial(_complete, ref(self), request_id, inference_id)  # nobody waits if the queue is dropped
                if callback is None
                else partial(self._complete, request_id, inference_id, callback)
            )
            watchers = None if callback is None else self._watchers
            self._requests[request_id].start(inputs, share_inputs, on_done, runner, watchers)
        except BaseException:
            if request_id >= 0 and runner.take(CALLER):  # else the inference runs and ends as usual
                self._release(request_id, inference_id)
            raise
        finally:
            if self._waiters:
                with self._lock:
                    self._notify()

    def wait_all(self) -> None:
        """Wait for all inferences started before this call. Raise the first error since the last call."""
        self._check_process()
        with self._lock:
            if threading.get_ident() in self._callback_threads:
                raise RuntimeError("wait_all in a callback would wait for itself")
            last = self._started
        self._await(last)
        with self._lock:
            error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del self, error  # the error's traceback holds this frame

    def is_ready(self) -> bool:
        """Return whether a request is idle, so that `start_async` would not wait."""
        self._check_process()
        with self._lock:
            in_flight = [] if self._idle else self._in_flight(None)
        for inference in in_flight:
            if inference.is_reached():
                inference.end()
                break
        return bool(self._idle)

    def get_idle_request_id(self) -> int:
        """Wait for an idle request. Return the index of the request that `start_async` uses next."""
        self._check_process()
        while True:
            self._await_idle()
            with self._lock:
                if self._idle:
                    return self._idle[0]

    def set_callback(self, callback: Callable[[InferRequest, Any], Any]) -> None:
        """Set ``callback(request, userdata)``, called after each inference that is started from now on and succeeds, on
        a thread of the queue or of the request, and on no thread that waits."""
        if not callable(callback):
            raise TypeError(f"a callback is callable, got {type(callback).__name__}")
        self._callback = callback

    @property
    def userdata(self) -> list[Any]:
        """The ``userdata`` that each request was last started with."""
        return list(self._userdata)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[InferRequest]:
        return iter(self._requests)

    def __getitem__(self, i: int) -> InferRequest:
        request_id = operator.index(i)
        if not 0 <= request_id < len(self._requests):
            raise IndexError(f"there is no request {request_id}: the queue has {len(self._requests)}")
        return self._requests[request_id]

    def __repr__(self) -> str:
        return f"<AsyncInferQueue: {len(self)} jobs>"

    def _check_process(self) -> None:
        if self._forks != forks.count:
            self._reset()

    def _await_idle(self) -> None:
        """Wait for an idle request. In a callback, raise RuntimeError if the callbacks of all other requests wait too,
        which would be a deadlock."""
        self._await(None, threading.get_ident() in self._callback_threads)

    def _await(self, last: int | None, in_callback: bool = False) -> None:
        """Wait until all inferences up to the number ``last`` have ended, by default until a request is idle. End
        inferences in flight meanwhile."""
        notified = threading.Lock()
        notified.acquire()
        try:
            while True:
                with self._lock:
                    if self._idle if last is None else all([one > last for one in self._running.values()]):
                        return
                    in_flight = self._in_flight(last)
                    blocks = not in_flight and notified in self._waiters
                    if not in_flight:
                        self._waiters.add(notified)  # look again: who starts an inference looks at this afterwards
                    if blocks and in_callback:
                        if self._blocked_callbacks + 1 >= len(self._requests):
                            raise RuntimeError(
                                "start_async in a callback needs an idle request, and all others wait for one too"
                            )
                        self._blocked_callbacks += 1
                if blocks:
                    notified.acquire()
                    if in_callback:
                        with self._lock:
                            self._blocked_callbacks -= 1
                elif in_flight:
                    (in_flight[0] if len(in_flight) == 1 else first_to_end(in_flight)).end()
        finally:
            self._waiters.discard(notified)

    def _notify(self) -> None:
        """Wake the threads that wait. Needs the lock."""
        for notified in list(self._waiters):
            if notified.locked():
                notified.release()
        self._waiters.clear()  # those that wait on add themselves again

    def _in_flight(self, last: int | None) -> list[InFlight]:
        """Return the inferences in flight that no other thread ends, in the order of starts, up to the number ``last``;
        only the first one that the device has done, if there is one."""
        found = []
        for request_id, inference_id in self._running.items():
            in_flight = self._requests[request_id].in_flight if last is None or inference_id <= last else None
            if in_flight is not None:
                if in_flight.is_reached():
                    return [in_flight]
                found.append(in_flight)
        return found

    def _complete(
        self,
        request_id: int,
        inference_id: int,
        callback: Callable[[InferRequest, Any], Any] | None,
        error: BaseException | None,
    ) -> None:
        """Call the callback after an inference, on the thread that ends it, and make the request idle."""
        if error is None and callback is not None:
            thread = threading.get_ident()
            self._callback_threads.add(thread)
            try:
                callback(self._requests[request_id], self._userdata[request_id])
            except BaseException as e:
                error = e
            self._callback_threads.discard(thread)
        try:
            with self._lock:
                if self._running.get(request_id) == inference_id:
                    self._error = self._error or error
                    self._release(request_id, inference_id)
        finally:
            del self, error  # the error's traceback holds this frame

    def _release(self, request_id: int, inference_id: int) -> None:
        """Make the request idle, unless another inference has been started on it."""
        with self._lock:
            if self._running.get(request_id) == inference_id:
                if request_id not in self._idle:
                    self._idle.append(request_id)
                self._notify()
                del self._running[request_id]  # last: if a signal handler raises before, the end is repeated


def _complete(queue: ref[AsyncInferQueue], request_id: int, inference_id: int, error: BaseException | None) -> None:
    """Make a request of the queue idle after an inference without a callback."""
    existing = queue()
    if existing is not None:
        existing._complete(request_id, inference_id, None, error)
