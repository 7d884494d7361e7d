"""State shared by the requests of a compiled model: ports, programs, constants and settings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

import numpy as np

from ovgpu.compile.decode_programs import DecodePrograms
from ovgpu.compile.initial_programs import InitialPrograms
from ovgpu.compile.ports import PortList
from ovgpu.compile.settings import Settings
from ovgpu.debug import DEBUG, STOP_AT, log_passes
from ovgpu.errors import Error, OpError
from ovgpu.ir import check_files
from ovgpu.lowering.build import build
from ovgpu.lowering.program import Program, constants
from ovgpu.model import Model, bodies
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.unsupported import require_supported
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

MAX_AXES = 64  # largest rank of an array in NumPy and CuPy


class Compilation:
    """Model compiled for a backend, which threads may share. Programs and constants are added as they are needed.

    A program is built for each combination of input ranks (and of types, for inputs without a type) at its first use.
    ``source`` is a copy of the model, or the model itself if no one else has it.
    """

    def __init__(self, model: Model, backend: Backend, settings: Settings, source: Model) -> None:
        require_supported(model)
        check_files(model)
        self.source = source
        self._widened: Compilation | None = None
        try:
            self._compile(model, backend, settings)
        except Error:
            raise
        except Exception as e:
            raise fault("compiling", e) from e

    def _compile(self, model: Model, backend: Backend, settings: Settings) -> None:
        _check_ranks(model)
        self.inputs = PortList(model.inputs, "input")
        self.outputs = PortList(model.outputs, "output")
        self.name = model.friendly_name
        self.backend, self.settings = backend, settings
        self.target = _target(backend, settings)
        self.model = simplify(model, self.target)
        axes = growing(self.model)
        self._untyped = any(p.element_type.is_dynamic() for p in self.inputs)
        may_split = backend.replays and not self._untyped and bool(axes) and not STOP_AT.value
        self._unsplit = self.model.clone() if may_split else None
        self._decode_programs: DecodePrograms | None = None
        fuse_layers(self.model, self.target)
        if DEBUG.value >= 3:
            log_passes(model, self.model)
        self.profiling = bool(settings["PERF_COUNT"])
        self.may_widen = settings.may_widen
        self.last_profiler: Profiler | None = None  # of the request that ran last
        self.title = f"{settings.get('FULL_DEVICE_NAME')} ({backend.name}), {model.friendly_name}"
        self.constants: Constants = {}
        self.lock = threading.RLock()
        self.initial = InitialPrograms(self.model, model, axes)
        self.programs: dict[tuple[Any, ...], Program] = {}
        self._single_program: Program | None = None
        if all(p.partial_shape.rank.is_static for p in self.inputs) and not self._untyped:
            ranks = tuple([len(p.partial_shape) for p in self.inputs])
            self._single_program = self.programs[ranks] = self._build(ranks, ())
            upload = self._load(self._single_program)
            if self._is_static and backend.replays:
                self._compile_kernels(self._single_program)
            upload()
            backend.finish_compiling()

    def _compile_kernels(self, program: Program) -> None:
        """Bind an inference of a model with static shapes, and drop it.

        So the backend learns which kernels the model launches. Threads compile them while the caller uploads the
        constants. What fails here fails again in an inference, which raises the error.
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

    def widened(self) -> Compilation:
        """Return the model compiled in a type with the range of f32, and free the constants in f16.

        Requests change to it at their next inference. It has the same ports, which callers may hold.
        """
        with self.lock:
            if self._widened is None:
                self.constants.clear()
                found = Compilation(self.source, self.backend, self.settings.widened(), self.source)
                found.inputs, found.outputs = self.inputs, self.outputs
                self._widened = found
            return self._widened

    @property
    def decode_programs(self) -> DecodePrograms | None:
        """The programs of decode steps, or None if the model has none; built at the first use."""
        if self._unsplit is not None:
            with self.lock:
                if self._unsplit is not None:
                    found = DecodePrograms.of(self._unsplit, self.backend, self.target)
                    if found is not None:
                        self._load(found.device)()
                    self._decode_programs, self._unsplit = found, None
        return self._decode_programs

    def cache_programs(self) -> DecodePrograms | None:
        """Return new programs that append any number of rows to KV caches, or None if the model does not split."""
        with self.lock:
            model = self._unsplit
            if model is None:
                model = simplify(self.source, self.target)
            found = DecodePrograms.of(model, self.backend, self.target, few_rows=False)
            if found is not None:
                self._load(found.device)()
            return found

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
                    self._load(program)()
                    self.programs[key] = program
                program = self.programs[key]
        return program

    def _build(self, ranks: Sequence[int], inputs: Sequence[Array]) -> Program:
        table = Table()
        specs = []
        for number, (parameter, rank) in enumerate(zip(self.model.parameters, ranks)):
            op: Any = parameter.op
            shape = op.shape if op.shape.rank.is_static else PartialShape.dynamic(rank)
            kind = Type.of(inputs[number].dtype) if op.element_type.is_dynamic() else op.element_type
            specs.append(Spec(kind, dims_of(shape, table, number)))
        return build(self.model, specs, table, uploads=self.backend.remote, downloads=self.backend.remote)

    def _load(self, program: Program) -> Callable[[], None]:
        """Allocate a program's constants on the device. Return the function that copies them from the host."""
        new = {key: source for key, source in constants(program).items() if key not in self.constants}
        check_unchanged(new.values())
        arrays, copy = self.backend.constants(list(new.values()))
        for (key, source), array in zip(new.items(), arrays):
            self.constants[key] = source, array  # the source is held so that its id is not reused

        def upload() -> None:
            try:
                copy()
            except BaseException:
                for key in new:
                    del self.constants[key]
                raise

        return upload


def _target(backend: Backend, settings: Settings) -> Target:
    """Return what passes have to know about a device and its settings."""
    device: Literal["", "CPU", "CUDA"] = "CUDA" if backend.fuses else "" if backend.remote else "CPU"
    return Target(
        "" if STOP_AT.value else device,
        settings.tensor_type,
        settings.cache,
        backend.channels_last,
        backend.multiplies_i8,
    )


def _check_ranks(model: Model) -> None:
    """Raise OpError for a tensor with more axes than an array may have."""
    for node in (*model.parameters, *model.ops):
        for port in node.ports:
            rank = port.spec.rank
            if rank is not None and rank > MAX_AXES:
                error = OpError(f"a tensor has at most {MAX_AXES} axes, not {rank}")
                raise error.at(node.op.name, node.source_location)
        for body in bodies(node.op):
            _check_ranks(body)
