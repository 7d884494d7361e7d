"""InferRequest: one inference at a time, with inputs, outputs, state and memory of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any

import numpy as np

from ovgpu.debug import DEBUG, STOP_AT, run_watched
from ovgpu.errors import Error
from ovgpu.model import Output, find_port
from ovgpu.ops._op import Array
from ovgpu.results import OVDict
from ovgpu.runtime.executor import Executor
from ovgpu.runtime.plan import Plan, plan_of
from ovgpu.runtime.profile import Profiler, ProfilingInfo
from ovgpu.runtime.program import Program
from ovgpu.runtime.state import Variable, Variables
from ovgpu.tensor import Tensor
from ovgpu.types import PartialShape, Type

if TYPE_CHECKING:
    from ovgpu.core import CompiledModel

SMALL_INPUT = 65536  # bytes: copying less than this costs less than binding steps to a new array


class VariableState:
    """A variable of a request: read it, set it, or reset it to its initial value."""

    def __init__(self, request: InferRequest, variable: Variable) -> None:
        self._request, self._variable = request, variable

    @property
    def name(self) -> str:
        return self._variable.info.name

    @property
    def state(self) -> Tensor:
        """A copy of the value; before the first inference, and after a reset, the initial one if it is constant
        and else zeros."""
        self._request._check_idle()
        value = self._request._state_value(self.name)
        return Tensor.from_array(np.array(self._request._backend.download(value)), self._request._variables.type_of(self.name, value))

    @state.setter
    def state(self, value: Tensor) -> None:
        self._request._check_idle()
        tensor = value if isinstance(value, Tensor) else Tensor(value)
        self._request._variables.set(self.name, self._request._backend.upload(tensor.array, None))

    def reset(self) -> None:
        self._request._check_idle()
        self._variable.current = None

    def __repr__(self) -> str:
        return f"<VariableState: '{self.name}'>"


class InferRequest:
    """Runs a compiled model. Create it with `CompiledModel.create_infer_request`.

    Raises RuntimeError when used while an inference is running.
    """

    def __init__(self, compiled: CompiledModel) -> None:
        self._compiled = compiled
        self._backend = compiled._backend.for_request()
        self._variables = Variables(compiled._variable_infos, self._backend)
        self._uploaded: list[Any] = [None] * len(compiled.inputs)
        self._executors: dict[int, Executor] = {}
        self._last: Executor | None = None  # the executor of the last inference
        self._inputs: list[Any] = [None] * len(compiled.inputs)  # arrays as they will be used
        self._input_tensors: list[Tensor | None] = [None] * len(compiled.inputs)
        self._outputs: list[Any] = [None] * len(compiled.outputs)
        self._bound_outputs: list[Tensor | None] = [None] * len(compiled.outputs)
        self._future: Future[None] | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._busy = threading.Lock()
        self._callback: Callable[[Any], Any] | None = None
        self._latency = 0.0
        self._profiler = Profiler() if compiled._profiling else None
        self.userdata: Any = None

    # ---- running

    def infer(self, inputs: Any = None, share_inputs: bool = False, share_outputs: bool = False, *,
              decode_strings: bool = True) -> OVDict:
        """Sets inputs and runs. Inputs: a dict by port, name or number, a list, or one array.

        ``share_inputs`` uses the arrays' memory where type and layout allow; ``share_outputs`` returns views of
        the request's output tensors, which the next inference overwrites, instead of copies.
        """
        with self._running():
            self._set_inputs(inputs, share_inputs)
            self._run()
        return self._results(share_outputs)

    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:
        """Sets inputs and starts an inference on a thread of the request's own."""
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("Infer Request is busy")
        try:
            self._set_inputs(inputs, share_inputs)
            if userdata is not None:
                self.userdata = userdata
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="ovgpu-request")
            self._future = self._worker.submit(self._run_async)
        except BaseException:
            self._busy.release()
            raise

    def _run_async(self) -> None:
        failure: BaseException | None = None
        try:
            self._run()
        except BaseException as e:
            failure = e
        self._busy.release()
        if self._callback is not None:
            self._callback(self.userdata)
        if failure is not None:
            raise failure

    def wait(self) -> None:
        """Waits for the inference that was started, and raises what it raised."""
        if self._future is not None:
            self._future.result()

    def wait_for(self, timeout: int) -> bool:
        """Waits at most ``timeout`` milliseconds; whether the inference is over."""
        if self._future is None:
            return True
        try:
            self._future.result(timeout / 1000)
        except FutureTimeout:
            return False
        return True

    def cancel(self) -> None:
        """Has no effect on an inference that is running: it is waited for."""
        if self._future is not None and not self._future.cancel():
            self._future.exception()

    def set_callback(self, callback: Callable[[Any], Any], userdata: Any = None) -> None:
        """Has ``callback(userdata)`` called after each asynchronous inference."""
        self._check_idle()
        self._callback, self.userdata = callback, userdata

    def _running(self) -> _Running:
        return _Running(self._busy)

    def _check_idle(self) -> None:
        if self._busy.locked():
            raise RuntimeError("Infer Request is busy")

    def _run(self) -> None:
        start = time.perf_counter()
        compiled = self._compiled
        arrays = [self._input_array(i) for i in range(len(self._inputs))]
        program = compiled._program(arrays)
        executor = self._executors.get(id(program))
        if executor is None:
            executor = self._executors[id(program)] = Executor(program, self._backend, compiled._constants)
            executor.observe = self._profiler
        self._last = executor
        arrays = self._uploaded = [self._backend.upload(x, old) for x, old in zip(arrays, self._uploaded)]
        states = {name: self._current(name, arrays) for name in program.states}
        if DEBUG.value or STOP_AT.value:
            title = f"{compiled.get_property('FULL_DEVICE_NAME')} ({self._backend.name}), {compiled._original.name}"
            results = run_watched(executor, self._profiler, title, arrays, states, self, self._variables.key)
        else:
            results = executor.run(arrays, states, self, self._variables.key)
        self._backend.synchronize()
        self._variables.commit(executor.assigned())
        for number, result in enumerate(results):
            self._keep_output(number, result)
        self._latency = (time.perf_counter() - start) * 1000

    # ---- executor.Memory

    def output(self, number: int, shape: tuple[int, ...], kind: Type) -> Array:
        bound = self._bound_outputs[number]
        array = self._outputs[number] if bound is None else bound.array
        if array is not None and array.shape == shape and array.dtype == kind.storage and not (
                bound is not None and kind.packed):
            return array
        array = self._outputs[number] = self._backend.xp.empty(shape, kind.storage)
        return array

    def variable(self, name: str, shape: tuple[int, ...], kind: Type) -> Array:
        return self._variables.all[name].write(shape, kind)

    def _keep_output(self, number: int, result: Array) -> None:
        bound = self._bound_outputs[number]
        if bound is not None and result is not bound.array:
            bound.set_shape(list(result.shape))
            Tensor.from_array(result, bound.element_type).copy_to(bound)
        self._outputs[number] = result

    # ---- inputs

    def _set_inputs(self, inputs: Any, share: bool) -> None:
        for number, value in self._numbered(inputs):
            self._set_input(number, value, share)

    def _numbered(self, inputs: Any) -> Iterable[tuple[int, Any]]:
        ports = self._compiled.inputs
        if inputs is None:
            return []
        if isinstance(inputs, (Mapping, OVDict)):
            return [(self._number(ports, key, "input"), value) for key, value in inputs.items()]
        if isinstance(inputs, (list, tuple)) and not (len(ports) == 1 and _is_number_list(inputs)):
            if len(inputs) > len(ports):
                raise RuntimeError(f"{len(inputs)} inputs are given, the model has {len(ports)}")
            return list(enumerate(inputs))
        if len(ports) != 1:
            raise RuntimeError(f"one input is given, the model has {len(ports)}")
        return [(0, inputs)]

    def _number(self, ports: Sequence[Output], key: Any, kind: str) -> int:
        port = key if isinstance(key, Output) and key in ports else find_port(ports, key, kind)
        return ports.index(port)

    def _set_input(self, number: int, value: Any, share: bool) -> None:
        port = self._compiled.inputs[number]
        kind = port.element_type
        self._input_tensors[number] = None
        if isinstance(value, Tensor):
            self._check_tensor(port, value, "input")
            self._inputs[number] = value.array
            self._input_tensors[number] = value
            return
        array = self._as_array(value, kind)
        self._check_shape(port, array.shape)
        if not share or array.nbytes <= SMALL_INPUT:
            array = self._copy_in(number, array)
        self._inputs[number] = array

    def _as_array(self, value: Any, kind: Type) -> Array:
        """An array of the port's storage dtype: converted silently, as OpenVINO's Python API does."""
        if hasattr(value, "element_type") and hasattr(value, "data"):  # openvino.Tensor
            return Tensor(value).array
        if kind == Type.string:
            return np.asarray(value, dtype=object)
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
        wanted = array.dtype if kind.is_dynamic() else kind.storage
        if array.dtype == wanted and array.flags.c_contiguous and array.flags.aligned:
            return array
        return np.ascontiguousarray(array, wanted).reshape(array.shape)

    def _copy_in(self, number: int, array: Array) -> Array:
        own = self._inputs[number]
        if (own is None or own.shape != array.shape or own.dtype != array.dtype or not own.flags.owndata
                or not own.flags.writeable):
            return np.array(array)
        np.copyto(own, array)
        return own

    def _check_shape(self, port: Output, shape: tuple[int, ...]) -> None:
        declared = port.partial_shape
        if not declared.compatible(PartialShape(list(shape))):
            raise Error(f"[Parameter] the input tensor has shape {list(shape)}, "
                        f"the model takes {declared} ({port.node.place})")

    def _input_shapes(self, shapes: Any) -> list[tuple[int, ...]]:
        """The shape of each input: that of ``shapes`` (by port, name or number) or the declared one."""
        ports = self._compiled.inputs
        if len(ports) == 1 and isinstance(shapes, (list, tuple)) and all(isinstance(d, int) for d in shapes):
            shapes = [shapes]
        pairs = shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes or ())
        given = {self._number(ports, key, "input"): tuple(map(int, shape)) for key, shape in pairs}
        found = []
        for number, port in enumerate(ports):
            if number not in given and port.partial_shape.is_dynamic:
                raise RuntimeError(f"input {number} has the dynamic shape {port.partial_shape}: give its shape")
            found.append(given[number] if number in given else tuple(port.shape))
            self._check_shape(port, found[-1])
        return found

    def _check_tensor(self, port: Output, tensor: Tensor, what: str) -> None:
        kind = port.element_type
        if not kind.is_dynamic() and tensor.element_type != kind:
            raise Error(f"[{port.node.op.name}] the {what} tensor has type {tensor.element_type.get_type_name()}, "
                        f"the model has {kind.get_type_name()} ({port.node.place})")
        if what == "input":
            self._check_shape(port, tuple(tensor.shape))

    def _input_array(self, number: int) -> Array:
        array = self._inputs[number]
        if self._input_tensors[number] is not None:
            array = self._inputs[number] = self._input_tensors[number].array  # type: ignore[union-attr]
            self._check_shape(self._compiled.inputs[number], array.shape)
        if array is None:
            port = self._compiled.inputs[number]
            if port.partial_shape.is_dynamic:
                raise Error(f"[Parameter] the input tensor is not set, and the shape {port.partial_shape} is dynamic "
                            f"({port.node.place})")
            array = self._inputs[number] = np.zeros(tuple(port.shape), port.element_type.storage)
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        return array

    # ---- state

    def _current(self, name: str, arrays: Sequence[Array]) -> Array:
        variable = self._variables.all[name]
        return variable.current if variable.current is not None else self._compiled._initial(name, arrays)

    def _state_value(self, name: str) -> Array:
        variable = self._variables.all[name]
        if variable.current is not None:
            return variable.current
        return self._compiled._initial(name, None)

    def query_state(self) -> list[VariableState]:
        return [VariableState(self, variable) for variable in self._variables.all.values()]

    def reset_state(self) -> None:
        """Gives every variable its initial value again."""
        self._check_idle()
        self._variables.reset()

    # ---- tensors

    def _port(self, key: Any) -> tuple[bool, int]:
        """(whether it is an input, number) of a port or a tensor name."""
        inputs, outputs = self._compiled.inputs, self._compiled.outputs
        for ports, is_input in ((inputs, True), (outputs, False)):
            for number, port in enumerate(ports):
                if (key in port.get_names() if isinstance(key, str) else
                        key is port or (isinstance(key, Output) and key is port.tensor_port)):
                    return is_input, number
        for ports, is_input in ((inputs, True), (outputs, False)):
            try:
                return is_input, self._number(ports, key, "input" if is_input else "output")
            except RuntimeError:
                continue
        raise RuntimeError(f"the model has no input or output {key!r}")

    def get_tensor(self, key: Any) -> Tensor:
        is_input, number = self._port(key)
        return self._get_input(number) if is_input else self._get_output(number)

    def set_tensor(self, key: Any, tensor: Tensor) -> None:
        is_input, number = self._port(key)
        if is_input:
            self.set_input_tensor(number, tensor)
        else:
            self.set_output_tensor(number, tensor)

    def set_tensors(self, tensors: Mapping[Any, Tensor]) -> None:
        for key, tensor in tensors.items():
            self.set_tensor(key, tensor)

    def set_input_tensor(self, *args: Any) -> None:
        """``set_input_tensor(tensor)`` for the only input, or ``set_input_tensor(number, tensor)``."""
        self._check_idle()
        number, tensor = args if len(args) == 2 else (self._only(self._compiled.inputs, "input"), args[0])
        self._set_input(int(number), tensor if isinstance(tensor, Tensor) else Tensor(tensor), True)

    def set_output_tensor(self, *args: Any) -> None:
        """``set_output_tensor(tensor)`` for the only output, or ``set_output_tensor(number, tensor)``."""
        self._check_idle()
        number, tensor = args if len(args) == 2 else (self._only(self._compiled.outputs, "output"), args[0])
        self._check_tensor(self._compiled.outputs[number], tensor, "output")
        self._bound_outputs[int(number)] = tensor

    def set_input_tensors(self, *args: Any) -> None:
        (tensors,) = args
        for key, tensor in tensors.items() if isinstance(tensors, Mapping) else enumerate(tensors):
            self.set_input_tensor(key, tensor)

    def set_output_tensors(self, tensors: Any) -> None:
        for key, tensor in tensors.items() if isinstance(tensors, Mapping) else enumerate(tensors):
            self.set_output_tensor(key, tensor)

    def get_input_tensor(self, index: int | None = None) -> Tensor:
        return self._get_input(self._only(self._compiled.inputs, "input") if index is None else index)

    def get_output_tensor(self, index: int | None = None) -> Tensor:
        return self._get_output(self._only(self._compiled.outputs, "output") if index is None else index)

    def _only(self, ports: Sequence[Output], kind: str) -> int:
        find_port(ports, None, kind)
        return 0

    def _get_input(self, number: int) -> Tensor:
        self._check_idle()
        tensor = self._input_tensors[number]
        if tensor is None:
            port = self._compiled.inputs[number]
            array = self._inputs[number]
            if array is None:
                shape = [d.get_length() if d.is_static else 0 for d in port.partial_shape]
                array = np.zeros(shape, port.element_type.storage)
            tensor = self._input_tensors[number] = Tensor.from_array(array, port.element_type)
            self._inputs[number] = tensor.array
        return tensor

    def _get_output(self, number: int) -> Tensor:
        self._check_idle()
        bound = self._bound_outputs[number]
        if bound is not None:
            return bound
        port = self._compiled.outputs[number]
        array = self._outputs[number]
        if array is None:
            shape = [d.get_length() if d.is_static else 0 for d in port.partial_shape] if port.partial_shape.rank.is_static else [0]
            array = self._outputs[number] = np.zeros(shape, port.element_type.storage)
        kind = Type.of(array.dtype) if port.element_type.is_dynamic() else port.element_type
        return Tensor.from_array(self._backend.download(array), kind)

    @property
    def input_tensors(self) -> list[Tensor]:
        return [self._get_input(i) for i in range(len(self._inputs))]

    @property
    def output_tensors(self) -> list[Tensor]:
        return [self._get_output(i) for i in range(len(self._outputs))]

    @property
    def inputs(self) -> list[Tensor]:
        return self.input_tensors

    @property
    def outputs(self) -> list[Tensor]:
        return self.output_tensors

    @property
    def model_inputs(self) -> list[Output]:
        return self._compiled.inputs

    @property
    def model_outputs(self) -> list[Output]:
        return self._compiled.outputs

    @property
    def results(self) -> OVDict:
        """Views of the output tensors."""
        return self._results(share=True)

    def _results(self, share: bool) -> OVDict:
        found = {}
        for number, port in enumerate(self._compiled.outputs):
            data = self._get_output(number).data
            found[port] = data if share or not isinstance(data, np.ndarray) else np.array(data)
        return OVDict(found)

    # ---- what it cost

    @property
    def latency(self) -> float:
        """Milliseconds of the last inference."""
        return self._latency

    def get_profiling_info(self) -> list[ProfilingInfo]:
        """Per-step times of the last inference; needs the property ``enable_profiling``."""
        if self._profiler is None:
            raise RuntimeError("Performance data was requested without enable_profiling (PERF_COUNT)")
        return self._profiler.infos()

    profiling_info = property(get_profiling_info)

    def plan(self) -> Plan:
        """What the last inference ran. RuntimeError if there was none."""
        self._check_idle()
        if self._last is None:
            raise RuntimeError("there is no plan before the first inference")
        return plan_of(self._last)

    def get_compiled_model(self) -> CompiledModel:
        return self._compiled

    def __repr__(self) -> str:
        ports = [("inputs", self.model_inputs), ("outputs", self.model_outputs)]
        return "<InferRequest:\n" + "\n".join(
            f"{title}[\n" + ",\n".join(map(repr, found)) + "\n]" for title, found in ports) + ">"


class _Running:
    """Marks a request as busy; refuses to if it is."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("Infer Request is busy")

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def _is_number_list(values: Sequence[Any]) -> bool:
    """Whether a list given for a model with one input is that input's data."""
    return bool(values) and all(isinstance(v, (int, float, np.number)) for v in values) and len(values) != 1


def program_states(program: Program) -> set[str]:
    return set(program.states)
