"""Inverse and GroupedMatMul."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, Sum, check, given
from tests.harness.sweep import sweep

Array = np.ndarray[Any, Any]


def regular(*shape: int) -> Callable[[np.random.Generator], Array]:
    """Return a function that draws well-conditioned matrices whose inversion needs pivoting."""

    def draw(rng: np.random.Generator) -> Array:
        x = rng.uniform(-1, 1, shape) + 2 * shape[-1] ** 0.5 * np.eye(shape[-1])
        return x[..., rng.permutation(shape[-1]), :]

    return draw


def inverse(*shape: int, kind: str = "f32", adjoint: bool = False, **more: Any) -> Case:
    return Case(
        "Inverse",
        "opset14",
        [In(shape, kind, regular(*shape))],
        {"adjoint": adjoint},
        [kind],
        **{"tol": Sum(16) if kind == "f32" else None} | more,
    )


INVERSE = [
    *(
        inverse(*shape, adjoint=adjoint, rankless=len(shape) == 3)
        for shape in ((1, 1), (2, 2), (3, 3), (5, 7, 7), (3, 2, 5, 5), (33, 33))
        for adjoint in (False, True)
    ),
    *(inverse(3, 5, 5, kind=kind) for kind in ("f16", "bf16")),
    inverse(3, 5, 5, kind="f64", adjoint=True, expect=lambda x: np.linalg.inv(x).swapaxes(1, 2)),
    inverse(2, 110, 110, id="larger_than_shared_memory"),
    inverse(0, 3, 3, id="none", expect=np.zeros((0, 3, 3), np.float32)),
    Case(
        "Inverse",
        "opset14",
        [given([[0, 2, 0], [0, 0, 4], [8, 0, 0]], "f32")],
        id="permutation",
        expect=np.array([[0, 0, 0.125], [0.5, 0, 0], [0, 0.25, 0]], np.float32),
    ),
    Case("Inverse", "opset14", [In((3, 5))], error="a matrix of 3 rows and 5 columns is not square", dynamic=False),
    Case("Inverse", "opset14", [In((3,))], error="rank 1 is no matrix"),
    Case("Inverse", "opset14", [In((3, 3), "i32")], error="i32 is not a floating-point type"),
    Case("Inverse", "opset14", [given(np.ones((3, 3), np.float32))], error="a matrix has no inverse", id="singular"),
]


def by_rows(transposed: bool) -> Callable[[Array, Array, Array], Array]:
    def expect(a: Array, b: Array, ends: Array) -> Array:
        out = np.zeros((len(a), b.shape[1 if transposed else 2]), a.dtype)
        for start, end, matrix in zip([0, *ends], ends, b):
            out[start:end] = a[start:end] @ (matrix.T if transposed else matrix)
        return out

    return expect


def by_sums(a: Array, b: Array, ends: Array) -> Array:
    return np.stack([a[:, start:end] @ b[start:end] for start, end in zip([0, *ends], ends)])


def grouped(
    a: Sequence[int],
    b: Sequence[int],
    ends: Sequence[int] | None = None,
    kind: str = "f32",
    *,
    index: str = "i32",
    **more: Any,
) -> Case:
    inputs = [In(a, kind, low=-2, high=2), In(b, kind, low=-2, high=2)]
    if ends is not None:
        inputs.append(given(np.array(ends), index))
    if "error" not in more:  # OpenVINO defines the op but cannot compute it
        more.setdefault(
            "expect",
            by_sums
            if len(b) == 2
            else by_rows(b[2] == a[1])
            if len(a) == 2
            else (lambda a, b: a @ (b.swapaxes(1, 2) if b.shape[2] == a.shape[2] else b)),
        )
    return Case("GroupedMatMul", "opset17", inputs, {}, [kind], tol=Sum(max(a)) if kind[0] == "f" else None, **more)


GROUPED = [
    grouped((11, 5), (3, 7, 5), [3, 8, 11]),
    grouped((11, 5), (3, 5, 7), [3, 8, 11], id="as_specified", dynamic=False),
    grouped((11, 5), (3, 7, 5), [3, 8, 11], index="i64"),
    grouped((11, 5), (4, 7, 5), [0, 8, 8, 11], id="empty_groups"),
    grouped((11, 5), (3, 7, 5), [3, 8, 9], id="rows_behind"),
    grouped((50, 35), (3, 37, 35), [20, 21, 50], id="several_tiles"),
    grouped((3, 4, 5), (3, 7, 5)),
    grouped((3, 4, 5), (3, 5, 7), id="batches_as_specified", dynamic=False),
    grouped((5, 11), (11, 7), [3, 8, 11], rankless=True),
    grouped((5, 11), (11, 7), [3, 3, 11], index="i64", id="no_rows"),
    grouped((21, 50), (50, 19), [20, 21, 50], id="several_tiles_of_sums"),
    *(grouped((11, 5), (3, 7, 5), [3, 8, 11], kind) for kind in ("f64", "i32", "i64")),
    grouped((5, 11), (11, 7), [3, 8, 11], "i32"),
    grouped((11, 5), (3, 7, 5), error="factors of ranks 2 and 3 need the ends of the groups", id="no_ends"),
    grouped((3, 4, 5), (3, 7, 5), [1, 2, 3], error="ranks 3 and 3 have no ends", id="ends"),
    grouped((3, 4, 5), (5, 7), error="factors of ranks 3 and 2 have no meaning", id="ranks"),
    grouped((11, 5), (3, 7, 4), [3, 8, 11], error="matrices of 5 columns and 4 rows do not multiply", id="extents"),
    grouped((11, 5), (3, 7, 5), [3, 11], error="2 ends of groups and 3 matrices", id="groups"),
    grouped((3, 4, 5), (2, 7, 5), error="3 and 2 groups", id="batches"),
    grouped((5, 11), (10, 7), [3, 11], error="11 columns on the left and 10 rows", id="rows"),
]


def in_order(a: Array, b: Array, ends: Array) -> Array:
    """Return the groups' products for ends that are out of order, or beyond the rows."""
    ends = np.maximum.accumulate(ends.clip(0, a.shape[b.ndim == 2]))
    products: Array = by_sums(a, b, ends) if b.ndim == 2 else by_rows(True)(a, b, ends)
    return products


GROUPED += [
    grouped(*shapes, [3, -1, 20, 7], expect=in_order, id=id)
    for shapes, id in ((((11, 5), (4, 7, 5)), "disorder"), (((5, 11), (11, 7)), "disorder_of_sums"))
]


def in_f32(a: Array, b: Array, ends: Array) -> Array:
    """Return the groups' products, computed in f32 and rounded once."""
    exact: Array = by_rows(True)(a.astype(np.float32), b.astype(np.float32), ends).astype(a.dtype)
    return exact


GROUPED += [grouped((11, 5), (3, 7, 5), [3, 8, 11], kind, expect=in_f32) for kind in ("f16", "bf16")]

test_cases = check([*INVERSE, *GROUPED])


@st.composite
def matrices(draw: st.DrawFn) -> Case:
    n = draw(st.integers(1, 12))
    batch = draw(st.lists(st.integers(1, 4), max_size=3))
    return inverse(*batch, n, n, adjoint=draw(st.booleans()), id=f"drawn_{draw(st.integers(0, 10**6))}")


@st.composite
def groups(draw: st.DrawFn) -> Case:
    """Draw groups of rows or columns, or stacked matrices. No matrix is square, since its layout would be ambiguous."""
    m, n, k = (draw(st.integers(1, 20)) for _ in range(3))
    k += k == n
    form, count = draw(st.sampled_from(("rows", "columns", "stacked"))), draw(st.integers(1, 4))
    index = draw(st.sampled_from(("i32", "i64")))
    if form == "stacked":
        return grouped((count, m, k), (count, n, k), id=f"drawn_{m}_{n}_{k}")
    ends = sorted(draw(st.lists(st.integers(0, m), min_size=count, max_size=count)))
    sides = ((m, k), (count, n, k)) if form == "rows" else ((k, m), (m, n))
    return grouped(*sides, [*ends[:-1], m], index=index, id=f"drawn_{form}_{m}_{n}_{k}")


test_random = sweep(matrices(), 100)
test_random_groups = sweep(groups(), 50)
