"""RandomUniform and Multinomial."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, judge
from tests.harness.cases import api, compile
from tests.harness.ir import Net, Variant, feed, take
from tests.harness.recall import recall
from tests.harness.replay import EMULATED, Watch
from tests.harness.sweep import sweep
from tests.harness.tolerance import compare_all

SEEDS = {"global_seed": 2**33 + 5, "op_seed": 2**34 + 77}
BOUNDS = {"f32": (-3.3, 10.7), "f16": (0.5, 2.25), "bf16": (1, 3.5), "f64": (-3.3, 10.7), "i32": (-7, 1000),
          "i64": (-7, 1000)}
OWN = ("f16", "f64")  # words and roundings of their own by the specification; the plugin computes in f32


def uniform(shape: Any, kind: str = "f32", low: Any = None, high: Any = None, **more: Any) -> Case:
    low, high = (x if isinstance(x, In) else const(bound if x is None else x, kind)
                 for x, bound in zip((low, high), BOUNDS[kind]))
    attrs = {"output_type": kind} | SEEDS | more.pop("attrs", {})
    if kind in OWN:
        more.setdefault("oracle", "evaluate")
    return Case("RandomUniform", "opset8", [shape if isinstance(shape, In) else const(shape), low, high], attrs,
                [kind], **more)


def multinomial(probs: In, samples: Any, replacement: bool = True, logs: bool = False, kind: str = "i32",
                **more: Any) -> Case:
    attrs = {"convert_type": kind, "with_replacement": replacement, "log_probs": logs} | SEEDS | more.pop("attrs", {})
    return Case("Multinomial", "opset13", [probs, samples if isinstance(samples, In) else const(samples)], attrs,
                [kind], **more)


TWISTED = {"attrs": {"alignment": "pytorch"}}  # the same in every inference
WIDE = (-(2**35), 2**40)
UNIFORM = [
    *(uniform([7, 3, 51], kind, **TWISTED, id=f"twister_{kind}") for kind in ("f32", "f16", "f64", "i32", "i64")),
    # OpenVINO rounds bf16 another way
    uniform([7, 3, 51], "bf16", **TWISTED, id="twister_bf16", tol=1.6e-2),
    uniform([991], "i64", *WIDE, **TWISTED, id="twister_wide", oracle="evaluate"),
    uniform([], **TWISTED, id="scalar", oracle="evaluate"),  # the plugin draws none
    uniform([3, 0, 5], **TWISTED, id="empty"),
    uniform([1301], **TWISTED, id="many"),
    uniform([5], "i32", const([2], "i32"), const([9], "i32"), **TWISTED, id="bounds_of_rank_1"),
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
    *(multinomial(LOGS if logs else PROBS, 9, replacement, logs, kind,
                  id=f"{kind}{'_replaced' * replacement}{'_logs' * logs}", rankless=not logs)
      for kind in ("i32", "i64") for replacement in (True, False) for logs in (True, False)),
    *(multinomial(In((3, 7), kind, low=0.01, high=1), 6, id=f"of_{kind}") for kind in ("f16", "f64")),
    multinomial(In((3, 7), "f16", low=0.01, high=1), 6, False, id="of_f16_once"),
    multinomial(given([[0, 0.2, 0, 0.3], [1, 0, 0, 0]], "f32"), 11, id="zeros"),
    multinomial(given([[0, 0.2, 0, 0.3]], "f32"), 2, False, id="zeros_once"),
    multinomial(PROBS, 13, False, id="all"),
    multinomial(PROBS, [1], id="one"),
    multinomial(PROBS, given(np.int32(4)), id="count_given"),
    multinomial(PROBS, 9, attrs={"global_seed": 0}, id="one_seed"),
    # the plugin sums in bf16, where every sum is rounded
    multinomial(given([[0, 0, 1, 0], [1, 0, 0, 0]], "bf16"), 3, id="of_bf16",
                expect=np.array([[2] * 3, [0] * 3], np.int32)),
    multinomial(In((0, 7)), 3, id="no_rows", expect=np.zeros((0, 3), np.int32)),
    multinomial(PROBS, 14, False, error="14 samples of 13 classes need replacement"),
    multinomial(PROBS, given(np.int32(14)), False, error="14 samples of 13 classes need replacement"),
    multinomial(PROBS, -1, error="the number of samples is -1"),
    multinomial(PROBS, [1, 2], error=r"the number of samples has shape \[2\]"),
    multinomial(In((13,)), 2, error="the probabilities have rank 1, not 2"),
    multinomial(In((5, 13), "i32"), 2, error="the probabilities are i32"),
    multinomial(PROBS, 2, kind="f32", error="convert_type is f32"),
]
test_cases = check([*UNIFORM, *MULTINOMIAL])


def by_plugin(net: Net, inputs: list[judge.Value]) -> list[list[judge.Expected]]:
    """What one request of the plugin gives for these inputs, one after the other."""
    xml, weights = net.build()

    def infer() -> Any:
        plugin = judge.Plugin(xml, weights)
        return [plugin.expect(judge.infer(judge.openvino(), plugin.request, [x])) for x in inputs]

    return recall([xml, weights, *(x for x, _ in inputs)], infer)


@pytest.mark.parametrize("kind", ["f32", "bf16", "i32", "i64"])
@pytest.mark.parametrize("variant", ["static", "dynamic", "rankless"])
def test_a_sequence_goes_on(kind: str, variant: Variant, device: str) -> None:
    """As in the plugin: from inference to inference, over other shapes, and from request to request."""
    case = uniform(given([2, 3]), kind, id=f"sequence_{kind}")
    inputs = [(np.array([length, 3], np.int64), "i64") for length in (7, 7, 2, 7, 5)]

    request = compile(case.net, variant, device)
    for number, (x, outputs) in enumerate(zip(inputs, by_plugin(case.net, inputs))):
        if number == 3:
            request = request.get_compiled_model().create_infer_request()
        compare_all(f"inference {number}", judge.infer(api(), request, [x]), outputs, None)


def test_loops_go_on(device: str) -> None:
    """Every iteration draws other numbers, also where their count changes."""
    body, net = Net(), Net()
    part = body.parameter("f32", (1, 5))
    drawn = body.layer("RandomUniform", "opset8", [body.const(np.array([1, 5])), body.const(np.float32(0)),
                                                   body.const(np.float32(1))], {"output_type": "f32"} | SEEDS, ["f32"])
    out = body.result(body.layer("Add", "opset1", [part, drawn]))
    x = net.parameter("f32", (-1, 5))
    net.result(net.tensor_iterator(body, [feed(x, part, axis=0)], [take(out, axis=0)]))
    inputs = [(np.zeros((trips, 5), np.float32), "f32") for trips in (4, 4, 4, 3, 4, 7)]

    request = compile(net, "static", device)
    for number, (x, wanted) in enumerate(zip(inputs, by_plugin(net, inputs))):
        compare_all(f"inference {number}", judge.infer(api(), request, [x]), wanted, None)


@pytest.mark.parametrize("kind", [*BOUNDS, "wide"])
def test_graphs_go_on(kind: str, emulated: str) -> None:
    """A captured graph draws other numbers at every launch, the same as the CPU."""
    kind, bounds = ("i64", WIDE) if kind == "wide" else (kind, BOUNDS[kind])
    case = uniform([7, 151], kind, *bounds)
    requests = [compile(case.net, "static", name) for name in ("CPU", EMULATED)]
    watch, seen = Watch(), []
    for number in range(5):
        wanted, found = (judge.infer(api(), request, []) if number < 2 or request is requests[0]
                         else watch.infer(request, lambda: judge.infer(api(), requests[1], [])) for request in requests)
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
    if draw(st.booleans()):
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
        oracle = "evaluate" if wide and not -(2**31) <= low < high < 2**31 else "auto"
        return uniform(shape, kind, low, high, attrs=seeds, oracle=oracle)
    low, span = draw(st.integers(0, 50)) / 4, draw(st.integers(1, 100)) / 8
    return uniform(shape, kind, low, low + span, attrs=seeds)


test_random = sweep(draws(), 120)
