"""Bitwise operations and shifts of integers; on booleans, the bitwise operations are the logical ones."""

from __future__ import annotations

from ovgpu.ops.base.elementwise import Binary, Unary
from ovgpu.ops.base.op import Array, op
from ovgpu.ops.base.xp import Namespace
from ovgpu.types import Type


@op("BitwiseNot", "opset13", "bitwise/bitwise-not-13")
class BitwiseNot(Unary):
    """The bitwise complement of x.

    >>> bitwise_not([0, 5])
    [-1, -6]
    """

    types = "bits"
    position_independent = True

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.invert(x)

    def cuda_expression(self, dtype: Type) -> str:
        return "!x" if dtype == Type.boolean else "~x"


@op("BitwiseAnd", "opset13", "bitwise/bitwise-and-13")
class BitwiseAnd(Binary):
    """The bitwise and of a and b.

    >>> bitwise_and([12, 7], 10)
    [8, 2]
    """

    types = "bits"
    supports_symbolic = False
    cuda_expr = "a & b"
    position_independent = True

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return a & b


@op("BitwiseOr", "opset13", "bitwise/bitwise-or-13")
class BitwiseOr(Binary):
    """The bitwise or of a and b.

    >>> bitwise_or([12, 7], 10)
    [14, 15]
    """

    types = "bits"
    supports_symbolic = False
    cuda_expr = "a | b"
    position_independent = True

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return a | b


@op("BitwiseXor", "opset13", "bitwise/bitwise-xor-13")
class BitwiseXor(Binary):
    """The bitwise exclusive or of a and b.

    >>> bitwise_xor([12, 7], 10)
    [6, 13]
    """

    types = "bits"
    supports_symbolic = False
    cuda_expr = "a ^ b"
    position_independent = True

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return a ^ b


class Shift(Binary):
    """Base of shifts of ``a`` by ``b`` bits. If ``b`` is negative or not below the width, which the specification
    leaves undefined, all bits are shifted out."""

    types = "integer"
    supports_symbolic = False


@op("BitwiseLeftShift", "opset15", "bitwise/bitwise-left-shift-15")
class BitwiseLeftShift(Shift):
    """A left shift, which fills with zeros.

    >>> bitwise_left_shift(u8([1, 129]), u8(1))
    [2, 2]
    """

    cuda_expr = "b >= 0 && b < T(8 * sizeof(T)) ? a << b : T(0)"

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return xp.left_shift(a, b)


@op("BitwiseRightShift", "opset15", "bitwise/bitwise-right-shift-15")
class BitwiseRightShift(Shift):
    """A right shift; it is arithmetic for signed types.

    >>> bitwise_right_shift([20, -20], 2)
    [5, -5]
    """

    cuda_expr = "b >= 0 && b < T(8 * sizeof(T)) ? a >> b : a < 0 ? T(-1) : T(0)"

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return xp.right_shift(a, b)
