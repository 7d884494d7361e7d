"""InferRequest: one inference at a time, with inputs, outputs, state and memory of its own."""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ovgpu._util import forks
from ovgpu._util.claim import Claim
from ovgpu.api.compilation import Compilation
from ovgpu.api.request_tensors import RequestTensors
from ovgpu.debug import DEBUG, NVTX, STOP_AT, run_watched
from ovgpu.errors import DeviceError, Error, is_out_of_memory
from ovgpu.ops.base.op import Array
from ovgpu.request.device_io import addresses, slots
from ovgpu.request.inputs import numbered
from ovgpu.request.kv_decode import DecodeSteps
from ovgpu.request.outputs import RequestMemory
from ovgpu.request.pinned import HostDevicePair
from ovgpu.request.replays import CACHED_REPLAYS, Replay, Transition
from ovgpu.request.results import OVDict
from ovgpu.request.variables import InitialValues, VariableState
from ovgpu.runtime.cancellation import Cancellation
from ovgpu.runtime.executor import Executor
from ovgpu.runtime.faults import fault
from ovgpu.runtime.plan import Plan, plan_of
from ovgpu.runtime.profile import Profiler, ProfilingInfo, Span
from ovgpu.runtime.state import Snapshot, Variables

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from ovgpu.api.compiled_model import CompiledModel


CALLER = "caller"
"""The party of a `Claim` that has called `InferRequest.start`."""


class InferRequest(RequestTensors):
    """Runs a compiled model. Create it with `CompiledModel.create_infer_request`.

    Raises RuntimeError "Infer Request is busy" when used while an inference is running. An inference that fails
    leaves the state as it was, and the request usable. In a forked process the request goes on with the state that it
    had, without the inference that was running; on a CUDA device it raises DeviceError there.
    """

    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation
        self._backend = compilation.backend.for_request()
        self._inputs, self._outputs = slots(compilation.inputs, compilation.outputs, self._backend)
        self._variables = Variables(compilation.initial.infos, self._backend)
        self._cancellation = Cancellation()
        self._memory = RequestMemory(self._outputs, self._variables)
        self._initial = InitialValues(compilation.initial, self._variables, self._backend, compilation.constants,
                                      compilation.lock, self._cancellation)
        self._executors: dict[int, Executor] = {}
        self._last: Executor | None = None  # the executor of the last inference
        self._replays: deque[Replay] = deque(maxlen=CACHED_REPLAYS)  # least recently run first
        self._profiler = Profiler(self._backend.clock()) if compilation.profiling else None
        self._owner = Claim()  # the inference that is running has the request
        self._forks = forks.count
        self._future: Future[None] | None = None  # of the last inference that was started
        self._worker: ThreadPoolExecutor | None = None
        self._thread = 0  # the worker's
        self._callback: Callable[[Any], Any] | None = None
        self._userdata: Any = None
        self._latency = 0.0

    # ---- running

    def infer(self, inputs: Any = None, share_inputs: bool = False, share_outputs: bool = False, *,
              decode_strings: bool = True) -> OVDict:
        """Sets inputs, runs, and returns the outputs as arrays.

        ``inputs`` is a dict by port, number or tensor name, a list or tuple, or the one value of a model with one
        input; those not given stay as they were. Values are Tensors, arrays or what becomes one, converted to the
        model's types. ``share_inputs`` reads arrays where they are, if type and layout allow, instead of copying
        them. ``share_outputs`` returns views of the output tensors, which the next inference overwrites, instead
        of copies. A result of more than 1 MB on a CUDA device is downloaded when it is first read, or before the
        request's next inference; the read raises OpError if that fails. Outputs of strings are ``U`` arrays, or ``S``
        arrays without ``decode_strings``.

        On a CUDA device values may be arrays there, of CuPy, torch or whatever speaks DLPack or has
        ``__cuda_array_interface__``; and an output that is bound to a `RemoteTensor` stays there: its result is the
        tensor's memory as a CuPy array.

        Raises: RuntimeError for inputs that do not fit the model, and for what goes wrong in the inference;
        TypeError for what is no input at all. Whatever it raises, KeyboardInterrupt at any point included, the state is
        as it was.
        """
        inference, before, after = object(), None, None
        try:
            self._begin(inference)
            before = self._variables.now
            self._future, self._cancellation.requested = None, False
            self._set_inputs(inputs, share_inputs)
            self._order()
            after = self._run()
            results = self._results(share_outputs, decode_strings)
            self._variables.now = after  # last: until here nothing has changed
            self._owner.release(inference)
            return results
        except BaseException:
            if self._owner.take(inference):  # or it has it still
                if before is not None and self._variables.now is after:
                    self._variables.now = before
                self._owner.release(inference)
            raise

    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:
        """Sets inputs, see `infer`, and starts an inference on a thread of the request's own.

        ``userdata`` is what the callback is given. Outputs are read when `wait` has returned, or in the callback.
        The thread ends when the request is dropped; an inference that is running then, and its callback, end first.
        Where a signal interrupts the call, the inference may have been started.
        """
        if userdata is not None and self._callback is None:
            warnings.warn("There is no callback function to pass `userdata` into!", RuntimeWarning, 2)
        elif userdata is not None:
            self._check_idle()
            self._userdata = userdata
        self.start(inputs, share_inputs, self._call_back, Claim())

    def start(self, inputs: Any, share_inputs: bool, on_done: Callable[[BaseException | None], Any],
              runner: Claim) -> None:
        """Starts an inference, after which its thread calls ``on_done`` with None, or what went wrong.

        The thread takes ``runner``. Where `start` raises, `CALLER` can take it if the inference does not run; it may
        run all the same where a signal's handler has raised.
        """
        from concurrent.futures import Future, ThreadPoolExecutor  # they bring logging along

        future, last = Future[None](), self._future
        try:
            self._begin(future)
            last = self._future
            self._set_inputs(inputs, share_inputs)
            self._order()
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="ovgpu-request")
            self._cancellation.requested = False
            self._future = future
            self._worker.submit(self._run_async, future, runner, on_done)
        except BaseException:
            if runner.take(CALLER):
                if self._future is future:
                    self._future = last
                self._owner.release(future)
            raise

    def _run_async(self, future: Future[None], runner: Claim, on_done: Callable[[BaseException | None], Any]) -> None:
        if not runner.take(future):
            return
        self._thread = threading.get_ident()
        error: BaseException | None = None
        try:
            self._cancellation.check()
            self._variables.now = self._run()
        except BaseException as e:
            error = e
        self._owner.release(future)
        try:
            on_done(error)
        except BaseException as e:
            error = e
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        del error  # this frame is in its traceback

    def _call_back(self, error: BaseException | None) -> None:
        if error is None and self._callback is not None:
            try:
                self._callback(self._userdata)
            except Exception as e:
                raise RuntimeError(f"the callback raised {type(e).__name__}: {e}") from e

    def wait(self) -> None:
        """Waits for the inference that was started and its callback, and raises what they raised.

        KeyboardInterrupt, or what else a signal's handler raises while it waits, says nothing about the inference: it
        goes on, and another `wait` tells whether the state is the new one.
        """
        self._check_process()
        future = self._future
        if future is not None and (future.done() or threading.get_ident() != self._thread):
            future.result()

    def wait_for(self, timeout: int) -> bool:
        """Waits at most ``timeout`` milliseconds; whether an inference was started and is over."""
        self._check_process()
        future = self._future
        if future is None:
            return False
        try:
            future.result(timeout / 1000)
        except TimeoutError:
            if future.done():  # the inference itself raised it
                raise
            return False
        return True

    def cancel(self) -> None:
        """Cancel the inference that runs or was started: `infer` or `wait` raises RuntimeError, and the state is as it
        was. The inference ends after its current step or iteration, on a CUDA device after its current graph.
        """
        self._cancellation.requested = True

    def set_callback(self, callback: Callable[[Any], Any], userdata: Any = None) -> None:
        """Has ``callback(userdata)`` called after each asynchronous inference that succeeds, on the thread that
        ran it; what it raises, `wait` raises as RuntimeError."""
        self._check_idle()
        if not callable(callback):
            raise TypeError(f"a callback is callable, got {type(callback).__name__}")
        self._callback, self._userdata = callback, userdata

    @property
    def userdata(self) -> Any:
        """What the callback is given."""
        return self._userdata

    def _begin(self, inference: object) -> None:
        self._check_process()
        if not self._owner.take(inference):
            raise RuntimeError("Infer Request is busy")

    def _check_idle(self) -> None:
        self._check_process()
        if self._owner:
            raise RuntimeError("Infer Request is busy")

    def _check_process(self) -> None:
        """In a process that was forked from the request's, lets go of what runs in that one. DeviceError if the request
        is on a CUDA device."""
        if self._forks == forks.count:
            return
        if self._backend.remote:
            raise DeviceError("CUDA does not survive a fork: the request was made in the process that this one was "
                              "forked from. Start processes by 'spawn', or compile models where they run")
        if self._future is not None and not self._future.done():
            from concurrent.futures import Future

            self._future = Future()
            self._future.set_exception(RuntimeError("the inference runs in the process that this one was forked from"))
        self._owner, self._worker, self._forks = Claim(), None, forks.count

    def _set_inputs(self, inputs: Any, share: bool) -> None:
        for number, value in numbered(self._compilation.inputs, inputs):
            self._inputs[number].set(value, share)

    def _order(self) -> None:
        """Has the inference wait for what this thread has enqueued on arrays on the device."""
        if self._backend.remote:
            owners = [slot.producer() for slot in self._inputs]
            owners += [output.producer() for output in self._outputs]
            owners = [owner for owner in owners if owner is not None]
            if owners:
                self._backend.order(owners)

    def _run(self) -> Snapshot:
        """Runs an inference; returns the values that the variables have after it."""
        start = time.perf_counter()
        try:
            if not self._backend.remote:
                after = self._infer()
            else:
                for slot in self._outputs:
                    slot.preserve()
                with self._backend.active():
                    try:
                        after = self._infer_in_memory()
                    except BaseException:
                        self._backend.abandon()
                        raise
        except Error:
            raise
        except Exception as e:
            raise fault("the inference", e) from e
        self._cancellation.check()
        self._latency = (time.perf_counter() - start) * 1000
        return after

    def _infer_in_memory(self) -> Snapshot:
        """Infer; where the device's memory does not suffice, once more without what earlier inferences have bound."""
        try:
            return self._infer()
        except Exception as e:
            if not self._executors or not is_out_of_memory(e):
                raise
            self._backend.abandon()
        self._forget()  # outside of the handler: the error holds what was bound when it was raised
        return self._infer()

    def _infer(self) -> Snapshot:
        if self._variables.moved:
            self._forget()
        watched = self._profiler is not None or DEBUG.value or STOP_AT.value or NVTX.value
        for replay in () if watched else self._replays:
            if replay.matches():
                if self._replays[-1] is not replay:  # the others come first the next time
                    self._replays.remove(replay)
                    self._replays.append(replay)
                self._replay(replay)
                return replay.after or self._variables.now
        arrays, key = self._read_inputs(), self._variables.key
        decode = self._decode_steps if self._variables.grown else None
        appending = None if decode is None else decode.take(arrays)
        if decode is not None and appending is not None:
            seen = decode.programs.seen
            pairs = [slot.pair(array) if number in seen else HostDevicePair(array, array)
                     for number, (slot, array) in enumerate(zip(self._inputs, arrays))]
            pairs += appending
            known = None if watched else decode.replay(pairs)
            if known is not None:
                self._replay(known)
                return self._variables.after({}, decode.rows)
            executor = decode.executor
            read = [pairs[i] for i in decode.programs.read]
        else:
            pairs = [slot.pair(array) for slot, array in zip(self._inputs, arrays)]
            executor, decode, read = self._executor(arrays), None, pairs
        self._last = executor
        if self._backend.remote:
            executor.hosts = [pair.host for pair in pairs]
            key = (*key, *addresses(read, self._outputs))
        states = self._states(executor, arrays, pairs if decode is None else None)
        arrays = [pair.device for pair in pairs]
        if self._profiler is not None:
            self._profiler.begin()
        if DEBUG.value or STOP_AT.value or NVTX.value:
            results = run_watched(executor, self._profiler, self._compilation.title, arrays, states, self._memory, key)
        else:
            results = executor.run(arrays, states, self._memory, key)
        self._backend.synchronize()
        for slot, result in zip(self._outputs, results):
            slot.keep(result)
        assigned = executor.assigned() if self._variables.all else {}
        after = self._variables.after(assigned, 0 if decode is None else decode.rows)
        if decode is not None:
            if not watched:
                decode.keep(pairs, Replay.of(executor, (), (), self._outputs, results))
        elif self._backend.replays and not watched:
            transition = Transition.of(self._variables, states, assigned, after)
            if transition is not None:
                found = Replay.of(executor, pairs, self._inputs, self._outputs, results, transition)
                if found is not None:
                    self._replays.append(found)
        return after

    def _replay(self, replay: Replay) -> None:
        """Runs an inference as it was run before."""
        self._last = replay.executor
        replay.run()
        self._backend.synchronize()
        replay.publish()

    @cached_property
    def _decode_steps(self) -> DecodeSteps | None:
        programs = self._compilation.decode_programs
        if programs is None:
            return None
        steps = DecodeSteps(programs, self._backend, self._variables, self._compilation.constants,
                            self._cancellation)
        steps.executor.observe = self._profiler
        return steps

    def _read_inputs(self) -> list[Array]:
        """The inputs as arrays that no output overlaps."""
        arrays = [slot.read() for slot in self._inputs]
        bound = any([out.bound for out in self._outputs])
        for number, slot in enumerate(self._inputs):
            if (bound or not slot.private) and any(out.overlaps(arrays[number]) for out in self._outputs):
                arrays[number] = slot.staged(arrays[number])
        return arrays

    def _executor(self, arrays: Sequence[Array]) -> Executor:
        program = self._compilation.program(arrays)
        executor = self._executors.get(id(program))
        if executor is None:
            executor = self._executors[id(program)] = Executor(program, self._backend, self._compilation.constants,
                                                                   self._cancellation)
            executor.observe = self._profiler
        return executor

    def _states(self, executor: Executor, arrays: Sequence[Array],
                pairs: Sequence[HostDevicePair] | None) -> dict[str, Array]:
        """Return the current values of the variables that a program reads; ``pairs`` is None for a decode step, whose
        inputs may not be those of the model."""
        if not executor.program.states:
            return {}
        variables = self._variables
        states: dict[str, Any] = {name: variables.value(name).array for name in executor.program.states}
        if any(value is None for value in states.values()):
            if pairs is None:
                pairs = [slot.pair(array) for slot, array in zip(self._inputs, arrays)]
            hosts = [pair.host for pair in pairs] if self._backend.remote else None
            initial = self._initial.find([pair.device for pair in pairs], hosts)
            states = {name: variables.begin(name, initial(name)) if value is None else value
                      for name, value in states.items()}
        return states

    # ---- results

    @property
    def results(self) -> OVDict:
        """Copies of the outputs, as `infer` returns them."""
        self._check_idle()
        return self._results(False, True)

    def _results(self, share: bool, decode_strings: bool) -> OVDict:
        return OVDict({slot.port: slot.value(share, decode_strings) for slot in self._outputs})

    # ---- state

    def query_state(self) -> list[VariableState]:
        """The variables of this request."""
        self._check_idle()
        return [VariableState(name, self._variables, self._initial, self._check_idle) for name in self._variables.all]

    def reset_state(self) -> None:
        """Gives every variable its initial value again."""
        self._check_idle()
        self._variables.reset_all()

    # ---- what it does and costs

    @property
    def latency(self) -> float:
        """Milliseconds of the last inference."""
        return self._latency

    def get_profiling_info(self) -> list[ProfilingInfo]:
        """The steps of the last inference; with times if the model was compiled with ``enable_profiling``."""
        self._check_idle()
        if self._profiler is not None:
            return self._profiler.infos()
        steps = () if self._last is None else self._last.program.steps
        status = ProfilingInfo.Status.NOT_RUN
        return [ProfilingInfo(step.name, step.op.name, step.kind, status, timedelta(), timedelta()) for step in steps]

    profiling_info = property(get_profiling_info)

    def timeline(self) -> list[Span]:
        """When the steps of the last inference ran, on the host and on the device. RuntimeError unless the model was
        compiled with ``enable_profiling``."""
        self._check_idle()
        if self._profiler is None:
            raise RuntimeError("there is no timeline: compile the model with enable_profiling (PERF_COUNT)")
        return self._profiler.spans()

    def plan(self) -> Plan:
        """What the last inference ran. RuntimeError if there was none, or its memory was released."""
        self._check_idle()
        if self._last is None:
            raise RuntimeError("there is no plan before the first inference, nor after memory was released")
        return plan_of(self._last)

    def _planned(self, shapes: Any) -> Plan:
        """What an inference with inputs of these shapes would run; see `CompiledModel.plan`."""
        self._check_idle()
        if len(self._inputs) == 1 and isinstance(shapes, (list, tuple)) and all(isinstance(d, int) for d in shapes):
            shapes = [shapes]
        pairs = shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes or ())
        given: dict[int, Iterable[int]] = {self._compilation.inputs.number(key): shape for key, shape in pairs}
        arrays: list[Any] = []
        for number, slot in enumerate(self._inputs):
            if number not in given and slot.port.partial_shape.is_dynamic:
                raise RuntimeError(f"input {number} has the dynamic shape {slot.port.partial_shape}: give its shape")
            arrays.append(slot.zeros(given.get(number, slot.port.partial_shape)))
        program = self._compilation.program(arrays)
        with self._backend.active():
            executor = Executor(program, self._backend, self._compilation.constants)
            both = [HostDevicePair(x, self._backend.constant(x) if self._backend.remote else x) for x in arrays]
            if self._backend.remote:
                executor.hosts, arrays = arrays, [pair.device for pair in both]
            executor.prepare(arrays, self._states(executor, arrays, both), self._memory)
        return plan_of(executor)

    def _release_memory(self) -> None:
        """Frees the memory of intermediate results; the next inference takes it anew."""
        self._check_idle()
        self._forget()

    def _forget(self) -> None:
        """Lets go of all that is bound: it holds the memory that it is bound to, also what variables have outgrown."""
        self._executors.clear()
        self._replays.clear()
        self._initial.release_memory()
        self.__dict__.pop("_decode_steps", None)
        self._last = None
        self._variables.release()

    def get_compiled_model(self) -> CompiledModel:
        """The compiled model, as a new object without the private request of the one that made this request."""
        from ovgpu.api.compiled_model import CompiledModel

        return CompiledModel(self._compilation)

    def __repr__(self) -> str:
        return f"<InferRequest:\n{self._compilation.inputs.listing()}\n{self._compilation.outputs.listing()}>"
