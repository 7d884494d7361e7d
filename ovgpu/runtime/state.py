"""Variables of one request: two buffers each, so that an inference reads one and writes the other.

The new values take effect together, by `commit`, once the inference has succeeded; a failed one changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ovgpu.errors import Error
from ovgpu.ops._op import Array
from ovgpu.runtime.backend import Backend
from ovgpu.runtime.memory import capacity
from ovgpu.types import PartialShape, Type


@dataclass(frozen=True)
class VariableInfo:
    """What a model says of a variable."""

    name: str
    type: Type
    shape: PartialShape


class Variable:
    """A variable's value and its two buffers; ``current`` is None until it is set."""

    def __init__(self, info: VariableInfo, backend: Backend) -> None:
        self.info, self.backend = info, backend
        self.current: Array | None = None
        self.blocks: list[Any] = [None, None]
        self.sizes = [0, 0]
        self.spare: list[Array | None] = [None, None]  # the array last placed in either block
        self.parity = 0  # the block that `current` is in; the other one is written next

    def write(self, shape: tuple[int, ...], kind: Type) -> Array:
        """An array in the block that is not current, for the new value. Error if the variable cannot have it."""
        block = 1 - self.parity
        array = self.spare[block]
        if array is not None and array.shape == shape and array.dtype == kind.storage:
            return array
        if not self.info.shape.compatible(PartialShape(list(shape))):
            raise Error(f"[Assign] the new value of variable '{self.info.name}' has shape {list(shape)}, "
                        f"the variable has {self.info.shape}")
        nbytes = prod(shape) * kind.storage.itemsize
        if self.blocks[block] is None or self.sizes[block] < nbytes:
            self.sizes[block] = capacity(nbytes, self.info.shape.is_dynamic)
            self.blocks[block] = self.backend.allocate(self.sizes[block])
        array = self.spare[block] = self.backend.dense(self.blocks[block], shape, kind)
        return array

    def commit(self, value: Array, kind: Type) -> None:
        """Makes a new value current; one that is not in the spare block is copied there."""
        if value is not self.spare[1 - self.parity]:
            target = self.write(value.shape, kind)
            for call in self.backend.copy(value, target):
                call()
            value = target
        self.parity = 1 - self.parity
        self.current = value


class Variables:
    """All variables of a request, by id."""

    def __init__(self, infos: dict[str, VariableInfo], backend: Backend) -> None:
        self.all = {name: Variable(info, backend) for name, info in infos.items()}
        self.backend = backend

    @property
    def key(self) -> tuple[int, ...]:
        """Which of their two buffers the variables are in: bindings differ by it."""
        return tuple([v.parity for v in self.all.values()])

    def commit(self, values: dict[str, Array]) -> None:
        """Makes all new values current at once. Values that are other variables' buffers are read first."""
        pending = {name: self.all[name] for name in values}
        for name, variable in pending.items():  # whatever may fail, happens before anything is changed
            value = values[name]
            if value is not variable.spare[1 - variable.parity]:
                target = variable.write(value.shape, self.type_of(name, value))
                for call in self.backend.copy(value, target):
                    call()
                values[name] = target
        for name, variable in pending.items():
            variable.commit(values[name], self.type_of(name, values[name]))

    def type_of(self, name: str, value: Array) -> Type:
        declared = self.all[name].info.type
        return Type.of(value.dtype) if declared.is_dynamic() else declared

    def set(self, name: str, value: Array) -> None:
        """Sets a variable from outside; counts as set from now on."""
        info = self.all[name].info
        kind = self.type_of(name, value)
        if value.dtype != kind.storage:
            raise Error(f"variable '{name}' has type {kind.get_type_name()}, the new value {value.dtype}")
        if not info.shape.compatible(PartialShape(list(value.shape))):
            raise Error(f"variable '{name}' has shape {info.shape}, the new value {list(value.shape)}")
        self.all[name].commit(value, kind)

    def reset(self) -> None:
        for variable in self.all.values():
            variable.current = None
