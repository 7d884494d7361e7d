"""Convert, ConvertLike, ConvertPromoteTypes and Identity, for all pairs of element types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, special_floats, special_integers, specials, sweep
from tests.harness.elements import FLOATS, INTEGERS, is_float
from tests.ops.elementwise_cases import redrawn, shapes

PLAIN = (*FLOATS, *INTEGERS, "boolean")
STORED = ("f8e4m3", "f8e5m2", "f8e8m0", "f4e2m1", "nf4", "i4", "u4", "u1", "u2", "u3", "u6")
# Fractions are truncated, and values out of range of 8 bits wrap.
WRAPPING = [-300.5, -129, -128.9, -1.7, -0.5, -0.0, 0.0, 0.3, 0.5, 1.5, 2.5, 127.9, 128, 255.9, 256, 300.5]
FRACTIONS = [-0.0, 0.0, 0.3, 0.5, 0.9, 1.0, 1.5, 2.5, 100.9]
# Between the values of f8 and f4, ties included, and within the range of all.
ROUNDING = [-5.5, -2.75, -1.25, -0.3, -0.0, 0.0, 0.1, 0.25, 0.7, 1.25, 1.75, 2.25, 2.5, 3.5, 5.0, 5.9]


def convert(data: Any, source: str, target: str, id: str, **case: Any) -> Case:
    inputs = [data if isinstance(data, In) else given(data, source)]
    return Case("Convert", "opset1", inputs, {"destination_type": target}, [target], id=id, **case)


def between(sources: Sequence[str], targets: Sequence[str], prefix: str = "", **options: Any) -> list[Case]:
    """Return cases of values from 0 to 9, which every type can represent, for every source and target.

    OpenVINO does not judge equal types, since its plugin confuses buffers when an input is passed through.
    """
    return [
        convert(
            In((3, 7), a, low=0, high=9.9 if is_float(a) else 9, **options),
            a,
            b,
            f"{prefix}{a}_{b}",
            expect=np.copy if a == b else None,
        )
        for a in sources
        for b in targets
    ]


CONVERT = [
    *between(PLAIN, PLAIN),
    *between(STORED, ("f32", "f16"), "stored_", const=True),
    *between(("i4", "u4", "u1", "u2", "u3", "u6"), ("i32", "u8", "i64", "i8"), "stored_", const=True),
    *between(("f8e4m3", "f8e5m2", "i4", "u4", "u2"), ("f32",), "input_"),
    *(
        convert(In(shape, "i32"), "i32", "f32", f"shape_{len(shape)}_{shape[-1] if shape else 0}")
        for shape in ((), (1031,), (3, 0, 5), (2, 3, 5, 7), (2, 1, 3, 5, 7))
    ),
    convert(In((3, 5, 2)), "f32", "i64", "rankless", rankless=True),
    *(
        convert(WRAPPING, kind, target, f"wrap_{kind}_{target}", oracle="evaluate")
        for kind in ("f32", "f16")
        for target in ("i8", "u8", "i16", "i32", "i64")
    ),
    *(
        convert(FRACTIONS, kind, target, f"fractions_{kind}_{target}")
        for kind in ("f32", "f16", "bf16")
        for target in ("u16", "u32", "u64", "i8", "u8")
    ),
    *(
        convert(special_floats(kind), kind, target, f"special_{kind}_{target}", oracle="evaluate")
        for kind in FLOATS
        for target in (*FLOATS, "boolean")
    ),
    *(
        convert(special_integers(kind), kind, target, f"special_{kind}_{target}", oracle="evaluate")
        for kind in INTEGERS
        for target in ("boolean", "f32", "f64", "i8", "u8", "i32", "u32", "i64")
    ),
    *(convert(specials("boolean"), "boolean", target, f"special_boolean_{target}") for target in PLAIN),
    *(
        convert(ROUNDING, kind, target, f"round_{kind}_{target}")
        for kind in ("f32", "f16")
        for target in ("f8e4m3", "f8e5m2", "f4e2m1", "bf16")
    ),
    *(
        convert([0.125, 0.5, 0.7, 1.0, 1.4, 3.0, 7.0, 100.0], kind, "f8e8m0", f"round_{kind}_f8e8m0")
        for kind in ("f32", "f16")
    ),
    *(
        convert(special_floats(kind), kind, target, f"special_{kind}_{target}")
        for kind in ("f32", "f16")
        for target in ("f8e4m3", "f8e5m2")
    ),
    *(
        convert([-1.0, -0.61, -0.3, 0.0, 0.01, 0.2, 0.5, 0.99, 1.0], kind, "nf4", f"round_{kind}_nf4")
        for kind in ("f32", "f16")
    ),
    *(convert([-8, -3, 0, 5, 7], kind, "i4", f"small_{kind}_i4") for kind in ("f32", "i32", "i64", "i8")),
    *(convert([0, 1, 5, 7, 15], kind, "u4", f"small_{kind}_u4") for kind in ("f32", "i32", "i64", "u8")),
]
test_convert = check(CONVERT)


def like(source: str, target: str, **case: Any) -> Case:
    inputs = [In((3, 7), source, low=0, high=9), In((2, 5), target)]
    return Case("ConvertLike", "opset1", inputs, outputs=[target], id=f"{source}_{target}", **case)


LIKE = [
    *(like("f32", target) for target in ("i32", "f16", "bf16", "u8", "boolean")),
    *(like(source, "f32") for source in ("i32", "f16", "i64", "u8", "boolean")),
    *(like(a, b) for a, b in (("i32", "i64"), ("i8", "u8"), ("bf16", "i32"))),
    Case("ConvertLike", "opset1", [In((), "i32"), In((0,), "f32")], outputs=["f32"], id="scalar"),
    Case("ConvertLike", "opset1", [In((3, 5), "i32"), const(2.5, "f16")], outputs=["f16"], id="const"),
    Case("ConvertLike", "opset1", [In((3, 0), "i32"), In((7,))], outputs=["f32"], id="empty", rankless=True),
]
test_like = check(LIKE)


def promote(a: str, b: str, first: tuple[int, ...] = (3, 7), second: tuple[int, ...] = (7,), **attrs: Any) -> Case:
    inputs = [In(first, a, low=0, high=9), In(second, b, low=0, high=9)]
    id = "_".join([a, b, *map(str, (len(first), len(second))), *attrs])
    return Case("ConvertPromoteTypes", "opset14", inputs, attrs, 2, id=id)


SAFE = [
    ("f32", "f64"),
    ("f16", "f32"),
    ("bf16", "f32"),
    ("f32", "i8"),
    ("u8", "f16"),
    ("i8", "bf16"),
    ("i8", "i32"),
    ("u8", "i32"),
    ("i32", "i64"),
    ("u8", "u64"),
    ("i32", "f64"),
    *(("boolean", kind) for kind in ("f32", "f16", "i8", "u8", "i64", "boolean")),
]
UNSAFE = [
    ("f16", "bf16"),
    ("f32", "i32"),
    ("i64", "f32"),
    ("i64", "f16"),
    ("i8", "u8"),
    ("u64", "i32"),
    ("f64", "i64"),
    ("u64", "f16"),
]

TORCH = {"promote_unsafe": True, "pytorch_scalar_promotion": True}

PROMOTE = [
    *(promote(a, b) for a, b in SAFE),
    *(promote(a, b, promote_unsafe=True) for a, b in UNSAFE),
    *(promote(a, b, second=(), **TORCH) for a, b in SAFE[:6] + UNSAFE),
    *(promote(a, b, (), (), **TORCH) for a, b in UNSAFE),
    promote("u64", "i32", promote_unsafe=True, u64_integer_promotion_target="f64"),
    *(replace(promote(a, b), id=f"{a}_{b}_refused", error="(?i)safe|fit|promot") for a, b in UNSAFE),
]
test_promote = check(PROMOTE)

IDENTITY = [
    *(Case("Identity", "opset16", [In((3, 7), kind)], {}, [kind], expect=np.copy) for kind in PLAIN),
    *(
        Case("Identity", "opset16", [In(shape)], expect=np.copy)
        for shape in ((), (3, 0, 5), (1031,), (2, 3, 5, 7), (2, 1, 3, 5, 7))
    ),
    Case("Identity", "opset16", [In((3, 5), const=True)], id="const"),
    Case("Identity", "opset16", [In((3, 5))], id="rankless", rankless=True, expect=np.copy),
    *(
        Case("Identity", "opset16", [given(specials(kind))], {}, [kind], expect=np.copy, id=f"special_{kind}")
        for kind in ("f32", "f16", "bf16", "f64", "i32", "i64")
    ),
]
test_identity = check(IDENTITY)


@st.composite
def copies(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(PLAIN))
    return Case("Identity", "opset16", [In(draw(shapes()), kind)], {}, [kind], expect=np.copy)


test_random = sweep(redrawn(CONVERT + LIKE + PROMOTE), 100)
test_random_identity = sweep(copies(), 50)
