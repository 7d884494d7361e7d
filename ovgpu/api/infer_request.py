"""Class InferRequest: runs one inference at a time, with its own inputs, outputs, state and memory."""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ovgpu._util import forks
from ovgpu._util.attributes import attribute
from ovgpu._util.claim import Claim
from ovgpu.api.request_tensors import RequestTensors
from ovgpu.compile.compilation import Compilation
from ovgpu.debug import DEBUG, NVTX, STOP_AT, run_watched
from ovgpu.errors import DeviceError, Error, is_out_of_memory
from ovgpu.ops.base.op import Array
from ovgpu.request.device_io import binding_addresses, make_slots
from ovgpu.request.inputs import numbered
from ovgpu.request.kv_decode import DecodeSteps
from ovgpu.request.outputs import RequestMemory
from ovgpu.request.pinned import HostDevicePair
from ovgpu.request.replays import CACHED_REPLAYS, Replay, Transition
from ovgpu.request.results import OVDict, as_numbers
from ovgpu.request.variables import InitialValues, VariableState, take_writes
from ovgpu.runtime.cancellation import Cancellation
from ovgpu.runtime.executor import Executor
from ovgpu.runtime.faults import fault
from ovgpu.runtime.overflow import Overflow, OverflowWatch
from ovgpu.runtime.plan import Plan, plan_of
from ovgpu.runtime.profile import Profiler, ProfilingInfo, Span
from ovgpu.runtime.state import Snapshot, Variables
from ovgpu.runtime.timing import step_seconds

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from ovgpu.api.compiled_model import CompiledModel


CALLER = "caller"
"""The party of a `Claim` that stands for the caller of `InferRequest.start`."""


class InferRequest(RequestTensors):
    """Request that runs a compiled model. Create it with `CompiledModel.create_infer_request`.

    Methods raise RuntimeError "Infer Request is busy" while an inference is running. An inference that fails leaves the
    state unchanged and the request usable. In a forked process the request continues with the state that it had,
    without the inference that was running; on a CUDA device it raises DeviceError there.
    """

    def __init__(self, other: Compilation | InferRequest) -> None:
        """Make another object for the same request. A subclass may add to it."""
        if isinstance(other, InferRequest):
            self.__dict__ = other.__dict__
            return
        if not isinstance(other, Compilation):
            kind = type(other).__name__
            raise TypeError(f"InferRequest takes a request, got {kind}: CompiledModel.create_infer_request makes one")
        compilation = self._compilation = other
        self._backend = compilation.backend.for_request()
        self._inputs, self._outputs = make_slots(compilation.inputs, compilation.outputs, self._backend)
        self._variables = Variables(compilation.initial.infos, self._backend)
        self._cancellation = Cancellation()
        self._memory = RequestMemory(self._outputs, self._variables)
        self._initial = InitialValues(
            compilation.initial,
            self._variables,
            self._backend,
            compilation.constants,
            compilation.lock,
            self._cancellation,
        )
        self._executors: dict[int, Executor] = {}
        self._in_range: WeakSet[Executor] = WeakSet()  # executors whose first run has not left the range of f16
        self._doubts_results = compilation.may_widen
        self._last: Executor | None = None  # the executor of the last inference
        self._after: Snapshot | None = None  # the values of the variables after it
        self._replays: deque[Replay] = deque(maxlen=CACHED_REPLAYS)  # least recently run first
        self._profiler = Profiler(self._backend.clock()) if compilation.profiling else None
        self._owner = Claim()  # the running inference owns the request
        self._forks = forks.count
        self._future: Future[None] | None = None  # of the inference that was started last
        self._worker: ThreadPoolExecutor | None = None
        self._thread = 0  # id of the worker's thread
        self._callback: Callable[[Any], Any] | None = None
        self._userdata: Any = None
        self._latency = 0.0

    # ---- running

    def infer(
        self,
        inputs: Any = None,
        share_inputs: bool = False,
        share_outputs: bool = False,
        *,
        decode_strings: bool | None = True,
        ml_dtypes: bool = False,
    ) -> OVDict:
        """Set inputs, run an inference, and return the outputs as arrays.

        ``inputs`` is a dict by port, number or tensor name, a list or tuple, or the single value of a model with one
        input. Inputs that are not passed keep their values. Values are Tensors, arrays or objects that NumPy makes
        arrays of; arrays are converted to the model's types. With ``share_inputs``, arrays are read in place instead of
        copied, if type and layout allow. With ``share_outputs``, the results are views of the output tensors, which the
        next inference overwrites, instead of copies. A result of more than 1 MB on a CUDA device is downloaded when it
        is first read, or before the request's next inference; the read raises OpError if the download fails. String
        outputs are ``U`` arrays, or ``S`` arrays without ``decode_strings``; both lose NULs at the end of a string, and
        ``decode_strings=None`` gives arrays of `bytes` objects, which lose nothing. Outputs of bf16 and f8 on the host
        are the bits as float16 and uint8, as in OpenVINO, or with ``ml_dtypes`` numbers, in dtypes of that package.

        On a CUDA device, values may be device arrays of CuPy, torch or any library that supports DLPack or
        ``__cuda_array_interface__``. An output that is bound to a `RemoteTensor` stays on the device: its result is the
        tensor's memory as a CuPy array.

        Raises: RuntimeError for inputs that do not fit the model and for errors of the inference, TypeError for values
        that cannot be inputs. The state is unchanged after any exception, including KeyboardInterrupt at any point.
        """
        inference, before, after = object(), None, None
        try:
            self._begin(inference)
            before = self._variables.now
            self._future, self._cancellation.requested = None, False
            self._set_inputs(inputs, share_inputs)
            self._wait_for_producers()
            after = self._run()
            results = self._results(share_outputs, decode_strings, ml_dtypes)
            self._variables.now = after  # last, so that an exception before it leaves the state unchanged
            self._owner.release(inference)
            return results
        except BaseException:
            if self._owner.take(inference):  # also true if it still is the owner
                if before is not None and self._variables.now is after:
                    self._variables.now = before
                self._owner.release(inference)
            raise

    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:
        """Set inputs, see `infer`, and start an inference on the request's own thread.

        ``userdata`` is passed to the callback. Read the outputs after `wait` has returned, or in the callback. The
        thread ends when the request is dropped, after an inference that is running then and its callback. If a signal
        handler interrupts the call, the inference may have been started.
        """
        if userdata is not None and self._callback is None:
            warnings.warn("There is no callback function to pass `userdata` into!", RuntimeWarning, 2)
        elif userdata is not None:
            self._check_idle()
            self._userdata = userdata
        self.start(inputs, share_inputs, self._call_back, Claim())

    def start(
        self, inputs: Any, share_inputs: bool, on_done: Callable[[BaseException | None], Any], runner: Claim
    ) -> None:
        """Start an inference, after which its thread calls ``on_done`` with None or the error.

        The thread takes the claim ``runner``. If `start` raises and the inference does not run, `CALLER` can take the
        claim. The inference may run nevertheless if a signal handler raised.
        """
        from concurrent.futures import Future, ThreadPoolExecutor  # slow to import: it imports logging

        future, last = Future[None](), self._future
        try:
            self._begin(future)
            last = self._future
            self._set_inputs(inputs, share_inputs)
            self._wait_for_producers()
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
        del error  # its traceback refers to this frame

    def _call_back(self, error: BaseException | None) -> None:
        if error is None and self._callback is not None:
            try:
                self._callback(self._userdata)
            except Exception as e:
                raise RuntimeError(f"the callback raised {type(e).__name__}: {e}") from e

    def wait(self) -> None:
        """Wait for the inference that was started and its callback, and raise their errors.

        If a signal handler raises while `wait` waits, as for KeyboardInterrupt, the inference goes on. Another `wait`
        shows whether it succeeds and the state is the new one.
        """
        self._check_process()
        future = self._future
        if future is not None and (future.done() or threading.get_ident() != self._thread):
            future.result()

    def wait_for(self, timeout: int) -> bool:
        """Wait at most ``timeout`` milliseconds. Return whether an inference was started and has ended."""
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
        """Cancel the inference that runs or was started: `infer` or `wait` raises RuntimeError; the state is unchanged.

        The inference ends after its current step or iteration, on a CUDA device after its current graph.
        """
        self._cancellation.requested = True

    def set_callback(self, callback: Callable[[Any], Any], userdata: Any = None) -> None:
        """Set ``callback(userdata)``, called after each asynchronous inference that succeeds, on the request's thread.

        `wait` raises an exception of the callback as RuntimeError.
        """
        self._check_idle()
        if not callable(callback):
            raise TypeError(f"a callback is callable, got {type(callback).__name__}")
        self._callback, self._userdata = callback, userdata

    @property
    def userdata(self) -> Any:
        """The argument that is passed to the callback."""
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
        """Drop the parent's running inference if this is a forked process. There, raise DeviceError for a request on a
        CUDA device."""
        if self._forks == forks.count:
            return
        if self._backend.remote:
            raise DeviceError(
                "CUDA does not survive a fork: the request was made in the process that this one was "
                "forked from. Start processes by 'spawn', or compile models where they run"
            )
        if self._future is not None and not self._future.done():
            from concurrent.futures import Future

            self._future = Future()
            self._future.set_exception(RuntimeError("the inference runs in the process that this one was forked from"))
        self._owner, self._worker, self._forks = Claim(), None, forks.count

    def _set_inputs(self, inputs: Any, share: bool) -> None:
        for number, value in numbered(self._compilation.inputs, inputs):
            self._inputs[number].set(value, share)

    def _wait_for_producers(self) -> None:
        """Make the inference wait for work that this thread has enqueued on device arrays of inputs and outputs."""
        if self._backend.remote:
            owners = [owner for slot in self._inputs for owner in slot.producers()]
            owners += [owner for output in self._outputs for owner in output.producers()]
            if owners:
                self._backend.order(owners)

    def _run(self) -> Snapshot:
        """Run an inference. Return the values of the variables after it."""
        start = time.perf_counter()
        try:
            if self._variables.handed_out:
                take_writes(self._variables, self._variables.handed_out)
            if not self._backend.remote:
                after = self._infer()
            else:
                for slot in self._outputs:
                    slot.preserve()
                with self._backend.active():
                    try:
                        after = self._infer_in_range()
                    except BaseException:
                        self._backend.abandon()
                        raise
        except Error:
            raise
        except Exception as e:
            raise fault("the inference", e) from e
        self._cancellation.check()
        self._latency, self._after = (time.perf_counter() - start) * 1000, after
        return after

    def _infer_with_retry(self) -> Snapshot:
        """Infer. If the device runs out of memory, drop all bindings of earlier inferences and try once more."""
        try:
            return self._infer()
        except Exception as e:
            if not self._executors or not is_out_of_memory(e):
                raise
            self._backend.abandon()
        self._forget()  # outside of the handler, because the error's traceback holds the bindings
        return self._infer()

    def _infer_in_range(self) -> Snapshot:
        """Infer. If activations leave the range of f16, compile the model in a wider type, and infer again.

        The first run of each program is watched. Later ones are repeated, and watched, if their results are not finite,
        until this has other reasons than f16.
        """
        try:
            after = self._infer_with_retry()
            if not self._doubts_results or all([slot.looks_finite() for slot in self._outputs]):
                return after
            self._doubts_results = False
            self._forget()
            return self._infer_with_retry()
        except Overflow:
            self._backend.abandon()
        self._forget()
        self._compilation.widened()
        return self._infer_with_retry()

    def _infer(self) -> Snapshot:
        if self._compilation.current is not self._compilation:
            self._change_to(self._compilation.current)
        if self._variables.has_outgrown_buffers:
            self._forget()
        watched = self._profiler is not None or DEBUG.value or STOP_AT.value or NVTX.value
        for replay in () if watched else self._replays:
            if replay.matches():
                if self._replays[-1] is not replay:  # replays often alternate: try the others first next time
                    self._replays.remove(replay)
                    self._replays.append(replay)
                self._replay(replay)
                return replay.after or self._variables.now
        arrays, key = self._read_inputs(), self._variables.key
        decode = self._decode_steps if self._variables.grown else None
        appending = None if decode is None else decode.prepare(arrays)
        if decode is not None and appending is not None:
            used = decode.programs.used
            pairs = [
                slot.pair(array) if number in used else HostDevicePair(array, array)
                for number, (slot, array) in enumerate(zip(self._inputs, arrays))
            ]
            pairs += appending
            cached_replay = None if watched else decode.replay(pairs)
            if cached_replay is not None:
                self._replay(cached_replay)
                return self._variables.after({}, decode.rows)
            executor = decode.executor
            read = [pairs[i] for i in decode.programs.read]
        else:
            pairs = [slot.pair(array) for slot, array in zip(self._inputs, arrays)]
            executor, decode, read = self._executor(arrays), None, pairs
        self._last = executor
        hosts = None
        if self._backend.remote:
            hosts = [pair.host for pair in pairs]
            key = (*key, *binding_addresses(read, self._outputs))
        states = self._states(executor, arrays, pairs if decode is None else None)
        arrays = [pair.device for pair in pairs]
        if self._profiler is not None:
            self._profiler.begin()
        if DEBUG.value or STOP_AT.value or NVTX.value:
            results = run_watched(
                executor, self._profiler, self._compilation.title, arrays, states, self._memory, key, hosts
            )
        else:
            first = self._compilation.may_widen and executor not in self._in_range
            observe = OverflowWatch(executor, self._profiler) if first else self._profiler
            results = executor.run(arrays, states, self._memory, key, hosts=hosts, observe=observe)
            if first:
                self._in_range.add(executor)
        self._backend.synchronize()
        if self._profiler is not None:
            self._compilation.last_profiler = self._profiler
        for slot, result in zip(self._outputs, results):
            slot.store(result)
        assigned = executor.assigned() if self._variables.all else {}
        after = self._variables.after(assigned, 0 if decode is None else decode.rows)
        if decode is not None:
            if not watched:
                decode.store(pairs, Replay.of(executor, (), (), self._outputs, results))
        elif self._backend.replays and not watched:
            transition = Transition.of(self._variables, states, assigned, after)
            if transition is not None:
                found = Replay.of(executor, pairs, self._inputs, self._outputs, results, transition)
                if found is not None:
                    self._replays.append(found)
        return after

    def _change_to(self, compilation: Compilation) -> None:
        """Run another compilation of the model from now on. The variables keep their values, in its types."""
        self._forget()
        self._variables.change(compilation.initial.infos)
        self._initial.change(compilation.initial, compilation.constants, compilation.lock)
        self._compilation, self._doubts_results = compilation, compilation.may_widen

    def _replay(self, replay: Replay) -> None:
        """Run an inference as a replay of an earlier one."""
        self._last = replay.executor
        replay.run()
        self._backend.synchronize()
        replay.publish()

    @cached_property
    def _decode_steps(self) -> DecodeSteps | None:
        programs = self._compilation.decode_programs
        if programs is None:
            return None
        return DecodeSteps(programs, self._backend, self._variables, self._compilation.constants, self._cancellation)

    def _read_inputs(self) -> list[Array]:
        """Return the inputs as arrays. An input that an output overlaps is copied."""
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
            executor = self._executors[id(program)] = Executor(
                program, self._backend, self._compilation.constants, self._cancellation
            )
        return executor

    def _states(
        self, executor: Executor, arrays: Sequence[Array], pairs: Sequence[HostDevicePair] | None
    ) -> dict[str, Array]:
        """Return the current values of the variables that a program reads.

        ``pairs`` is None for a decode step, whose program may have other inputs than the model.
        """
        if not executor.program.states:
            return {}
        variables = self._variables
        states: dict[str, Any] = {name: variables.value(name).array for name in executor.program.states}
        if any(value is None for value in states.values()):
            if pairs is None:
                pairs = [slot.pair(array) for slot, array in zip(self._inputs, arrays)]
            hosts = [pair.host for pair in pairs] if self._backend.remote else None
            initial = self._initial.compute([pair.device for pair in pairs], hosts)
            states = {
                name: variables.begin(name, initial(name)) if value is None else value for name, value in states.items()
            }
        return states

    # ---- results

    @property
    def results(self) -> OVDict:
        """Copies of the outputs, as `infer` returns them."""
        self._check_idle()
        return self._results(False, True)

    def _results(self, share: bool, decode_strings: bool | None, ml_dtypes: bool = False) -> OVDict:
        values = {slot.port: slot.value(share, decode_strings) for slot in self._outputs}
        if ml_dtypes:
            values = {slot.port: as_numbers(values[slot.port], slot.tensor.element_type) for slot in self._outputs}
        return OVDict(values)

    def _is_single_input(self) -> bool:
        """Return whether the model has one input. `openvino.utils.data_helpers` asks for it."""
        return len(self._inputs) == 1

    # ---- state

    def query_state(self) -> list[VariableState]:
        """Return the variables of this request."""
        self._check_idle()
        return [VariableState(name, self._variables, self._initial, self._check_idle) for name in self._variables.all]

    def reset_state(self) -> None:
        """Reset every variable to its initial value."""
        self._check_idle()
        self._variables.handed_out.clear()
        self._variables.reset_all()

    # ---- profiling, plans and memory

    @property
    def latency(self) -> float:
        """The duration of the last inference in milliseconds."""
        return self._latency

    def get_profiling_info(self) -> list[ProfilingInfo]:
        """Return the steps of the last inference, with times if the model was compiled with ``enable_profiling``."""
        self._check_idle()
        if self._profiler is not None:
            return self._profiler.infos()
        steps = () if self._last is None else self._last.program.steps
        status = ProfilingInfo.Status.NOT_RUN
        return [ProfilingInfo(step.name, step.op.name, step.kind, status, timedelta(), timedelta()) for step in steps]

    profiling_info = attribute(get_profiling_info)

    def timeline(self) -> list[Span]:
        """Return the start and end of the last inference's steps, on the host and on the device.

        Raises: RuntimeError unless the model was compiled with ``enable_profiling``.
        """
        self._check_idle()
        if self._profiler is None:
            raise RuntimeError("there is no timeline: compile the model with enable_profiling (PERF_COUNT)")
        return self._profiler.spans()

    def plan(self, *, times: bool = False) -> Plan:
        """Return the plan of the last inference.

        With ``times``, its steps are run again, ten times, and have the median of the seconds that each takes on the
        device. States keep their values.

        Raises: RuntimeError if there was no inference, if its memory was released, or if steps are to be timed after
        a state was set or reset.
        """
        self._check_idle()
        if self._last is None:
            raise RuntimeError("there is no plan before the first inference, nor after memory was released")
        if not times:
            return self._named(plan_of(self._last))
        if self._variables.now is not self._after:  # the steps would write to memory that is a state's now
            raise RuntimeError("states have changed since the last inference: make one before its steps are timed")
        with self._backend.active():
            return self._named(plan_of(self._last, step_seconds(self._last)))

    def _plan_for(self, shapes: Any) -> Plan:
        """Return the plan of an inference with inputs of these shapes; see `CompiledModel.plan`."""
        return self._named(plan_of(self._bound(shapes)))

    def _named(self, plan: Plan) -> Plan:
        """Return a plan whose results have the tensor names of the model's outputs."""
        names = [min(port.get_names(), default="") for port in self._compilation.outputs]
        if len(names) != len(plan.results):
            return plan
        results = tuple(replace(port, name=name or port.name) for port, name in zip(plan.results, names))
        return replace(plan, results=results)

    def _bound(self, shapes: Any) -> Executor:
        """Return an executor that is bound to inputs of these shapes, and has run nothing."""
        self._check_idle()
        if len(self._inputs) == 1 and isinstance(shapes, (list, tuple)) and all(isinstance(d, int) for d in shapes):
            shapes = [shapes]
        pairs = shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes or ())
        shapes_by_number: dict[int, Iterable[int]] = {
            self._compilation.inputs.number(key): shape for key, shape in pairs
        }
        arrays: list[Any] = []
        for number, slot in enumerate(self._inputs):
            if number not in shapes_by_number and slot.port.partial_shape.is_dynamic:
                raise RuntimeError(f"input {number} has the dynamic shape {slot.port.partial_shape}: give its shape")
            arrays.append(slot.zeros(shapes_by_number.get(number, slot.port.partial_shape)))
        program = self._compilation.program(arrays)
        with self._backend.active():
            executor = Executor(program, self._backend, self._compilation.constants)
            both = [HostDevicePair(x, self._backend.constant(x) if self._backend.remote else x) for x in arrays]
            hosts = None
            if self._backend.remote:
                hosts, arrays = arrays, [pair.device for pair in both]
            executor.prepare(arrays, self._states(executor, arrays, both), self._memory, hosts)
        return executor

    def _release_memory(self) -> None:
        """Free the memory of intermediate results. The next inference allocates it again."""
        self._check_idle()
        self._forget()

    def _forget(self) -> None:
        """Drop all bindings with the memory that they hold, including memory that variables have outgrown."""
        self._executors.clear()
        self._replays.clear()
        self._initial.release_memory()
        self.__dict__.pop("_decode_steps", None)
        self._last = None
        self._variables.release()

    def get_compiled_model(self) -> CompiledModel:
        """Return the compiled model as a new object, which does not share the private request of the original one.

        If several devices share the model's requests, it is the compiled model for the device of this request.
        """
        from ovgpu.api.compiled_model import CompiledModel

        return CompiledModel(self._compilation)

    def __repr__(self) -> str:
        return f"<InferRequest:\n{self._compilation.inputs.listing()}\n{self._compilation.outputs.listing()}>"
