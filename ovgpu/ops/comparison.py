"""Comparisons, tests of floats, logic on booleans, and Select."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import (
    Binary,
    Broadcast,
    Elementwise,
    Interval,
    Unary,
    decide,
    equal_shape,
    merge_types,
    pdpd_shape,
)
from ovgpu.ops.base.op import Array, Arrays, op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.xp import Namespace
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, Sym, apply, broadcast_shapes
from ovgpu.types import Type


class Comparison(Binary):
    """Base of relations of two tensors of the same type. As in IEEE 754, relations with NaN are false, except
    NotEqual."""

    position_independent = True

    def result_type(self, dtype: Type) -> Type:
        return Type.boolean


@op("Equal", "opset1", "comparison/equal-1")
class Equal(Comparison):
    """The relation a == b.

    >>> equal([1.0, 2, nan], [1.0, 3, nan])
    [True, False, False]
    """

    cuda_expr = "a == b"

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return xp.equal(a, b)

    def symbolic(self, a: Any, b: Any) -> Any:
        return decide("eq", operator.eq, a, b)


@op("NotEqual", "opset1", "comparison/notequal-1")
class NotEqual(Comparison):
    """The relation a != b.

    >>> not_equal([1.0, 2, nan], [1.0, 3, nan])
    [False, True, True]
    """

    cuda_expr = "a != b"

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return xp.not_equal(a, b)

    def symbolic(self, a: Any, b: Any) -> Any:
        return decide("ne", operator.ne, a, b)


@op("Less", "opset1", "comparison/less-1")
class Less(Comparison):
    """The relation a < b.

    >>> less([1, 2, 3], 2)
    [True, False, False]
    """

    cuda_expr = "a < b"

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return xp.less(a, b)

    def symbolic(self, a: Any, b: Any) -> Any:
        return decide("lt", operator.lt, a, b)

    def interval(self, a: Interval, b: Interval) -> Interval:
        return int(a[1] < b[0]), int(a[0] < b[1])


@op("LessEqual", "opset1", "comparison/lessequal-1")
class LessEqual(Comparison):
    """The relation a <= b.

    >>> less_equal([1, 2, 3], 2)
    [True, True, False]
    """

    cuda_expr = "a <= b"

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return xp.less_equal(a, b)

    def symbolic(self, a: Any, b: Any) -> Any:
        return decide("le", operator.le, a, b)

    def interval(self, a: Interval, b: Interval) -> Interval:
        return int(a[1] <= b[0]), int(a[0] <= b[1])


@op("Greater", "opset1", "comparison/greater-1")
class Greater(Comparison):
    """The relation a > b.

    >>> greater([1, 2, 3], 2)
    [False, False, True]
    """

    cuda_expr = "a > b"

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return xp.greater(a, b)

    def symbolic(self, a: Any, b: Any) -> Any:
        return decide("lt", operator.lt, b, a)

    def interval(self, a: Interval, b: Interval) -> Interval:
        return int(a[0] > b[1]), int(a[1] > b[0])


@op("GreaterEqual", "opset1", "comparison/greater-equal-1")
class GreaterEqual(Comparison):
    """The relation a >= b.

    >>> greater_equal([1, 2, 3], 2)
    [False, True, True]
    """

    cuda_expr = "a >= b"

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return xp.greater_equal(a, b)

    def symbolic(self, a: Any, b: Any) -> Any:
        return decide("le", operator.le, b, a)

    def interval(self, a: Interval, b: Interval) -> Interval:
        return int(a[0] >= b[1]), int(a[1] >= b[0])


# ---- tests of floats


class FloatTest(Unary):
    """Base of tests of floating-point numbers; the result is boolean."""

    types = "real"

    def result_type(self, dtype: Type) -> Type:
        return Type.boolean


@op("IsNaN", "opset10", "comparison/isnan-10")
class IsNaN(FloatTest):
    """Test for NaN.

    >>> is_nan([1.0, inf, nan])
    [False, False, True]
    """

    cuda_expr = "isnan(x)"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.isnan(x)


@op("IsFinite", "opset10", "comparison/isfinite-10")
class IsFinite(FloatTest):
    """Test for numbers that are neither infinite nor NaN.

    >>> is_finite([1.0, inf, nan])
    [True, False, False]
    """

    cuda_expr = "isfinite(x)"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.isfinite(x)


@op("IsInf", "opset10", "comparison/isinf-10")
class IsInf(FloatTest):
    """Test for infinity, of the signs that the attributes select.

    >>> is_inf([-inf, inf, nan], attributes={"detect_negative": False})
    [False, True, False]
    """

    detect_negative: bool = True
    detect_positive: bool = True

    def fn(self, xp: Namespace, x: Array) -> Array:
        if self.detect_negative and self.detect_positive:
            return xp.isinf(x)
        if self.detect_positive:
            return x == float("inf")
        return x == float("-inf") if self.detect_negative else x < float("-inf")  # the latter is always false

    def cuda_expression(self, dtype: Type) -> str:
        signs = ["x > 0"] * self.detect_positive + ["x < 0"] * self.detect_negative
        return f"isinf(x) && ({' || '.join(signs) or 'false'})"


# ---- logic


class Logical(Binary):
    """Base of logical operations of two booleans."""

    types = "boolean"
    position_independent = True


@op("LogicalAnd", "opset1", "logical/logical-and-1")
class LogicalAnd(Logical):
    """The logical and of a and b.

    >>> logical_and([True, False], [[True], [False]])
    [[True, False], [False, False]]
    """

    cuda_expr = "a && b"

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return xp.logical_and(a, b)

    def symbolic(self, a: Any, b: Any) -> Any:
        return decide("and", lambda a, b: bool(a and b), a, b)


@op("LogicalOr", "opset1", "logical/logical-or-1")
class LogicalOr(Logical):
    """The logical or of a and b.

    >>> logical_or([True, False], [[True], [False]])
    [[True, True], [True, False]]
    """

    cuda_expr = "a || b"

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return xp.logical_or(a, b)

    def symbolic(self, a: Any, b: Any) -> Any:
        return decide("or", lambda a, b: bool(a or b), a, b)


@op("LogicalXor", "opset1", "logical/logical-xor-1")
class LogicalXor(Logical):
    """The logical exclusive or of a and b. OpenVINO writes its version as opset2; it is in opset1 as well.

    >>> logical_xor([True, False], [[True], [False]])
    [[False, True], [True, False]]
    """

    cuda_expr = "a != b"

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return xp.logical_xor(a, b)

    def symbolic(self, a: Any, b: Any) -> Any:
        return decide("ne", lambda a, b: bool(a) != bool(b), a, b)


@op("Xor", "opset1", "logical/logical-xor-1")
class Xor(LogicalXor):
    """The name that LogicalXor has in some IR files."""


@op("LogicalNot", "opset1", "logical/logical-not-1")
class LogicalNot(Unary):
    """The logical not of x. The specification allows only booleans; as in OpenVINO, numbers are taken too, and give 0
    or 1 in their type.

    >>> logical_not([0, 5])
    [1, 0]
    """

    supports_symbolic = True
    cuda_expr = "!x"
    position_independent = True

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.logical_not(x)

    def symbolic(self, x: Any) -> Any:
        return decide("not", operator.not_, x)


# ---- selection


@op("Select", "opset1", "condition/select-1")
class Select(Elementwise):
    """Elements of ``then`` where ``cond`` is true, else of ``otherwise``. With pdpd broadcasting, ``cond`` and
    ``otherwise`` are aligned at axis 0 of ``then`` and broadcast to it.

    >>> select([[True], [False]], [1, 2], 0)
    [[1, 2], [0, 0]]
    """

    auto_broadcast: Broadcast = "numpy"

    exact = True
    supports_symbolic = True
    cuda_expr = "cond ? then : otherwise"
    half_precision = "promoted"
    position_independent = True

    def fn(self, xp: Namespace, cond: Array, then: Array, otherwise: Array) -> Array:
        return xp.where(cond, then, otherwise)

    def symbolic(self, cond: Any, then: Any, otherwise: Any) -> Any:
        if isinstance(cond, Sym):
            return then if then is otherwise else apply("select", cond, then, otherwise)
        return then if cond else otherwise

    def infer_specs(self, cond: Spec, then: Spec, otherwise: Spec) -> tuple[Spec, ...]:
        if cond.type not in (Type.boolean, Type.dynamic):
            raise OpError(f"element type of the condition is {cond.type.get_type_name()}, not boolean")
        dtype = merge_types([then, otherwise])
        return (Spec(dtype, self.broadcast([cond.shape, then.shape, otherwise.shape])),)

    def broadcast(self, shapes: Sequence[tuple[Int, ...] | None]) -> tuple[Int, ...] | None:
        cond, then, otherwise = shapes
        if then is None or otherwise is None:
            return None
        if self.auto_broadcast == "pdpd":
            shape = pdpd_shape(then, otherwise)
            return shape if cond is None else pdpd_shape(shape, cond)
        if self.auto_broadcast == "none":
            shape = equal_shape(then, otherwise)
            return shape if cond is None else equal_shape(shape, cond)
        # By the specification, only cond broadcasts. In OpenVINO all three do, and models rely on that: they select
        # between two scalars to make masks.
        return None if cond is None else broadcast_shapes(then, otherwise, cond)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        cond, *rest = inputs
        if not is_plain(outputs[0].dtype) and outputs[0].dtype.itemsize == 1:  # f8 moves as bytes
            *rest, out = (x.view(np.uint8) for x in (*rest, outputs[0]))
            outputs = [out]
        return super().cuda(k, [cond, *rest], outputs, workspace)

    def align(self, inputs: Sequence[Any]) -> Sequence[Any]:
        if self.auto_broadcast != "pdpd":
            return inputs
        rank = inputs[1].ndim
        return [x.reshape(x.shape + (1,) * (rank - x.ndim)) for x in inputs]
