"""Variables of one request: two buffers each, so that an inference reads one and writes the other.

The values of all variables are one `Snapshot`. An inference that succeeds replaces it by one assignment; one that
fails, or is interrupted at whatever point, leaves it and the memory of its arrays as they are.
A variable that grows lies in its buffer with capacity behind its rows. What is appended is written there, behind
the current value, which takes it in when the inference has succeeded; the other buffer serves when there is no
capacity left.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from ovgpu.errors import Error
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.view import View, dense_strides
from ovgpu.ops.convert import converted
from ovgpu.runtime.backend import Backend
from ovgpu.runtime.memory import capacity, reserve
from ovgpu.symbolic import cache_capacity
from ovgpu.types import PartialShape, Type

CACHED_ARRAYS = 4  # arrays in a buffer
NEW = "[Assign] the new value"


@dataclass(frozen=True)
class VariableInfo:
    """The declaration of a variable in a model."""

    name: str
    type: Type
    shape: PartialShape
    axis: int = 0  # the axis along which it grows; along the first one, no memory need be left between its rows
    seen: Type = Type.dynamic  # the type that its values have for users, if another one


class Value(NamedTuple):
    """A variable's value, None until it is set, and the number of its buffer; the other one is written next."""

    array: Array | None
    buffer: int


class Snapshot(NamedTuple):
    """The values of all variables. If ``rows`` is not 0, those that grow have so many rows, of which their arrays show
    the first ones: in most steps of a decoder nobody looks at them."""

    values: tuple[Value, ...]
    rows: int = 0


class Buffer:
    """Memory of a variable, and the arrays that were made in it. It never moves: more memory is another buffer."""

    __slots__ = ("arrays", "last", "memory", "size", "whole")

    def __init__(self, memory: Any = None, size: int = 0) -> None:
        self.memory, self.size = memory, size
        self.arrays: dict[Any, Array] = {}  # see `Variable._array`
        self.last: Array | None = None  # the one placed last
        self.whole: Array | None = None  # see `Variable.whole`


class Variable:
    """The two buffers of a variable."""

    def __init__(self, info: VariableInfo, backend: Backend) -> None:
        self.info, self.backend = info, backend
        self.buffers = [Buffer(), Buffer()]
        self.moved = False  # whether there is memory that it has left, since somebody asked
        self._extents = None if info.shape.rank.is_dynamic else [(d.min_length, d.max_length) for d in info.shape]

    def type_of(self, value: Array) -> Type:
        """The declared type, or that of a value if any is allowed."""
        return Type.of(value.dtype) if self.info.type.is_dynamic() else self.info.type

    def seen(self, value: Array) -> tuple[Array, Type]:
        """A value as users see it, and its type."""
        kind = self.type_of(value)
        if self.info.seen in (Type.dynamic, kind):
            return value, kind
        return converted(self.backend.xp, value, self.info.seen), self.info.seen

    def taken(self, value: Array) -> Array:
        """A value from outside in the variable's type. Error if type or shape are not the variable's."""
        seen = self.type_of(value) if self.info.seen.is_dynamic() else self.info.seen
        if value.dtype != seen.storage:
            raise Error(f"variable '{self.info.name}' has type {seen.get_type_name()}, the new value {value.dtype}")
        if not self.admits(value.shape):
            raise Error(f"variable '{self.info.name}' has shape {self.info.shape}, the new value {list(value.shape)}")
        if self.info.type in (Type.dynamic, seen):
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

    def most(self, axis: int) -> int:
        """The largest extent that the declared shape allows."""
        high = -1 if self._extents is None else self._extents[axis][1]
        return sys.maxsize if high < 0 else high

    def write(self, current: int, shape: tuple[int, ...], kind: Type, strides: tuple[int, ...], append: bool) -> Array:
        """An array for the new value with these strides in bytes, which matter if the variable grows; ``current`` is
        the buffer of the value. Error if the variable cannot have it. With ``append`` the new value begins with that
        one: then it lies there as well, if there is capacity; else, as other values, in the other buffer."""
        buffer = self.buffers[current]
        last = buffer.last
        if append and last is not None and last.strides == strides and last.dtype == kind.storage and last.size and (
                last.shape[: self.info.axis] == shape[: self.info.axis]):
            self._check(shape, NEW)
            buffer.last = self._array(buffer, shape, strides, kind)
            return buffer.last
        return self._place(1 - current, shape, kind, NEW, strides)

    def whole(self, value: Array | None, current: int) -> Array | None:
        """The value of a variable that grows, together with the capacity behind its rows; None if it is not in
        its buffer. The array is the same one while the value stays where it is."""
        buffer, axis = self.buffers[current], self.info.axis
        if value is None or not axis or not any([value is array for array in buffer.arrays.values()]):
            return None
        rows = value.strides[axis - 1] // max(prod(value.shape[axis + 1 :]) * value.dtype.itemsize, 1)
        shape = (*value.shape[:axis], rows, *value.shape[axis + 1 :])
        whole = buffer.whole
        if whole is None or whole.shape != shape or whole.dtype != value.dtype:
            whole = self.backend.make_array(buffer.memory, 0, shape, value.strides, Type.of(value.dtype))
            buffer.whole = whole
        return whole

    def extended(self, value: Array, current: int, rows: int) -> Array:
        """A value that grows, in its buffer, with what was written behind it: ``rows`` in all."""
        buffer, axis = self.buffers[current], self.info.axis
        shape = (*value.shape[:axis], rows, *value.shape[axis + 1 :])
        buffer.last = found = self._array(buffer, shape, value.strides, Type.of(value.dtype))
        return found

    def after(self, value: Array, current: Array | None, buffer: int) -> Value:
        """The new value of a variable whose ``current`` one is in ``buffer``: ``value`` as it is if it lies in the
        variable's memory, else a copy in the other buffer. A value that stays the same stays where it is."""
        if value is current or value is self.buffers[buffer].last:
            return Value(value, buffer)
        return Value(self.copied(1 - buffer, value, NEW), 1 - buffer)

    def copied(self, number: int, value: Array, what: str) -> Array:
        """A value in one of the buffers, copied there unless it is what lies there already. Error, which says ``what``
        it is, for a shape that the variable cannot have."""
        if value is self.buffers[number].last:
            return value
        target = self._place(number, value.shape, self.type_of(value), what)
        for call in self.backend.copy(value, target):
            call()
        return target

    def _place(self, number: int, shape: tuple[int, ...], kind: Type, what: str,
               strides: tuple[int, ...] | None = None) -> Array:
        buffer, axis = self.buffers[number], self.info.axis
        array = buffer.last
        if array is not None and array.shape == shape and array.dtype == kind.storage and (
                not axis or strides is None or array.strides == strides):
            return array
        self._check(shape, what)
        strides = self._strides(array, shape, kind) if strides is None else strides
        nbytes = prod(shape[:axis]) * strides[axis - 1] if axis else prod(shape) * kind.storage.itemsize
        if buffer.memory is None or buffer.size < nbytes:
            grown = buffer.memory is not None and not axis  # and will grow again
            size = capacity(2 * nbytes if grown else nbytes, self.info.shape.is_dynamic)
            self.moved |= buffer.memory is not None
            buffer = self.buffers[number] = Buffer(*reserve(self.backend.allocate, size, nbytes))
        buffer.last = array = self._array(buffer, shape, strides, kind)
        return array

    def _array(self, buffer: Buffer, shape: tuple[int, ...], strides: tuple[int, ...], kind: Type) -> Array:
        """The array at the beginning of a buffer: the same one as before for one of the last few shapes, as steps are
        bound to arrays."""
        known, key = buffer.arrays, (shape, strides, kind)
        found = known.get(key)
        if found is None:
            found = known[key] = (self.backend.make_array(buffer.memory, 0, shape, strides, kind) if self.info.axis
                                  else self.backend.dense(buffer.memory, shape, kind))
            if len(known) > CACHED_ARRAYS:
                del known[next(iter(known))]
        return found

    def _strides(self, last: Array | None, shape: tuple[int, ...], kind: Type) -> tuple[int, ...]:
        """Strides in bytes for a value from outside, with the capacity that the buffer had for the last one."""
        axis, size = self.info.axis, kind.storage.itemsize
        had = last.strides[axis - 1] // size if axis and last is not None and last.ndim == len(shape) else 0
        needed, row = prod(shape[axis:]), max(prod(shape[axis + 1 :]), 1)
        if axis:
            strides = View.with_capacity(shape, axis, cache_capacity(needed, had, row)).strides
        else:
            strides = dense_strides(shape)
        return tuple([s * size for s in strides])

    def _check(self, shape: tuple[int, ...], what: str) -> None:
        if not self.admits(shape):
            raise Error(f"{what} of variable '{self.info.name}' has shape {list(shape)}, "
                        f"the variable has {self.info.shape}")

    def outgrown(self, current: int) -> bool:
        """Return whether the buffer beside the current one is too small for what comes."""
        return bool(self.info.axis) and 0 < self.buffers[1 - current].size < self.buffers[current].size

    def release(self, current: int) -> None:
        """Frees the buffer beside the current one if it is outgrown."""
        if self.outgrown(current):
            self.buffers[1 - current] = Buffer()
        self.moved = False


class Variables:
    """All variables of a request by id, and their values ``now``."""

    def __init__(self, infos: dict[str, VariableInfo], backend: Backend) -> None:
        self.all = {name: Variable(info, backend) for name, info in infos.items()}
        self.now = Snapshot((Value(None, 0),) * len(infos))
        self.moved = False  # whether one of them has left memory: `release` frees it
        self._numbers = {name: number for number, name in enumerate(infos)}

    @property
    def grown(self) -> bool:
        """Return whether a variable that grows has a value."""
        return any(v.info.axis and value.array is not None for v, value in zip(self.all.values(), self.now.values))

    @property
    def key(self) -> tuple[int, ...]:
        """The buffers of all values: bindings differ by them."""
        return tuple([value.buffer for value in self.now.values])

    def value(self, name: str) -> Value:
        """A variable's value now."""
        value, rows = self.now.values[self._numbers[name]], self.now.rows
        if rows and value.array is not None and self.all[name].info.axis:
            return Value(self.all[name].extended(value.array, value.buffer, rows), value.buffer)
        return value

    def begin(self, name: str, initial: Array) -> Array:
        """An initial value in the current buffer, where a later value of its shape would lie: steps that are bound to
        it need not be bound again. The variable stays without a value."""
        return self.all[name].copied(self.value(name).buffer, initial, "[ReadValue] the initial value")

    def write(self, name: str, shape: tuple[int, ...], kind: Type, strides: tuple[int, ...], append: bool) -> Array:
        """An array for a new value, see `Variable.write`."""
        return self.all[name].write(self.now.values[self._numbers[name]].buffer, shape, kind, strides, append)

    def after(self, assigned: dict[str, Array], rows: int = 0) -> Snapshot:
        """The snapshot after an inference, for the caller to set ``now`` to: the ``assigned`` values in their buffers,
        and the others as they are; those that grow have ``rows`` rows, unless it is 0. Copying a value may raise."""
        now = self.now if rows else self._settled()
        if not assigned:
            return now if now.rows == rows else Snapshot(now.values, rows)
        values = list(now.values)
        for name, value in assigned.items():
            number, variable = self._numbers[name], self.all[name]
            array, buffer = values[number]
            values[number] = after = variable.after(value, array, buffer)
            if variable.moved or (after[1] != buffer and variable.outgrown(after[1])):
                self.moved = True
        return Snapshot(tuple(values), rows)

    def set(self, name: str, value: Array) -> None:
        """Sets a value from outside, in the current buffer: what is bound to it holds on. Error if type or shape are
        not the variable's."""
        variable = self.all[name]
        value = variable.taken(value)
        self.now = self._settled()  # in arrays of their own: the buffer may be exchanged
        buffer = self.value(name).buffer
        self._replace(name, Value(variable.copied(buffer, value, NEW), buffer))

    def reset(self, name: str) -> None:
        """Gives a variable its initial value again."""
        self.now = self._settled()
        self._replace(name, Value(None, self.value(name).buffer))

    def reset_all(self) -> None:
        """Gives all variables their initial values again."""
        self.now = Snapshot(tuple([Value(None, value.buffer) for value in self.now.values]))

    def release(self) -> None:
        """Frees memory that values have left; what is bound to it has to go as well."""
        for variable, value in zip(self.all.values(), self.now.values):
            variable.release(value.buffer)
        self.moved = False

    def _settled(self) -> Snapshot:
        """The same values, all rows in their arrays."""
        if not self.now.rows:
            return self.now
        return Snapshot(tuple([self.value(name) for name in self.all]))

    def _replace(self, name: str, value: Value) -> None:
        values = list(self.now.values)
        values[self._numbers[name]] = value
        self.now = Snapshot(tuple(values), self.now.rows)
