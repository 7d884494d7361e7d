"""Class RequestPrograms: the part of a request that runs programs in its memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Any
from weakref import WeakSet

from ovgpu.compile.compilation import Compilation
from ovgpu.debug import DEBUG, NVTX, STOP_AT, run_watched
from ovgpu.lowering.program import Program
from ovgpu.ops.base.op import Array
from ovgpu.request.device_io import binding_addresses, make_inputs_and_outputs
from ovgpu.request.direct_calls import DirectCall
from ovgpu.request.inputs import RequestInput
from ovgpu.request.kv_decode import DecodeSteps
from ovgpu.request.outputs import RequestMemory, RequestOutput
from ovgpu.request.pinned import HostDevicePair
from ovgpu.request.replays import CACHED_REPLAYS, Replay, Transition
from ovgpu.request.variables import InitialValues
from ovgpu.runtime.backend import Backend
from ovgpu.runtime.cancellation import Cancellation
from ovgpu.runtime.executor import Executor
from ovgpu.runtime.overflow import OverflowWatch
from ovgpu.runtime.plan import Plan, plan_of
from ovgpu.runtime.profile import Profiler, ProfilingInfo
from ovgpu.runtime.state import Snapshot, Variables
from ovgpu.runtime.timing import step_seconds

Replayed = tuple[Replay, Snapshot]
"""A replay that is enqueued, and the values of the variables after it."""


class RequestPrograms:
    """Programs of one request, with the memory that they run in: inputs, outputs, variables, executors and replays.

    An inference goes the first of three ways that is open: a replay of an earlier inference, if tensors and states are
    at the same addresses as then; a decode step, which appends a few tokens to KV caches, and may itself be a replay
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
        self._after: Snapshot | None = None  # the values of the variables after the last inference
        self._in_range: WeakSet[Executor] = WeakSet()  # executors whose first run has not left the range of f16
        self._replays: deque[Replay] = deque(maxlen=CACHED_REPLAYS)  # least recently run first
        self._direct: deque[DirectCall] = deque(maxlen=CACHED_REPLAYS)  # most recently run first
        compilation.add_request(self)

    def memory_by_purpose(self) -> dict[str, int]:
        """Return the bytes of device memory that the request holds, by purpose, besides its inputs and outputs."""
        arenas = sum(executor.arena_bytes for executor in list(self._executors.values()))
        return {"arenas": arenas, "states": self.variables.nbytes, **self.backend.memory_of_request()}

    # ---- the three ways

    def _infer(self) -> Snapshot:
        observed = self._is_observed()
        replayed = None if observed else self._replayed(Replay.run)
        if replayed is None:
            arrays = self._read_inputs()
            pairs = self._decode_pairs(arrays) if self.variables.grown else None
            if pairs is None:
                return self._run_model(arrays)
            replayed = None if observed else self._replayed_step(pairs, Replay.run)
            if replayed is None:
                return self._run_step(arrays, pairs)
        replay, after = replayed
        self.backend.synchronize()
        replay.publish()
        return after

    def _enqueue(self) -> Replayed | None:
        """Enqueue an inference if it is a replay of one graph; the backend need not be `active`."""
        if (
            self._is_observed()
            or self.variables.handed_out
            or self.compilation.current is not self.compilation
            or self.variables.has_outgrown_buffers
        ):
            return None
        for output in self.outputs:
            output.preserve()
        with self.backend.active():
            replayed = self._replayed(Replay.enqueue)
            if replayed is None and self.variables.grown:
                pairs = self._decode_pairs(self._read_inputs())
                replayed = None if pairs is None else self._replayed_step(pairs, Replay.enqueue)
        return replayed

    def _replayed(self, run: Callable[[Replay], bool]) -> Replayed | None:
        """Run an inference as a replay of an earlier one. Return None if none matches, or if ``run`` returns False."""
        for replay in self._replays:
            if replay.matches():
                if self._replays[-1] is not replay:  # replays often alternate: try the others first next time
                    self._replays.remove(replay)
                    self._replays.append(replay)
                if not run(replay):
                    return None
                self.last = replay.executor
                self._make_direct(replay)
                return replay, replay.after or self.variables.now
        return None

    def _decode_pairs(self, arrays: Sequence[Array]) -> list[HostDevicePair] | None:
        """Prepare a decode step. Return the arguments of its program, or None if the inference is no decode step."""
        decode = self._decode_steps
        appending = None if decode is None else decode.prepare(arrays)
        if decode is None or appending is None:
            return None
        used = decode.programs.used
        pairs = [
            input_.pair(array) if index in used else HostDevicePair(array, array)
            for index, (input_, array) in enumerate(zip(self.inputs, arrays))
        ]
        return pairs + appending

    def _replayed_step(self, pairs: Sequence[HostDevicePair], run: Callable[[Replay], bool]) -> Replayed | None:
        """Run a decode step as a replay of the last one. Return None if it has other arrays, or if ``run`` returns
        False."""
        decode = self._decode_steps
        replay = None if decode is None else decode.replay(pairs)
        if decode is None or replay is None or not run(replay):
            return None
        self.last = replay.executor
        return replay, self.variables.after({}, decode.tokens)

    def _run_step(self, arrays: Sequence[Array], pairs: Sequence[HostDevicePair]) -> Snapshot:
        """Run a decode step by its program, and keep it as a replay if it can be one."""
        decode = self._decode_steps
        assert decode is not None  # it has prepared the step
        executor = decode.executor
        key = self.binding_key([pairs[i] for i in decode.programs.read])
        results = self.execute(executor, pairs, self._states(executor, arrays, None), key)
        after = self.variables.after(executor.assigned() if self.variables.all else {}, decode.tokens)
        if not self._is_observed():
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

    def replay_of(
        self,
        executor: Executor,
        pairs: Sequence[HostDevicePair],
        inputs: Sequence[RequestInput],
        results: Sequence[Array],
    ) -> Replay | None:
        """Return the replay of the inference by `execute` that has just ended, None if it cannot be one.

        ``inputs`` are those that the program reads, ``pairs`` their arrays. All other arrays have to be the same when
        `repeat` runs it.
        """
        return None if self._is_observed() else Replay.of(executor, pairs, inputs, self.outputs, results)

    def repeat(self, replay: Replay) -> bool:
        """Run a result of `replay_of`. Return False, and run nothing, if it does not match."""
        if self._is_observed() or not replay.matches():
            return False
        replay.run()
        self.last = replay.executor
        self.backend.synchronize()
        replay.publish()
        return True

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

    # ---- plans and memory

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
        if self.variables.now is not self._after:  # the steps would write to memory that is a state's now
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
