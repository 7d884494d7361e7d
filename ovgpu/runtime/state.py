"""Variables of one request. Each has two buffers, so that an inference reads one and writes the other.

The values of all variables are one `Snapshot`. An inference that succeeds replaces it by one assignment. One that
fails, or is interrupted at any point, leaves it and the memory of its arrays unchanged.

A growing variable, such as a KV cache, grows along one axis. The positions on this axis are called tokens. Its buffer
has spare capacity behind the tokens. A cache append writes there, behind the current value, and the value includes the
new tokens once the inference has succeeded. When the capacity is exhausted, the value moves to the other buffer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from ovgpu.cache_capacity import cache_capacity
from ovgpu.errors import Error
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.storage import decode
from ovgpu.ops.base.view import View, dense_strides
from ovgpu.ops.convert import converted
from ovgpu.ops.fused.stored_tokens import PARAMETER_BYTES, dequantize_tokens, quantize_tokens
from ovgpu.runtime.backend import Backend
from ovgpu.runtime.memory import capacity, reserve
from ovgpu.types import PartialShape, Type

CACHED_ARRAYS = 4  # per buffer
NEW_VALUE = "[Assign] the new value"


@dataclass(frozen=True)
class VariableInfo:
    """Declaration of a variable in a model."""

    name: str
    type: Type
    shape: PartialShape
    axis: int = 0  # axis along which it grows; 0 if none, and also for axis 0, where tokens stay adjacent
    public_type: Type = Type.dynamic  # the type that users see, if it differs from ``type``

    @property
    def is_quantized(self) -> bool:
        """True if the values are rows of u8, see `ovgpu.ops.fused.stored_tokens`, of which users see the elements."""
        return self.type == Type.u8 and self.public_type.is_static() and self.public_type.is_real()


class VariableValue(NamedTuple):
    """Value of a variable, None until it is set, and the index of its buffer; the other buffer is written next."""

    array: Array | None
    buffer: int


class Snapshot(NamedTuple):
    """Values of all variables. If ``tokens`` is not 0, the growing variables have that many tokens, and their arrays
    may show fewer. New arrays are made only when the state is read, which is rare between decode steps."""

    values: tuple[VariableValue, ...]
    tokens: int = 0


class Buffer:
    """Memory block of a variable, and the arrays made in it. It is never resized: a larger value gets a new buffer."""

    __slots__ = ("arrays", "last", "memory", "size", "whole")

    def __init__(self, memory: Any = None, size: int = 0) -> None:
        self.memory, self.size = memory, size
        self.arrays: dict[Any, Array] = {}  # see `Variable._array`
        self.last: Array | None = None  # the array used last
        self.whole: Array | None = None  # see `Variable.with_spare_capacity`


INTEGERS = (Type.i32, Type.i8, Type.u8, Type.boolean, Type.i4, Type.u4)
FLOATS = (Type.f32, Type.f16, Type.bf16)


def _converts(given: Type, seen: Type) -> bool:
    """Return whether a value of the type ``given`` is converted to the type ``seen`` of a variable, as in OpenVINO's
    plugin, which rounds floats to integers. f16 is refused for bf16, since the data of a bf16 tensor look like f16."""
    if given == seen or (given, seen) == (Type.f16, Type.bf16):
        return given == seen
    if seen in FLOATS:
        return given in (*FLOATS, *INTEGERS, Type.f8e4m3, Type.f8e5m2)
    return seen in (*INTEGERS, Type.i64) and given in (*FLOATS, *INTEGERS)


class Variable:
    """A variable of a request, with its two buffers."""

    def __init__(self, info: VariableInfo, backend: Backend) -> None:
        self.info, self.backend = info, backend
        self.buffers = [Buffer(), Buffer()]
        self.buffer_replaced = False  # whether a larger buffer has replaced one since the last `release`
        self._extents = None if info.shape.rank.is_dynamic else [(d.min_length, d.max_length) for d in info.shape]

    def type_of(self, value: Array) -> Type:
        """Return the declared type, or the value's type if the declaration allows any."""
        return Type.of(value.dtype) if self.info.type.is_dynamic() else self.info.type

    def in_public_type(self, value: Array) -> tuple[Array, Type]:
        """Return a value in the type that users see, and that type."""
        element_type = self.type_of(value)
        if self.info.public_type in (Type.dynamic, element_type):
            return value, element_type
        if self.info.is_quantized:
            value = dequantize_tokens(self.backend.xp, value)
        return converted(self.backend.xp, value, self.info.public_type), self.info.public_type

    def public_shape(self, shape: Iterable[Any]) -> list[Any]:
        """Return the shape that users see of a value of this shape."""
        extents = list(shape)
        if self.info.is_quantized:
            last = extents[-1]  # an integer, or a static Dimension
            extents[-1] = (last if isinstance(last, int) else last.get_length()) - PARAMETER_BYTES
        return extents

    def accept(self, value: Array) -> Array:
        """Return a user's value, converted to the variable's type. Raise Error if its type or shape does not match."""
        seen = self.type_of(value) if self.info.public_type.is_dynamic() else self.info.public_type
        given = Type.of(value.dtype)
        if not _converts(given, seen):
            raise Error(f"variable '{self.info.name}' has type {seen.get_type_name()}, the new value {value.dtype}")
        quantized = self.info.is_quantized
        rows = (*value.shape[:-1], value.shape[-1] + PARAMETER_BYTES) if quantized and value.ndim else value.shape
        if not self.admits(rows):
            shape = self.info.shape
            if quantized and shape.rank.is_static:
                shape = PartialShape(self.public_shape(shape))
            raise Error(f"variable '{self.info.name}' has shape {shape}, the new value {list(value.shape)}")
        if quantized:
            return quantize_tokens(self.backend.xp, converted(self.backend.xp, value, Type.f32))
        if given.is_real() and not seen.is_real():
            value = self.backend.xp.rint(decode(value, self.backend.xp))
        if self.info.type == given or (self.info.type.is_dynamic() and given == seen):
            return value
        return converted(self.backend.xp, value, self.info.type)

    def admits(self, shape: tuple[int, ...]) -> bool:
        """Return whether the declared shape allows this one."""
        if self._extents is None:
            return True
        for n, (low, high) in zip(shape, self._extents):
            if n < low or n > high >= 0:
                return False
        return len(shape) == len(self._extents)

    def max_extent(self, axis: int) -> int:
        """Return the largest extent that the declared shape allows along an axis."""
        high = -1 if self._extents is None else self._extents[axis][1]
        return sys.maxsize if high < 0 else high

    def write(
        self, current: int, shape: tuple[int, ...], element_type: Type, strides: tuple[int, ...], append: bool
    ) -> Array:
        """Return an array for the new value. Raise Error if the variable does not allow its shape.

        ``current`` is the index of the current value's buffer; ``strides`` (bytes) matter only for growing variables.
        With ``append`` the new value begins with the current one, and stays in its buffer if the capacity allows.
        Every other value goes to the other buffer.
        """
        buffer = self.buffers[current]
        last = buffer.last
        if (
            append
            and last is not None
            and last.strides == strides
            and last.dtype == element_type.storage
            and last.size
            and (last.shape[: self.info.axis] == shape[: self.info.axis])
        ):
            self._check(shape, NEW_VALUE)
            buffer.last = self._array(buffer, shape, strides, element_type)
            return buffer.last
        return self._allocate_array(1 - current, shape, element_type, NEW_VALUE, strides)

    def with_spare_capacity(self, value: Array | None, current: int) -> Array | None:
        """Return the value of a growing variable including the spare capacity behind its tokens, or None if the value
        is not in its buffer. The array is the same object as long as the value does not move."""
        buffer, axis = self.buffers[current], self.info.axis
        if value is None or not axis or not any([value is array for array in buffer.arrays.values()]):
            return None
        max_tokens = value.strides[axis - 1] // max(prod(value.shape[axis + 1 :]) * value.dtype.itemsize, 1)
        shape = (*value.shape[:axis], max_tokens, *value.shape[axis + 1 :])
        whole = buffer.whole
        if whole is None or whole.shape != shape or whole.dtype != value.dtype:
            whole = self.backend.make_array(buffer.memory, 0, shape, value.strides, Type.of(value.dtype))
            buffer.whole = whole
        return whole

    def extended(self, value: Array, current: int, tokens: int) -> Array:
        """Return a growing value of ``tokens`` tokens that begins like ``value``: with those that were written behind
        it, or without its last ones."""
        buffer, axis = self.buffers[current], self.info.axis
        shape = (*value.shape[:axis], tokens, *value.shape[axis + 1 :])
        buffer.last = array = self._array(buffer, shape, value.strides, Type.of(value.dtype))
        return array

    def after(self, value: Array, current: Array | None, buffer: int) -> VariableValue:
        """Return the new value of a variable whose ``current`` value is in ``buffer``. It stays there if it is the
        current value or an append to it; otherwise it is in the other buffer, copied there if needed."""
        if value is current or value is self.buffers[buffer].last:
            return VariableValue(value, buffer)
        return VariableValue(self.copy_to_buffer(1 - buffer, value, NEW_VALUE), 1 - buffer)

    def copy_to_buffer(self, index: int, value: Array, description: str) -> Array:
        """Copy a value to one of the buffers, unless it is there already. Raise Error, which begins with
        ``description``, if the variable does not allow its shape."""
        if value is self.buffers[index].last:
            return value
        target = self._allocate_array(index, value.shape, self.type_of(value), description)
        for call in self.backend.copy(value, target):
            call()
        return target

    def _allocate_array(
        self,
        index: int,
        shape: tuple[int, ...],
        element_type: Type,
        description: str,
        strides: tuple[int, ...] | None = None,
    ) -> Array:
        """Return an array for a new value in one of the buffers, which is replaced if it is too small."""
        buffer, axis = self.buffers[index], self.info.axis
        array = buffer.last
        if (
            array is not None
            and array.shape == shape
            and array.dtype == element_type.storage
            and (not axis or strides is None or array.strides == strides)
        ):
            return array
        self._check(shape, description)
        strides = self._strides(array, shape, element_type) if strides is None else strides
        nbytes = prod(shape[:axis]) * strides[axis - 1] if axis else prod(shape) * element_type.storage.itemsize
        if buffer.memory is None or buffer.size < nbytes:
            grown = buffer.memory is not None and not axis  # it will likely grow again
            size = capacity(2 * nbytes if grown else nbytes, self.info.shape.is_dynamic)
            self.buffer_replaced |= buffer.memory is not None
            buffer = self.buffers[index] = Buffer(*reserve(self.backend.allocate, size, nbytes))
        buffer.last = array = self._array(buffer, shape, strides, element_type)
        return array

    def _array(self, buffer: Buffer, shape: tuple[int, ...], strides: tuple[int, ...], element_type: Type) -> Array:
        """Return the array at the beginning of a buffer. The last few shapes have cached arrays, as steps are bound to
        arrays."""
        cached, key = buffer.arrays, (shape, strides, element_type)
        array = cached.get(key)
        if array is None:
            array = cached[key] = (
                self.backend.make_array(buffer.memory, 0, shape, strides, element_type)
                if self.info.axis
                else self.backend.dense(buffer.memory, shape, element_type)
            )
            if len(cached) > CACHED_ARRAYS:
                del cached[next(iter(cached))]
        return array

    def _strides(self, last: Array | None, shape: tuple[int, ...], element_type: Type) -> tuple[int, ...]:
        """Return the strides in bytes of a user's value, with the capacity of the ``last`` array if it fits."""
        axis, size = self.info.axis, element_type.storage.itemsize
        old_capacity = last.strides[axis - 1] // size if axis and last is not None and last.ndim == len(shape) else 0
        needed, token_size = prod(shape[axis:]), max(prod(shape[axis + 1 :]), 1)
        if axis:
            strides = View.with_capacity(shape, axis, cache_capacity(needed, old_capacity, token_size)).strides
        else:
            strides = dense_strides(shape)
        return tuple([s * size for s in strides])

    def _check(self, shape: tuple[int, ...], description: str) -> None:
        if not self.admits(shape):
            raise Error(
                f"{description} of variable '{self.info.name}' has shape {list(shape)}, "
                f"the variable has {self.info.shape}"
            )

    def outgrown(self, current: int) -> bool:
        """Return whether a growing variable's other buffer is too small for the next value."""
        return bool(self.info.axis) and 0 < self.buffers[1 - current].size < self.buffers[current].size

    def release(self, current: int) -> None:
        """Free the other buffer if it is too small for the next value."""
        if self.outgrown(current):
            self.buffers[1 - current] = Buffer()
        self.buffer_replaced = False


class Variables:
    """All variables of a request by id, and the snapshot ``now`` of their values."""

    def __init__(self, infos: dict[str, VariableInfo], backend: Backend) -> None:
        self.all = {name: Variable(info, backend) for name, info in infos.items()}
        self.now = Snapshot((VariableValue(None, 0),) * len(infos))
        self.handed_out: dict[str, Any] = {}  # tensors of values that users may have written into since
        self.has_outgrown_buffers = False  # whether variables have outgrown buffers, which `release` frees
        self._indices = {name: index for index, name in enumerate(infos)}

    @property
    def nbytes(self) -> int:
        """The bytes of all buffers, with their spare capacity."""
        return sum(buffer.size for variable in self.all.values() for buffer in variable.buffers)

    @property
    def grown(self) -> bool:
        """True if a growing variable has a value."""
        return any(v.info.axis and value.array is not None for v, value in zip(self.all.values(), self.now.values))

    @property
    def key(self) -> tuple[int, ...]:
        """The buffer index of every value, which is part of the key of a binding."""
        return tuple([value.buffer for value in self.now.values])

    def value(self, name: str) -> VariableValue:
        """Return a variable's current value, with all its tokens."""
        value, tokens = self.now.values[self._indices[name]], self.now.tokens
        if tokens and value.array is not None and self.all[name].info.axis:
            return VariableValue(self.all[name].extended(value.array, value.buffer, tokens), value.buffer)
        return value

    def begin(self, name: str, initial: Array) -> Array:
        """Copy an initial value to the current buffer, so that steps bound to it also fit later values of its shape.
        The variable itself stays without a value."""
        return self.all[name].copy_to_buffer(self.value(name).buffer, initial, "[ReadValue] the initial value")

    def write(
        self, name: str, shape: tuple[int, ...], element_type: Type, strides: tuple[int, ...], append: bool
    ) -> Array:
        """Return an array for a new value, see `Variable.write`."""
        return self.all[name].write(self.now.values[self._indices[name]].buffer, shape, element_type, strides, append)

    def after(self, assigned: dict[str, Array], tokens: int = 0) -> Snapshot:
        """Return the snapshot after an inference, which the caller assigns to ``now``. It has the ``assigned`` values,
        copied to a buffer where needed, which may raise. Growing variables have ``tokens`` tokens, unless it is 0."""
        now = self.now if tokens else self._extended_snapshot()
        if not assigned:
            return now if now.tokens == tokens else Snapshot(now.values, tokens)
        values = list(now.values)
        for name, value in assigned.items():
            index, variable = self._indices[name], self.all[name]
            array, buffer = values[index]
            values[index] = after = variable.after(value, array, buffer)
            if variable.buffer_replaced or (after[1] != buffer and variable.outgrown(after[1])):
                self.has_outgrown_buffers = True
        return Snapshot(tuple(values), tokens)

    def set(self, name: str, value: Array) -> None:
        """Copy a user's value to the current buffer, so that bindings stay valid. Raise Error if type or shape do not
        match."""
        variable = self.all[name]
        value = variable.accept(value)
        self.now = self._extended_snapshot()  # arrays show all tokens from here on, as the buffer may be replaced
        buffer = self.value(name).buffer
        self._replace(name, VariableValue(variable.copy_to_buffer(buffer, value, NEW_VALUE), buffer))

    def change(self, infos: dict[str, VariableInfo]) -> None:
        """Replace the declarations, and convert the values to the new types."""
        variables, values = dict[str, Variable](), list[VariableValue]()
        for name, info in infos.items():
            variable, value = Variable(info, self.all[name].backend), self.value(name).array
            if value is not None:
                value = variable.copy_to_buffer(0, converted(variable.backend.xp, value, info.type), NEW_VALUE)
            variables[name] = variable
            values.append(VariableValue(value, 0))
        self.all, self.now = variables, Snapshot(tuple(values))

    def reset(self, name: str) -> None:
        """Reset a variable to its initial value."""
        self.now = self._extended_snapshot()
        self._replace(name, VariableValue(None, self.value(name).buffer))

    def reset_all(self) -> None:
        """Reset all variables to their initial values."""
        self.now = Snapshot(tuple([VariableValue(None, value.buffer) for value in self.now.values]))

    def copy_fixed(self) -> dict[str, Array | None]:
        """Return copies of the values that do not grow, None for one that is not set."""
        copies: dict[str, Array | None] = {}
        for name, variable in self.all.items():
            if not variable.info.axis:
                value = copies[name] = self.value(name).array
                if value is not None:
                    copies[name] = variable.backend.xp.empty(value.shape, value.dtype)
                    for call in variable.backend.copy(value, copies[name]):
                        call()
        return copies

    def drop_tokens(self, count: int, fixed: Mapping[str, Array | None]) -> None:
        """Remove the last ``count`` tokens of the growing variables, which have as many, without a copy. Set the other
        variables to the values ``fixed``, see `copy_fixed`."""
        values = list(self._extended_snapshot().values)
        for index, (name, variable) in enumerate(self.all.items()):
            array, buffer = values[index]
            if not variable.info.axis:
                value, element_type = fixed[name], variable.info.type
                if value is not None and element_type.is_static() and value.dtype != element_type.storage:  # changed
                    value = converted(variable.backend.xp, value, element_type)
                array = None if value is None else variable.copy_to_buffer(buffer, value, NEW_VALUE)
            elif array is not None:
                array = variable.extended(array, buffer, array.shape[variable.info.axis] - count)
            values[index] = VariableValue(array, buffer)
        self.now = Snapshot(tuple(values))

    def keep_tokens(self, count: int) -> None:
        """Keep the first ``count`` tokens of the variables, which all grow, and have as many, without a copy."""
        name, variable = next(iter(self.all.items()))
        array = self.value(name).array
        length = 0 if array is None else array.shape[variable.info.axis]
        self.drop_tokens(length - count, {})

    def release(self) -> None:
        """Free the buffers that values have left. The caller must drop bindings to them as well."""
        for variable, value in zip(self.all.values(), self.now.values):
            variable.release(value.buffer)
        self.has_outgrown_buffers = False

    def _extended_snapshot(self) -> Snapshot:
        """Return the current snapshot with arrays that show all tokens."""
        if not self.now.tokens:
            return self.now
        return Snapshot(tuple([self.value(name) for name in self.all]))

    def _replace(self, name: str, value: VariableValue) -> None:
        values = list(self.now.values)
        values[self._indices[name]] = value
        self.now = Snapshot(tuple(values), self.now.tokens)
