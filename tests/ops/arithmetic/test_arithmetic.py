"""Arithmetic ops: Add to SquaredDifference with two inputs, Abs to Atanh and Round with one.

Atan2 is newer than the OpenVINO that judges the cases; NumPy's arctan2 is its definition.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import strategies as st

import ovgpu
from tests.harness import Case, In, Net, check, given, judge, special_floats, sweep
from tests.ops.elementwise_cases import MODES as BROADCASTS
from tests.ops.elementwise_cases import binary, fitting, mixed, pairs, redrawn, unary

WIDE_KINDS = ("f16", "bf16", "i32", "i64")
KINDS = (*WIDE_KINDS, "i8", "u8")
SMALL = {"low": 1, "high": 9}
POSITIVE = {"low": 1, "high": 100}
BASE = {"low": 0, "high": 3}
TRUNCATE = {"m_pythondiv": False}
SIGNED = [-9, -7, -4, -1, 1, 2, 5, 8]
SIGNED_FLOATS = [-9.5, -7.0, -2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 2.5, 5.0, 8.0, np.nan]


def squared_difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a - b) ** 2


BINARY = [
    *binary("Add", "opset1", kinds=KINDS, double=np.add),
    *binary("Subtract", "opset1", POSITIVE, {"low": 0, "high": 1}, kinds=KINDS, double=np.subtract),
    *binary("Multiply", "opset1", kinds=KINDS, double=np.multiply),
    *binary("Divide", "opset1", POSITIVE, SMALL, kinds=WIDE_KINDS, double=np.divide),
    *binary("Mod", "opset1", POSITIVE, SMALL, kinds=KINDS, double=np.fmod),
    *binary("FloorMod", "opset1", POSITIVE, SMALL, kinds=KINDS, double=np.mod),
    *binary("Power", "opset1", BASE, BASE, kinds=KINDS, double=np.power),
    *binary("Maximum", "opset1", kinds=KINDS, double=np.maximum),
    *binary("Minimum", "opset1", kinds=KINDS, double=np.minimum),
    *binary("SquaredDifference", "opset1", kinds=WIDE_KINDS, double=squared_difference),
    *binary("Atan2", "opset17", kinds=("f16", "bf16"), double=np.arctan2, expect=np.arctan2),
]
test_binary = check(BINARY)

NAMES = ("Add", "Subtract", "Multiply", "Divide", "Mod", "FloorMod", "Power", "Maximum", "Minimum", "SquaredDifference")

VALUES = [
    *(pairs("Atan2", "opset17", kind=kind, expect=np.arctan2) for kind in ("f32", "f16", "f64")),
    *(mixed(op, "opset1", "f32", "i32") for op in NAMES),
    *(pairs(op, "opset1") for op in ("Add", "Subtract", "Multiply", "Divide", "Power", "SquaredDifference")),
    *(pairs(op, "opset1", kind="f16") for op in ("Add", "Subtract", "Multiply", "Divide")),
    # with NaN the plugin gives the second value, the reference the first
    *(pairs(op, "opset1", special_floats(nan=False), id="pairs_ordered") for op in ("Maximum", "Minimum")),
    pairs("Maximum", "opset1", expect=np.maximum),
    pairs("Minimum", "opset1", expect=np.minimum),
    # the plugin computes i64 in i32, integer powers in f32, and truncates where m_pythondiv asks for floor
    *(
        pairs(op, "opset1", kind=kind, oracle="evaluate")
        for op in ("Add", "Subtract", "Multiply", "Maximum", "Minimum")
        for kind in ("i32", "i64")
    ),
    *(
        pairs(op, "opset1", SIGNED, kind, f"signs_{kind}", oracle="evaluate")
        for op in ("Divide", "FloorMod")
        for kind in ("i32", "i64")
    ),
    *(pairs(op, "opset1", SIGNED, "i32", "signs_i32") for op in ("Mod", "SquaredDifference")),
    pairs("Power", "opset1", [0, 1, 2, 5, 9], "i64", "powers_i64", oracle="evaluate"),
    *(pairs(op, "opset1", SIGNED_FLOATS, id="signs_f32") for op in ("Divide", "Mod", "FloorMod", "Power")),
    *(
        pairs("Divide", "opset1", SIGNED, kind, f"truncate_{kind}", attrs=TRUNCATE, oracle="evaluate")
        for kind in ("i32", "i64")
    ),
    pairs("Divide", "opset1", SIGNED_FLOATS, id="truncate_f32", attrs=TRUNCATE),
    pairs("Power", "opset1", [-3, -2, -0.5, 0, 0.5, 1, 2, 3], "f64", "powers_f64", expect=np.power),
    # the plugin rounds, or gives zeros, and the reference does not support these types
    *(
        pairs("Divide", "opset1", [1, 2, 5, 9, 100], kind, f"small_{kind}", expect=np.floor_divide)
        for kind in ("i8", "u8")
    ),
    *(
        pairs("SquaredDifference", "opset1", [0, 1, 5, 9], kind, f"small_{kind}", expect=squared_difference)
        for kind in ("i8", "u8")
    ),
]
test_values = check(VALUES)

erf = np.vectorize(math.erf, otypes=[np.float64])


def erfinv(x: np.ndarray) -> np.ndarray:
    """Return the inverse of erf by bisection: OpenVINO's approximation is off by up to 1e-4 where |x| > 0.7."""
    low, high = np.full(x.shape, -6.0), np.full(x.shape, 6.0)
    for _ in range(64):
        middle = (low + high) / 2
        below = erf(middle) < x.astype(np.float64) if x.size else np.zeros(x.shape, bool)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return ((low + high) / 2).astype(x.dtype)


ANY, NATURAL, UNIT = {"low": -9, "high": 9}, {"low": 1, "high": 50}, {"low": -1, "high": 1}
SIGNED_KINDS = {"i8": ANY, "i32": ANY, "i64": ANY}
FEW = {"low": -5, "high": 5}
# Functions of integers are computed in floats and rounded to the nearest integer.

UNARY = [
    *unary("Abs", "opset1", double=np.abs, integers=SIGNED_KINDS | {"u8": NATURAL}),
    *unary("Negative", "opset1", double=np.negative, integers=SIGNED_KINDS),
    *unary("Sign", "opset1", double=np.sign, integers=SIGNED_KINDS | {"u8": NATURAL}),
    *unary("Floor", "opset1", double=np.floor, integers=SIGNED_KINDS | {"u8": NATURAL}),
    *unary("Ceiling", "opset1", double=np.ceil, integers=SIGNED_KINDS | {"u8": NATURAL}),
    *unary("Sqrt", "opset1", 0, 9, double=np.sqrt, integers={"i32": NATURAL, "i64": NATURAL}),
    *unary("Exp", "opset1", double=np.exp, integers={"i32": FEW}),
    *unary("Log", "opset1", 0.01, 9, double=np.log, integers={"i32": NATURAL}),
    *unary("Erf", "opset1", double=erf, integers={"i32": ANY}),
    *unary("Sin", "opset1", -9, 9, double=np.sin, integers={"i32": ANY}),
    *unary("Cos", "opset1", -9, 9, double=np.cos, integers={"i32": ANY}),
    *unary("Tan", "opset1", -1.4, 1.4, double=np.tan, integers={"i32": UNIT}),
    *unary("Asin", "opset1", -1, 1, double=np.arcsin, integers={"i32": UNIT}),
    *unary("Acos", "opset1", -1, 1, double=np.arccos, integers={"i32": UNIT}),
    *unary("Atan", "opset1", -9, 9, double=np.arctan, integers={"i32": ANY}),
    *unary("Sinh", "opset1", double=np.sinh, integers={"i32": FEW}),
    *unary("Cosh", "opset1", double=np.cosh, integers={"i32": FEW}),
    *unary("Tanh", "opset1", double=np.tanh, integers={"i32": FEW}),
    *unary("Asinh", "opset4", -9, 9, double=np.arcsinh, integers={"i32": ANY}),
    *unary("Acosh", "opset4", 1, 9, double=np.arccosh, integers={"i32": NATURAL}),
    *unary("Atanh", "opset4", -0.95, 0.95, double=np.arctanh),
    *unary("ErfInv", "opset17", -0.999, 0.999, expect=erfinv, double=erfinv),
    *unary("Round", "opset5", double=np.rint),
    *unary("Round", "opset5", attrs={"mode": "half_away_from_zero"}, tag="_away"),
]
test_unary = check(UNARY)

FUNCTIONS = {
    "opset1": (
        "Abs",
        "Negative",
        "Sign",
        "Floor",
        "Ceiling",
        "Sqrt",
        "Exp",
        "Log",
        "Erf",
        "Sin",
        "Cos",
        "Tan",
        "Asin",
        "Acos",
        "Atan",
        "Sinh",
        "Cosh",
        "Tanh",
    ),
    "opset4": ("Asinh", "Acosh", "Atanh"),
}
HALVES = [-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, 0.49999997, -0.49999997, 8388609.0, 4194304.5]
MODES = ("half_to_even", "half_away_from_zero")

SPECIAL = [
    # the plugin gives an infinity for the exponential of NaN
    *(
        Case(
            op,
            version,
            [given(special_floats(kind))],
            id=f"special_{kind}",
            oracle="evaluate" if op == "Exp" else "auto",
        )
        for version, ops in FUNCTIONS.items()
        for op in ops
        for kind in ("f32", "f16", "bf16")
    ),
    *(
        Case("Round", "opset5", [given(special_floats(kind))], {"mode": mode}, id=f"special_{kind}_{mode}")
        for kind in ("f32", "f16")
        for mode in MODES
    ),
    # the plugin adds 0.5 and truncates
    *(
        Case("Round", "opset5", [given(HALVES, "f32")], {"mode": mode}, oracle="evaluate", id=f"halves_{mode}")
        for mode in MODES
    ),
    Case("Round", "opset5", [given(HALVES, "f32")], {"mode": "half_up"}, error="(?i)half_up|mode"),
    Case("ErfInv", "opset17", [given([-0.9999, 0.0, -0.0, 0.5, 0.9999999, 1e-30], "f32")], id="near", expect=erfinv),
    Case("ErfInv", "opset17", [given([-1.0, 1.0, -2.0, 1.5, np.nan, np.inf], "f32")], id="outside"),
]
test_special = check(SPECIAL)

OTHERS = {"i32": ("i8", "i16", "u8", "u16", "u32", "u64"), "f32": ("f64",)}
UNARY_OTHERS = OTHERS | {"i32": ("i8", "i16", "u16", "u32", "u64")}  # no u8: the plugin clips sines there


@st.composite
def angles(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(("f32", "f16", "f64")))
    return Case("Atan2", "opset17", [In(shape, kind) for shape in draw(fitting(2))], expect=np.arctan2)


test_random_angles = sweep(angles(), 50)


def is_judged(case: Case) -> bool:
    """Return whether the plugin computes a case: squared differences of 8 bits are 0 there."""
    return case.op != "SquaredDifference" or case.inputs[0].dtype not in ("i8", "u8")


test_random_binary = sweep(redrawn(BINARY + VALUES, BROADCASTS, OTHERS).filter(is_judged), 100)
test_random_unary = sweep(redrawn(UNARY + SPECIAL, kinds=UNARY_OTHERS), 100)


@pytest.mark.parametrize(("op", "version", "attrs"), [("FloorMod", "opset1", {}), ("Elu", "opset1", {"alpha": 0.5})])
def test_signs_of_zeros(op: str, version: str, attrs: dict[str, float], device: str) -> None:
    """Zeros are positive, as in OpenVINO, whatever the signs of the operands."""
    net = Net()
    a, b = np.meshgrid(np.array(SIGNED_FLOATS, "f4"), np.array(SIGNED_FLOATS, "f4"), indexing="ij")
    inputs = [a, b] if op == "FloorMod" else [a]
    net.result(net.layer(op, version, [net.parameter("f32", x.shape) for x in inputs], attrs))
    (expected,) = judge.Judge(*net.build(), "cpu").expect([(x, "f32") for x in inputs])
    found = ovgpu.Core().compile_model(ovgpu.Core().read_model(*net.build()), device)(inputs)[0]
    zeros = (found == 0) & (expected.array == 0)
    assert zeros.any() and (np.signbit(found[zeros]) == np.signbit(expected.array[zeros])).all()
