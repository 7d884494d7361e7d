"""Bitwise operations and shifts of integers; on booleans, the logical ones."""

from __future__ import annotations

from typing import Any

from ovgpu.ops.base.elementwise import Binary, Unary
from ovgpu.ops.base.op import op
from ovgpu.types import Type


@op("BitwiseNot", "opset13")
class BitwiseNot(Unary):
    types = "bits"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.invert(x)

    def cuda_expression(self, kind: Type) -> str:
        return "!x" if kind == Type.boolean else "~x"


@op("BitwiseAnd", "opset13")
class BitwiseAnd(Binary):
    types = "bits"
    supports_symbolic = False
    cuda_expr = "a & b"

    def fn(self, xp: Any, a: Any, b: Any) -> Any:
        return a & b


@op("BitwiseOr", "opset13")
class BitwiseOr(Binary):
    types = "bits"
    supports_symbolic = False
    cuda_expr = "a | b"

    def fn(self, xp: Any, a: Any, b: Any) -> Any:
        return a | b


@op("BitwiseXor", "opset13")
class BitwiseXor(Binary):
    types = "bits"
    supports_symbolic = False
    cuda_expr = "a ^ b"

    def fn(self, xp: Any, a: Any, b: Any) -> Any:
        return a ^ b


class Shift(Binary):
    """A shift by ``b`` bits. Where ``b`` is negative or not below the width, undefined in the specification:
    all bits are shifted out."""

    types = "integer"
    supports_symbolic = False


@op("BitwiseLeftShift", "opset15")
class BitwiseLeftShift(Shift):
    cuda_expr = "b >= 0 && b < T(8 * sizeof(T)) ? a << b : T(0)"

    def fn(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.left_shift(a, b)


@op("BitwiseRightShift", "opset15")
class BitwiseRightShift(Shift):
    """Arithmetic for signed types."""

    cuda_expr = "b >= 0 && b < T(8 * sizeof(T)) ? a >> b : a < 0 ? T(-1) : T(0)"

    def fn(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.right_shift(a, b)
