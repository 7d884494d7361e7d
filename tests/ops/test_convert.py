"""Convert for values out of range: low bits of small integers, limits of f8, f4 and nf4; and all pairs of types."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from ovgpu.errors import OpError
from ovgpu.ops.base import op as op_module
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.convert import Convert, ConvertLike, promoted
from ovgpu.spec import Spec
from ovgpu.types import Type
from tests.harness import Case, In, check, given, sweep
from tests.harness.judge import Expected
from tests.ops.elementwise_cases import redrawn

FEW_BITS = ("u1", "u2", "u3", "u4", "u6", "i4")
FLOATS = [
    0.0,
    -0.0,
    1,
    -1,
    0.3,
    -0.3,
    1.5,
    2.5,
    -1.5,
    7.9,
    300.5,
    -300.5,
    1e5,
    -1e5,
    3e9,
    -3e9,
    np.inf,
    -np.inf,
    np.nan,
]
INTEGERS = [0, 1, 2, 7, 8, 15, 16, 17, -1, -7, -8, -9, 127, 128, 255, 256, -128, -129, 70000, 2**31 - 1, -(2**31)]
SMALL = [0.0, -0.0, 0.1, 0.25, 0.26, 0.75, 1.0, 1.25, 1.75, 2.5, 3.0, 3.5, 5.0, 5.5, 6.0, 7.0, 100.0, np.inf]


def lowest_bit(x: Any) -> Expected:
    """Return the lowest bit of the integers that numbers are truncated to, as OpenVINO's reference computes it."""
    numbers = np.trunc(x.astype(np.float64))
    return Expected(np.where(np.isfinite(numbers), numbers % 2, 0).astype(np.uint8), "u1", "u1")


def convert(data: Any, source: str, target: str, id: str, **case: Any) -> Case:
    return Case(
        "Convert",
        "opset1",
        [given(data, source)],
        {"destination_type": target},
        [target],
        id=f"{id}_{source}_{target}",
        **case,
    )


CASES = [
    # The plugin has no u3 and u6.
    *(
        convert(FLOATS, "f32", target, "low_bits", oracle="evaluate")
        for target in (*FEW_BITS[1:], "i8", "u8", "i16", "u16")
    ),
    *(
        convert(INTEGERS, "i32", target, "low_bits", oracle="evaluate")
        for target in (*FEW_BITS[1:], "i8", "u8", "i16", "u64")
    ),
    *(convert(SMALL[:-1], "f16", target, "low_bits", oracle="evaluate") for target in FEW_BITS[1:]),
    *(
        convert(data, source, "u1", "low_bits", expect=lowest_bit)
        for data, source in ((FLOATS, "f32"), (INTEGERS, "i32"), (SMALL[:-1], "f16"))
    ),
    *(
        convert(np.multiply(SMALL, sign), "f32", target, f"ends_{sign}")
        for sign in (1, -1)
        for target in ("f8e4m3", "f8e5m2", "f8e8m0", "f4e2m1", "nf4")
    ),
    *(
        convert([np.nan, 1, np.nan], "f32", target, "nan")
        for target in ("f8e4m3", "f8e5m2", "f8e8m0", "f4e2m1", "nf4", "bf16", "f16")
    ),
    *(
        convert(np.float32(2.0) ** np.arange(-126, 128, 7) * scale, "f32", "f8e8m0", f"exponents_{scale}")
        for scale in (1, 1.25, 1.5, 1.75)
    ),
    *(
        convert(
            np.multiply([0.016607020, 0.018551024, 2.12501, 2.37499, 13312.05, 36874.45, 61439], sign),
            "f32",
            target,
            f"to_f16_first_{sign}",
        )
        for sign in (1, -1)
        for target in ("f8e4m3", "f8e5m2")
    ),
    *(convert(np.arange(16, dtype=np.uint8), "nf4", target, "codes") for target in ("f32", "f16")),
    convert(np.linspace(-1.2, 1.2, 97), "f32", "nf4", "nearest"),
    *(
        Case(
            "Convert",
            "opset1",
            [In((2, 3), source)],
            {"destination_type": target},
            id=f"{source}_{target}",
            error="cannot be converted",
        )
        for source, target in (("f32", "string"), ("string", "i32"))
    ),
]
test_cases = check(CASES)
test_random = sweep(redrawn(CASES), 100)

TYPES = [
    getattr(Type, name)
    for name in (
        "boolean f16 bf16 f32 f64 f8e4m3 f8e5m2 f8e8m0 f4e2m1 nf4 i4 i8 i16 i32 i64 u1 u2 u3 u4 u6 u8 u16 u32 u64"
    ).split()
]


def ones(kind: Type, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return ones of any type, which is the last code for nf4."""
    return np.full(shape, 15 if kind == Type.nf4 else 1, np.int8).astype(kind.storage)


@pytest.mark.parametrize("target", TYPES, ids=Type.get_type_name)
@pytest.mark.parametrize("source", TYPES, ids=Type.get_type_name)
def test_every_pair_of_types(source: Type, target: Type) -> None:
    for shape in ((), (0, 3), (2, 3)):
        x, wanted = ones(source, shape), ones(target, shape)
        like = Spec(target, (5,))
        for op, inputs, specs in (
            (Convert(destination_type=target), [x], [Spec(source, shape)]),
            (ConvertLike(), [x, ones(target, (5,))], [Spec(source, shape), like]),
        ):
            (spec,) = op.infer_specs(*specs)
            assert (spec.type, spec.shape) == (target, shape)
            (result,) = op_module.evaluate(op, NUMPY, inputs, [target])
            assert result.dtype == target.storage and result.tobytes() == wanted.tobytes()
            assert not np.may_share_memory(result, x)
            if isinstance(op, Convert):
                assert run(op, x, target).tobytes() == wanted.tobytes()


def run(op: Convert, x: np.ndarray[Any, Any], target: Type) -> np.ndarray[Any, Any]:
    """Return the result of the planned form."""
    out = np.empty(x.shape, target.storage)
    workspace = op.workspace([Spec(Type.of(x.dtype), x.shape)], [Spec(target, x.shape)])
    scratch = [np.empty(shape, kind.storage) for kind, shape in workspace]
    calls: list[Any] = []
    op.numpy(lambda f, *args: calls.append(functools.partial(f, *args)), [x], [out], scratch)
    with np.errstate(all="ignore"):
        for call in calls:
            call()
    return out


def test_one_op_serves_many_types() -> None:
    """An op does not depend on the inputs of an earlier inference."""
    op, like = Convert(destination_type=Type.f32), ConvertLike()
    op.infer_specs(Spec(Type.nf4, (2,)))
    like.infer_specs(Spec(Type.nf4, (2,)), Spec(Type.f32, ()))
    for source, values in ((Type.u8, [15, 0]), (Type.nf4, [1, -1]), (Type.u6, [15, 0]), (Type.f16, [15, 0])):
        x = np.array([15, 0], np.uint8).astype(source.storage)
        for result in (
            *op_module.evaluate(op, NUMPY, [x], [Type.f32]),
            run(op, x, Type.f32),
            *op_module.evaluate(like, NUMPY, [x, np.zeros((), np.float32)], [Type.f32]),
        ):
            assert result.tolist() == values


def test_common_types() -> None:
    assert promoted(Type.i8, Type.u8, Type.f32) == Type.i16
    assert promoted(Type.u32, Type.i16, Type.f32) == Type.i64
    assert promoted(Type.i64, Type.u64, Type.f64) == Type.f64
    assert promoted(Type.u4, Type.u1, Type.f32) == Type.u4
    assert promoted(Type.f16, Type.bf16, Type.f32) == Type.f32
    assert promoted(Type.f8e5m2, Type.f8e4m3, Type.f32) == Type.f16
    assert promoted(Type.f8e5m2, Type.bf16, Type.f32) == Type.bf16
    assert promoted(Type.boolean, Type.u8, Type.f32) == Type.u8
    assert promoted(Type.u3, Type.i4, Type.f32) == Type.i4
    assert promoted(Type.u6, Type.i4, Type.f32) == Type.i16
    for a in TYPES:
        for b in TYPES:
            common = promoted(a, b, Type.f32)
            assert common == promoted(b, a, Type.f32)
            if not {a, b} & {Type.boolean, Type.nf4} and common.is_integral_number():
                assert common.bitwidth >= max(a.bitwidth, b.bitwidth)


def test_strings_stay_strings() -> None:
    op = Convert(destination_type=Type.string)
    assert op.infer_specs(Spec(Type.string, (2,)))[0].type == Type.string
    with pytest.raises(OpError, match="cannot be converted"):
        Convert(destination_type=Type.f32).infer_specs(Spec(Type.string, (2,)))
