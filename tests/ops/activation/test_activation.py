"""Activation functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, special_floats, sweep
from tests.ops.elementwise_cases import SHAPES, redrawn, shapes, unary

KINDS = ("f16", "bf16", "f64")
ANY = {"low": -9, "high": 9}
RANGE = np.linspace(-100, 100, 401)  # where exponentials overflow and differences cancel

FUNCTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("Relu", "opset1", {}),
    ("Sigmoid", "opset1", {}),
    ("Elu", "opset1", {"alpha": 1.0}),
    ("Elu", "opset1", {"alpha": 0.3}),
    ("Clamp", "opset1", {"min": -1.5, "max": 2.0}),
    ("HSwish", "opset4", {}),
    ("HSigmoid", "opset5", {}),
    ("Mish", "opset4", {}),
    ("SoftPlus", "opset4", {}),
    ("SoftSign", "opset9", {}),
    ("Swish", "opset4", {}),
    ("Gelu", "opset2", {}),
    ("Gelu", "opset7", {}),
    ("Gelu", "opset7", {"approximation_mode": "ERF"}),
    ("Gelu", "opset7", {"approximation_mode": "tanh"}),
]
# The plugin turns NaN into a number, and the reference does not.
PROPAGATE = ("Relu", "Clamp", "HSigmoid")
DOUBLE = {
    "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "SoftPlus": lambda x: np.log1p(np.exp(x)),
    "SoftSign": lambda x: x / (1 + np.abs(x)),
    "Mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "Swish": lambda x: x / (1 + np.exp(-x)),
    "HSigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "HSwish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
}
INTEGERS = {"Relu": {"i32": ANY, "i64": ANY, "i8": ANY}, "Clamp": {"i32": ANY, "i64": ANY}}


def values(op: str, version: str, attrs: dict[str, Any], tag: str) -> list[Case]:
    """Return cases of the whole range, and of special values that overflow in no form of the formula."""
    rows = [Case(op, version, [given(RANGE, "f32")], attrs, id=f"range{tag}")]
    for kind in ("f32", "f16", "bf16"):
        data = special_floats(kind, huge=False, inf=op != "Gelu")
        rows.append(
            Case(
                op,
                version,
                [given(data)],
                attrs,
                id=f"special_{kind}{tag}",
                oracle="evaluate" if op in PROPAGATE else "auto",
            )
        )
    return rows


PLAIN = []
for op, version, attrs in FUNCTIONS:
    tag = "".join(f"_{value}" for value in attrs.values())
    PLAIN += unary(op, version, -6, 6, attrs=attrs, tag=tag, integers=INTEGERS.get(op), double=DOUBLE.get(op))
    PLAIN += values(op, version, attrs, tag)
test_plain = check(PLAIN)

CLAMP = [
    # fractional bounds of integers are rounded inwards; the plugin truncates them for 8 bits
    *(
        Case(
            "Clamp",
            "opset1",
            [In((3, 7), kind, low=-9, high=20)],
            {"min": 2.3, "max": 8.7},
            oracle="evaluate",
            id=f"inwards_{kind}",
        )
        for kind in ("i8", "u8", "i16", "i32", "i64")
    ),
    Case("Clamp", "opset1", [given([-5, 0, 5], "i32")], {"min": -1e30, "max": 1e30}),
    Case("Clamp", "opset1", [given([-5, 0, 5], "f32")], {"min": -np.inf, "max": 1.0}),
    Case("Clamp", "opset1", [given([-5, 0, 5], "f32")], {"min": 2.0, "max": 2.0}),
    Case(
        "Clamp",
        "opset1",
        [given([-5, 2, 3, 5], "i32")],
        {"min": 2.3, "max": 2.7},
        id="no_integer_between",
        expect=np.full(4, 2, np.int32),
    ),
    Case("Clamp", "opset1", [In((3,))], {"min": 2.0, "max": 1.0}, error="(?i)min|max"),
    Case("Clamp", "opset1", [In((3,))], {"min": 2.0}, error="max"),
    Case("Relu", "opset1", [In((3,), "boolean")], error="(?i)boolean|type", dynamic=False),
    Case("Gelu", "opset7", [In((3,))], {"approximation_mode": "sigmoid"}, error="(?i)sigmoid|mode"),
]
test_clamp = check(CLAMP)

SLOPES = [
    ((2, 3, 5), (3,)),
    ((2, 3, 5, 7), (3,)),
    ((2, 3, 5, 7), (1,)),
    ((2, 3, 5), (3, 1)),
    ((2, 3, 5), (2, 3, 5)),
    ((2, 3, 5), ()),
    ((7,), (7,)),
    ((5, 7), (7,)),
    ((5, 7), (1, 7)),
    ((2, 3, 5, 7), (3, 1, 1)),
    ((2, 3, 5, 7), (1, 3, 1, 1)),
    ((3, 0, 5), (1,)),
    ((2, 5, 5), (5,)),
    ((2, 3, 5), (1, 5)),
    ((), ()),
    ((), (1,)),
]

PRELU = [
    *(
        Case("PRelu", "opset1", [In(shape), In(slope, const=constant)])
        for shape, slope in SLOPES
        for constant in (False, True)
    ),
    *(Case("PRelu", "opset1", [In((2, 3, 5), kind), In((3,), kind)]) for kind in (*KINDS, "i32", "i64")),
    *(
        Case("PRelu", "opset1", [given(special_floats(kind)), const(0.25, kind)], id=f"special_{kind}")
        for kind in ("f32", "f16", "bf16")
    ),
    Case("PRelu", "opset1", [In((2, 3, 5)), In((3,))], id="rankless", rankless=True),
]
test_prelu = check(PRELU)


def hard_sigmoid(x: np.ndarray, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    return np.clip(alpha * x + beta, 0, 1)


def selu(x: np.ndarray, alpha: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return scale * np.where(x > 0, x, alpha * np.expm1(x))


COEFFICIENT = {"low": 0.1, "high": 1.0}

COEFFICIENTS = [
    *(
        Case(op, "opset1", [In(shape), const(0.2, "f32"), const(0.5, "f32")])
        for op in ("HardSigmoid", "Selu")
        for shape in SHAPES
    ),
    *(
        Case(op, "opset1", [In((3, 7), kind), const(0.3, kind), const(0.9, kind)])
        for op in ("HardSigmoid", "Selu")
        for kind in KINDS
    ),
    *(
        Case(
            op,
            "opset1",
            [given(special_floats(kind, nan=False)), const(0.2, kind), const(0.5, kind)],
            id=f"special_{kind}",
        )
        for op in ("HardSigmoid", "Selu")
        for kind in ("f32", "f16")
    ),
    Case("HardSigmoid", "opset1", [In((3, 5)), const(-0.4, "f32"), const(0.1, "f32")], id="falling"),
    *(
        Case(op, "opset1", [In((3, 5)), const(1.6, "f32"), const(0.7, "f32")], id="rankless", rankless=True)
        for op in ("HardSigmoid", "Selu")
    ),
    # OpenVINO accepts constants only
    *(
        Case(op, "opset1", [In((3, 5)), In((), **COEFFICIENT), In((), **COEFFICIENT)], id="parameters", expect=function)
        for op, function in (("HardSigmoid", hard_sigmoid), ("Selu", selu))
    ),
    Case(
        "HardSigmoid",
        "opset1",
        [In((3, 5)), const([0.2, 0.1], "f32"), const(0.5, "f32")],
        error="(?i)alpha|scalar",
        id="alpha_vector",
    ),
]
test_coefficients = check(COEFFICIENTS)

SWISH = [
    *(Case("Swish", "opset4", [In(shape), const(1.7, "f32")]) for shape in SHAPES),
    *(Case("Swish", "opset4", [In(shape), In(())]) for shape in ((2, 3, 5), (), (3, 0, 5))),
    *(Case("Swish", "opset4", [In((3, 7), kind), const(1.7, kind)]) for kind in KINDS),
    Case("Swish", "opset4", [given(RANGE, "f32"), const(0.5, "f32")], id="range_half"),
    Case("Swish", "opset4", [In((3, 5)), const([1.0, 2.0], "f32")], error="(?i)beta|scalar"),
]
test_swish = check(SWISH)

NONZERO = st.floats(-5, 5, width=16).filter(lambda x: abs(x) > 0.01)  # the plugin treats 0 as the default


@st.composite
def attributed(draw: st.DrawFn) -> Case:
    """Draw a case of an op with numeric attributes, or inputs that replace them."""
    op, version = draw(
        st.sampled_from(
            (("Elu", "opset1"), ("Clamp", "opset1"), ("HardSigmoid", "opset1"), ("Selu", "opset1"), ("Swish", "opset4"))
        )
    )
    kind = draw(st.sampled_from(KINDS + (("f32", "i32", "i64", "i8", "u8") if op == "Clamp" else ("f32",))))
    x = In(draw(shapes()), kind, low=-9, high=9)
    first, second = draw(NONZERO), draw(NONZERO)
    if op == "Elu":
        return Case(op, version, [x], {"alpha": first})
    if op == "Clamp":
        # at least one integer is between them; the plugin truncates the bounds for 8 bits
        bounds = {"min": min(first, second), "max": max(first, second) + 1}
        return Case(op, version, [x], bounds, oracle="auto" if kind in KINDS else "evaluate")
    parameters = [const(first, kind), const(second, kind)]
    return Case(op, version, [x, *parameters[: 1 if op == "Swish" else 2]])


@st.composite
def slopes(draw: st.DrawFn) -> Case:
    """Draw a PRelu with a slope along axis 1, or one that broadcasts."""
    x, kind = draw(shapes()), draw(st.sampled_from((*KINDS, "f32", "i32")))
    slope = (
        (x[1],)
        if len(x) > 1 and draw(st.booleans())
        else tuple(n if draw(st.booleans()) else 1 for n in x)[draw(st.integers(0, len(x))) :]
    )
    return Case("PRelu", "opset1", [In(x, kind), In(slope, kind, const=draw(st.booleans()))])


test_random = sweep(redrawn(PLAIN), 100)
test_random_attributes = sweep(attributed(), 100)
test_random_slopes = sweep(slopes(), 100)
