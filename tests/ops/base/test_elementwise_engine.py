"""Planned form of elementwise ops: the values of `fn`, computed tile by tile, in place, without allocations."""

from __future__ import annotations

import functools
import math
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ovgpu.ops import registry
from ovgpu.ops.activation.activation import Clamp, Elu, Gelu7, Mish, Relu, Sigmoid, SoftPlus, Swish
from ovgpu.ops.arithmetic.arithmetic import (
    Abs,
    Add,
    Divide,
    Erf,
    FloorMod,
    Maximum,
    Minimum,
    Mod,
    Multiply,
    Power,
    Round,
    SquaredDifference,
    Subtract,
)
from ovgpu.ops.base import op as op_module
from ovgpu.ops.base.elementwise import Binary, Elementwise, names
from ovgpu.ops.base.op import schema
from ovgpu.ops.base.special import erf, erfinv
from ovgpu.ops.base.trace import TILE, tiled, tiles, trace
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.comparison import Equal, Greater, IsInf, Less, LogicalAnd, LogicalNot, Select
from ovgpu.ops.convert import Convert
from ovgpu.spec import Spec
from ovgpu.symbolic import Sym, Table, bounds
from ovgpu.types import Type

Array = np.ndarray[Any, Any]

ATTRIBUTES: dict[str, list[dict[str, Any]]] = {
    "Elu": [{"alpha": 0.7}, {"alpha": 1.0}, {"alpha": 2.5}],
    "Clamp": [{"min": -1.0, "max": 2.5}],
    "Gelu": [{}, {"approximation_mode": "tanh"}],
    "Round": [{}, {"mode": "half_away_from_zero"}],
    "IsInf": [
        {},
        {"detect_negative": False},
        {"detect_positive": False},
        {"detect_negative": False, "detect_positive": False},
    ],
    "Divide": [{}, {"m_pythondiv": False}],
    "FakeQuantize": [{"levels": 7}],
    "FakeConvert": [{"destination_type": "f8e4m3"}, {"destination_type": "f8e5m2"}],
}
SCALARS = ("HardSigmoid", "Selu", "Swish")  # ops whose further inputs have one element
TYPES = (Type.f32, Type.f64, Type.f16, Type.bf16, Type.i32, Type.i64, Type.u8, Type.i4, Type.boolean)


def ops() -> Iterator[Elementwise]:
    for cls in registry():
        if issubclass(cls, Elementwise) and not issubclass(cls, Convert):
            for attributes in ATTRIBUTES.get(cls.name, [{}]):
                if set(attributes) <= set(schema(cls)):
                    yield cls(**attributes)
    for target in (Type.f16, Type.f64, Type.i32, Type.u8, Type.boolean):
        yield Convert(destination_type=target)


def label(op: Elementwise) -> str:
    return "-".join([op.name, op.version, *map(str, op.attributes().values())])


EVERY = pytest.mark.parametrize("op", [pytest.param(op, id=label(op)) for op in ops()])


def random(kind: Type, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    values = rng.uniform(-3, 3, shape) if kind.is_signed() else rng.uniform(0, 6, shape)
    if kind == Type.boolean:
        return np.asarray(values > 0)
    return np.asarray(values).astype(np.int8 if kind == Type.i4 else kind.storage).astype(kind.storage)


def operands(op: Elementwise, kind: Type, shapes: list[tuple[int, ...]]) -> tuple[list[Array], list[Spec]]:
    """Return random inputs of the op, and their specs."""
    rng = np.random.default_rng(5)
    kinds = [Type.boolean, kind, kind] if op.name == "Select" else [kind] * len(shapes)
    inputs = [random(k, s, rng) for k, s in zip(kinds, shapes)]
    return inputs, [Spec(k, s) for k, s in zip(kinds, shapes)]


def like(op: Elementwise, first: tuple[int, ...], other: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shapes of all inputs: ``first``, then ``other``, or () for scalars."""
    count = len(names(type(op)))
    return [first] + [() if op.name in SCALARS else other] * (count - 1)


def record(op: Elementwise, inputs: list[Array], specs: list[Spec], out: Array) -> list[Callable[[], Any]]:
    """Return the calls of the op's NumPy form."""
    outputs = op.infer_specs(*specs)
    workspace = [np.empty(shape, kind.storage) for kind, shape in op.workspace(specs, outputs)]
    calls: list[Callable[[], Any]] = []
    done = op.numpy(
        lambda f, *args, **kwargs: calls.append(functools.partial(f, *args, **kwargs)), inputs, [out], workspace
    )
    assert done is not NotImplemented
    return calls


def run(calls: list[Callable[[], Any]]) -> None:
    with np.errstate(all="ignore"):
        for call in calls:
            call()


def defined(op: Elementwise, inputs: list[Array], specs: list[Spec]) -> Array:
    return op_module.evaluate(op, NUMPY, inputs, [op.infer_specs(*specs)[0].type])[0]


def equal(actual: Array, wanted: Array) -> bool:
    assert (actual.shape, actual.dtype) == (wanted.shape, wanted.dtype)
    if wanted.dtype.kind in "biu":
        return bool(np.array_equal(actual, wanted))
    return bool(np.array_equal(actual.astype(np.float64), wanted.astype(np.float64), equal_nan=True))


def accepts(op: Elementwise, kind: Type) -> bool:
    try:
        op.infer_specs(*operands(op, kind, like(op, (2, 3), (2, 3)))[1])
    except op_module.OpError:
        return False
    return True


SHAPES = {
    "scalar": ((), ()),
    "plain": ((3, 7), (3, 7)),
    "broadcast": ((3, 7), (1, 7)),
    "empty": ((3, 0, 2), (3, 0, 2)),
    "tiles": ((3, TILE + 5), (3, TILE + 5)),
    "rows": ((TILE // 8 + 3, 11), (11,)),
}


@pytest.mark.drawn(2)
@EVERY
@pytest.mark.parametrize("case", SHAPES)
def test_planned_form_equals_definition(op: Elementwise, case: str) -> None:
    tried = 0
    for kind in TYPES if case in ("plain", "scalar") else (Type.f32, Type.i32, Type.boolean):
        if accepts(op, kind):
            inputs, specs = operands(op, kind, like(op, *SHAPES[case]))
            wanted = defined(op, inputs, specs)
            out = np.empty(wanted.shape, wanted.dtype)
            run(record(op, inputs, specs, out))
            assert equal(out, wanted), kind.get_type_name()
            tried += 1
    assert tried


@EVERY
def test_strided_arrays(op: Elementwise) -> None:
    kind = next(k for k in TYPES if accepts(op, k))
    for shape in ((5, 6), (TILE // 5, 12)):
        inputs, specs = operands(op, kind, like(op, shape, shape))
        wanted = defined(op, inputs, specs)
        strided = [np.repeat(x, 2, axis=-1)[..., ::2] if x.ndim else x for x in inputs]
        out = np.empty((2, *wanted.shape), wanted.dtype).transpose(1, 2, 0)[..., 1]
        run(record(op, strided, specs, out))
        assert equal(out, wanted)


@EVERY
def test_in_place(op: Elementwise) -> None:
    for kind in TYPES:
        if not accepts(op, kind):
            continue
        for shape in ((3, 7), (2, TILE)):
            inputs, specs = operands(op, kind, like(op, shape, shape))
            outputs = op.infer_specs(*specs)
            wanted = defined(op, inputs, specs)
            for i in op.inplace(specs, outputs):
                given = [x.copy() for x in inputs]
                out = given[i].view(outputs[0].type.storage)
                run(record(op, given, specs, out))
                assert equal(out, wanted), f"{kind.get_type_name()}, in the memory of input {i}"


def test_inputs_that_the_output_may_overwrite() -> None:
    f32, mask = Spec(Type.f32, (3, 7)), Spec(Type.boolean, (3, 7))

    def inplace(op: Elementwise, *inputs: Spec) -> tuple[int, ...]:
        return op.inplace(inputs, op.infer_specs(*inputs))

    assert inplace(Add(), f32, f32) == (0, 1)
    assert inplace(Add(), f32, Spec(Type.f32, (1, 7))) == (0,)  # other extents
    assert inplace(Swish(), f32) == (0,)
    assert inplace(Less(), f32, f32) == ()  # another element size
    assert inplace(Select(), mask, f32, f32) == (2,)  # `then` and the condition are read late
    assert inplace(Select(), mask, mask, mask) == (2,)
    assert inplace(Convert(destination_type=Type.i32), f32) == (0,)
    n = Table().atom("dim", "n", lo=1)
    assert inplace(Add(), Spec(Type.f32, (n, 7)), Spec(Type.f32, (n, 7))) == (0, 1)


@pytest.mark.parametrize(
    ("op", "ufunc"),
    [
        (Add(), np.add),
        (Subtract(), np.subtract),
        (Multiply(), np.multiply),
        (Divide(), np.divide),
    ],
)
def test_one_ufunc_is_one_call(op: Binary, ufunc: np.ufunc) -> None:
    inputs, specs = operands(op, Type.f32, [(3, 7), (3, 7)])
    for shape in ((3, 7), (9, TILE)):  # one call for any size
        inputs, specs = operands(op, Type.f32, [shape, shape])
        out = np.empty(shape, np.float32)
        (call,) = record(op, inputs, specs, out)
        assert isinstance(call, functools.partial)
        assert call.func is ufunc and all(a is b for a, b in zip(call.args, (*inputs, out), strict=True))
        assert not call.keywords


@pytest.mark.parametrize(
    ("op", "calls", "temporaries"),
    [
        (Relu(), 1, 0),
        (Sigmoid(), 4, 0),
        (SoftPlus(), 4, 1),
        (Mish(), 7, 2),
        (Gelu7(), 17, 2),
        (Erf(), 16, 3),
        (Gelu7(approximation_mode="tanh"), 7, 1),
        (Clamp(min=0.0, max=1.0), 1, 0),
        (SquaredDifference(), 2, 0),
        (Elu(alpha=1.0), 3, 1),
    ],
    ids=str,
)
def test_numbers_of_instructions(op: Elementwise, calls: int, temporaries: int) -> None:
    f32 = np.dtype(np.float32)
    tape = trace(op, (f32,) * (2 if isinstance(op, Binary) else 1), f32)
    assert (len(tape.instructions), len(tape.temporaries)) == (calls, temporaries)


def test_running_allocates_nothing() -> None:
    for op in (Add(), Sigmoid(), Mish(), Gelu7(), Erf(), Swish(), SquaredDifference()):
        shape = (4, TILE // 4)
        inputs, specs = operands(op, Type.f32, like(op, shape, shape))
        out = np.empty(shape, np.float32)
        calls = record(op, inputs, specs, out)
        run(calls)
        tracemalloc.start()
        try:
            run(calls)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 4096, op.name


def test_unused_values_are_not_computed() -> None:
    class Wasteful(Elementwise):
        def fn(self, xp: Any, x: Any) -> Any:
            xp.exp(x)
            return xp.where(x > 0, x * 2, x * 3) + 1

    f32 = np.dtype(np.float32)
    tape = trace(Wasteful(), (f32,), f32)
    assert np.exp not in [step.call for step in tape.instructions]
    assert len(tape.instructions) == 5
    x, out = np.array([-2, 0, 5], np.float32), np.empty(3, np.float32)
    calls: list[Any] = []
    tape.record(
        lambda f, *args: calls.append(functools.partial(f, *args)), [x], out, [np.empty(3, t) for t in tape.temporaries]
    )
    run(calls)
    assert out.tolist() == [-5, 1, 11]


@pytest.mark.parametrize(
    "shape",
    [
        (TILE + 1,),
        (3, 5, 7),
        (2, TILE, 3),
        (TILE * 2, 1),
        (2, 3, TILE + 1),
    ],
    ids=str,
)
def test_tiles_cover_every_element_once(shape: tuple[int, ...]) -> None:
    seen = np.zeros(shape, np.int8)
    for index in tiles(shape):
        assert seen[index].size <= TILE
        seen[index] += 1
    assert (seen == 1).all()


def test_tiles_keep_single_elements() -> None:
    """An exponent of one element uses the special case for squares in every tile."""
    x = np.linspace(0, 4, 3 * TILE, dtype=np.float32)
    out = np.empty_like(x)
    tape = trace(Power(), (x.dtype, x.dtype), x.dtype)
    tiled(tape, [x, np.full((1,), 2, np.float32)], out, [])()
    assert np.array_equal(out, x * x)


@pytest.mark.parametrize("shape", [(7, TILE), (5, TILE + 7), (3, 2, TILE // 2 + 9), (9 * TILE + 5,)], ids=str)
def test_tile_by_tile(shape: tuple[int, ...]) -> None:
    for op in (Mish(), Gelu7()):
        inputs, specs = operands(op, Type.f32, [shape])
        out = np.empty(shape, np.float32)
        run(record(op, inputs, specs, out))
        assert equal(out, defined(op, inputs, specs))


@pytest.mark.parametrize("exponent", [2, 3, 0.5, -1, -0.5, 1, 0, 2.5])
def test_powers_by_products_and_roots(exponent: float) -> None:
    x = np.linspace(0.1, 9, 200, dtype=np.float32)
    for b in (np.array(exponent, np.float32), np.full(200, exponent, np.float32)):
        out = np.empty_like(x)
        specs = [Spec(Type.f32, x.shape), Spec(Type.f32, b.shape)]
        run(record(Power(), [x, b], specs, out))
        assert np.allclose(out, x.astype(np.float64) ** exponent, rtol=5e-7)


# ---- symbolic integers


def test_symbolic_integers() -> None:
    table = Table()
    n, m = table.atom("dim", "n", lo=2), table.atom("dim", "m", lo=2)

    def on(op: Elementwise, *values: Any) -> Any:
        (result,) = op.evaluate(NUMPY, *(np.array([v, v], object) for v in values))
        assert result.dtype == object and result.shape == (2,) and result[0] is result[1]
        return result[0]

    assert on(Add(), n, 3) is n + 3
    assert on(Subtract(), n, n) == 0
    assert on(Multiply(), n, m) is n * m
    assert on(SquaredDifference(), n, 1) is (n - 1) * (n - 1)
    assert on(Divide(), n * 6, 3) is n * 2
    assert on(Divide(m_pythondiv=False), n * 6, 3) is n * 2
    assert on(Divide(), n, 0) == 0
    assert on(Mod(), n * 6, 3) == 0
    assert on(FloorMod(), n * 6 + 1, 3) == 1
    assert on(Mod(), 7, 4) == 3
    assert on(Maximum(), n, 1) is n
    assert on(Minimum(), n, 1) == 1
    assert on(Equal(), n, n) == 1
    assert isinstance(on(Equal(), n, m), Sym) and bounds(on(Equal(), n, m)) == (0, 1)
    assert on(Less(), 2, 3) == 1
    assert on(Greater(), 2, 3) == 0
    assert on(LogicalNot(), on(Equal(), 3, 3)) == 0
    assert on(LogicalAnd(), 1, 1) == 1
    assert on(Select(), 1, n, m) is n
    assert on(Select(), on(Equal(), n, m), n, n) is n
    assert isinstance(on(Select(), on(Equal(), n, m), n, m), Sym)
    assert isinstance(on(Abs(), n - m), Sym)
    assert on(Round(), n) is n
    convert = Convert(destination_type=Type.i32)
    convert.infer_specs(Spec(Type.i64, (2,)))
    assert on(convert, n) is n


# ---- error functions


@pytest.mark.parametrize(("dtype", "digits"), [(np.float32, 3.2e-7), (np.float64, 5e-16)])
def test_erf(dtype: Any, digits: float) -> None:
    x = np.concatenate([np.linspace(-7, 7, 4001), np.logspace(-30, 0, 401)]).astype(dtype)
    wanted = np.array([math.erf(v) for v in x])
    assert (np.abs(erf(NUMPY, x) - wanted) <= digits * np.abs(wanted)).all()
    with np.errstate(over="ignore"):
        ends = erf(NUMPY, np.array([np.inf, -np.inf, np.nan, 0, 1e30], dtype))
    assert np.array_equal(ends, np.array([1, -1, np.nan, 0, 1], dtype), equal_nan=True)


@pytest.mark.parametrize(("dtype", "digits"), [(np.float32, 4e-7), (np.float64, 4e-15)])
def test_erfinv(dtype: Any, digits: float) -> None:
    y = np.linspace(0.01, 3.5 if dtype is np.float32 else 5, 500)
    x = np.array([math.erf(v) for v in y]).astype(dtype)
    with np.errstate(all="ignore"):
        found = erfinv(NUMPY, np.concatenate([x, -x])).astype(np.float64)
        ends = erfinv(NUMPY, np.array([1, -1, 0, 1.5, np.nan], dtype))
    # a rounded erf stands for an interval of y, which grows towards the ends
    width = np.finfo(dtype).eps / 2 * np.sqrt(np.pi) / 2 * np.exp(y * y)
    assert (np.abs(found[:500] - y) <= digits * y + width).all()
    assert np.array_equal(found[500:], -found[:500])
    assert np.array_equal(ends, np.array([np.inf, -np.inf, 0, np.nan, np.nan], dtype), equal_nan=True)


def test_constants_keep_the_dtype() -> None:
    """No constant of an op turns f32 into f64."""
    x = np.ones((2, 3), np.float32)
    for op in ops():
        if accepts(op, Type.f32) and not isinstance(op, (Convert, Select)):
            with np.errstate(all="ignore"):
                result = op.compute(NUMPY, *[x] * len(names(type(op))))
            assert result.dtype in (np.float32, np.bool_), op.name


def test_isinf_flags() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0], np.float32)
    (found,) = IsInf(detect_negative=False, detect_positive=False).evaluate(NUMPY, x)
    assert not found.any()
