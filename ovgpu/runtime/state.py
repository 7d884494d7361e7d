"""Variables of one request: two buffers each, so that an inference reads one and writes the other.

The new values take effect together, by `commit`, once the inference has succeeded; a failed one changes nothing.
A variable that grows lies in its buffer with room behind its rows. What is appended is written there, behind the
current value, which takes it in when the inference has succeeded; the other buffer serves when there is no room left.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from typing import Any

from ovgpu.errors import Error
from ovgpu.ops._op import Array
from ovgpu.ops._view import View, dense_strides
from ovgpu.ops.convert import converted
from ovgpu.runtime.backend import Backend
from ovgpu.runtime.memory import capacity, reserve
from ovgpu.symbolic import room
from ovgpu.types import PartialShape, Type

KEPT = 4  # arrays in a block


@dataclass(frozen=True)
class VariableInfo:
    """What a model says of a variable."""

    name: str
    type: Type
    shape: PartialShape
    axis: int = 0  # the axis along which it grows; along the first one, no memory need be left between its rows
    seen: Type = Type.dynamic  # the type that its values have for users, if another one


class Variable:
    """A variable's value and its two buffers; ``current`` is None until it is set."""

    def __init__(self, info: VariableInfo, backend: Backend) -> None:
        self.info, self.backend = info, backend
        self.extended = 0  # rows that the current value has by `extend`, if nobody has asked for it since
        self._current: Array | None = None
        self.blocks: list[Any] = [None, None]
        self._arrays: list[dict[Any, Array]] = [{}, {}]  # see `_array`
        self.sizes = [0, 0]
        self._spare: list[Array | None] = [None, None]  # see `spare`
        self.parity = 0  # the block that `current` is in; the other one is written next
        self.moved = False  # whether there is memory that it has left, since somebody asked
        self.appended: Array | None = None  # in the current block: the current value, and what is written behind it
        self._whole: tuple[Any, Array] | None = None  # see `whole`, and the block that it is of
        self._extents = None if info.shape.rank.is_dynamic else [(d.min_length, d.max_length) for d in info.shape]

    @property
    def current(self) -> Array | None:
        self._settle()
        return self._current

    @current.setter
    def current(self, value: Array | None) -> None:
        self._settle()
        self._current = value

    @property
    def spare(self) -> list[Array | None]:
        """The array last placed in either block."""
        self._settle()
        return self._spare

    @property
    def is_set(self) -> bool:
        return self._current is not None

    def type_of(self, value: Array) -> Type:
        """The declared type, or that of a value if any is allowed."""
        return Type.of(value.dtype) if self.info.type.is_dynamic() else self.info.type

    def seen(self, value: Array) -> tuple[Array, Type]:
        """A value as users see it, and its type."""
        kind = self.type_of(value)
        if self.info.seen in (Type.dynamic, kind):
            return value, kind
        return converted(self.backend.xp, value, self.info.seen), self.info.seen

    def admits(self, shape: tuple[int, ...]) -> bool:
        """Whether the declared shape allows this one."""
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

    def write(self, shape: tuple[int, ...], kind: Type, strides: tuple[int, ...], append: bool) -> Array:
        """An array for the new value, of a variable that grows with these strides in bytes. Error if the variable
        cannot have it. With ``append`` the new value begins with the current one: then it lies there as well, if it
        has room; else, as other values, in the block that is not current."""
        now = self.spare[self.parity]
        if append and now is not None and now.strides == strides and now.dtype == kind.storage and now.size and (
                now.shape[: self.info.axis] == shape[: self.info.axis]):
            self._check(shape, "[Assign] the new value")
            self.appended = self._array(self.parity, shape, strides, kind)
            return self.appended
        return self._place(1 - self.parity, shape, kind, "[Assign] the new value", strides)

    def whole(self) -> Array | None:
        """The current value of a variable that grows, and the room behind its rows; the same array while it stays where
        it is."""
        now = self.spare[self.parity]
        if self.current is not now or now is None or not self.info.axis:
            return None
        axis, block = self.info.axis, self.blocks[self.parity]
        rows = now.strides[axis - 1] // max(prod(now.shape[axis + 1 :]) * now.dtype.itemsize, 1)
        shape = (*now.shape[:axis], rows, *now.shape[axis + 1 :])
        known = self._whole
        if known is None or known[0] is not block or known[1].shape != shape or known[1].dtype != now.dtype:
            known = self._whole = block, self.backend.place(block, 0, shape, now.strides, Type.of(now.dtype))
        return known[1]

    def extend(self, rows: int) -> None:
        """Has the current value take in what was written behind it: ``rows`` in all, which must be admitted."""
        self.extended = rows

    def _settle(self) -> None:
        """Places the array of what `extend` has said: in most steps of a decoder nobody looks at it."""
        rows, self.extended = self.extended, 0
        now, axis = self._current, self.info.axis
        if rows and now is not None:
            shape = (*now.shape[:axis], rows, *now.shape[axis + 1 :])
            self._current = self._spare[self.parity] = self.backend.place(
                self.blocks[self.parity], 0, shape, now.strides, Type.of(now.dtype))

    def begin(self, value: Array) -> Array:
        """An initial value in the current block, where a later value of its shape would lie: steps that are bound
        to it need not be bound again. The variable stays as it is."""
        return self._copied(self.parity, value, "[ReadValue] the initial value")

    def stage(self, value: Array) -> Array:
        """A new value in the block that is not current; copied there if it is elsewhere. A value that stays the same
        stays where it is."""
        if value is self.spare[self.parity] or value is self.appended:
            return value
        return self._copied(1 - self.parity, value, "[Assign] the new value")

    def _copied(self, block: int, value: Array, what: str) -> Array:
        if value is self.spare[block]:
            return value
        target = self._place(block, value.shape, self.type_of(value), what)
        for call in self.backend.copy(value, target):
            call()
        return target

    def _place(self, block: int, shape: tuple[int, ...], kind: Type, what: str,
               strides: tuple[int, ...] | None = None) -> Array:
        array = self.spare[block]
        if array is not None and array.shape == shape and array.dtype == kind.storage and (
                not self.info.axis or strides is None or array.strides == strides):
            return array
        self._check(shape, what)
        strides = self._strides(block, shape, kind) if strides is None else strides
        nbytes = (prod(shape[: self.info.axis]) * strides[self.info.axis - 1] if self.info.axis
                  else prod(shape) * kind.storage.itemsize)
        if self.blocks[block] is None or self.sizes[block] < nbytes:
            self._arrays[block] = {}
            grown = self.blocks[block] is not None and not self.info.axis  # and will grow again
            size = capacity(2 * nbytes if grown else nbytes, self.info.shape.is_dynamic)
            self.moved |= self.blocks[block] is not None
            self.blocks[block], self.sizes[block] = reserve(self.backend.allocate, size, nbytes)
        array = self.spare[block] = self._array(block, shape, strides, kind)
        return array

    def _array(self, block: int, shape: tuple[int, ...], strides: tuple[int, ...], kind: Type) -> Array:
        """The array at the beginning of a block: the same one as before for one of the last few shapes, as steps are
        bound to arrays."""
        known, key = self._arrays[block], (shape, strides, kind)
        found = known.get(key)
        if found is None:
            found = known[key] = (self.backend.place(self.blocks[block], 0, shape, strides, kind) if self.info.axis
                                  else self.backend.dense(self.blocks[block], shape, kind))
            if len(known) > KEPT:
                del known[next(iter(known))]
        return found

    def _strides(self, block: int, shape: tuple[int, ...], kind: Type) -> tuple[int, ...]:
        """Strides in bytes for a value from outside, with the room that the block has already."""
        axis, last, size = self.info.axis, self.spare[block], kind.storage.itemsize
        had = last.strides[axis - 1] // size if axis and last is not None and last.ndim == len(shape) else 0
        needed, row = prod(shape[axis:]), max(prod(shape[axis + 1 :]), 1)
        strides = View.roomy(shape, axis, room(needed, had, row)).strides if axis else dense_strides(shape)
        return tuple([s * size for s in strides])

    def _check(self, shape: tuple[int, ...], what: str) -> None:
        if not self.admits(shape):
            raise Error(f"{what} of variable '{self.info.name}' has shape {list(shape)}, "
                        f"the variable has {self.info.shape}")

    def commit(self, staged: Array) -> None:
        """Makes a staged value current."""
        if staged is self.appended:
            self.spare[self.parity] = staged
        elif staged is not self.spare[self.parity]:
            self.parity = 1 - self.parity
            other = 1 - self.parity
            if self.info.axis and self.sizes[other] < self.sizes[self.parity]:  # it is outgrown
                self.blocks[other], self.sizes[other], self.spare[other] = None, 0, None
                self._arrays[other] = {}
                self._whole, self.moved = None, True
        self.current, self.appended = staged, None

    @property
    def placed(self) -> Array | None:
        """The current value, if it is the array last placed in its block."""
        value = self.current
        return value if value is self._spare[self.parity] else None

    def alternates(self, before: Array, after: Array) -> bool:
        """Return whether ``before`` is the current value, and the next one would be placed in ``after``."""
        return (self._current is before and not self.extended
                and (after is before or self._spare[1 - self.parity] is after))

    def alternate(self, after: Array) -> None:
        """Makes ``after`` current, see `alternates`."""
        if after is not self._current:
            self.parity = 1 - self.parity
            self._current = after

    def set(self, value: Array) -> None:
        """Sets the value from outside, in the current block: what is bound to it holds on. Error if type or shape are
        not the variable's."""
        seen = self.type_of(value) if self.info.seen.is_dynamic() else self.info.seen
        if value.dtype != seen.storage:
            raise Error(f"variable '{self.info.name}' has type {seen.get_type_name()}, the new value {value.dtype}")
        if not self.admits(value.shape):
            raise Error(f"variable '{self.info.name}' has shape {self.info.shape}, "
                        f"the new value {list(value.shape)}")
        if self.info.type not in (Type.dynamic, seen):
            value = converted(self.backend.xp, value, self.info.type)
        self.current = self._copied(self.parity, value, "[Assign] the new value")

    def reset(self) -> None:
        """Gives the variable its initial value again."""
        self.current = None


class Variables:
    """All variables of a request, by id."""

    def __init__(self, infos: dict[str, VariableInfo], backend: Backend) -> None:
        self.all = {name: Variable(info, backend) for name, info in infos.items()}

    @property
    def grown(self) -> bool:
        """Whether a variable that grows has a value."""
        return any(v.info.axis and v.is_set for v in self.all.values())

    @property
    def key(self) -> tuple[int, ...]:
        """Which of their two buffers the variables are in: bindings differ by it."""
        return tuple([v.parity for v in self.all.values()])

    def commit(self, values: dict[str, Array]) -> bool:
        """Makes all new values current at once, after everything that may fail; whether any variable has moved."""
        staged = {name: self.all[name].stage(value) for name, value in values.items()}
        moved = False
        for name, value in staged.items():
            variable = self.all[name]
            variable.commit(value)
            moved, variable.moved = moved or variable.moved, False
        return moved

    def reset(self) -> None:
        for variable in self.all.values():
            variable.reset()
