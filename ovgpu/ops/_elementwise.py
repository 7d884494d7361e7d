"""Elementwise ops, declared as data: a NumPy function and a CUDA expression of the same maths.

    @op("Elu", "opset1")
    class Elu(Unary):
        alpha: float

        def fn(self, xp, x):
            return xp.where(x > 0, x, self.alpha * xp.expm1(x))

        cuda_expr = "x > 0 ? x : alpha * expm1(x)"

`fn` is plain array code. `trace` runs it once on stand-ins and keeps the ufuncs it called, so that the planned
form writes into given buffers, allocates nothing, and works tile by tile in cache. The CUDA kernel is generated
from `cuda_expr`, in which inputs have the names of `fn`'s parameters and attributes their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ovgpu.errors import OpError
from ovgpu.ops._op import Op, Workspace, decoded_dtype
from ovgpu.symbolic import Int, Spec, broadcast_shapes, minimum, onto, product, same
from ovgpu.types import Type

TILE = 16384  # elements: a handful of f32 tiles stay in a core's L2


class Elementwise(Op):
    """Base of all elementwise ops: same-typed inputs, one output of their broadcast shape."""

    strided_outputs = True
    cuda_expr: ClassVar[str]
    types: ClassVar[Literal["any", "number", "real", "integer", "boolean"]] = "any"
    """The element types that the specification allows."""

    def fn(self, xp: Any, *inputs: Any) -> Any:
        """The maths on arrays of one dtype (or tracing stand-ins): operators, ufuncs, `xp.where`, `.astype`."""
        raise NotImplementedError

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        kind = merge_types(inputs)
        self.check_type(kind)
        return (Spec(self.result_type(kind), self.broadcast([s.shape for s in inputs])),)

    def check_type(self, kind: Type) -> None:
        allowed = {
            "any": True,
            "number": kind != Type.boolean,
            "real": kind.is_real(),
            "integer": kind.is_integral_number(),
            "boolean": kind == Type.boolean,
        }[self.types]
        if not (allowed or kind.is_dynamic()):
            raise OpError(f"element type {kind.get_type_name()} is not {self.types}")

    def result_type(self, kind: Type) -> Type:
        return kind

    def broadcast(self, shapes: Sequence[tuple[Int, ...] | None]) -> tuple[Int, ...] | None:
        known = [s for s in shapes if s is not None]
        return broadcast_shapes(*known) if len(known) == len(shapes) else None

    def align(self, xp: Any, inputs: Sequence[Any]) -> Sequence[Any]:
        """Inputs reshaped so that NumPy's broadcasting does what `broadcast` says."""
        return inputs

    def evaluate(self, xp: Any, *inputs: Any) -> tuple[Any, ...]:
        return (xp.asarray(self.fn(xp, *self.align(xp, inputs))),)

    def inplace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> tuple[int, ...]:
        return self._tape(inputs, outputs).inplace

    def _tape(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Tape:
        return trace(self, tuple(s.type.storage for s in inputs if s), outputs[0].type.storage)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        tape = self._tape(inputs, outputs)
        shape = outputs[0].shape
        assert shape is not None
        return tuple((Type.of(t), (minimum(product(shape), TILE),)) for t in tape.temporaries)

    def numpy(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> None:
        out = outputs[0]
        inputs = self.align(np, inputs)
        tape = trace(self, tuple(x.dtype for x in inputs), out.dtype)
        if out.size <= TILE:
            tape.record(k, inputs, out, [w[: out.size].reshape(out.shape) for w in workspace])
        else:
            k(run_tiles, tape, inputs, out, workspace)


class Unary(Elementwise):
    """Elementwise ops of one input."""

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        self.check_type(x.type)
        return (Spec(self.result_type(x.type), x.shape),)


class Binary(Elementwise):
    """Elementwise ops of two inputs of one type, with the specification's ``auto_broadcast``."""

    auto_broadcast: Literal["numpy", "none", "pdpd"] = "numpy"
    lane = True

    def infer(self, a: Spec, b: Spec) -> tuple[Spec, ...]:
        return super().infer(a, b)

    def broadcast(self, shapes: Sequence[tuple[Int, ...] | None]) -> tuple[Int, ...] | None:
        a, b = shapes
        if a is None or b is None:
            return None
        if self.auto_broadcast == "none":
            if len(a) != len(b):
                raise OpError(f"ranks {len(a)} and {len(b)} differ, and auto_broadcast is none")
            return tuple(same(x, y) for x, y in zip(a, b))
        if self.auto_broadcast == "pdpd":
            return pdpd_shape(a, b)
        return broadcast_shapes(a, b)

    def align(self, xp: Any, inputs: Sequence[Any]) -> Sequence[Any]:
        a, b = inputs
        if self.auto_broadcast == "pdpd" and b.ndim < a.ndim:
            return a, b.reshape(b.shape + (1,) * (a.ndim - b.ndim))
        return inputs


def pdpd_shape(a: tuple[Int, ...], b: tuple[Int, ...]) -> tuple[Int, ...]:
    """PaddlePaddle broadcasting without an axis: ``b`` is aligned at axis 0 of ``a`` and grows to it."""
    if len(b) > len(a):
        raise OpError(f"rank {len(b)} of the second input is over the first one's {len(a)} (pdpd broadcasting)")
    for x, y in zip(a, b):
        onto(y, x)
    return a


def merge_types(inputs: Sequence[Spec]) -> Type:
    """The one element type of all inputs; OpError if they differ."""
    kinds = {s.type for s in inputs if not s.type.is_dynamic()}
    if len(kinds) > 1:
        raise OpError("element types differ: " + ", ".join(s.type.get_type_name() for s in inputs))
    return kinds.pop() if kinds else Type.dynamic


@lru_cache(maxsize=None)
def names(cls: type[Elementwise]) -> tuple[str, ...]:
    """The input names in `cuda_expr`: the parameters of `fn` after ``self, xp``."""
    return tuple(inspect.signature(cls.fn).parameters)[2:]


# ---- tracing: from an array function to ufunc calls on registers

Operand = Any  # an index of a register (inputs first), or a scalar


@dataclass(frozen=True)
class Instruction:
    """``call(*operands, out=register)``; operands are registers (`Reg`) or scalars."""

    call: Callable[..., Any]
    operands: tuple[Operand, ...]
    out: int


class Reg(int):
    """A register number, distinct from the scalar of the same value."""


class _Tracing(NDArrayOperatorsMixin):
    """Stands for an array while `fn` is traced: remembers which ufunc made it."""

    __array_priority__ = 1000

    def __init__(self, tape: list[Any], dtype: np.dtype[Any], source: Any) -> None:
        self.tape, self.dtype, self.source = tape, dtype, source
        self.number = len(tape)
        tape.append(self)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs or ufunc.nout != 1:
            return NotImplemented
        dtypes = [_operand_dtype(x) for x in inputs]
        out = ufunc.resolve_dtypes((*dtypes, None))[-1]
        return _Tracing(self.tape, out, (ufunc, inputs))

    def astype(self, dtype: Any) -> _Tracing:
        return self if self.dtype == dtype else _Tracing(self.tape, np.dtype(dtype), (_cast, (self,)))


def _operand_dtype(x: Any) -> Any:
    return x.dtype if isinstance(x, (_Tracing, np.generic, np.ndarray)) else type(x)


def _cast(x: Any, out: Any) -> None:
    np.copyto(out, x, casting="unsafe")


def _where(condition: Any, a: Any, b: Any, out: Any) -> None:
    np.copyto(out, b, casting="unsafe")
    np.copyto(out, a, where=condition, casting="unsafe")


class _TracingXp:
    """NumPy as `fn` sees it while it is traced."""

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Any:
        traced = next(x for x in (condition, a, b) if isinstance(x, _Tracing))
        arrays = [_operand_dtype(x) for x in (a, b)]
        dtype = np.add.resolve_dtypes((*arrays, None))[-1] if arrays[0] != arrays[1] else np.dtype(arrays[0])
        return _Tracing(traced.tape, dtype, (_where, (condition, a, b)))

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@dataclass(frozen=True)
class Tape:
    """A traced `fn`: instructions over registers ``inputs.. output temporaries..``."""

    instructions: tuple[Instruction, ...]
    temporaries: tuple[np.dtype[Any], ...]
    inplace: tuple[int, ...]  # inputs whose memory the output may share

    def record(self, k: Any, inputs: Sequence[Any], out: Any, temporaries: Sequence[Any]) -> None:
        """Hands every call to ``k``, with buffers of the output's shape."""
        registers = [*inputs, out, *temporaries]
        for step in self.instructions:
            k(step.call, *[registers[x] if isinstance(x, Reg) else x for x in step.operands], registers[step.out])


@lru_cache(maxsize=4096)
def trace(op: Elementwise, inputs: tuple[np.dtype[Any], ...], output: np.dtype[Any]) -> Tape:
    """The ufunc calls of ``op.fn`` for these storage dtypes, with as few temporaries as lifetimes allow."""
    tape: list[_Tracing] = []
    sources = [_Tracing(tape, dtype, None) for dtype in inputs]
    decoded = [x if op.exact or decoded_dtype(x.dtype) is None else x.astype(decoded_dtype(x.dtype)) for x in sources]
    result = op.fn(_TracingXp(), *decoded)
    if not isinstance(result, _Tracing):
        result = _Tracing(tape, output, (_cast, (result,)))
    result = result.astype(output)
    if result.source is None:
        result = _Tracing(tape, output, (_cast, (result,)))
    return _allocate(tape, result, len(inputs))


def _allocate(tape: list[_Tracing], result: _Tracing, count: int) -> Tape:
    """Registers for traced values: inputs, then the output, then temporaries reused once dead."""
    needed, last = _liveness(tape, result)
    registers: dict[int, int] = {i: i for i in range(count)}
    temporaries: list[np.dtype[Any]] = []
    free: list[int] = []
    instructions = []
    for value in tape[count : result.number + 1]:
        if value.number not in needed:
            continue
        call, operands = value.source
        numbers = [x.number for x in operands if isinstance(x, _Tracing)]
        read = tuple(Reg(registers[x.number]) if isinstance(x, _Tracing) else x for x in operands)
        dying = [registers[n] for n in dict.fromkeys(numbers) if last[n] == value.number and n >= count]
        if value is result:
            register = count
        else:
            if call is not _where:  # an elementwise ufunc may overwrite its operand
                free += dying
            register = next((r for r in free if temporaries[r - count - 1] == value.dtype), -1)
            if register < 0:
                temporaries.append(value.dtype)
                register = count + len(temporaries)
            else:
                free.remove(register)
            if call is _where:
                free += dying
        registers[value.number] = register
        instructions.append(Instruction(call, read, register))
    final = instructions[-1]  # the only one that writes the output
    spoiled = final.operands[:2] if final.call is _where else ()
    inplace = tuple(i for i in range(count) if Reg(i) not in [x for x in spoiled if isinstance(x, Reg)])
    return Tape(tuple(instructions), tuple(temporaries), inplace)


def _liveness(tape: list[_Tracing], result: _Tracing) -> tuple[set[int], dict[int, int]]:
    needed = {result.number}
    last: dict[int, int] = {}
    for value in reversed(tape):
        if value.number in needed and value.source is not None:
            for x in value.source[1]:
                if isinstance(x, _Tracing):
                    needed.add(x.number)
                    last.setdefault(x.number, value.number)
    return needed, last


def run_tiles(tape: Tape, inputs: Sequence[Any], out: Any, temporaries: Sequence[Any]) -> None:
    """Runs a tape over a large output, one tile that stays in cache after the other."""
    shape = out.shape
    if all(x.size == 1 or (x.shape == shape and x.flags.c_contiguous) for x in inputs) and out.flags.c_contiguous:
        inputs, out = [x.reshape(-1) for x in inputs], out.reshape(-1)
    inputs = [np.broadcast_to(x, out.shape) for x in inputs]
    for index in tiles(out.shape):
        part = out[index]
        temps = [t[: part.size].reshape(part.shape) for t in temporaries]
        registers = [*(x[index] for x in inputs), part, *temps]
        for step in tape.instructions:
            step.call(*[registers[x] if isinstance(x, Reg) else x for x in step.operands], registers[step.out])


def tiles(shape: tuple[int, ...], size: int = TILE) -> Iterator[tuple[Any, ...]]:
    """Indices that cut an array into parts of at most ``size`` elements, in memory order."""
    axis = next((i for i in range(len(shape)) if prod(shape[i + 1 :]) <= size), 0)
    block = max(1, size // max(1, prod(shape[axis + 1 :])))
    for lead in np.ndindex(*shape[:axis]):
        for start in range(0, shape[axis], block):
            yield (*lead, slice(start, start + block))
