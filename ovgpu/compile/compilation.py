"""State shared by the requests of a compiled model: ports, programs, constants and settings."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal
from weakref import WeakSet

import numpy as np

from ovgpu.compile.decode_programs import DecodePrograms
from ovgpu.compile.initial_programs import InitialPrograms
from ovgpu.compile.ports import PortList
from ovgpu.compile.settings import Settings
from ovgpu.debug import DEBUG, LAST_LOGITS, STOP_AT, log_passes
from ovgpu.errors import Error
from ovgpu.lowering.build import build
from ovgpu.lowering.program import Program, constants
from ovgpu.model import Model
from ovgpu.ops.base.lazy import key_of, sources_of
from ovgpu.ops.base.op import Array
from ovgpu.ops.fused.kv_cache import growing
from ovgpu.passes import Target, fuse_layers, simplify
from ovgpu.runtime.backend import Backend
from ovgpu.runtime.binding import Constants
from ovgpu.runtime.blocks import ReusedMemory
from ovgpu.runtime.executor import Executor
from ovgpu.runtime.faults import fault
from ovgpu.runtime.profile import Profiler
from ovgpu.spec import Spec, dims_of
from ovgpu.symbolic import Table
from ovgpu.types import PartialShape, Type
from ovgpu.types.mapped import check_unchanged


class Compilation:
    """Model compiled for a backend, which threads may share. Programs and constants are added as they are needed.

    A program is built for each combination of input ranks (and of types, for inputs without a type) at its first use.
    """

    source: Model
    """The model that was compiled, or a copy of it if the caller's model ``may_change``."""
    model: Model
    """The model after all passes, of which programs are built."""
    target: Target
    """The properties of the device and the settings that passes depend on."""
    inputs: PortList
    outputs: PortList
    initial: InitialPrograms
    """The variables, and the programs that compute their initial values."""
    programs: dict[tuple[Any, ...], Program]
    """Programs of `model` by ranks (and types) of its inputs."""
    constants: Constants
    """Constants of all programs on the device."""
    requests: WeakSet[Any]
    """The requests that use the compilation."""
    last_profiler: Profiler | None = None
    """The times of the request that ran last, whichever it was."""

    def __init__(
        self,
        model: Model,
        backend: Backend,
        settings: Settings,
        may_change: bool = False,
        donor: Compilation | None = None,
    ) -> None:
        """``donor``: one for the same device, whose constants are used instead of copies of equal ones."""
        self._donor, self.requests = donor, WeakSet()
        self._widened: Compilation | None = None
        try:
            self._compile(model, backend, settings)
        except Error:
            raise
        except Exception as e:
            raise fault("compiling", e) from e
        self.source = model.clone() if may_change else model

    def _compile(self, model: Model, backend: Backend, settings: Settings) -> None:
        self.inputs = PortList(model.inputs, "input")
        self.outputs = PortList(model.outputs, "output")
        self.name = model.friendly_name
        self.title = f"{settings.get('FULL_DEVICE_NAME')} ({backend.name}), {model.friendly_name}"
        self.backend, self.settings = backend, settings
        self.profiling = bool(settings["PERF_COUNT"])
        self.may_widen = settings.may_widen
        self.constants = {}
        self.lock = threading.RLock()
        self.target = _target(backend, settings)
        self._untyped = any(p.element_type.is_dynamic() for p in self.inputs)

        self.model = simplify(model, self.target)
        may_split = backend.captures_graphs and bool(self.model.sinks) and not self._untyped and not STOP_AT.value
        simplified = self.model.clone() if may_split else None  # decode steps are split off before layers are fused
        fuse_layers(self.model, self.target)
        self.programs = {}
        self._single_program: Program | None = None
        if all(p.partial_shape.rank.is_static for p in self.inputs) and not self._untyped:
            ranks = tuple([len(p.partial_shape) for p in self.inputs])
            self._single_program = self.programs[ranks] = self._build(ranks, ())
        axes = growing(self.model)  # of the variables that are KV caches
        self.initial = InitialPrograms(self.model, model, axes)
        self._simplified = simplified if axes else None
        self._decode_programs: DecodePrograms | None = None
        if DEBUG.value >= 3:
            log_passes(model, self.model)
        if self._single_program is not None:
            upload = self._allocate_constants(self._single_program)
            if self._is_static and backend.captures_graphs:
                self._compile_kernels(self._single_program)
            upload()
            backend.finish_compiling()

    def _compile_kernels(self, program: Program) -> None:
        """Bind an inference of a model with static shapes, and drop it.

        So the backend learns which kernels the model launches. Threads compile them while the caller uploads the
        constants. Errors are ignored: they occur again in an inference, which raises them.
        """
        backend = self.backend.for_request()
        with suppress(Error), backend.active():
            inputs = [np.zeros(tuple(port.shape), port.element_type.storage) for port in self.inputs]
            arrays = [backend.constant(x) if backend.remote else x for x in inputs]
            hosts = inputs if backend.remote else None
            Executor(program, backend, self.constants).prepare(arrays, {}, ReusedMemory(backend), hosts)

    @property
    def _is_static(self) -> bool:
        """True if all inferences bind the same kernels: shapes are static, and no step depends on values or states."""
        program = self._single_program
        return (
            program is not None
            and not program.host_parameters
            and not self.initial.infos
            and not any(p.partial_shape.is_dynamic for p in self.inputs)
        )

    @property
    def current(self) -> Compilation:
        """The compilation that requests use: this one, or the `widened` one, once it exists."""
        return self if self._widened is None else self._widened

    def memory_by_purpose(self) -> Counter[str]:
        """Return the bytes of device memory that the constants and the requests hold, by purpose."""
        arrays = {id(array): array for _, array in list(self.constants.values())}
        held = Counter(constants=sum(array.nbytes for array in arrays.values()))
        with self.lock:
            requests = list(self.requests)
        for request in requests:
            held.update(request.memory_by_purpose())
        return held

    def add_request(self, request: Any) -> None:
        """Count a request among those that use the compilation, as long as it lives."""
        with self.lock:
            self.requests.add(request)

    def widened(self) -> Compilation:
        """Return the model compiled in a type with the range of f32, and free the constants in f16.

        Requests change to it at their next inference. It has the same ports, which callers may hold.
        """
        with self.lock:
            if self._widened is None:
                self.constants.clear()
                donor = None if self._donor is None else self._donor._widened
                wider = Compilation(self.source, self.backend, self.settings.widened(), donor=donor)
                wider.inputs, wider.outputs = self.inputs, self.outputs
                self._widened = wider
            return self._widened

    @property
    def decode_programs(self) -> DecodePrograms | None:
        """The programs of decode steps, or None if the model has none; built at the first use."""
        if self._simplified is not None:
            with self.lock:
                if self._simplified is not None:
                    programs = DecodePrograms.of(self._simplified, self.backend, self.target)
                    if programs is not None:
                        self._add_constants(programs.device)
                    self._decode_programs, self._simplified = programs, None
        return self._decode_programs

    def new_append_programs(self) -> DecodePrograms | None:
        """Return new programs that append any number of tokens to KV caches in pages, or None if the model does not
        split. They are for batches of sequences, also on a device that captures no graphs.
        """
        with self.lock:
            model = self._simplified
            if model is None:
                model = simplify(self.source, self.target)
            programs = DecodePrograms.of(model, self.backend, self.target, paged=True)
            if programs is not None:
                self._add_constants(programs.device)
            return programs

    def program(self, inputs: Sequence[Array]) -> Program:
        """Return the program for inputs of these ranks and types; build it at the first use."""
        if self._single_program is not None:
            return self._single_program
        return self._program(tuple([x.ndim for x in inputs]), inputs)

    def _program(self, ranks: tuple[int, ...], inputs: Sequence[Array]) -> Program:
        key = (*ranks, *[x.dtype for x in inputs]) if self._untyped else ranks
        program = self.programs.get(key)
        if program is None:
            with self.lock:
                if key not in self.programs:
                    program = self._build(ranks, inputs)
                    self._add_constants(program)
                    self.programs[key] = program
                program = self.programs[key]
        return program

    def _build(self, ranks: Sequence[int], inputs: Sequence[Array]) -> Program:
        table = Table()
        specs = []
        for index, (parameter, rank) in enumerate(zip(self.model.parameters, ranks)):
            op: Any = parameter.op
            shape = op.shape if op.shape.rank.is_static else PartialShape.dynamic(rank)
            element_type = Type.of(inputs[index].dtype) if op.element_type.is_dynamic() else op.element_type
            specs.append(Spec(element_type, dims_of(shape, table, index)))
        return build(self.model, specs, table, uploads=self.backend.remote, downloads=self.backend.remote)

    def _add_constants(self, program: Program) -> None:
        """Copy a program's constants to the device."""
        self._allocate_constants(program)()

    def _allocate_constants(self, program: Program) -> Callable[[], None]:
        """Allocate a program's constants on the device. Return the function that copies them from the host."""
        new = {key: source for key, source in constants(program).items() if key not in self.constants}
        check_unchanged(source for value in new.values() for source in sources_of(value))
        donated = () if self._donor is None else list(self._donor.constants.values())
        by_memory = {key_of(source): array for source, array in (*donated, *self.constants.values())}
        copied = {key_of(source): source for source in new.values() if key_of(source) not in by_memory}
        arrays, copy = self.backend.constants(list(copied.values()))
        by_memory |= dict(zip(copied, arrays))
        for key, source in new.items():
            self.constants[key] = source, by_memory[key_of(source)]  # the source is held: its id is not reused

        def upload() -> None:
            try:
                copy()
            except BaseException:
                for key in new:
                    del self.constants[key]
                raise

        return upload


def _target(backend: Backend, settings: Settings) -> Target:
    """Return the properties of a device and its settings on which passes depend."""
    device: Literal["", "CPU", "CUDA"] = "CUDA" if backend.fuses else "" if backend.remote else "CPU"
    return Target(
        "" if STOP_AT.value else device,
        settings.tensor_type,
        settings.cache,
        backend.channels_last,
        backend.multiplies_i8,
        bool(LAST_LOGITS.value),
    )
