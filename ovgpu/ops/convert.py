"""Conversions of element types, and Identity. `ops.base.storage` defines the converted values."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import Interval, Unary, decide
from ovgpu.ops.base.op import Array, Arrays, Op, internal_op, op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.storage import ROUNDED_VIA_F16, decode, encode, is_float, is_plain
from ovgpu.ops.base.strided import THREADS, Axes, bits, blocks, strides_of
from ovgpu.ops.base.tasks import shares, side_by_side, workers
from ovgpu.ops.base.view import View
from ovgpu.ops.base.xp import NUMPY, Adapter, Namespace
from ovgpu.spec import Spec
from ovgpu.types import Type


def converted(xp: Adapter, x: Array, target: Type) -> Array:
    """Return a fresh array of the values of ``x`` in the storage dtype of ``target``. Strings stay strings."""
    with np.errstate(all="ignore"):  # a value that is too large becomes infinite
        result = x if x.dtype == target.storage else encode(decode(x, xp), target, xp)
    return result.copy() if xp.may_share_memory(result, x) else result


def _convertible(x: Spec, target: Type) -> Spec:
    if Type.string in (x.type, target) and x.type != target:
        raise OpError(f"{x.type.get_type_name()} cannot be converted to {target.get_type_name()}")
    return Spec(target, x.shape)


@op("Convert", "opset1", "type/convert-1")
class Convert(Unary):
    """Conversion to the element type `destination_type`.

    >>> convert([-1.7, 1.7], destination_type="i32")
    [-1, 1]
    """

    destination_type: Type

    exact = True
    supports_symbolic = True
    position_independent = True

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        if self.destination_type.is_dynamic():
            raise OpError("destination_type is dynamic")
        return (_convertible(x, self.destination_type),)

    def fn(self, xp: Namespace, x: Array) -> Array:
        if self.destination_type in ROUNDED_VIA_F16 and x.dtype != np.float16:
            x = x.astype(np.float16)
        return x.astype(self.destination_type.storage)

    def symbolic(self, x: Any) -> Any:
        return decide("ne", lambda a, b: a != b, x, 0) if self.destination_type == Type.boolean else x

    def cuda_expression(self, dtype: Type) -> str:
        target = self.destination_type
        if target == Type.boolean:
            return "x != 0"
        if dtype.is_real() and target.is_integral() and target.bitwidth < 32:  # the low bits of an int; 0 if none fits
            return "x >= T(-2147483648.0) && x < T(2147483648.0) ? int(x) : 0"
        return "x"

    def interval(self, x: Interval) -> Interval:
        if self.destination_type == Type.boolean:
            return int(x[0] > 0 or x[1] < 0), int(x[0] != 0 or x[1] != 0)
        return x

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, y = inputs[0], outputs[0]
        if is_plain(x.dtype) and is_plain(y.dtype):
            return super().cuda(k, inputs, outputs, workspace)
        if x.dtype == object:
            return NotImplemented
        axes = Axes.collapse(y.shape, strides_of(x, y.shape), strides_of(y))
        if not axes.rank:
            return NotImplemented
        source, target = Type.of(x.dtype), self.destination_type
        axes_arguments = f"{axes.index}, {axes.rank}>"
        numbers: list[Any]
        if not is_plain(x.dtype):
            name, numbers = f"decode<{bits(y.dtype.itemsize)}, {axes_arguments}", [_values(source, target)]
        elif is_float(target):
            name, numbers = f"encode<{k.c_type(x.dtype)}, {axes_arguments}", [_steps(target)]
        else:
            mask = (1 << target.bitwidth) - 1
            name, numbers = (
                f"encode_low<{k.c_type(x.dtype)}, {axes_arguments}",
                [_values(Type.u8, target), np.uint32(mask)],
            )
        if y.size:
            k.kernel(
                "convert.cu", name, blocks(y.size), (THREADS,), (x, y, *numbers, axes.packed(), *axes.numbers(y.size))
            )
        return None

    def evaluate(self, xp: Adapter, x: Array) -> tuple[Array, ...]:
        if x.dtype == object and self.destination_type != Type.string:
            return super().evaluate(xp, x)  # symbolic integers
        return (converted(xp, x, self.destination_type),)


@internal_op
class ConvertDown(Convert):
    """Downcast to a 16-bit type that keeps finite numbers finite: numbers beyond its range become its largest finite
    ones."""

    name: ClassVar[str] = "Convert"
    version: ClassVar[str] = "ovgpu"
    aliases: ClassVar[tuple[str, ...]] = ()

    def fn(self, xp: Namespace, x: Array) -> Array:
        largest = LARGEST[self.destination_type]
        finite = abs(x) < np.inf
        return xp.where(finite, xp.clip(x, -largest, largest), x).astype(self.destination_type.storage)

    def cuda_expression(self, dtype: Type) -> str:
        largest = f"{LARGEST[self.destination_type]!r}f"
        return f"x - x != 0 ? x : x > {largest} ? {largest} : x < -{largest} ? -{largest} : x"

    def evaluate(self, xp: Adapter, x: Array) -> tuple[Array, ...]:
        if xp is NUMPY and x.size > BLOCK and x.flags.c_contiguous:
            return (self._by_blocks(x),)
        return (xp.asarray(self.fn(xp, x)),)

    def _by_blocks(self, x: Array) -> Array:
        """Convert weights by several threads, in blocks that stay in cache."""
        result = np.empty(x.shape, self.destination_type.storage)
        source, target = x.reshape(-1), result.reshape(-1)
        threads = workers()
        for thread, part in zip(threads, shares(source.size, len(threads))):
            thread(self._convert_part, source[part], target[part])
        side_by_side(threads)
        return result

    def _convert_part(self, source: Array, target: Array) -> None:
        """Convert weights, which are seldom out of range."""
        largest = LARGEST[self.destination_type]
        for begin in range(0, source.size, BLOCK):
            block = source[begin : begin + BLOCK]
            is_in_range = -largest <= block.min() and block.max() <= largest  # False for NaN
            target[begin : begin + BLOCK] = block if is_in_range else self.fn(np, block)


def largest_finite(x: Array) -> float:
    """Return the largest absolute value of the finite numbers of an f32 array, 0 if there are none."""
    flat, largest = x.reshape(-1), 0.0
    for begin in range(0, flat.size, BLOCK):
        block = flat[begin : begin + BLOCK]
        low, high = float(block.min()), float(block.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            finite = block[np.isfinite(block)]
            low, high = float(finite.min(initial=0)), float(finite.max(initial=0))
        largest = max(largest, -low, high)
    return largest


BLOCK = 1 << 16  # elements: 256 KiB in f32, which stay in cache
LARGEST = {Type.f16: 65504.0, Type.bf16: 2.0**128 - 2.0**120}
"""The largest finite numbers of the 16-bit types."""


@cache
def _values(source: Type, target: Type) -> np.ndarray[Any, Any]:
    """Return for each of the 256 codes of ``source`` the bits of its value in ``target``."""
    codes = np.arange(256, dtype=np.uint8).view(source.storage)
    with np.errstate(all="ignore"):
        target_bits: np.ndarray[Any, Any] = converted(NUMPY, codes, target).view(f"u{target.storage.itemsize}")
    return target_bits


@cache
def _steps(target: Type) -> np.ndarray[Any, Any]:
    """Return the struct Steps of ``cuda_kernels/convert.cu``: the floats at which the rounded code of ``target``
    changes, the codes from there on, and the code of NaN. Bisection over the ordered bits of all floats finds them."""

    def codes(keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        floats = (keys ^ (keys >> 31 & 0x7FFFFFFF)).astype(np.int32).view(np.float32)
        with np.errstate(all="ignore"):
            target_bits: np.ndarray[Any, Any] = encode(floats, target).view(np.uint8)
        return target_bits

    infinity = 0x7F800000
    low, high = np.array([~infinity]), np.array([infinity])
    first = codes(low)
    while (high - low > 1).any():
        middle = (low + high) // 2
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
        changes = codes(low) != codes(high)
        low, high = low[changes], high[changes]
    bounds = np.sort(high)
    padding = 255 - len(bounds)
    keys = np.append(bounds, [0x7FFFFFFF] * padding).astype(np.int32)
    values = np.concatenate([first, codes(bounds), np.zeros(padding, np.uint8)])
    nan = encode(np.array([np.nan], np.float32), target).view(np.uint8)
    return np.concatenate([keys.view(np.uint8), values, nan, np.zeros(3, np.uint8)])


@op("ConvertLike", "opset1", "type/convert-like-1")
class ConvertLike(Op):
    """Conversion to the element type of the second input, whose values do not matter. A pass turns it into Convert.

    >>> convert_like([-1.7, 1.7], i32([0]))
    [-1, 1]
    """

    exact = True

    def infer_specs(self, x: Spec, like: Spec) -> tuple[Spec, ...]:
        return (_convertible(x, like.type),)

    def evaluate(self, xp: Adapter, x: Array, like: Array) -> tuple[Array, ...]:
        return (converted(xp, x, _type_of(like)),)


@op("ConvertPromoteTypes", "opset14", "type/convert-promote-types-14")
class ConvertPromoteTypes(Op):
    """Conversion of two tensors to a common element type that holds the values of both, by the rules of `promoted`.

    >>> convert_promote_types([1, 2], [0.5], promote_unsafe=True)
    ([1.0, 2.0], [0.5])
    """

    promote_unsafe: bool = False
    pytorch_scalar_promotion: bool = False
    u64_integer_promotion_target: Type = Type.f32

    exact = True

    def infer_specs(self, a: Spec, b: Spec) -> tuple[Spec, ...]:
        if Type.string in (a.type, b.type):
            raise OpError("element type string is not a number")
        dtype = self._common(a, b)
        return Spec(dtype, a.shape), Spec(dtype, b.shape)

    def _common(self, a: Spec, b: Spec) -> Type:
        if a.type == b.type:
            return a.type
        if a.type.is_dynamic() or b.type.is_dynamic():
            return Type.dynamic
        if self.pytorch_scalar_promotion and _rank_of_class(a.type) == _rank_of_class(b.type):
            if a.rank is None or b.rank is None:
                return Type.dynamic
            if (a.rank == 0) != (b.rank == 0):
                dtype, scalar = (b.type, a.type) if a.rank == 0 else (a.type, b.type)
                fits = promoted(dtype, scalar, self.u64_integer_promotion_target) == dtype
                if not (fits or self.promote_unsafe):
                    raise OpError(f"a scalar of {scalar.get_type_name()} may not fit {dtype.get_type_name()}")
                return dtype
        dtype = promoted(a.type, b.type, self.u64_integer_promotion_target)
        if not self.promote_unsafe:
            _check_safe(a.type, b.type, dtype)
        return dtype

    def evaluate(self, xp: Adapter, a: Array, b: Array) -> tuple[Array, ...]:
        dtype = self._common(Spec(_type_of(a), a.shape), Spec(_type_of(b), b.shape))
        return converted(xp, a, dtype), converted(xp, b, dtype)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        for x, y in zip(inputs, outputs):
            if Convert(destination_type=Type.of(y.dtype)).cuda(k, [x], [y], []) is NotImplemented:
                return NotImplemented
        return None


def _type_of(x: Any) -> Type:
    return Type.string if x.dtype == object else Type.of(x.dtype)


def _rank_of_class(dtype: Type) -> int:
    """Return the rank of a type's class: 0 for booleans, 1 for integers, 2 for floats. The higher one decides the
    common type."""
    return 2 if is_float(dtype) else 1 if dtype.is_integral_number() else 0


def promoted(a: Type, b: Type, u64_target: Type) -> Type:
    """Return the common type: the type of the higher class, or within a class the narrowest type that holds both.

    ``u64_target`` is the common type of u64 and a signed integer.
    """
    if _rank_of_class(a) != _rank_of_class(b):
        return max(a, b, key=_rank_of_class)
    larger, smaller = (a, b) if a.bitwidth >= b.bitwidth else (b, a)
    if is_float(a):
        if larger.bitwidth > smaller.bitwidth or larger == smaller:
            return larger
        return Type.f32 if larger.bitwidth == 16 else Type.f16
    if a.is_signed() == b.is_signed():
        return larger
    signed, unsigned = (a, b) if a.is_signed() else (b, a)
    if unsigned == Type.u64:
        return u64_target
    if signed.bitwidth > unsigned.bitwidth:
        return signed
    return next(t for t in (Type.i4, Type.i8, Type.i16, Type.i32, Type.i64) if t.bitwidth >= 2 * unsigned.bitwidth)


def _check_safe(a: Type, b: Type, common: Type) -> None:
    pair = f"{a.get_type_name()} and {b.get_type_name()}"
    if common not in (a, b):
        raise OpError(f"{pair} need the wider {common.get_type_name()}, and promote_unsafe is false")
    other = b if common == a else a
    if common.is_real() and other.is_integral_number() and common.bitwidth < 2 * other.bitwidth:
        raise OpError(f"{pair}: the integer may lose its precision, and promote_unsafe is false")


@op("Identity", "opset16", "activation/identity-16")
class Identity(Op):
    """A copy of the input, unchanged.

    >>> identity([1, 2])
    [1, 2]
    """

    exact = True
    supports_symbolic = True
    half_precision = "promoted"
    host_in_decode = True
    moves_elements = True

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        return (Spec(x.type, x.shape),)

    def evaluate(self, xp: Adapter, x: Array) -> tuple[Array, ...]:
        return (x.copy(),)

    def view(self, inputs: Any, specs: Any, outputs: Any) -> tuple[View | None]:
        return (inputs[0],)
