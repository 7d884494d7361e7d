"""Elementwise ops, declared as data: a NumPy function and a CUDA expression of the same maths.

    @op("SquaredDifference", "opset1")
    class SquaredDifference(Binary):
        def fn(self, xp, a, b):
            return xp.square(a - b)

        cuda_expr = "(a - b) * (a - b)"

`fn` is plain array code. `trace.trace` runs it once on stand-in arrays and records the ufuncs that it calls. The
`numpy` form replays these into preallocated buffers, tile by tile in cache, and allocates nothing. The CUDA kernel
is generated from `cuda_expr`. There, inputs have the names of `fn`'s parameters, attributes have their own names,
and ``T`` is the compute type (float for f16, bf16 and f8).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from math import copysign, isfinite, isnan
from typing import Any, ClassVar, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import check_count
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.trace import TILE, Tape, tiled, trace
from ovgpu.ops.base.xp import Adapter, Namespace
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, Sym, apply, broadcast_shapes, minimum, onto, product, same
from ovgpu.types import Type

Broadcast = Literal["numpy", "none", "pdpd"]
Interval = tuple[Any, Any]
"""Bounds of a tensor: no element is below the first number or above the second one."""

_ALLOWED_TYPES: dict[str, tuple[Callable[[Type], bool], str]] = {
    "any": (lambda dtype: dtype != Type.string, "a number or boolean"),
    "number": (lambda dtype: dtype.is_real() or _is_integer(dtype), "a number"),
    "real": (Type.is_real, "a floating-point type"),
    "integer": (lambda dtype: _is_integer(dtype), "an integer type"),
    "boolean": (lambda dtype: dtype == Type.boolean, "boolean"),
    "bits": (lambda dtype: dtype == Type.boolean or _is_integer(dtype), "an integer type or boolean"),
}


def _is_integer(dtype: Type) -> bool:
    return dtype.is_integral_number() and dtype not in (Type.string, Type.nf4)


class Elementwise(Op):
    """Base of all elementwise ops: same-typed inputs, one output of their broadcast shape."""

    strided_outputs = True
    keeps_layout = True
    host_in_decode = True
    types: ClassVar[str] = "any"
    """The input element types that the specification allows: a key of `_ALLOWED_TYPES`."""

    floating: ClassVar[bool] = False
    """True if `fn` needs floating point: integers are computed in f64, and the result is rounded to the nearest one."""

    position_independent: ClassVar[bool] = False
    """True if an element's result is the same to the last bit whether it is computed alone or within a tensor. Vector
    instructions round functions such as exp differently."""

    interval: ClassVar[Callable[..., Interval] | None] = None
    """A method that returns the bounds of the result from those of integer or boolean inputs, before wrap-around."""

    @cached_property
    def _identity(self) -> tuple[Any, ...]:
        return (type(self), *self.attributes().values())

    def __eq__(self, other: object) -> bool:
        """Return whether the ops have one class and equal attributes; such ops share traces and compiled kernels."""
        return isinstance(other, Elementwise) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    cuda_expr: ClassVar[str]
    """`fn` for one element as a CUDA C++ expression; see `cuda_expression`."""

    def fn(self, xp: Namespace, *inputs: Array) -> Array:
        """Compute the op on arrays of one dtype, or on tracing stand-ins.

        Only operators, ufuncs, `xp.where`, `xp.clip` and `.astype` can be traced. Constants must be Python numbers,
        which take the dtype of the other operand. An absent optional input has the parameter's default.
        """
        raise NotImplementedError

    def symbolic(self, *values: Any) -> Any:
        """Compute one element from scalars that may be symbolic. Override it where `fn` is not plain arithmetic."""
        return self.fn(np, *values)

    def cuda_expression(self, dtype: Type) -> str:
        """Return the expression for ``dtype``, the element type of the last input. Override it where the expression
        depends on ``dtype`` or on attributes."""
        return self.cuda_expr

    def check_inputs(self, count: int) -> None:
        """Raise OpError unless `fn` takes that many inputs."""
        check_count(count, *self._counts())

    @classmethod
    @cache
    def _counts(cls) -> tuple[int, float]:
        """Return the least and the largest number of inputs that `fn` takes."""
        given = list(inspect.signature(cls.fn).parameters.values())[2:]
        single = [p for p in given if p.kind == p.POSITIONAL_OR_KEYWORD]
        least = sum(p.default is p.empty for p in single)
        return least, len(single) if len(single) == len(given) else math.inf

    def infer_specs(self, *inputs: Any) -> tuple[Spec, ...]:
        self.check_inputs(len(inputs))
        dtype = merge_types(inputs)
        self.check_type(dtype)
        return (Spec(self.result_type(dtype), self.broadcast([s.shape for s in inputs])),)

    def check_type(self, dtype: Type) -> None:
        """Raise OpError unless `types` allows ``dtype``."""
        allowed, described = _ALLOWED_TYPES[self.types]
        if not (dtype.is_dynamic() or allowed(dtype)):
            raise OpError(f"element type {dtype.get_type_name()} is not {described}")

    def result_type(self, dtype: Type) -> Type:
        """Return the output's element type for inputs of type ``dtype``."""
        return dtype

    def broadcast(self, shapes: Sequence[tuple[Int, ...] | None]) -> tuple[Int, ...] | None:
        """Return the output's shape, None if an input's rank is unknown. Raises OpError if the shapes do not match."""
        known = [s for s in shapes if s is not None]
        return broadcast_shapes(*known) if len(known) == len(shapes) else None

    def align(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the inputs reshaped so that NumPy broadcasting gives the shape of `broadcast`."""
        return inputs

    def compute(self, xp: Namespace, *inputs: Array) -> Array:
        """Run `fn`; if it is `floating`, convert integers to f64 before and back after."""
        dtype = inputs[0].dtype
        if self.floating and dtype.kind in "iub":
            return xp.rint(self.fn(xp, *(x.astype(np.float64) for x in inputs))).astype(dtype)
        return self.fn(xp, *inputs)

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        given = self.align([x for x in inputs if x is not None])
        if any(x.dtype == object for x in given):  # symbolic integers, or strings
            return (np.asarray(np.frompyfunc(self.symbolic, len(given), 1)(*given), dtype=object),)
        result = self.compute(xp, *given)
        return (result.copy() if any(result is x for x in given) else xp.asarray(result),)

    def inplace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> tuple[int, ...]:
        """Return the inputs with the output's extents and element size that are not read after the output is first
        written."""
        out = outputs[0]
        given = [i for i, x in enumerate(inputs) if x is not None]
        candidates = [(given[i], inputs[given[i]]) for i in self._tape(inputs, outputs).inplace]
        return tuple(i for i, x in candidates if x is not None and same_layout(x, out))

    def _tape(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Tape:
        return trace(self, tuple(s.type.storage for s in inputs if s is not None), outputs[0].type.storage)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        tape = self._tape(inputs, outputs)
        shape = outputs[0].shape
        assert shape is not None
        return tuple((Type.of(t), (minimum(product(shape), TILE),)) for t in tape.temporaries)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        out = outputs[0]
        inputs = self.align([x for x in inputs if x is not None])
        tape = trace(self, tuple(x.dtype for x in inputs), out.dtype)
        if out.size <= TILE or len(tape.instructions) == 1:
            tape.record(k, inputs, out, [w[: out.size].reshape(out.shape) for w in workspace])
        else:
            k(tiled(tape, inputs, out, workspace))

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        given = [x for x in inputs if x is not None]
        if not all(is_plain(x.dtype) for x in (*given, *outputs)):
            return NotImplemented
        k.elementwise(self, self.align(given), outputs[0])
        return None


class Unary(Elementwise):
    """Base of elementwise ops of one input."""

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        self.check_type(x.type)
        return (Spec(self.result_type(x.type), x.shape),)


class Binary(Elementwise):
    """Base of elementwise ops with two inputs of the same type, which broadcast as ``auto_broadcast`` says."""

    auto_broadcast: Broadcast = "numpy"
    supports_symbolic = True

    def infer_specs(self, a: Spec, b: Spec) -> tuple[Spec, ...]:
        return super().infer_specs(a, b)

    def broadcast(self, shapes: Sequence[tuple[Int, ...] | None]) -> tuple[Int, ...] | None:
        a, b = shapes
        if a is None or b is None:
            return None
        if self.auto_broadcast == "none":
            return equal_shape(a, b)
        if self.auto_broadcast == "pdpd":
            return pdpd_shape(a, b)
        return broadcast_shapes(a, b)

    def align(self, inputs: Sequence[Any]) -> Sequence[Any]:
        a, b = inputs
        if self.auto_broadcast == "pdpd" and b.ndim < a.ndim:
            return a, b.reshape(b.shape + (1,) * (a.ndim - b.ndim))
        return inputs


# ---- shapes and types


def equal_shape(a: tuple[Int, ...], b: tuple[Int, ...]) -> tuple[Int, ...]:
    """Return the common shape of two tensors. Raises OpError if their shapes differ."""
    if len(a) != len(b):
        raise OpError(f"ranks {len(a)} and {len(b)} differ, and auto_broadcast is none")
    return tuple(same(x, y) for x, y in zip(a, b))


def pdpd_shape(a: tuple[Int, ...], b: tuple[Int, ...]) -> tuple[Int, ...]:
    """Return the shape of ``a`` after PaddlePaddle broadcasting without an axis, which aligns ``b`` at axis 0 of ``a``.

    Raises OpError if ``b`` does not broadcast to ``a``.
    """
    if len(b) > len(a):
        raise OpError(f"rank {len(b)} of an input is over the first one's {len(a)} (pdpd broadcasting)")
    for x, y in zip(a, b):
        onto(y, x)
    return a


def merge_types(inputs: Sequence[Spec]) -> Type:
    """Return the common element type of all inputs, dynamic if none is known. Raises OpError if they differ."""
    dtypes = {s.type for s in inputs if not s.type.is_dynamic()}
    if len(dtypes) > 1:
        raise OpError("element types differ: " + ", ".join(s.type.get_type_name() for s in inputs))
    return dtypes.pop() if dtypes else Type.dynamic


def same_layout(a: Spec, b: Spec) -> bool:
    """Return whether two tensors provably have the same extents, and elements of one size."""
    if a.type.storage.itemsize != b.type.storage.itemsize:
        return False
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return False
    return all(
        x is y or (not isinstance(x, Sym) and not isinstance(y, Sym) and x == y) for x, y in zip(a.shape, b.shape)
    )


def decide(name: str, plain: Callable[..., Any], *values: Any) -> Any:
    """Return ``plain(*values)``, or the symbol ``name(*values)`` if a value is symbolic."""
    return apply(name, *values) if any(isinstance(v, Sym) for v in values) else plain(*values)


def names(cls: type[Elementwise]) -> tuple[str, ...]:
    """Return the input names in `cuda_expr`: the parameters of `fn` after ``self, xp``."""
    return tuple(_parameters(cls.fn))


@cache
def _parameters(fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(list(inspect.signature(fn).parameters.items())[2:])


# ---- CUDA

_CUDA_TYPES = {
    "boolean": "bool", "f64": "double", "i8": "signed char", "u8": "unsigned char", "i16": "short",
    "u16": "unsigned short", "i32": "int", "u32": "unsigned int", "i64": "long long", "u64": "unsigned long long",
}  # fmt: skip

# Bytes to f32: the byte is put into the low bits of 2^23, which is then subtracted. Conversion instructions are issued
# at a quarter of the rate of this arithmetic.
_AS_FLOAT = {
    "i8": "__int_as_float((({}) & 255) ^ 0x4b000080) - 8388736.f",
    "u8": "__int_as_float(({}) | 0x4b000000) - 8388608.f",
}


def cuda_body(op: Elementwise, dtypes: Sequence[Type], values: Sequence[str] = (), target: str = "out") -> str:
    """Return C++ statements that compute ``target``, one output element, from ``values``, the input elements.

    ``dtypes`` are the inputs' element types. The default ``values`` are `fn`'s parameters with an underscore: ``_a``.
    """
    dtype = dtypes[-1]
    values = values or [f"_{name}" for name in names(type(op))]
    rounds = op.floating and not dtype.is_real()
    if rounds or dtype == Type.f64:
        lines = ["typedef double T;"]
    else:
        lines = [f"typedef {'float' if dtype.is_real() else _CUDA_TYPES[dtype.type_name]} T;"]
    for name, value in op.attributes().items():
        if type(value) is float:
            # NVRTC has neither INFINITY nor NAN
            literal = repr(value) if isfinite(value) else f"{0 if isnan(value) else copysign(1, value)} / 0.0"
            lines.append(f"const T {name} = T({literal});")
    for i, (name, parameter) in enumerate(_parameters(type(op).fn).items()):
        if i >= len(dtypes):
            lines.append(f"const T {name} = T({parameter.default});")
        else:
            declared = "bool" if dtypes[i] == Type.boolean and not rounds else "T"
            as_float = _AS_FLOAT.get(dtypes[i].type_name, "{}") if dtype.is_real() and dtype != Type.f64 else "{}"
            lines.append(f"const {declared} {name} = {as_float.format(values[i])};")
    expression = op.cuda_expression(dtype)
    lines.append(f"{target} = {f'rint({expression})' if rounds else expression};")
    return " ".join(lines)
