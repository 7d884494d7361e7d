"""Class Session: the part of a request that runs inferences, without threads and callbacks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from time import perf_counter
from typing import Any, NoReturn
from weakref import WeakSet

from ovgpu._util import forks
from ovgpu.compile.compilation import Compilation
from ovgpu.debug import DEBUG, NVTX, STOP_AT, run_watched
from ovgpu.errors import DeviceError, Error, is_out_of_memory
from ovgpu.lowering.program import Program
from ovgpu.ops.base.op import Array
from ovgpu.request.device_io import binding_addresses, make_inputs_and_outputs
from ovgpu.request.direct_calls import DirectCall
from ovgpu.request.inputs import RequestInput, numbered
from ovgpu.request.kv_decode import DecodeSteps
from ovgpu.request.outputs import RequestMemory, RequestOutput
from ovgpu.request.pinned import HostDevicePair
from ovgpu.request.replays import CACHED_REPLAYS, Replay, Transition
from ovgpu.request.results import OVDict, as_numbers
from ovgpu.request.variables import InitialValues, take_writes
from ovgpu.runtime.backend import Backend
from ovgpu.runtime.cancellation import Cancellation
from ovgpu.runtime.executor import Executor
from ovgpu.runtime.faults import fault
from ovgpu.runtime.overflow import Overflow, OverflowWatch
from ovgpu.runtime.plan import Plan, plan_of
from ovgpu.runtime.profile import Profiler, ProfilingInfo
from ovgpu.runtime.state import Snapshot, Variables
from ovgpu.runtime.timing import step_seconds


class Session:
    """Inputs, outputs, variables, executors and replays of one request. One thread at a time may use it.

    An inference is `infer`, `answer`, and the assignment of what `infer` returned to `state`. Without that assignment,
    the variables keep their values, as if there had been no inference. `infer` is a `DirectCall`, if one fits, or else
    `set_inputs`, `wait_for_producers` and `run`.

    `run` takes the first of three ways that is open: a replay of an earlier inference, if tensors and states are at the
    same addresses as then; a decode step, which appends a few tokens to KV caches, and may itself be a replay
    (`DecodeSteps`); the model's own program.
    """

    compilation: Compilation
    """The compilation that inferences run. It changes when the model is compiled again in a wider type."""
    backend: Backend
    """The device, with a stream of the session's own. Work on arrays is done ``with backend.active()``."""
    inputs: list[RequestInput]
    """The inputs, in the order of the model's."""
    outputs: list[RequestOutput]
    """The outputs, in the order of the model's."""
    variables: Variables
    """The variables, and the buffers that hold their values."""
    initial: InitialValues
    """The initial values of the variables."""
    cancellation: Cancellation
    """The flag that cancels the running inference."""
    profiler: Profiler | None
    """The times of the last inference's steps, if the model was compiled with ``enable_profiling``."""
    last: Executor | None = None
    """The executor of the last inference; None if there was none since `forget`."""
    latency = 0.0
    """The duration of the last inference in milliseconds."""

    def __init__(self, compilation: Compilation) -> None:
        self.compilation = compilation
        self.backend = compilation.backend.for_request()
        self.inputs, self.outputs = make_inputs_and_outputs(compilation.inputs, compilation.outputs, self.backend)
        self.variables = Variables(compilation.initial.infos, self.backend)
        self.cancellation = Cancellation()
        self._memory = RequestMemory(self.outputs, self.variables)
        self.initial = InitialValues(
            compilation.initial,
            self.variables,
            self.backend,
            compilation.constants,
            compilation.lock,
            self.cancellation,
        )
        self.profiler = Profiler(self.backend.clock()) if compilation.profiling else None
        self._executors: dict[int, Executor] = {}
        self._in_range: WeakSet[Executor] = WeakSet()  # executors whose first run has not left the range of f16
        self._doubts_results = compilation.may_widen
        self._after: Snapshot | None = None  # the values of the variables after the last inference
        self._replays: deque[Replay] = deque(maxlen=CACHED_REPLAYS)  # least recently run first
        self._direct: deque[DirectCall] = deque(maxlen=CACHED_REPLAYS)  # most recently run first
        self._answering: DirectCall | None = None  # the direct call that the last inference was
        self._forks = forks.count

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
        is_set = False
        if self._direct and not (
            DEBUG.value
            or STOP_AT.value
            or NVTX.value
            or self.variables.handed_out
            or self.compilation.current is not self.compilation
        ):
            for call in self._direct:
                if call.take(inputs, share):
                    after, is_set = self._run_directly(call), True
                    if after is not None:
                        return after
                    break
        nesting = self.backend.nesting()
        try:
            if not is_set:
                self.set_inputs(inputs, share)
                self.wait_for_producers()
                return self.run()
            for input_ in self.inputs:  # the direct call has made the copies, and may have overwritten their sources
                input_.has_copy = input_.shared_host is not None
            with self._inputs_kept():
                return self.run()
        except BaseException:
            self.backend.restore(nesting)
            raise

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
        if self._doubts_results and not all([output.looks_finite() for output in self.outputs]):
            return None
        if self.cancellation.requested:
            self.cancellation.check()
        if self._direct[0] is not call:
            self._direct.remove(call)
            self._direct.appendleft(call)
        self._after = after = call.replay.after or self.variables.now
        self._answering, self.last = call, call.replay.executor
        self.latency = (perf_counter() - start) * 1000
        return after

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
            self.compilation, self._doubts_results = compilation, compilation.may_widen

    # ---- the three ways

    def _infer(self) -> Snapshot:
        after = None if self._is_observed() else self._replayed()
        if after is None:
            arrays = self._read_inputs()
            after = self._decoded(arrays) if self.variables.grown else None
            if after is None:
                after = self._run_model(arrays)
        return after

    def _replayed(self) -> Snapshot | None:
        """Run an inference as a replay of an earlier one. Return None if none matches."""
        for replay in self._replays:
            if replay.matches():
                if self._replays[-1] is not replay:  # replays often alternate: try the others first next time
                    self._replays.remove(replay)
                    self._replays.append(replay)
                self._replay(replay)
                self._make_direct(replay)
                return replay.after or self.state
        return None

    def _decoded(self, arrays: Sequence[Array]) -> Snapshot | None:
        """Run an inference as a decode step. Return None if it is not one."""
        decode = self._decode_steps
        appending = None if decode is None else decode.prepare(arrays)
        if decode is None or appending is None:
            return None
        used, observed = decode.programs.used, self._is_observed()
        pairs = [
            input_.pair(array) if index in used else HostDevicePair(array, array)
            for index, (input_, array) in enumerate(zip(self.inputs, arrays))
        ]
        pairs += appending
        replay = None if observed else decode.replay(pairs)
        if replay is not None:
            self._replay(replay)
            return self.variables.after({}, decode.tokens)
        executor = decode.executor
        key = self.binding_key([pairs[i] for i in decode.programs.read])
        results = self.execute(executor, pairs, self._states(executor, arrays, None), key)
        after = self.variables.after(executor.assigned() if self.variables.all else {}, decode.tokens)
        if not observed:
            decode.store(pairs, Replay.of(executor, (), (), self.outputs, results))
        return after

    def _run_model(self, arrays: Sequence[Array]) -> Snapshot:
        """Run an inference by the model's own program, and keep it as a replay if it can be one."""
        pairs = [input_.pair(array) for input_, array in zip(self.inputs, arrays)]
        executor = self.executor(self.compilation.program(arrays))
        key = self.binding_key(pairs)
        states = self._states(executor, arrays, pairs)
        results = self.execute(executor, pairs, states, key)
        assigned = executor.assigned() if self.variables.all else {}
        after = self.variables.after(assigned, 0)
        if self.backend.captures_graphs and not self._is_observed():
            transition = Transition.of(self.variables, states, assigned, after)
            if transition is not None:
                replay = Replay.of(executor, pairs, self.inputs, self.outputs, results, transition)
                if replay is not None:
                    self._replays.append(replay)
        return after

    def _replay(self, replay: Replay) -> None:
        self.last = replay.executor
        replay.run()
        self.backend.synchronize()
        replay.publish()

    def _make_direct(self, replay: Replay) -> None:
        if replay.may_be_direct:
            replay.may_be_direct = False  # one attempt for each replay
            call = DirectCall.of(replay, self.inputs, self.outputs)
            if call is not None:
                self._direct.appendleft(call)

    def _is_observed(self) -> bool:
        """Return whether inferences run step by step, to be timed, printed or marked for profiling tools."""
        return bool(self.profiler is not None or DEBUG.value or STOP_AT.value or NVTX.value)

    # ---- programs

    def executor(self, program: Program) -> Executor:
        """Return the executor of a program, which keeps its memory until `forget`."""
        executor = self._executors.get(id(program))
        if executor is None:
            executor = self._executors[id(program)] = Executor(
                program, self.backend, self.compilation.constants, self.cancellation
            )
        return executor

    def execute(
        self, executor: Executor, pairs: Sequence[HostDevicePair], states: dict[str, Array], key: Any
    ) -> Sequence[Array]:
        """Run a program on inputs that are on the host and the device, and put its results into the outputs.

        ``key`` tells inputs apart that need bindings of their own, see `binding_key`. The run is also timed by the
        `profiler`, printed (`OVGPU_DEBUG`), or watched for results outside of the range of f16.
        """
        self.last = executor
        hosts = [pair.host for pair in pairs] if self.backend.remote else None
        arrays = [pair.device for pair in pairs]
        if self.profiler is not None:
            self.profiler.begin()
        if DEBUG.value or STOP_AT.value or NVTX.value:
            results = run_watched(
                executor, self.profiler, self.compilation.title, arrays, states, self._memory, key, hosts
            )
        else:
            first = self.compilation.may_widen and executor not in self._in_range
            observe = OverflowWatch(executor, self.profiler) if first else self.profiler
            results = executor.run(arrays, states, self._memory, key, hosts=hosts, observe=observe)
            if first:
                self._in_range.add(executor)
        self.backend.synchronize()
        if self.profiler is not None:
            self.compilation.last_profiler = self.profiler
        for output, result in zip(self.outputs, results):
            output.store(result)
        return results

    def binding_key(self, read: Sequence[HostDevicePair]) -> tuple[int, ...]:
        """Return the key that tells bindings of a program apart: the buffers of the variables and, on a device, the
        addresses of the inputs that it reads and of bound outputs."""
        key = self.variables.key
        return (*key, *binding_addresses(read, self.outputs)) if self.backend.remote else key

    @cached_property
    def _decode_steps(self) -> DecodeSteps | None:
        programs = self.compilation.decode_programs
        if programs is None:
            return None
        return DecodeSteps(programs, self.backend, self.variables, self.compilation.constants, self.cancellation)

    def _read_inputs(self) -> list[Array]:
        """Return the inputs as arrays. An input that an output overlaps is copied."""
        arrays = [input_.read() for input_ in self.inputs]
        bound = any([out.bound for out in self.outputs])
        for index, input_ in enumerate(self.inputs):
            if (bound or not input_.private) and any(out.overlaps(arrays[index]) for out in self.outputs):
                arrays[index] = input_.staged(arrays[index])
        return arrays

    def _states(
        self, executor: Executor, arrays: Sequence[Array], pairs: Sequence[HostDevicePair] | None
    ) -> dict[str, Array]:
        """Return the current values of the variables that a program reads.

        ``pairs`` is None for a decode step, whose program may have other inputs than the model.
        """
        if not executor.program.states:
            return {}
        variables = self.variables
        states: dict[str, Any] = {name: variables.value(name).array for name in executor.program.states}
        if any(value is None for value in states.values()):
            initial = self._initial_for(arrays, pairs)
            states = {
                name: variables.begin(name, initial(name)) if value is None else value for name, value in states.items()
            }
        return states

    def initial_values(self) -> Callable[[str], Array]:
        """Return a function from a variable's id to its initial value for the inputs that are set."""
        return self._initial_for(self._read_inputs(), None)

    def _initial_for(self, arrays: Sequence[Array], pairs: Sequence[HostDevicePair] | None) -> Callable[[str], Array]:
        if pairs is None:
            pairs = [input_.pair(array) for input_, array in zip(self.inputs, arrays)]
        hosts = [pair.host for pair in pairs] if self.backend.remote else None
        return self.initial.compute([pair.device for pair in pairs], hosts)

    # ---- results, plans and memory

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

    def profiling_info(self) -> list[ProfilingInfo]:
        """Return the steps of the last inference, with times if the model was compiled with ``enable_profiling``."""
        if self.profiler is not None:
            return self.profiler.infos()
        steps = () if self.last is None else self.last.program.steps
        status = ProfilingInfo.Status.NOT_RUN
        return [ProfilingInfo(step.name, step.op.name, step.kind, status, timedelta(), timedelta()) for step in steps]

    def plan(self, times: bool) -> Plan:
        """Return the plan of the last inference; see `InferRequest.plan`."""
        if self.last is None:
            raise RuntimeError("there is no plan before the first inference, nor after memory was released")
        if not times:
            return self._named(plan_of(self.last))
        if self.state is not self._after:  # the steps would write to memory that is a state's now
            raise RuntimeError("states have changed since the last inference: make one before its steps are timed")
        with self.backend.active():
            return self._named(plan_of(self.last, step_seconds(self.last)))

    def plan_for(self, shapes: Any) -> Plan:
        """Return the plan of an inference with inputs of these shapes, without running it; see `CompiledModel.plan`."""
        return self._named(plan_of(self._bound(shapes)))

    def _named(self, plan: Plan) -> Plan:
        """Return a plan whose results have the tensor names of the model's outputs."""
        names = [min(port.get_names(), default="") for port in self.compilation.outputs]
        if len(names) != len(plan.results):
            return plan
        results = tuple(replace(port, name=name or port.name) for port, name in zip(plan.results, names))
        return replace(plan, results=results)

    def _bound(self, shapes: Any) -> Executor:
        """Return an executor that is bound to inputs of these shapes, and has run nothing."""
        if len(self.inputs) == 1 and isinstance(shapes, (list, tuple)) and all(isinstance(d, int) for d in shapes):
            shapes = [shapes]
        pairs = shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes or ())
        shapes_by_index: dict[int, Iterable[int]] = {
            self.compilation.inputs.index_of(key): shape for key, shape in pairs
        }
        arrays: list[Any] = []
        for index, input_ in enumerate(self.inputs):
            if index not in shapes_by_index and input_.port.partial_shape.is_dynamic:
                raise RuntimeError(f"input {index} has the dynamic shape {input_.port.partial_shape}: give its shape")
            arrays.append(input_.zeros(shapes_by_index.get(index, input_.port.partial_shape)))
        program = self.compilation.program(arrays)
        with self.backend.active():
            executor = Executor(program, self.backend, self.compilation.constants)
            both = [HostDevicePair(x, self.backend.constant(x) if self.backend.remote else x) for x in arrays]
            hosts = None
            if self.backend.remote:
                hosts, arrays = arrays, [pair.device for pair in both]
            executor.prepare(arrays, self._states(executor, arrays, both), self._memory, hosts)
        return executor

    def forget(self) -> None:
        """Drop all bindings with the memory that they hold, including memory that variables have outgrown."""
        self._executors.clear()
        self._replays.clear()
        self._direct.clear()
        self.initial.release_memory()
        self.__dict__.pop("_decode_steps", None)
        self.last = None
        self.variables.release()

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
