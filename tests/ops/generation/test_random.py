"""RandomUniform and Multinomial against OpenVINO, and RandomPoisson, which this OpenVINO lacks, against its spec."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count as counting
from math import exp, floor, inf, lgamma, log, nan, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, judge
from tests.harness.cases import api, compile
from tests.harness.elements import ELEMENTS
from tests.harness.ir import Net, Variant, feed, take
from tests.harness.recall import digest, recall
from tests.harness.replay import EMULATED, Watch
from tests.harness.sweep import sweep
from tests.harness.tolerance import compare_all

SEEDS = {"global_seed": 2**33 + 5, "op_seed": 2**34 + 77}
BOUNDS = {
    "f32": (-3.3, 10.7),
    "f16": (0.5, 2.25),
    "bf16": (1, 3.5),
    "f64": (-3.3, 10.7),
    "i32": (-7, 1000),
    "i64": (-7, 1000),
}
OWN = ("f16", "bf16", "f64")  # the specification converts words to these types; the plugin mostly computes in f32


def uniform(shape: Any, kind: str = "f32", low: Any = None, high: Any = None, **more: Any) -> Case:
    low, high = (
        x if isinstance(x, In) else const(bound if x is None else x, kind)
        for x, bound in zip((low, high), BOUNDS[kind])
    )
    attrs = {"output_type": kind} | SEEDS | more.pop("attrs", {})
    if kind in OWN:
        more.setdefault("oracle", "evaluate")
    return Case(
        "RandomUniform", "opset8", [shape if isinstance(shape, In) else const(shape), low, high], attrs, [kind], **more
    )


def multinomial(
    probs: In, samples: Any, replacement: bool = True, logs: bool = False, kind: str = "i32", **more: Any
) -> Case:
    attrs = {"convert_type": kind, "with_replacement": replacement, "log_probs": logs} | SEEDS | more.pop("attrs", {})
    return Case(
        "Multinomial", "opset13", [probs, samples if isinstance(samples, In) else const(samples)], attrs, [kind], **more
    )


TWISTED = {"attrs": {"alignment": "pytorch"}}  # Mersenne twister: the same numbers in every inference
WIDE = (-(2**35), 2**40)
UNIFORM = [
    *(uniform([7, 3, 51], kind, **TWISTED, id=f"twister_{kind}") for kind in ("f32", "f16", "f64", "i32", "i64")),
    # OpenVINO rounds bf16 differently; its plugin computes in f32 if the processor has no bf16
    uniform([7, 3, 51], "bf16", **TWISTED, id="twister_bf16", tol=1.6e-2, oracle="evaluate"),
    uniform([991], "i64", *WIDE, **TWISTED, id="twister_wide", oracle="evaluate"),
    uniform([], **TWISTED, id="scalar", oracle="evaluate"),  # the plugin draws none
    uniform([3, 0, 5], **TWISTED, id="empty"),
    uniform([1301], **TWISTED, id="many"),
    uniform([5], "i32", const([2], "i32"), const([9], "i32"), **TWISTED, id="bounds_of_rank_1"),
    uniform([51], "i32", -(2**31), 2**31 - 1, **TWISTED, id="all_i32", oracle="evaluate"),  # the plugin gives -2**31
    uniform([3, 5], "f32", In((), "f32", low=-2, high=0), In((1,), "f32", low=1, high=3), **TWISTED, id="bounds_given"),
    uniform(given([3, 5]), **TWISTED, id="shape_given", rankless=True),
    uniform(given([3, 5], "i32"), "i64", **TWISTED, id="shape_given_i32"),
    uniform([3], "f32", attrs={"output_type": "u8"}, error="output_type is u8"),
    uniform([3], "f32", const(1, "i32"), error="the lower bound is i32, output_type is f32"),
    uniform([3], "f32", const([1, 2], "f32"), error=r"the lower bound has shape \[2\]"),
    uniform([3], "i32", 5, 5, error="there is no number from 5 on that is below 5"),
    uniform([3, -1], error="an extent of -1"),
    uniform([[3]], error="the shape must have rank 1, not 2"),
    uniform([3], attrs={"op_seed": -1}, error="op_seed is -1"),
    uniform([3], attrs={"alignment": "jax"}, error="jax"),
]

PROBS, LOGS = In((5, 13), low=0.01, high=1), In((5, 13), low=-3, high=1)
MULTINOMIAL = [
    *(
        multinomial(
            LOGS if logs else PROBS,
            9,
            replacement,
            logs,
            kind,
            id=f"{kind}{'_replaced' * replacement}{'_logs' * logs}",
            rankless=not logs,
        )
        for kind in ("i32", "i64")
        for replacement in (True, False)
        for logs in (True, False)
    ),
    *(multinomial(In((3, 7), kind, low=0.01, high=1), 6, id=f"of_{kind}") for kind in ("f16", "f64")),
    multinomial(In((3, 7), "f16", low=0.01, high=1), 6, False, id="of_f16_once"),
    multinomial(given([[0, 0.2, 0, 0.3], [1, 0, 0, 0]], "f32"), 11, id="zeros"),
    multinomial(given([[0, 0.2, 0, 0.3]], "f32"), 2, False, id="zeros_once"),
    multinomial(PROBS, 13, False, id="all"),
    multinomial(PROBS, [1], id="one"),
    multinomial(PROBS, given(np.int32(4)), id="count_given"),
    multinomial(PROBS, 9, attrs={"global_seed": 0}, id="one_seed"),
    # the plugin rounds every sum to bf16
    multinomial(
        given([[0, 0, 1, 0], [1, 0, 0, 0]], "bf16"), 3, id="of_bf16", expect=np.array([[2] * 3, [0] * 3], np.int32)
    ),
    multinomial(In((0, 7)), 3, id="no_rows", expect=np.zeros((0, 3), np.int32)),
    multinomial(PROBS, 14, False, error="14 samples of 13 classes need replacement"),
    multinomial(PROBS, given(np.int32(14)), False, error="14 samples of 13 classes need replacement"),
    multinomial(PROBS, [1, 2], error=r"the number of samples has shape \[2\]"),
    multinomial(In((13,)), 2, error="the probabilities have rank 1, not 2"),
    multinomial(In((5, 13), "i32"), 2, error="the probabilities are i32"),
    multinomial(In((13,)), 2, kind="f32", error="convert_type is f32"),
]


def numbers(element: int, attrs: Any) -> Iterator[float]:
    """Yield numbers of Philox, from the first block of an element on; the last words of a block come first."""
    low, key, upper = 2**32 - 1, attrs["global_seed"], attrs["op_seed"]
    for number in counting(256 * element):
        a, b, c, d = number & low, number >> 32, upper & low, upper >> 32
        for n in range(10):
            p, q = a * 0xD2511F53, c * 0xCD9E8D57
            k, m = (key & low) + n * 0x9E3779B9, (key >> 32) + n * 0xBB67AE85
            a, b, c, d = (q >> 32) ^ b ^ (k & low), q & low, (p >> 32) ^ d ^ (m & low), p & low
        yield from (((high % 2**20) * 2**32 + rest) / 2**52 for high, rest in ((c, d), (a, b)))


def twisted(attrs: Any) -> Iterator[float]:
    words = np.random.RandomState(attrs["global_seed"] % 2**32)
    while True:
        high, rest = (int.from_bytes(words.bytes(4), "little") for _ in range(2))
        yield (high % 2**21 * 2**32 + rest) / 2**53


def sample(rate: float, uniform: Iterator[float]) -> float:
    """Return one Poisson sample by the specification: Knuth's algorithm below a rate of 10, else Hoermann's PTRS."""
    if rate < 10:
        product, k = 1.0, -1
        while k < 0 or product > exp(-rate):
            product, k = product * next(uniform), k + 1
        return k
    b = 0.931 + 2.53 * sqrt(rate)
    a = -0.059 + 0.02483 * b
    while True:
        u, v = next(uniform) - 0.5, next(uniform)
        us = 0.5 - abs(u)
        k = floor((2 * a / us + b) * u + rate + 0.43)
        if us >= 0.07 and v <= 0.9277 - 3.6224 / (b - 2):
            return k
        if k >= 0 and (us >= 0.013 or v <= us):
            if log(v * (1.1239 + 1.1328 / (b - 3.4)) / (a / us**2 + b)) <= k * log(rate) - rate - lgamma(k + 1):
                return k


def samples(rates: Any, attrs: Any, past: int = 0) -> Any:
    """Return the samples for these rates, after ``past`` elements of earlier inferences."""
    shared, own = twisted(attrs), attrs.get("alignment", "tensorflow").lower() == "tensorflow"
    drawn = [
        sample(rate, numbers(past + i, attrs) if own else shared) if 0 < rate < inf else rate
        for i, rate in enumerate(rates.reshape(-1).astype(np.float64).tolist())
    ]
    return np.array(drawn).reshape(rates.shape).astype(rates.dtype)


def poisson(rates: Any, attrs: Any, **more: Any) -> Case:
    rates = rates if isinstance(rates, In) else given(np.array(rates, np.float32))
    attrs = SEEDS | attrs
    if "error" not in more:
        more.setdefault("expect", lambda x: samples(x, attrs))
    return Case("RandomPoisson", "opset17", [rates], attrs, [rates.dtype], **more)


KNUTH, HOERMANN, MIXED = np.arange(1, 10), np.arange(11, 20), np.arange(0, 41, 5)
TORCH, TENSORFLOW = (
    {"global_seed": 150, "op_seed": seed, "alignment": name} for seed, name in ((69, "PYTORCH"), (77, "TENSORFLOW"))
)
EXAMPLES = {  # from the specification
    "knuth": (KNUTH, "f32", TORCH, [1, 2, 2, 2, 3, 8, 9, 11, 5]),
    "hoermann": (HOERMANN, "f32", TORCH, [14, 11, 15, 20, 9, 20, 15, 17, 21]),
    "mixed": (MIXED, "bf16", TORCH, [0, 6, 6, 11, 19, 15, 36, 33, 33]),
    "tensorflow_knuth": (KNUTH, "f16", TENSORFLOW, [1, 1, 1, 2, 9, 5, 3, 3, 8]),
    "tensorflow_mixed": (MIXED, "f32", TENSORFLOW, [0, 4, 5, 12, 21, 20, 38, 39, 34]),
    "tensorflow_matrix": (MIXED.reshape(3, 3), "f32", TENSORFLOW, [[0, 4, 5], [12, 21, 20], [38, 39, 34]]),
}
POISSON = [
    *(
        poisson(
            given(rates.astype(ELEMENTS[kind].dtype)),
            attrs,
            id=f"example_{name}",
            expect=np.array(drawn, ELEMENTS[kind].dtype),
        )
        for name, (rates, kind, attrs, drawn) in EXAMPLES.items()
        if attrs is TORCH
    ),
    poisson(
        given(np.array([0.1, 3.7, 9.99, 10, 33.3, 250, 4e3, 7.5e4])),
        {"global_seed": 2**31 + 11, "alignment": "pytorch"},
        id="by_torch",
        expect=np.array([1.0, 4, 12, 14, 37, 250, 3963, 74515]),
    ),  # torch.poisson after manual_seed
    *(
        poisson(In((7, 3, 5), kind, low=0, high=60), TWISTED["attrs"], id=f"of_{kind}", rankless=True)
        for kind in ("f32", "f16", "bf16", "f64")
    ),
    poisson(In((31,), "f64", low=1e3, high=1e9), TWISTED["attrs"], id="large"),
    poisson([0, 5, inf, 0, 50, 9.999, 10, 1e-9], TWISTED["attrs"], id="limits"),
    poisson(In((3, 0, 5)), TWISTED["attrs"], id="empty"),
    poisson([[0, inf, 0], [inf, 0, 0]], {}, id="of_themselves"),
    poisson(In((), low=1), {}, error="the rates are a scalar"),
    poisson(In((3,), "i32"), {}, error="the rates are i32"),
    poisson([2, -1], {}, error="a rate is negative or NaN"),
    poisson([2, nan], TWISTED["attrs"], error="a rate is negative or NaN", id="nan"),
    poisson([2], {"alignment": "jax"}, error="jax"),
    poisson([2], {"op_seed": 2**64}, error="op_seed is 18446744073709551616"),
]
test_cases = check([*UNIFORM, *MULTINOMIAL, *POISSON])


@pytest.mark.parametrize("variant", ["static", "dynamic", "rankless"])
@pytest.mark.parametrize("name", [name for name, example in EXAMPLES.items() if example[2] is TENSORFLOW])
def test_examples_of_poisson(name: str, variant: Variant, device: str) -> None:
    """The first inference gives the specification's examples, and later ones continue Philox's sequence."""
    rates, kind, attrs, drawn = EXAMPLES[name]
    x = rates.astype(ELEMENTS[kind].dtype)
    case = poisson(given(x), attrs, id=name)
    request = compile(case.net, variant, device)
    for number, wanted in enumerate([np.array(drawn, x.dtype), *(samples(x, attrs, 9 * n) for n in (1, 2))]):
        if number == 2:
            request = request.get_compiled_model().create_infer_request()
        found = judge.infer(api(), request, case.parameters([x]))
        compare_all(f"inference {number}", found, [judge.Expected.of(wanted)], None)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("alignment", ["tensorflow", "pytorch"])
@pytest.mark.parametrize("rate", [0.3, 7, 12, 600])
def test_moments_of_poisson(rate: float, alignment: str, device: str) -> None:
    """Mean and variance of 10,000 unseeded samples are within five standard deviations."""
    n = 10_000
    case = poisson(np.full(n, rate), {"global_seed": 0, "op_seed": 0, "alignment": alignment}, id=f"{alignment}_{rate}")
    drawn = [
        judge.infer(api(), compile(case.net, "static", device), case.parameters(case.arrays()))[0][0] for _ in range(2)
    ]
    assert (drawn[0] != drawn[1]).any()
    for x in drawn:
        assert abs(x.mean(dtype=np.float64) - rate) < 5 * sqrt(rate / n)
        assert abs(x.var(dtype=np.float64) - rate) < 5 * sqrt((2 * rate**2 + rate) / n)


def by_plugin(net: Net, inputs: list[judge.Value]) -> list[list[judge.Expected]]:
    """Return the results of one request of the plugin for these consecutive inputs."""
    xml, weights = net.build()

    def infer() -> Any:
        plugin = judge.Plugin(xml, weights)
        return [plugin.expect(judge.infer(judge.openvino(), plugin.request, [x])) for x in inputs]

    return recall(digest([xml, weights, *(x for x, _ in inputs)]), infer)


@pytest.mark.parametrize("kind", ["f32", "i32", "i64"])  # bf16 depends on the processor
@pytest.mark.parametrize("variant", ["static", "dynamic", "rankless"])
def test_a_sequence_continues(kind: str, variant: Variant, device: str) -> None:
    """As in the plugin, a sequence continues over inferences, shapes and requests."""
    case = uniform(given([2, 3]), kind, id=f"sequence_{kind}")
    inputs = [(np.array([length, 3], np.int64), "i64") for length in (7, 7, 2, 7, 5)]

    request = compile(case.net, variant, device)
    for number, (x, outputs) in enumerate(zip(inputs, by_plugin(case.net, inputs))):
        if number == 3:
            request = request.get_compiled_model().create_infer_request()
        compare_all(f"inference {number}", judge.infer(api(), request, [x]), outputs, None)


def test_loops_continue_the_sequence(device: str) -> None:
    """Every iteration draws new numbers, even if the trip count changes."""
    body, net = Net(), Net()
    part = body.parameter("f32", (1, 5))
    drawn = body.layer(
        "RandomUniform",
        "opset8",
        [body.const(np.array([1, 5])), body.const(np.float32(0)), body.const(np.float32(1))],
        {"output_type": "f32"} | SEEDS,
        ["f32"],
    )
    out = body.result(body.layer("Add", "opset1", [part, drawn]))
    x = net.parameter("f32", (-1, 5))
    net.result(net.tensor_iterator(body, [feed(x, part, axis=0)], [take(out, axis=0)]))
    inputs = [(np.zeros((trips, 5), np.float32), "f32") for trips in (4, 4, 4, 3, 4, 7)]

    request = compile(net, "static", device)
    for number, (x, wanted) in enumerate(zip(inputs, by_plugin(net, inputs))):
        compare_all(f"inference {number}", judge.infer(api(), request, [x]), wanted, None)


@pytest.mark.parametrize("kind", [*BOUNDS, "wide"])
def test_graphs_continue_the_sequence(kind: str, emulated: str) -> None:
    """A captured graph draws new numbers at every launch, which equal the CPU's."""
    kind, bounds = ("i64", WIDE) if kind == "wide" else (kind, BOUNDS[kind])
    case = uniform([7, 151], kind, *bounds)
    requests = [compile(case.net, "static", name) for name in ("CPU", EMULATED)]
    watch, seen = Watch(), []
    for number in range(5):
        wanted, found = (
            judge.infer(api(), request, [])
            if number < 2 or request is requests[0]
            else watch.infer(request, lambda: judge.infer(api(), requests[1], []))
            for request in requests
        )
        compare_all(f"inference {number}", found, [judge.Expected(*wanted[0], kind)], None)
        seen.append(found[0][0])
    assert not watch.seen
    assert len({x.tobytes() for x in seen}) == 5


@pytest.mark.parametrize("alignment", ["tensorflow", "pytorch"])
def test_without_seeds(alignment: str, device: str) -> None:
    case = uniform([400], attrs={"global_seed": 0, "op_seed": 0, "alignment": alignment}, id=alignment)
    drawn = [judge.infer(api(), compile(case.net, "static", device), [])[0][0] for _ in range(2)]
    low, high = BOUNDS["f32"]
    assert (drawn[0] != drawn[1]).any()
    for x in drawn:
        assert low <= x.min() and x.max() < high and abs(x.mean() - (low + high) / 2) < 1.5


def test_samples_without_seeds(device: str) -> None:
    case = multinomial(given(np.full((1, 1000), 1, np.float32)), 50, attrs={"global_seed": 0, "op_seed": 0})
    request = compile(case.net, "static", device)
    drawn = [judge.infer(api(), request, case.parameters(case.arrays()))[0][0] for _ in range(2)]
    assert (drawn[0] != drawn[1]).any()


@st.composite
def draws(draw: st.DrawFn) -> Case:
    seed = st.integers(1, 2**64 - 1)
    seeds = {"global_seed": draw(seed), "op_seed": draw(seed)}
    op = draw(st.sampled_from(["RandomUniform", "Multinomial", "RandomPoisson"]))
    if op == "RandomPoisson":
        rate = st.one_of(st.just(0.0), st.floats(0, 12), st.floats(8, 60), st.floats(60, 3e4))
        rates, kind = draw(st.lists(rate, max_size=12)), draw(st.sampled_from(["f32", "f16", "bf16", "f64"]))
        attrs = seeds | {"alignment": draw(st.sampled_from(["tensorflow", "pytorch"]))}
        return poisson(In((1, len(rates)), kind, rates), attrs)
    if op == "Multinomial":
        replacement, logs = draw(st.booleans()), draw(st.booleans())
        batch, classes = draw(st.integers(1, 5)), draw(st.integers(1, 17))
        count = draw(st.integers(1, 20 if replacement else classes))
        low, high = (-3, 2) if logs else (0.01, 1)
        probs = In((batch, classes), draw(st.sampled_from(["f32", "f16", "f64"])), low=low, high=high)
        return multinomial(probs, count, replacement, logs, draw(st.sampled_from(["i32", "i64"])), attrs=seeds)
    kind = draw(st.sampled_from(list(BOUNDS)))
    shape = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    seeds["alignment"] = draw(st.sampled_from(["tensorflow", "pytorch"]))
    if kind in ("i32", "i64"):
        wide = kind == "i64" and draw(st.booleans())
        bound = st.integers(-(2**62), 2**62) if wide else st.integers(-(2**30), 2**30)
        low, high = sorted(draw(st.lists(bound, min_size=2, max_size=2, unique=True)))
        # for ranges of 2**31 and more, the plugin gives some numbers outside the bounds
        far = high - low >= 2**31 if kind == "i32" else wide and not -(2**31) <= low < high < 2**31
        oracle = "evaluate" if far else "auto"
        return uniform(shape, kind, low, high, attrs=seeds, oracle=oracle)
    low, span = draw(st.integers(0, 50)) / 4, draw(st.integers(1, 100)) / 8
    return uniform(shape, kind, low, low + span, attrs=seeds)


test_random = sweep(draws(), 180)
