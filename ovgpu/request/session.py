"""Class Session: inferences of one request, without threads and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from time import perf_counter
from typing import Any, NoReturn

from ovgpu._util import forks
from ovgpu.compile.compilation import Compilation
from ovgpu.debug import DEBUG, NVTX, STOP_AT
from ovgpu.errors import DeviceError, Error, is_out_of_memory
from ovgpu.request.direct_calls import DirectCall
from ovgpu.request.inputs import numbered
from ovgpu.request.replays import Replay
from ovgpu.request.request_programs import RequestPrograms
from ovgpu.request.results import OVDict, as_numbers
from ovgpu.request.started import Started
from ovgpu.request.variables import take_writes
from ovgpu.runtime.backend import Completion, RemoteBackend, is_remote
from ovgpu.runtime.faults import fault
from ovgpu.runtime.overflow import Overflow
from ovgpu.runtime.state import Snapshot


class Session(RequestPrograms):
    """The part of a request that runs inferences. One thread at a time may use it.

    An inference is `infer`, `answer`, and the assignment of what `infer` returned to `state`. Without that assignment,
    the variables keep their values, as if there had been no inference. `infer` is a `DirectCall`, if one fits, or else
    `set_inputs`, `wait_for_producers` and `run`. An asynchronous inference is `start`, `finish`, which may be called in
    another thread, and the assignment.
    """

    latency = 0.0
    """The duration of the last inference in milliseconds."""

    def __init__(self, compilation: Compilation) -> None:
        super().__init__(compilation)
        self._doubts_results = compilation.may_widen
        self._answering: DirectCall | None = None  # the direct call that the last inference was
        self._completion: Completion | None = None  # of launched inferences
        self._forks = forks.count

    def __del__(self) -> None:
        with suppress(Exception):  # the device has failed, or the interpreter ends
            if self._completion is not None and not self.is_forked:
                self._completion.wait()  # the device may still use the session's memory

    @property
    def state(self) -> Snapshot:
        """The current values of the variables."""
        return self.variables.now

    @state.setter
    def state(self, state: Snapshot) -> None:
        self.variables.now = state

    # ---- an inference

    def set_inputs(self, inputs: Any, share: bool) -> None:
        """Set inputs; see `InferRequest.infer`. Raises: RuntimeError and TypeError for values that cannot be inputs."""
        for input_ in self.inputs:
            input_.is_sent = False  # after a call that failed, the caller may have changed the tensor
        for index, value in numbered(self.compilation.inputs, inputs):
            self.inputs[index].set(value, share)

    def wait_for_producers(self) -> None:
        """Make the inference wait for work that this thread has enqueued on device arrays of inputs and outputs."""
        if self.backend.remote:
            owners = [owner for input_ in self.inputs for owner in input_.producers()]
            owners += [owner for output in self.outputs for owner in output.producers()]
            if owners:
                self.backend.order(owners)

    def infer(self, inputs: Any, share: bool) -> Snapshot:
        """Set inputs, and run an inference after the work that this thread has enqueued on device arrays. Return the
        values of the variables after it.

        After an exception, also of a signal handler, the thread's current device and stream are as before.
        Raises: the errors of `set_inputs` and `run`.
        """
        call = self._take_direct(inputs, share) if self._direct else None
        if call is not None:
            after = self._run_directly(call)
            if after is not None:
                return after
        nesting = self.backend.nesting()
        try:
            if call is not None:
                return self._run_with_copies(call)
            self.set_inputs(inputs, share)
            self.wait_for_producers()
            return self.run()
        except BaseException:
            self.backend.restore(nesting)
            raise

    def start(self, inputs: Any, share: bool) -> Started:
        """Set inputs, and enqueue the inference if it repeats an earlier one, after the work that this thread has
        enqueued on device arrays. `finish` ends it.

        After an exception, also of a signal handler, the device runs nothing, and the thread's current device and
        stream are as before. Raises: the errors of `set_inputs`.
        """
        begin = perf_counter()
        call = self._take_direct(inputs, share) if self._direct else None
        started, nesting = Started(call), self.backend.nesting()
        try:
            if call is None:
                self.set_inputs(inputs, share)
                self.wait_for_producers()
            if is_remote(self.backend):
                self._launch(started, self.backend)
        except BaseException:
            self.backend.abandon()
            self.backend.restore(nesting)
            raise
        started.seconds = perf_counter() - begin
        return started

    def finish(self, started: Started) -> Snapshot:
        """Wait for an inference that is launched, or run it. Return the values of the variables after it.

        If a signal handler raises, this may be called again. Raises: the errors of `run`.
        """
        completion, replay, after = started.completion, started.replay, None
        if completion is None or replay is None:
            self.cancellation.check()
        else:
            try:
                completion.wait()
                replay.publish()
            except BaseException as e:
                with self.backend.active():  # translates errors of the device, and no others: those of signal handlers
                    raise e
            after = self._accept(replay, started.call, started.after, started.seconds + completion.seconds())
            self._make_direct(replay)
        nesting = self.backend.nesting()
        try:
            if after is None:
                again = started.launched or started.call is not None
                after = self._run_with_copies(started.call) if again else self.run()
        except BaseException:
            self.backend.restore(nesting)
            raise
        return after

    def _take_direct(self, inputs: Any, share: bool) -> DirectCall | None:
        """Return the direct call that has taken the inputs; None if none fits."""
        if (
            DEBUG.value
            or STOP_AT.value
            or NVTX.value
            or self.variables.handed_out
            or self.compilation.current is not self.compilation
        ):
            return None
        for call in self._direct:
            if call.take(inputs, share):
                if self._direct[0] is not call:
                    self._direct.remove(call)
                    self._direct.appendleft(call)
                return call
        return None

    def _run_directly(self, call: DirectCall) -> Snapshot | None:
        """Run a direct call. Return None if it cannot be launched, or if its results are not finite: then the inference
        is to be run in the general way."""
        start = perf_counter()
        try:
            if not call.launch():
                return None
            self.backend.synchronize()
        except BaseException as e:
            self._raise_after_launch(e)
        return self._accept(call.replay, call, call.replay.after or self.variables.now, perf_counter() - start)

    def _accept(
        self, replay: Replay, call: DirectCall | None, after: Snapshot | None, seconds: float
    ) -> Snapshot | None:
        """Return ``after`` if an inference that was launched, and has ended, gave finite results, else None."""
        if self._doubts_results and not all([output.looks_finite() for output in self.outputs]):
            return None
        if self.cancellation.requested:
            self.cancellation.check()
        self._after, self._answering, self.last = after, call, replay.executor
        self.latency = seconds * 1000
        return after

    def _launch(self, started: Started, backend: RemoteBackend) -> None:
        """Enqueue an inference if it repeats an earlier one. After an error nothing runs: `finish` shall report it."""
        try:
            completion = self._completion
            if completion is None:
                completion = self._completion = backend.completion()
            completion.begin()
            call = started.call
            if call is None:
                started.replay, started.after = self._enqueue() or (None, None)
            elif call.launch():
                started.replay = call.replay
                started.after = started.replay.after or self.variables.now
            else:  # another device is current, say
                with self._copies_kept(call):
                    started.replay, started.after = self._enqueue() or (None, None)
            if started.replay is not None:
                completion.end()
                started.completion = completion
        except Exception:
            backend.abandon()

    def _run_with_copies(self, call: DirectCall | None) -> Snapshot:
        """Run an inference in the general way, after an attempt, which was ``call``, or a replay."""
        with self._copies_kept(call):
            return self.run()

    def run(self, infer: Callable[[], Snapshot] | None = None) -> Snapshot:
        """Run an inference. Return the values of the variables after it.

        ``infer`` takes the place of the three ways; it may be called again, after memory was freed or `compilation`
        has changed.

        Raises: Error. Every other exception is a fault of ovgpu, and becomes an Error that says so.
        """
        start, infer, self._answering = perf_counter(), infer or self._infer, None
        try:
            if self.variables.handed_out:
                take_writes(self.variables, self.variables.handed_out)
            if not self.backend.remote:
                after = self._infer_now(infer)
            else:
                for output in self.outputs:
                    output.preserve()
                with self.backend.active():
                    try:
                        after = self._infer_in_range(infer)
                    except BaseException:
                        self.backend.abandon()
                        raise
        except Error:
            raise
        except Exception as e:
            raise fault("the inference", e) from e
        self.cancellation.check()
        self.latency, self._after = (perf_counter() - start) * 1000, after
        return after

    def _raise_after_launch(self, error: BaseException) -> NoReturn:
        """Raise an error of a launch outside of the block ``with backend.active()``, as the block would."""
        self.backend.abandon()
        try:
            with self.backend.active():
                raise error
        except Error:
            raise
        except Exception as e:
            raise fault("the inference", e) from e
        finally:
            del error  # its traceback holds this frame, which would keep it and the inputs alive

    def _infer_in_range(self, infer: Callable[[], Snapshot]) -> Snapshot:
        """Infer. If activations leave the range of f16, compile the model in a wider type, and infer again.

        The first run of each program is watched for that. A later run is repeated under watch if its results are not
        finite. If it stays within the range then, f16 is not the reason, and such results are accepted from now on.
        """
        try:
            after = self._infer_with_retry(infer)
            if not self._doubts_results or all([output.looks_finite() for output in self.outputs]):
                return after
            self.forget()
            with self._inputs_kept():
                after = self._infer_with_retry(infer)
            self._doubts_results = False
            return after
        except Overflow:
            self.backend.abandon()
        self.forget()
        self.compilation.widened()
        with self._inputs_kept():
            return self._infer_with_retry(infer)

    def _copies_kept(self, call: DirectCall | None) -> AbstractContextManager[None]:
        """Repeat an inference in the block with the copies of inputs that ``call``, or a replay, has made: it may have
        overwritten their sources."""
        if call is not None:
            for input_ in self.inputs:
                input_.has_copy = input_.shared_host is not None
        return self._inputs_kept()

    @contextmanager
    def _inputs_kept(self) -> Iterator[None]:
        """Repeat an inference in the block with the inputs that it has read; see `RequestInput.keeps_copy`."""
        try:
            for input_ in self.inputs:
                input_.keeps_copy = True
            yield
        finally:
            for input_ in self.inputs:
                input_.keeps_copy = False

    def _infer_with_retry(self, infer: Callable[[], Snapshot]) -> Snapshot:
        """Infer. If the device runs out of memory, drop all bindings of earlier inferences and try once more."""
        try:
            return self._infer_now(infer)
        except Exception as e:
            if not self._executors or not is_out_of_memory(e):
                raise
            self.backend.abandon()
        self.forget()  # outside of the handler, because the error's traceback holds the bindings
        return self._infer_now(infer)

    def _infer_now(self, infer: Callable[[], Snapshot]) -> Snapshot:
        if self.compilation.current is not self.compilation:
            self.update()
        if self.variables.has_outgrown_buffers:
            self.forget()
        return infer()

    def update(self) -> None:
        """Take the compilation that the model has now: another request may have left the range of f16. The variables
        keep their values, in its types."""
        compilation = self.compilation.current
        if compilation is not self.compilation:
            self.forget()
            self.variables.change(compilation.initial.infos)
            self.initial.change(compilation.initial, compilation.constants, compilation.lock)
            self.compilation.requests.discard(self)
            compilation.add_request(self)
            self.compilation, self._doubts_results = compilation, compilation.may_widen

    # ---- results

    def answer(self, share: bool, decode_strings: bool | None, ml_dtypes: bool) -> OVDict:
        """Return the results of the inference that has just ended; see `results`."""
        call = self._answering
        if call is None or ml_dtypes:
            return self.results(share, decode_strings, ml_dtypes)
        return call.results(share)

    def results(self, share: bool, decode_strings: bool | None, ml_dtypes: bool = False) -> OVDict:
        """Return the outputs as arrays; see `InferRequest.infer` for the arguments."""
        values = {output.port: output.value(share, decode_strings) for output in self.outputs}
        if ml_dtypes:
            values = {
                output.port: as_numbers(values[output.port], output.tensor.element_type) for output in self.outputs
            }
        return OVDict(values)

    # ---- forks

    @property
    def is_forked(self) -> bool:
        """True if this process was forked after the session was made, and `continue_forked` has not been called."""
        return self._forks != forks.count

    def continue_forked(self) -> None:
        """Continue in a forked process. Raises: DeviceError on a CUDA device."""
        if self.backend.remote:
            raise DeviceError(
                "CUDA does not survive a fork: the request was made in the process that this one was "
                "forked from. Start processes by 'spawn', or compile models where they run"
            )
        self._forks = forks.count
