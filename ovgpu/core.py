"""Core and CompiledModel: from a file to something that can be asked for requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu import ir
from ovgpu.backends import cpu
from ovgpu.debug import DEBUG, log_passes
from ovgpu.errors import DeviceError
from ovgpu.model import Model, Output, Ports
from ovgpu.ops._op import Array
from ovgpu.ops._unsupported import Unsupported, require_supported
from ovgpu.passes import prepare
from ovgpu.request import InferRequest, VariableState
from ovgpu.results import OVDict
from ovgpu.runtime.backend import Backend
from ovgpu.runtime.control import program_for
from ovgpu.runtime.executor import Executor
from ovgpu.runtime.plan import Plan, plan_of
from ovgpu.runtime.program import Program
from ovgpu.runtime.state import VariableInfo
from ovgpu.runtime.subgraph import subgraph
from ovgpu.settings import Settings
from ovgpu.symbolic import Spec, Table, dims_of
from ovgpu.types import PartialShape


class CompiledModel(Ports):
    """A model made ready for a device; immutable, and shared by its requests.

    ``compiled(inputs)`` runs it in a private request, which also keeps the state that `query_state` gives.
    """

    def __init__(self, model: Model, backend: Backend, settings: Settings) -> None:
        require_supported(model)
        self._original = model
        self._model = prepare(model)
        if DEBUG.value >= 3:
            log_passes(model, self._model)
        self.parameters, self.results = model.parameters, model.results
        self._backend = backend
        self._settings = settings
        self._profiling = bool(settings["PERF_COUNT"])
        self._constants: dict[int, Any] = {}
        self._programs: dict[tuple[Any, ...], Program] = {}
        self._initializers: dict[str, tuple[Model, dict[tuple[Any, ...], Program]]] = {}
        self._variable_infos = self._find_variables()
        self._lock = threading.RLock()
        self._private: InferRequest | None = None
        self._ports = (super().inputs, super().outputs)
        if all(p.partial_shape.rank.is_static for p in self.inputs):
            self._program_of_ranks(tuple(len(p.partial_shape) for p in self.inputs))

    @property
    def inputs(self) -> list[Output]:
        return self._ports[0]

    @property
    def outputs(self) -> list[Output]:
        return self._ports[1]

    # ---- running

    def __call__(self, inputs: Any = None, share_inputs: bool = True, share_outputs: bool = False, *,
                 decode_strings: bool = True) -> OVDict:
        """Runs the model in its private request; see `InferRequest.infer`. Shares inputs by default."""
        return self._request().infer(inputs, share_inputs, share_outputs, decode_strings=decode_strings)

    def infer_new_request(self, inputs: Any = None) -> OVDict:
        """Runs the model in a new request, that is: with initial state."""
        return self.create_infer_request().infer(inputs)

    def create_infer_request(self) -> InferRequest:
        """A request with inputs, outputs, state and memory of its own."""
        return InferRequest(self)

    def query_state(self) -> list[VariableState]:
        return self._request().query_state()

    def reset_state(self) -> None:
        self._request().reset_state()

    def release_memory(self) -> None:
        """Frees what the private request holds, except its state."""
        if self._private is not None:
            self._private._check_idle()
            self._private._executors.clear()

    def _request(self) -> InferRequest:
        if self._private is None:
            self._private = self.create_infer_request()
        return self._private

    def plan(self, shapes: Any = None) -> Plan:
        """What an inference runs, for inputs of these shapes (a list, or a dict by port, name or number).

        Without shapes: what the last inference of the private request ran, or, before there was one, what the
        declared shapes give. Nothing is run; what depends on computed values stays open. `InferRequest.plan`
        gives the plan of a request's last inference. RuntimeError if a shape is needed and not given.
        """
        if shapes is None and self._private is not None and self._private._last is not None:
            return self._private.plan()
        request = self.create_infer_request()
        arrays = [np.zeros(shape, p.element_type.storage)
                  for shape, p in zip(request._input_shapes(shapes), self.inputs)]
        program = self._program(arrays)
        executor = Executor(program, request._backend, self._constants)
        arrays = [request._backend.upload(x, None) for x in arrays]
        executor.prepare(arrays, {name: request._current(name, arrays) for name in program.states}, request)
        return plan_of(executor)

    # ---- properties

    def get_property(self, name: str) -> Any:
        return self._settings.get(name, self)

    def set_property(self, *args: Any) -> None:
        raise RuntimeError("properties of a compiled model are read-only: give them to compile_model")

    def get_runtime_model(self) -> Model:
        """The model as it is run, after the passes."""
        return self._model.clone()

    def export_model(self, *args: Any) -> bytes:
        raise RuntimeError("exporting a compiled model is not supported: save the model instead")

    def __repr__(self) -> str:
        ports = [("inputs", self.inputs), ("outputs", self.outputs)]
        return "<CompiledModel:\n" + "\n".join(
            f"{title}[\n" + ",\n".join(map(repr, found)) + "\n]" for title, found in ports) + ">"

    # ---- for requests

    def _program(self, inputs: Sequence[Array]) -> Program:
        return self._program_of_ranks(tuple([x.ndim for x in inputs]), inputs)

    def _program_of_ranks(self, ranks: tuple[int, ...], inputs: Sequence[Array] = ()) -> Program:
        key = ranks if not self._untyped else (*ranks, *(x.dtype for x in inputs))
        program = self._programs.get(key)
        if program is None:
            with self._lock:
                if key not in self._programs:
                    self._programs[key] = self._build(ranks, inputs)
                program = self._programs[key]
        return program

    @property
    def _untyped(self) -> bool:
        return any(p.op.element_type.is_dynamic() for p in self._model.parameters)  # type: ignore[attr-defined]

    def _build(self, ranks: Sequence[int], inputs: Sequence[Array]) -> Program:
        from ovgpu.runtime.build import build
        from ovgpu.types import Type

        table = Table()
        specs = []
        for number, (parameter, rank) in enumerate(zip(self._model.parameters, ranks)):
            op: Any = parameter.op
            shape = op.shape if op.shape.rank.is_static else PartialShape.dynamic(rank)
            kind = Type.of(inputs[number].dtype) if op.element_type.is_dynamic() else op.element_type
            specs.append(Spec(kind, dims_of(shape, table, number)))
        return build(self._model, specs, table)

    def _find_variables(self) -> dict[str, VariableInfo]:
        found = {}
        for node in self._model.ops:
            if node.op.name == "ReadValue":
                port, name = node.outputs[0], node.op.variable_id  # type: ignore[attr-defined]
                found[name] = VariableInfo(name, port.element_type, port.partial_shape)
                if node.inputs and node.inputs[0] is not None:
                    model = subgraph(self._model, self._model.inputs, [node.inputs[0]])
                    self._initializers[name] = (model, {})
        return found

    def _initial(self, name: str, inputs: Sequence[Array] | None) -> Array:
        """The initial value of a variable. Without inputs, one that depends on them is zeros."""
        info = self._variable_infos[name]
        if name in self._initializers:
            model, programs = self._initializers[name]
            if inputs is None and _reads_parameters(model):
                inputs = None
            else:
                arrays = list(inputs) if inputs is not None else [
                    np.zeros([max(0, d.min_length) for d in p.partial_shape] if p.partial_shape.rank.is_static else [],
                             p.element_type.storage) for p in model.inputs]
                with self._lock:
                    program = program_for(model, arrays, programs)
                (value,) = Executor(program, self._backend, self._constants).run(arrays, {}, _Fresh(self._backend))
                return value
        shape = [d.get_length() if d.is_static else 0 for d in info.shape]
        zeros: Array = self._backend.xp.zeros(shape, info.type.storage)
        return zeros


class _Fresh:
    """`executor.Memory` that allocates."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def output(self, number: int, shape: tuple[int, ...], kind: Any) -> Array:
        return self._backend.xp.empty(shape, kind.storage)

    def variable(self, name: str, shape: tuple[int, ...], kind: Any) -> Array:
        raise AssertionError("an initial value sets no variable")


def _reads_parameters(model: Model) -> bool:
    return any(s is not None and s.node.op.name == "Parameter" for n in model.ops for s in n.inputs)


class Core:
    """Reads models and compiles them for the devices there are: ``CPU`` (NumPy) and ``NVIDIA[.n]`` (CUDA)."""

    def __init__(self, xml_config_file: str = "") -> None:
        self._settings: dict[str, Settings] = {}

    def read_model(self, model: Any, weights: Any = None, config: Mapping[str, Any] | None = None) -> Model:
        """The model of an IR file. ``model`` is a path or the XML itself, ``weights`` a path, bytes or an array."""
        return ir.read_model(model, weights)

    def compile_model(self, model: Any, device_name: Any = None, config: Mapping[str, Any] | None = None, *,
                      weights: Any = None) -> CompiledModel:
        """Compiles a Model, or the model of a path, for a device (``AUTO`` if none is named)."""
        if isinstance(device_name, Mapping):
            device_name, config = None, device_name
        device = resolve_device(device_name or "AUTO")
        if not isinstance(model, Model):
            model = self.read_model(model, weights)
        settings = self._of(device).merged(config or {})
        return CompiledModel(model, _backend(device), settings)

    @property
    def available_devices(self) -> list[str]:
        return ["CPU"]

    def get_available_devices(self) -> list[str]:
        return self.available_devices

    def get_property(self, *args: Any) -> Any:
        """``get_property(device, name)``, or ``get_property(name)`` for the core itself."""
        device, name = args if len(args) == 2 else ("", args[0])
        return self._of(resolve_device(device) if device else "").get(name, None)

    def set_property(self, *args: Any) -> None:
        """``set_property({name: value})`` for all devices, or ``set_property(device, {...})``."""
        device, given = args if len(args) == 2 else ("", args[0])
        pairs = dict([given]) if isinstance(given, tuple) else dict(given)
        self._of(resolve_device(device) if device else "").update(pairs)

    def get_versions(self, device_name: str) -> dict[str, Any]:
        from ovgpu import Version, __version__

        return {resolve_device(device_name): Version(__version__, f"ovgpu {device_name}")}

    def query_model(self, model: Model, device_name: str, config: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Friendly name -> device, for the nodes that the device can run."""
        device = resolve_device(device_name)
        return {n.friendly_name: device for n in model.ops if not isinstance(n.op, Unsupported)}

    def add_extension(self, *args: Any) -> None:
        raise RuntimeError("extensions are Python classes here: register ops with @ovgpu.op")

    def import_model(self, *args: Any, **kwargs: Any) -> CompiledModel:
        raise RuntimeError("importing a compiled model is not supported: compile the model instead")

    def _of(self, device: str) -> Settings:
        if device not in self._settings:
            base = self._settings.get("")
            self._settings[device] = Settings(device, base)
        return self._settings[device]


def resolve_device(name: str) -> str:
    """The device that a name means; DeviceError if there is none of that name, or it cannot be used."""
    known = name.upper().split(":")[0]
    if known in ("CPU", "AUTO"):
        return "CPU"
    if known in _BACKENDS:
        return known
    if known.split(".")[0] in ("NVIDIA", "CUDA"):
        raise DeviceError(f'Device "{name}" is not available: the CUDA backend of ovgpu is not part of this version; '
                          "use CPU or AUTO")
    raise DeviceError(f'Device with "{name}" name is not registered in ovgpu; there are CPU, NVIDIA and AUTO')


_BACKENDS: dict[str, Callable[[], Backend]] = {"CPU": cpu.CpuBackend}


def register_backend(device: str, backend: Callable[[], Backend]) -> None:
    """Makes a device of this name; the tests use it for the emulated one."""
    _BACKENDS[device] = backend


def _backend(device: str) -> Backend:
    return _BACKENDS[device]()


def compile_model(model: Any, device_name: str = "AUTO", config: Mapping[str, Any] | None = None) -> CompiledModel:
    """Compiles a model (or the model of a path) with a Core of its own."""
    if isinstance(model, Path):
        model = str(model)
    return Core().compile_model(model, device_name, config)
