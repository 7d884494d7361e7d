"""Tracing of an array function: it becomes a list of ufunc calls that write into preallocated buffers.

A traced function is a `Tape`: instructions over registers ``inputs.. output temporaries.. constants..``. Intermediate
values live in the output where that overwrites no live input, else in temporaries that are reused once dead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ovgpu.ops.base.recorder import HostRecorder
from ovgpu.ops.base.storage import CODED, decode, decoded_dtype, encode
from ovgpu.types import Type

if TYPE_CHECKING:
    from ovgpu.ops.base.elementwise import Elementwise

TILE = 32768  # elements per tile: a handful of f32 tiles stay in a core's L2 cache


class Reg(int):
    """Index of a register. The type distinguishes it from a scalar operand of the same value."""


@dataclass(frozen=True)
class Instruction:
    """``call(*operands, out)``; operands are registers or scalars."""

    call: Callable[..., Any]
    operands: tuple[Any, ...]
    out: int


@dataclass(frozen=True)
class Tape:
    """A traced function: instructions, and the dtypes of the temporaries that they use."""

    instructions: tuple[Instruction, ...]
    temporaries: tuple[np.dtype[Any], ...]
    inplace: tuple[int, ...]  # inputs whose memory the output may share

    def record(self, k: HostRecorder, inputs: Sequence[Any], out: Any, temporaries: Sequence[Any]) -> None:
        """Hand every call to the recorder ``k``; ``temporaries`` have the output's shape."""
        if out.size:
            registers = [*inputs, out, *temporaries, *self.constants]
            for call, arguments in self.calls:
                k(call, *arguments(registers))

    @cached_property
    def constants(self) -> tuple[Any, ...]:
        """The scalar operands in order of use; they follow the temporaries as the last registers."""
        return tuple(x for step in self.instructions for x in step.operands if type(x) is not Reg)

    @cached_property
    def calls(self) -> tuple[tuple[Callable[..., Any], Callable[[Sequence[Any]], tuple[Any, ...]]], ...]:
        """Each instruction's call, with the function that picks its arguments from the list of registers."""
        constant = count(-len(self.constants))
        operands = [[x if type(x) is Reg else next(constant) for x in step.operands] for step in self.instructions]
        return tuple((step.call, itemgetter(*read, step.out)) for step, read in zip(self.instructions, operands))


# ---- stand-ins for arrays


class Tracing(NDArrayOperatorsMixin):
    """Stand-in for an array while a function is traced; it records the call that computes it."""

    __array_priority__ = 1000

    def __init__(self, tape: list[Tracing], dtype: np.dtype[Any], source: Any) -> None:
        self.tape, self.dtype, self.source = tape, dtype, source
        self.index = len(tape)
        tape.append(self)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs or ufunc.nout != 1:
            return NotImplemented
        dtypes = ufunc.resolve_dtypes((*map(_operand_dtype, inputs), None))
        operands = tuple(x if isinstance(x, Tracing) else _scalar(x, d) for x, d in zip(inputs, dtypes))
        return Tracing(self.tape, dtypes[-1], (_CALLS.get(ufunc, ufunc), operands))

    def astype(self, dtype: Any) -> Tracing:
        dtype = np.dtype(dtype)
        if self.dtype == dtype:
            return self
        return Tracing(self.tape, dtype, (_recode if {self.dtype, dtype} & CODED else _cast, (self,)))


class _Xp:
    """Stand-in for NumPy while a function is traced."""

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Any:
        traced = next(x for x in (condition, a, b) if isinstance(x, Tracing))
        dtypes = [_operand_dtype(x) for x in (a, b)]
        dtype = next((d for d, x in zip(dtypes, (a, b)) if isinstance(x, Tracing)), None)
        if dtypes[0] != dtypes[1] or dtype is None:
            dtype = np.add.resolve_dtypes((*dtypes, None))[-1]
        operands = tuple(x if isinstance(x, Tracing) else _scalar(x, dtype) for x in (a, b))
        return Tracing(traced.tape, dtype, (_where, (condition, *operands)))

    @staticmethod
    def clip(x: Any, low: Any, high: Any) -> Any:
        return Tracing(x.tape, x.dtype, (_clip, (x, _scalar(low, x.dtype), _scalar(high, x.dtype))))

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def _operand_dtype(x: Any) -> Any:
    return x.dtype if isinstance(x, (Tracing, np.generic, np.ndarray)) else type(x)


def _scalar(x: Any, dtype: np.dtype[Any]) -> Any:
    return np.asarray(x, dtype)  # a 0-d array, which ufuncs take twice as fast as a Python number


def _cast(x: Any, out: Any) -> None:
    np.copyto(out, x, casting="unsafe")


def _recode(x: Any, out: Any) -> None:
    np.copyto(out, encode(decode(x), Type.of(out.dtype)))


def _where(condition: Any, a: Any, b: Any, out: Any) -> None:
    np.copyto(out, b)
    np.copyto(out, a, where=condition)


def _clip(x: Any, low: Any, high: Any, out: Any) -> None:
    np.clip(x, low, high, out=out)


def _maximum(a: Any, b: Any, out: Any) -> None:
    np.maximum(a, b, out=out)


def _minimum(a: Any, b: Any, out: Any) -> None:
    np.minimum(a, b, out=out)


def _power(a: Any, b: Any, out: Any) -> None:
    """Compute `np.power`; for a single exponent of 2, 3, -1 or plus or minus a half, by products, roots and
    reciprocals, which take less time."""
    exponent = b.item() if b.size == 1 and a.dtype.kind == "f" else None
    if exponent == 2:
        np.square(a, out)
    elif exponent == 0.5:
        np.sqrt(a, out)
    elif exponent == -1:
        np.reciprocal(a, out)
    elif exponent == 3:
        np.multiply(np.square(a), a, out)
    elif exponent == -0.5:
        np.reciprocal(np.sqrt(a, out), out)
    else:
        np.power(a, b, out)


# NumPy deprecates a positional `out` for maximum and minimum.
_CALLS: dict[Any, Callable[..., Any]] = {np.maximum: _maximum, np.minimum: _minimum, np.power: _power}


# ---- from traced values to registers


@lru_cache(maxsize=4096)
def trace(op: Elementwise, inputs: tuple[np.dtype[Any], ...], output: np.dtype[Any]) -> Tape:
    """Return the tape of ``op.compute`` for these storage dtypes; temporaries with disjoint lifetimes share memory."""
    tape: list[Tracing] = []
    sources = [Tracing(tape, dtype, None) for dtype in inputs]
    decoded = [x if op.exact else x.astype(decoded_dtype(x.dtype)) for x in sources]
    result = op.compute(_Xp(), *decoded)
    if not isinstance(result, Tracing) or (result.dtype == output and result.source is None):
        operand = result if isinstance(result, Tracing) else np.asarray(result)
        result = Tracing(tape, output, (_cast, (operand,)))
    return _allocate(tape, result.astype(output), len(inputs))


def _allocate(tape: list[Tracing], result: Tracing, arity: int) -> Tape:
    """Assign registers to the traced values by linear scan: inputs, then the output, then temporaries."""
    last = _last_reads(tape, result)
    inputs_done = max((last[i] for i in range(arity) if i in last), default=-1)
    registers = {i: i for i in range(arity)}
    dtypes = {arity: result.dtype}  # of the output and the temporaries
    free: list[int] = []
    output_freed = result.source[0] is _where  # `_where` writes its output before it has read all its operands
    instructions: list[Instruction] = []
    for value in tape[arity : result.index + 1]:
        if value is not result and value.index not in last:
            continue  # computed, but not used
        call, operands = value.source
        released = [registers[x] for x in _reads(value) if last[x] == value.index and x >= arity]
        if not output_freed and value.index >= inputs_done:
            released.append(arity)
            output_freed = True
        if call is not _where:
            free += released
        register = arity if value is result else next((r for r in free if dtypes[r] == value.dtype), -1)
        if register < 0:
            register = arity + len(dtypes)
            dtypes[register] = value.dtype
        free = [r for r in free if r != register]
        if call is _where:
            free += released
        read = tuple(Reg(registers[x.index]) if isinstance(x, Tracing) else x for x in operands)
        instructions.append(Instruction(call, read, register))
        registers[value.index] = register
    temporaries = tuple(dtypes[r] for r in range(arity + 1, arity + len(dtypes)))
    return Tape(tuple(instructions), temporaries, _inplace(instructions, arity))


def _reads(value: Tracing) -> list[int]:
    """Return the distinct indices of the values that ``value`` is computed from."""
    return list(dict.fromkeys(x.index for x in value.source[1] if isinstance(x, Tracing)))


def _last_reads(tape: list[Tracing], result: Tracing) -> dict[int, int]:
    """Map the index of each value that ``result`` depends on to the index of the last value that reads it."""
    last: dict[int, int] = {}
    for value in reversed(tape[: result.index + 1]):
        if value.source is not None and (value is result or value.index in last):
            for x in _reads(value):
                last.setdefault(x, value.index)
    return last


def _inplace(instructions: Sequence[Instruction], arity: int) -> tuple[int, ...]:
    """Return the inputs that no instruction reads after the output is first written."""
    first = next(i for i, step in enumerate(instructions) if step.out == arity)
    late = [x for step in instructions[first + 1 :] for x in step.operands]
    if instructions[first].call is _where:
        late += instructions[first].operands[:2]
    spoiled = {int(x) for x in late if type(x) is Reg}
    return tuple(i for i in range(arity) if i not in spoiled)


# ---- large outputs


def tiled(tape: Tape, inputs: Sequence[Any], out: Any, temporaries: Sequence[Any]) -> Callable[[], None]:
    """Return a function that runs a tape over a large output, tile by tile, so that tiles stay in cache.

    The temporaries have the size of a tile.
    """
    shape = out.shape
    inputs = [x.reshape(()) if x.size == 1 else x for x in inputs]
    if all(x.flags.c_contiguous and (not x.ndim or x.shape == shape) for x in (*inputs, out)):
        inputs, out = [x.reshape(-1) if x.ndim else x for x in inputs], out.reshape(-1)
    inputs = [np.broadcast_to(x, out.shape) if x.ndim else x for x in inputs]
    indices = list(tiles(out.shape))

    def run() -> None:
        for index in indices:
            tile = out[index]
            registers = [x[index] if x.ndim else x for x in inputs]
            registers += [tile, *(t[: tile.size].reshape(tile.shape) for t in temporaries), *tape.constants]
            for call, arguments in tape.calls:
                call(*arguments(registers))

    return run


def tiles(shape: tuple[int, ...], size: int = TILE) -> Iterator[tuple[Any, ...]]:
    """Yield indices that cut an array of this shape into parts of at most ``size`` elements, in memory order."""
    axis = next((i for i in range(len(shape)) if prod(shape[i + 1 :]) <= size), 0)
    block = max(1, size // max(1, prod(shape[axis + 1 :])))
    for lead in np.ndindex(*shape[:axis]):
        for start in range(0, shape[axis], block):
            yield (*lead, slice(start, start + block))
