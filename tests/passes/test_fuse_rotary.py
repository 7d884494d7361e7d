"""Rotary embeddings become one layer: matched patterns, unmatched ones, and values on both backends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.model import Model
from ovgpu.ops.fused.rotary import Rotary
from ovgpu.passes import prepare
from tests.harness import judge
from tests.harness.ir import Net, Port
from tests.harness.layers import (
    add,
    concat,
    gather,
    i64,
    mul,
    op2,
    reshape,
    scalar,
    slice_,
    split,
    squeeze,
    transpose,
    unsqueeze,
)

MODELS = Path(__file__).parents[1] / "models" / "data"
LENGTH, HEADS, WIDTH = 5, 3, 8
Pattern = Callable[[Net, Port, Port, Port], Port]


def halves(net: Net, x: Port, size: int = WIDTH) -> tuple[Port, Port]:
    return slice_(net, x, 0, size // 2, 3), slice_(net, x, size // 2, size, 3)


def negative(net: Net, x: Port) -> Port:
    port: Port = net.layer("Negative", "opset1", [x])
    return port


def minus(net: Net, a: Port, b: Port) -> Port:
    return op2(net, "Subtract", a, b)


def llama(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    first, second = halves(net, x)
    rotated = concat(net, [mul(net, second, scalar(net, -1, x.type)), first], -1)
    return add(net, mul(net, x, cos), mul(net, rotated, sin))


def swapped(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    first, second = split(net, x, -1, 2)
    return add(net, mul(net, sin, concat(net, [negative(net, second), first], 3)), mul(net, cos, x))


def variadic(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    first, second = net.layer("VariadicSplit", "opset1", [x, i64(net, 3), i64(net, [WIDTH // 2, -1])], {}, 2)
    return add(net, mul(net, x, cos), mul(net, concat(net, [negative(net, second), first], 3), sin))


def strided(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    def part(begin: int, end: int, masks: tuple[str, str]) -> Port:
        attrs = dict(begin_mask=masks[0], end_mask=masks[1], new_axis_mask="", shrink_axis_mask="", ellipsis_mask="")
        bounds = [i64(net, [0, 0, 0, i]) for i in (begin, end)]
        port: Port = net.layer("StridedSlice", "opset1", [x, *bounds, i64(net, [1] * 4)], attrs)
        return port

    first, second = part(0, WIDTH // 2, ("1,1,1,1", "1,1,1,0")), part(WIDTH // 2, 0, ("1,1,1,0", "1,1,1,1"))
    return add(net, mul(net, x, cos), mul(net, concat(net, [negative(net, second), first], 3), sin))


def picked(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    """Swap halves by a Gather of all elements, and negate one half of its result."""
    order = np.roll(np.arange(WIDTH), WIDTH // 2)
    first, second = split(net, gather(net, x, order, 3), 3, 2)
    return add(net, mul(net, x, cos), mul(net, concat(net, [negative(net, first), second], 3), sin))


def per_pair(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    """Take one element of cos and sin per pair."""
    first, second = halves(net, x)
    c, s = (slice_(net, f, 0, WIDTH // 2, -1) for f in (cos, sin))
    return concat(
        net,
        [minus(net, mul(net, first, c), mul(net, second, s)), add(net, mul(net, second, c), mul(net, first, s))],
        -1,
    )


def partial(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    """Rotate the first half of a row; cos and sin are sliced as well."""
    size = WIDTH // 2
    rotated, rest = slice_(net, x, 0, size, 3), slice_(net, x, size, WIDTH, 3)
    c, s = (slice_(net, f, 0, size, -1) for f in (cos, sin))
    first, second = halves(net, rotated, size)
    other = concat(net, [negative(net, second), first], 3)
    return concat(net, [add(net, mul(net, rotated, c), mul(net, other, s)), rest], 3)


def last_part(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    """Rotate the last half only."""
    size = WIDTH // 2
    rotated = slice_(net, x, size, WIDTH, 3)
    c, s = (slice_(net, f, size, WIDTH, -1) for f in (cos, sin))
    first, second = halves(net, rotated, size)
    return add(net, mul(net, rotated, c), mul(net, concat(net, [negative(net, second), first], 3), s))


def twice(net: Net, x: Port) -> Port:
    """Repeat each element of the first half of rows, in three axes."""
    wide = unsqueeze(net, slice_(net, x, 0, WIDTH // 2, 2), [-1])
    return reshape(net, concat(net, [wide, wide], -1), [1, LENGTH, WIDTH])


def neighbours(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    """Rotate neighbouring elements, as in GPT-J."""
    even, odd = slice_(net, x, 0, 2**31 - 1, 3, 2), slice_(net, x, 1, 2**31 - 1, 3, 2)
    other = concat(net, [unsqueeze(net, negative(net, odd), [-1]), unsqueeze(net, even, [-1])], -1)
    other = reshape(net, other, [-1, HEADS, LENGTH, WIDTH])
    return add(net, mul(net, x, twice(net, cos)), mul(net, other, twice(net, sin)))


def cohere(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    """Repeat angles instead of cosines and sines."""

    def function(name: str) -> Port:
        angle = gather(net, cos, np.repeat(np.arange(WIDTH // 2), 2), 2)
        return unsqueeze(net, net.layer(name, "opset1", [mul(net, angle, scalar(net, 3))]), [1])

    even, odd = slice_(net, x, 0, 2**31 - 1, 3, 2), slice_(net, x, 1, 2**31 - 1, 3, 2)
    other = concat(net, [unsqueeze(net, negative(net, odd), [-1]), unsqueeze(net, even, [-1])], -1)
    other = reshape(net, other, [-1, HEADS, LENGTH, WIDTH])
    return add(net, mul(net, x, function("Cos")), mul(net, other, function("Sin")))


def chatglm(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    """Rotate pairs on their own axis, in half of a row."""
    size = WIDTH // 2
    pairs = reshape(net, slice_(net, x, 0, size, 3), [-1, HEADS, LENGTH, size // 2, 2])
    a, b = (gather(net, pairs, i, 4) for i in (0, 1))
    c, s = (slice_(net, f, 0, size // 2, -1) for f in (cos, sin))
    parts = minus(net, mul(net, a, c), mul(net, b, s)), add(net, mul(net, b, c), mul(net, a, s))
    joined = concat(net, [unsqueeze(net, p, [-1]) for p in parts], -1)
    return concat(net, [reshape(net, joined, [-1, HEADS, LENGTH, size]), slice_(net, x, size, WIDTH, 3)], -1)


def squeezed(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    pairs = split(net, reshape(net, x, [-1, HEADS, LENGTH, WIDTH // 2, 2]), 4, 2)
    a, b = (squeeze(net, p, [4]) for p in pairs)
    c, s = (slice_(net, f, 0, WIDTH // 2, -1) for f in (cos, sin))
    parts = minus(net, mul(net, a, c), mul(net, s, b)), add(net, mul(net, a, s), mul(net, c, b))
    return reshape(net, concat(net, [unsqueeze(net, p, [-1]) for p in parts], -1), [-1, HEADS, LENGTH, WIDTH])


PATTERNS: dict[str, tuple[Pattern, Rotary]] = {
    **{f.__name__: (f, Rotary(size=WIDTH)) for f in (llama, swapped, variadic, strided, picked, per_pair)},
    **{f.__name__: (f, Rotary(size=WIDTH // 2)) for f in (partial, last_part)},
    **{f.__name__: (f, Rotary(size=WIDTH, pairs=True)) for f in (neighbours, cohere, squeezed)},
    "chatglm": (chatglm, Rotary(size=WIDTH // 2, pairs=True)),
}


def embedding(pattern: Pattern, kind: str = "f32") -> Net:
    """Build the embedding of [b, s, h, e], transposed to [b, h, s, e]; cos and sin are [1, s, e]."""
    net = Net()
    x = net.parameter(kind, (-1, LENGTH, HEADS, WIDTH), "x")
    cos, sin = (net.parameter(kind, (1, LENGTH, WIDTH), name) for name in ("cos", "sin"))
    net.result(pattern(net, transpose(net, x, [0, 2, 1, 3]), cos, sin))
    return net


def prepared(net: Net) -> Model:
    return prepare(ov.Core().read_model(*net.build()))


def draw(*shape: int, seed: int = 1, kind: Any = np.float32) -> Any:
    return np.random.default_rng(seed).uniform(-2, 2, shape).astype(kind)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", PATTERNS)
def test_values(name: str, device: str) -> None:
    pattern, rotary = PATTERNS[name]
    net = embedding(pattern)
    ops = [n.op for n in prepared(net).ops if n.op.name not in ("Parameter", "Constant", "Result", "Transpose")]
    (op,) = (op for op in ops if isinstance(op, Rotary))
    assert op.attributes() == rotary.attributes()
    assert not {"Add", "Subtract", "Negative", "Split"} & {op.name for op in ops}
    request = ov.Core().compile_model(ov.Core().read_model(*net.build()), device).create_infer_request()
    reference = judge.Judge(*net.build())
    for batch in (2, 1, 0):
        values = [draw(batch, LENGTH, HEADS, WIDTH), *(draw(1, LENGTH, WIDTH, seed=i) for i in (2, 3))]
        (expected,) = reference.expect([(v, "f32") for v in values])
        np.testing.assert_allclose(request.infer(values).to_tuple()[0], expected.array, 1e-5, 1e-6)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_16_bits_are_rounded_once(kind: str, device: str) -> None:
    net, dtype = embedding(llama, kind), getattr(ov.Type, kind).storage
    values = [draw(2, LENGTH, HEADS, WIDTH, kind=dtype), *(draw(1, LENGTH, WIDTH, seed=i, kind=dtype) for i in (2, 3))]
    found = ov.Core().compile_model(ov.Core().read_model(*net.build()), device)(values)[0].view(dtype)
    x, cos, sin = (v.astype(np.float64) for v in values)
    (exact,) = Rotary(size=WIDTH).evaluate(np, x.transpose(0, 2, 1, 3), cos, sin)
    step = np.finfo(np.float16).eps if kind == "f16" else 2.0**-7
    np.testing.assert_allclose(found.astype(np.float64), exact, step / 2 * 1.01, 1e-6)


# ---- not matched


def other_sign(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    first, second = halves(net, x)
    return add(net, mul(net, x, cos), mul(net, concat(net, [second, negative(net, first)], 3), sin))


def no_sign(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    first, second = halves(net, x)
    return add(net, mul(net, x, cos), mul(net, concat(net, [second, first], 3), sin))


def other_half(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    first, second = halves(net, x)
    return add(net, mul(net, x, cos), mul(net, concat(net, [negative(net, first), second], 3), sin))


def uneven(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    first, second = slice_(net, x, 0, 3, 3), slice_(net, x, 3, WIDTH, 3)
    return add(net, mul(net, x, cos), mul(net, concat(net, [negative(net, second), first], 3), sin))


def other_axis(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    """Swap heads."""
    first, second = slice_(net, x, 0, 1, 1), slice_(net, x, 1, HEADS, 1)
    return add(net, mul(net, x, cos), mul(net, concat(net, [negative(net, second), first], 1), sin))


def difference(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    first, second = halves(net, x)
    return minus(net, mul(net, x, cos), mul(net, concat(net, [negative(net, second), first], 3), sin))


def another(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    """Rotate halves of another tensor."""
    first, second = halves(net, mul(net, x, x))
    return add(net, mul(net, x, cos), mul(net, concat(net, [negative(net, second), first], 3), sin))


def unlike_pairs(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    """Rotate neighbours whose factors may differ."""
    even, odd = slice_(net, x, 0, 2**31 - 1, 3, 2), slice_(net, x, 1, 2**31 - 1, 3, 2)
    other = concat(net, [unsqueeze(net, negative(net, odd), [-1]), unsqueeze(net, even, [-1])], -1)
    other = reshape(net, other, [-1, HEADS, LENGTH, WIDTH])
    return add(net, mul(net, x, cos), mul(net, other, sin))


def mixed_factors(net: Net, x: Port, cos: Port, sin: Port) -> Port:
    first, second = halves(net, x)
    c, s = (slice_(net, f, 0, WIDTH // 2, -1) for f in (cos, sin))
    return concat(
        net,
        [minus(net, mul(net, first, c), mul(net, second, s)), add(net, mul(net, second, s), mul(net, first, c))],
        -1,
    )


@pytest.mark.parametrize(
    "pattern",
    [other_sign, no_sign, other_half, uneven, other_axis, difference, another, unlike_pairs, mixed_factors],
    ids=lambda f: f.__name__,
)
def test_other_patterns_stay(pattern: Pattern) -> None:
    assert not [n for n in prepared(embedding(pattern)).ops if isinstance(n.op, Rotary)]


def test_values_with_other_users_stay_as_well() -> None:
    """The concatenated row remains a layer if it has other users."""
    net = Net()
    x = net.parameter("f32", (-1, HEADS, LENGTH, WIDTH), "x")
    cos, sin = (net.parameter("f32", (1, LENGTH, WIDTH), name) for name in ("cos", "sin"))
    net.result(llama(net, x, cos, sin))
    net.result(concat(net, [llama(net, x, cos, sin), x], 3))
    assert len([n for n in prepared(net).ops if isinstance(n.op, Rotary)]) == 2


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3", "mixtral", "llama_int8"])
def test_exported_models(name: str) -> None:
    model = prepare(ov.Core().read_model(MODELS / name / "model.xml"))
    assert len([n for n in model.ops if isinstance(n.op, Rotary)]) == 4
