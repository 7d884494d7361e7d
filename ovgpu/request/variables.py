"""Variables of a request as its user sees them, and their initial values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ovgpu.compile.initial_programs import InitialPrograms, Stage
from ovgpu.errors import ModelError
from ovgpu.lowering.program_for import program_for
from ovgpu.ops.base.op import Array
from ovgpu.request.device_io import backend_array, tensor_copy
from ovgpu.runtime.backend import Backend
from ovgpu.runtime.blocks import ReusedMemory
from ovgpu.runtime.cancellation import Cancellation
from ovgpu.runtime.executor import Executor
from ovgpu.runtime.state import Variables
from ovgpu.tensor import Tensor
from ovgpu.types import Type

COMPARED_BYTES = 1 << 20  # at a time


class InitialValues:
    """Initial values of the variables of one request."""

    def __init__(
        self,
        programs: InitialPrograms,
        variables: Variables,
        backend: Backend,
        constants: dict[int, Array],
        lock: Any,
        cancellation: Cancellation,
    ) -> None:
        self._programs, self._variables, self._backend = programs, variables, backend
        self._cancellation = cancellation
        self._constants, self._lock = constants, lock
        self._executors: dict[int, tuple[Executor, ReusedMemory]] = {}
        self._fixed: dict[str, Array] | None = None

    def change(self, programs: InitialPrograms, constants: dict[int, Array], lock: Any) -> None:
        """Take the initial values from now on from the programs of another compilation of the model."""
        self._programs, self._constants, self._lock, self._fixed = programs, constants, lock, None
        self._executors.clear()

    def compute(self, inputs: Sequence[Array] | None, hosts: Sequence[Array] | None = None) -> Callable[[str], Array]:
        """Return a function from a variable's id to its initial value for these inputs.

        ``hosts`` are the inputs on the host, if ``inputs`` are on a device. Without inputs, values that depend on
        inputs or on other variables are zeros.
        """
        fixed, *others = self._programs.stages
        if self._fixed is None:
            self._fixed = self._run(fixed, (), None)
        values = dict(self._fixed)
        if inputs is not None:
            for stage in others:
                read = [self._value(name, values) for name in stage.reads]
                values.update(self._run(stage, [*inputs, *read], None if hosts is None else [*hosts, *read]))
        return lambda name: values[name] if name in values else self._zeros(name)

    def release_memory(self) -> None:
        """Free the memory of intermediate results."""
        self._executors.clear()

    def _value(self, name: str, initial: dict[str, Array]) -> Array:
        """Return a variable's value as a dense array; that of a growing variable is strided over its spare capacity."""
        value = self._variables.value(name).array
        if value is None:
            return initial.get(name, self._zeros(name))
        if value.flags.c_contiguous:
            return value
        dense: Array = self._backend.xp.empty(value.shape, value.dtype)
        for call in self._backend.copy(value, dense):
            call()
        return dense

    def _run(self, stage: Stage, inputs: Sequence[Array], hosts: Sequence[Array] | None) -> dict[str, Array]:
        if not stage.names:
            return {}
        with self._lock:
            program = program_for(stage.model, inputs, stage.programs, uploads=self._backend.remote)
        entry = self._executors.get(id(program))
        if entry is None:
            entry = self._executors[id(program)] = (
                Executor(program, self._backend, self._constants, self._cancellation),
                ReusedMemory(self._backend),
            )
        executor, memory = entry
        return dict(zip(stage.names, executor.run(inputs, {}, memory, hosts=hosts)))

    def _zeros(self, name: str) -> Array:
        info = self._programs.infos[name]
        if info.type.is_dynamic():
            raise ModelError(f"[ReadValue] variable '{name}' has neither an initial value nor an element type")
        shape = [d.get_length() if d.is_static else 0 for d in info.shape] if info.shape.rank.is_static else []
        zeros: Array = self._backend.xp.zeros(shape, info.type.storage)
        return zeros


def take_writes(variables: Variables, names: Collection[str]) -> None:
    """Set variables to their copies from `VariableState.state` if users have written into the data of the copies."""
    for name in list(names):
        tensor = variables.handed_out.pop(name, None)
        variable, value = variables.all[name], variables.value(name).array
        if tensor is None or tensor.remote or value is None:  # nobody has read the data, or the variable was reset
            continue
        with variable.backend.active():
            current = variable.backend.to_host(variable.in_public_type(value)[0])
            if not _same_bytes(current, tensor.array):
                variables.set(name, backend_array(tensor, variable.backend))
                variable.backend.synchronize()


def _same_bytes(a: Array, b: Array) -> bool:
    a, b = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return all(
        np.array_equal(a[i : i + COMPARED_BYTES], b[i : i + COMPARED_BYTES]) for i in range(0, len(a), COMPARED_BYTES)
    )


class VariableState:
    """Variable of a request, which can be read, set, and reset to its initial value.

    Raises RuntimeError while the request is running.
    """

    def __init__(self, name: str, variables: Variables, initial: InitialValues, check_idle: Callable[[], None]) -> None:
        self._name, self._variables = name, variables
        self._initial, self._check_idle = initial, check_idle

    @property
    def name(self) -> str:
        """Name of the variable: its id in the model."""
        return self._name

    @property
    def state(self) -> Tensor:
        """A copy of the value. If it is not set: the initial value, or zeros if that depends on inputs.

        The copy of a variable on a device stays on the device until its data are read. As in OpenVINO, writing into its
        data changes the variable's value, if the variable is set, and until it gets another value.
        """
        self._check_idle()
        take_writes(self._variables, [self._name])
        variable = self._variables.all[self._name]
        with variable.backend.active():
            value = self._variables.value(self._name).array
            is_set = value is not None
            if not is_set:
                value = self._initial.compute(None)(self._name)
            tensor = tensor_copy(*variable.in_public_type(value), variable.backend)
        if is_set and tensor.element_type is not Type.string:
            self._variables.handed_out[self._name] = tensor
        return tensor

    @state.setter
    def state(self, value: Any) -> None:
        """Set the value from a Tensor or an array, on the host or the device. As in OpenVINO, f32, f16, bf16, i32, i8,
        u8, boolean, i4 and u4 are converted to the variable's type.

        Raises: Error if type or shape do not fit.
        """
        self._check_idle()
        tensor = value if isinstance(value, Tensor) else Tensor(value)
        backend = self._variables.all[self._name].backend
        array = backend_array(tensor, backend)
        with backend.active():
            self._variables.set(self._name, array)
            backend.synchronize()  # the tensor may change from now on
        self._variables.handed_out.pop(self._name, None)

    def reset(self) -> None:
        """Reset the variable to its initial value."""
        self._check_idle()
        self._variables.handed_out.pop(self._name, None)
        self._variables.reset(self._name)

    def __repr__(self) -> str:
        return f"<VariableState: '{self.name}'>"
