"""MatMul: vectors, matrices, batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, Sum, check, const, given, sweep
from tests.harness.cases import Array
from tests.ops.elementwise_cases import fitting

TA, TB = {"transpose_a": True}, {"transpose_b": True}


def case(
    a: tuple[int, ...],
    b: tuple[int, ...],
    attrs: dict[str, bool] | None = None,
    kind: str = "f32",
    *,
    constant: bool = False,
    rankless: bool = False,
) -> Case:
    tol = Sum(300 if constant else 31)
    return Case("MatMul", "opset1", [In(a, kind), In(b, kind, const=constant)], attrs or {}, tol=tol, rankless=rankless)


CASES = [
    case((3,), (3,), rankless=True),
    case((3,), (3,), TA | TB),
    case((3,), (3, 5)),
    case((3,), (5, 3), TA | TB),
    case((3,), (2, 3, 5)),
    case((7, 3), (3,)),
    case((3, 7), (3,), TA),
    case((2, 7, 3), (3,), TB),
    case((7, 3), (3, 5), rankless=True),
    case((3, 7), (3, 5), TA),
    case((7, 3), (5, 3), TB),
    case((3, 7), (5, 3), TA | TB),
    case((1, 300), (301, 300), TB, constant=True),
    case((1, 300), (300, 301), constant=True),
    case((2, 300), (301, 300), TB, constant=True),
    case((3, 300), (300, 301), constant=True),
    case((3, 1, 300), (300, 301), constant=True),
    case((300, 2), (300, 301), TA, constant=True),
    case((2, 7, 3), (3, 5), constant=True),
    case((2, 7, 3), (5, 3), TB, constant=True),
    case((2, 3, 7), (3, 5), TA),
    case((7, 3), (2, 3, 5)),
    case((2, 7, 3), (2, 3, 5), rankless=True),
    case((2, 3, 7), (2, 5, 3), TA | TB),
    case((2, 1, 7, 3), (5, 3, 4)),
    case((2, 5, 7, 3), (2, 1, 3, 4)),
    case((4, 1, 7, 3), (1, 2, 5, 3), TB),
    case((1, 1, 1, 3), (2, 3, 3, 5)),
    case((129, 257), (257, 131), constant=True),
    case((7, 1), (1, 5)),
    case((1, 3), (3, 1)),
    case((7, 3), (3, 5), kind="f64"),
    case((7, 3), (3, 5), kind="f16"),
    case((2, 7, 3), (5, 3), TB, kind="bf16"),
    case((7, 3), (3, 5), kind="i32"),
    case((2, 7, 3), (3, 5), kind="i64"),
    case((7, 3), (3, 5), kind="i8"),
    case((0, 3), (3, 5)),
    case((7, 0), (0, 5)),
    case((2, 7, 0), (0, 5)),
    Case("MatMul", "opset1", [In((2, 7, 0)), In((0, 0))], id="nothing_at_all", expect=np.zeros((2, 7, 0), np.float32)),
    case((0, 7, 3), (3, 5)),
    Case("MatMul", "opset1", [given([[100, 20]], "u8"), given([[3], [4]], "u8")], id="saturates_u8"),
    Case("MatMul", "opset1", [given([[100, 20]], "i8"), given([[-3], [-4]], "i8")], id="saturates_i8"),
    Case("MatMul", "opset1", [given([[2**33, 1]]), const([[2**20], [7]])], id="wide", oracle="evaluate"),
    Case("MatMul", "opset1", [given([[1, np.nan], [np.inf, 0]], "f32"), const([[1.0], [2]], "f32")], id="nan_and_inf"),
    Case("MatMul", "opset1", [In((7, 3)), In((7, 3))], error="matrices of 3 columns and 7 rows"),
    Case("MatMul", "opset1", [In((3,)), In((5,))], error="matrices of 3 columns and 5 rows"),
    Case("MatMul", "opset1", [In((2, 7, 3)), In((3, 3, 5))], error="batch dimensions do not broadcast"),
    Case("MatMul", "opset1", [In(()), In((3,))], error="a scalar is no matrix"),
    Case("MatMul", "opset1", [In((7, 3)), In((3, 5), "i32")], error="element types differ: f32, i32"),
]
test_cases = check(CASES)


def product(a: Array, b: Array) -> Array:
    """Return the product in f64, which the plugin computes in f32."""
    return a @ b


F64 = [
    Case("MatMul", "opset1", [In((7, 31), "f64"), In((31, 5), "f64")], id="f64", tol=Sum(31), expect=product),
]
test_f64 = check(F64)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    # the plugin leaves elements of empty products unwritten
    m, n, depth = (draw(st.integers(1, 9)) for _ in range(3))
    first, second = (shape[-3:] for shape in draw(fitting(2)))
    transposed = {"transpose_a": draw(st.booleans()), "transpose_b": draw(st.booleans())}
    a = (*first, depth, m) if transposed["transpose_a"] else (*first, m, depth)
    b = (*second, n, depth) if transposed["transpose_b"] else (*second, depth, n)
    a = draw(st.sampled_from((a, a, a, (depth,))))
    b = draw(st.sampled_from((b, b, b, (depth,))))
    kind = draw(st.sampled_from(("f32", "f32", "f32", "f16", "bf16", "f64", "i32", "i64")))
    product = case(a, b, transposed, kind, constant=draw(st.booleans()))
    # the plugin judges empty batches
    return product if all(a + b) else replace(product, oracle="cpu")


test_random = sweep(drawn(), 100)
