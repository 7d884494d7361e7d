"""MVN and NormalizeL2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, sweep
from tests.harness.cases import Array
from tests.ops.elementwise_cases import shapes

NONE = np.zeros(0, np.int64)
X = In((2, 3, 5, 7))


def mvn(x: In, id: str | None = None, *, version: str = "opset1", expect: Any = None, **attrs: Any) -> Case:
    known = {"eps": 1e-5, "normalize_variance": True, "across_channels": False}
    return Case("MVN", version, [x], known | attrs, id=id, expect=expect, rankless=len(x.shape) > 3)


MVN = [
    mvn(X),
    mvn(X, across_channels=True),
    mvn(X, normalize_variance=False),
    mvn(X, across_channels=True, normalize_variance=False),
    Case("MVN", "opset2", [X], {"eps": 1e-5}, id="defaults"),
    mvn(X, eps=0.5),
    mvn(X, version="opset2"),
    mvn(X, version="opset2", across_channels=True),
    mvn(In((3, 5, 7))),
    mvn(In((2, 3, 5, 7, 2)), across_channels=True),
    mvn(In((2, 3, 130, 129))),
    mvn(In((3, 5)), across_channels=True),
    mvn(In((3, 5)), "nothing_but_channels"),
    mvn(In((2, 3, 7), "f16")),
    mvn(In((2, 3, 7), "bf16"), across_channels=True),
    mvn(In((2, 3, 7), low=10, high=11), across_channels=True, eps=1e-3),
    mvn(given(np.full((1, 2, 3), 7.0), "f32"), "constant"),
]
test_mvn = check(MVN)


def by_axes(axes: tuple[int, ...]) -> Any:
    """Return MVN-1 with reduction_axes, which the plugin ignores."""

    def expect(x: Array) -> Array:
        wide = x.astype(np.float64)
        centred = wide - wide.mean(axes, keepdims=True)
        return (centred / np.sqrt((centred**2).mean(axes, keepdims=True) + 1e-5)).astype(x.dtype)

    return expect


REDUCTION_AXES = [
    mvn(X, f"axes_{text}", reduction_axes=text, expect=by_axes(axes))
    for text, axes in {"2,3": (2, 3), "1": (1,), "-1,-3": (1, 3)}.items()
]
test_reduction_axes = check(REDUCTION_AXES)


INSIDE = {"eps": 1e-5, "normalize_variance": True, "eps_mode": "inside_sqrt"}


def mvn6(x: In, axes: Any, id: str | None = None, **attrs: Any) -> Case:
    return Case(
        "MVN",
        "opset6",
        [x, axes if isinstance(axes, In) else const(axes)],
        INSIDE | attrs,
        id=id,
        rankless=len(x.shape) > 3,
    )


MVN6 = [
    mvn6(X, [3]),
    mvn6(X, [2, 3]),
    mvn6(X, [3, 1, 2]),
    mvn6(X, [-1]),
    mvn6(X, [-3, -1]),
    mvn6(X, [0, 1, 2, 3]),
    mvn6(X, [1]),
    mvn6(X, [3], eps_mode="outside_sqrt"),
    mvn6(X, [3], eps_mode="OUTSIDE_SQRT"),
    mvn6(X, [2, 3], eps_mode="outside_sqrt", eps=0.3),
    mvn6(X, [3], normalize_variance=False),
    mvn6(X, In((1,), "i32", [3], const=True)),
    mvn6(In((5,)), [0]),
    mvn6(In((130, 257)), [1]),
    mvn6(In((3, 7), "f16"), [1]),
    mvn6(In((3, 7), "bf16"), [1]),
    mvn6(In((0, 7)), [1]),
    Case("MVN", "opset6", [In((3, 7)), const(NONE)], INSIDE, id="no_axes", oracle="evaluate"),
]
test_mvn6 = check(MVN6)

MODES = {"eps": 0.25, "eps_mode": "add"}


def l2(x: In, axes: Any, mode: str = "add", id: str | None = None, eps: float = 0.25) -> Case:
    return Case(
        "NormalizeL2", "opset1", [x, const(axes)], {"eps": eps, "eps_mode": mode}, id=id, rankless=len(x.shape) > 3
    )


def l2_cases(mode: str) -> Iterator[Case]:
    for axes in ([3], [1], [1, 2, 3], [-3], [-1, -2], [0, 1, 2, 3], [1, 2]):
        yield l2(X, axes, mode)
    yield l2(In((3, 5)), 1, mode, eps=1e-8)
    yield l2(In((3, 5), low=-0.1, high=0.1), [1], mode)
    yield l2(given([[0, -2, 3], [0, 0, 1]], "f32"), NONE, mode, f"no_axes_{mode}")
    yield l2(In((3, 7), "f16"), [1], mode)
    yield l2(In((3, 7), "bf16"), [1], mode)
    yield l2(given(np.zeros((2, 3)), "f32"), [1], mode, f"zeros_{mode}")


L2 = [*l2_cases("add"), *l2_cases("max")]
test_normalize_l2 = check(L2)

ERRORS = [
    Case("MVN", "opset6", [In((3, 7)), const([2])], INSIDE, error="axis 2 is out of range for rank 2"),
    Case("MVN", "opset6", [In((3, 7)), const(1)], INSIDE, error="axes must have rank 1, not 0"),
    Case("MVN", "opset6", [In((3, 7)), const([1])], INSIDE | {"eps_mode": "nowhere"}, error="eps_mode"),
    Case("MVN", "opset6", [In((3, 7), "i32"), const([1])], INSIDE, error="element type i32 is not real"),
    Case("MVN", "opset1", [In((3, 7))], {"normalize_variance": True}, error="'eps' is missing"),
    Case("NormalizeL2", "opset1", [In((3, 7)), const([-3])], MODES, error="axis -3 is out of range"),
    Case("NormalizeL2", "opset1", [In((3, 7), "i32"), const([1])], MODES, error="i32 is not real"),
    Case("NormalizeL2", "opset1", [In((3, 7)), const([1])], {"eps": 0.1, "eps_mode": "min"}, error="'min'"),
]
test_errors = check(ERRORS)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    op, version = draw(st.sampled_from((("MVN", "opset1"), ("MVN", "opset6"), ("NormalizeL2", "opset1"))))
    shape, eps = draw(shapes(1)), draw(st.sampled_from((1e-5, 1e-3, 0.25)))
    # the plugin rounds the mean to bf16
    x = In(shape, draw(st.sampled_from(("f32", "f32", "f16") + ("bf16",) * (op == "NormalizeL2"))))
    # without axes, the plugin gives the sign, or the input
    over = draw(st.lists(st.integers(-len(shape), len(shape) - 1), min_size=1, unique_by=lambda n: n % len(shape)))
    if op == "NormalizeL2":
        return l2(x, over, draw(st.sampled_from(("add", "max"))), eps=eps)
    variance = draw(st.booleans())
    if version == "opset1":
        return mvn(x, eps=eps, normalize_variance=variance, across_channels=draw(st.booleans()))
    mode = draw(st.sampled_from(("inside_sqrt", "outside_sqrt")))
    return mvn6(x, over, eps=eps, normalize_variance=variance, eps_mode=mode)


test_random = sweep(drawn(), 100)
