"""FakeQuantize and FakeConvert: shapes and order of ranges, ties and saturation, and random cases."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, Net, check, const, given, judge
from tests.harness.cases import compile
from tests.harness.ir import Port
from tests.harness.sweep import sweep

Shape = tuple[int, ...]


def ranges(*shapes: Shape, kind: str = "f32", const: bool = True, order: int = 1) -> list[In]:
    """Return lower and upper bounds of the input range and of the output range."""
    bounds = [(-2.0, -0.5), (0.5, 2.0)][::order]
    shapes = shapes * (4 // len(shapes))
    return [In(shape, kind, const=const, low=low, high=high) for shape, (low, high) in zip(shapes, bounds * 2)]


def quantize(x: Any, limits: list[In], levels: int = 256, id: str | None = None, **options: Any) -> Case:
    attrs = {"levels": levels, **options.pop("attrs", {})}
    x = In(x) if isinstance(x, tuple) else x
    exact: dict[str, Any] = {"oracle": "evaluate", "tol": 1e-9}
    return Case("FakeQuantize", "opset1", [x, *limits], attrs, id=id, **exact | options)


def numbers(*values: float, kind: str = "f32") -> list[In]:
    return [const(np.float32(v), kind) for v in values]


TIES = given(np.arange(-12, 13) / 8, "f32")
ODD = given([-3, -1, -0.5, 0, 0.25, 0.5, 1, 3, np.inf, -np.inf, np.nan], "f32")

QUANTIZE = [
    quantize((7, 33), ranges(()), rankless=True),
    quantize((7, 33), ranges(()), 255, "255_levels"),
    quantize((7, 33), ranges((1, 1)), 2, "two_levels"),
    quantize((3, 5, 7, 9), ranges((1, 5, 1, 1)), id="channels"),
    quantize((3, 5, 7, 9), ranges((1, 5, 1, 1), (1, 5, 1, 1), (), ()), 16, "input_channels"),
    quantize((3, 5, 7, 9), ranges((), (), (5, 1, 1), (5, 1, 1)), 16, "output_channels"),
    quantize((3, 5, 7, 9), ranges((9,), const=False), 37, "last_axis", rankless=True),
    quantize((3, 5, 7, 9), ranges((3, 1, 7, 1)), 37, "two_axes"),
    quantize((2, 3, 5), ranges((2, 3, 5)), 5, "every_element"),
    quantize((5,), ranges((1, 1, 1)), 5, "more_axes"),
    quantize((), ranges(()), 5, "scalar"),
    quantize((300, 201), ranges((201,)), id="large"),
    quantize((0, 3), ranges((3,)), id="empty", expect=lambda x, *_: x),
    quantize((2, 3, 5), ranges((2, 3, 5)), 9, "none", attrs={"auto_broadcast": "none"}),
    quantize((2, 3, 5), ranges((2, 3, 1)), 9, "pdpd", attrs={"auto_broadcast": "pdpd"}),
    quantize(
        (2, 3, 5),
        ranges((2, 3)),
        9,
        "pdpd_fewer_axes",
        attrs={"auto_broadcast": "pdpd"},
        tol=None,
        expect=lambda x, *limits: formula(x, *(r[..., None] for r in limits), 9),
    ),  # OpenVINO fails
    quantize(TIES, numbers(-1, 1, -1, 1), 5, "ties_to_even"),
    quantize(ODD, numbers(-1, 1, -3, 2), 5, "out_of_range"),
    quantize(ODD, numbers(1, -1, -3, 2), 5, "input_range_descends"),
    quantize(ODD, numbers(-1, 1, 2, -3), 5, "output_range_descends"),
    quantize(ODD, numbers(0, 0, 0, 1), 2, "binarization"),
    quantize(In((7, 33), "f16"), ranges((33,), kind="f16"), 16, "f16", oracle="cpu", tol=None),
    # OpenVINO's plugin rounds intermediate values to bf16 where the processor has instructions for it.
    quantize(
        In((7, 33), "bf16"),
        ranges((7, 1), kind="bf16"),
        16,
        "bf16",
        tol=None,
        expect=lambda *arrays: formula(*arrays, 16),
    ),
    quantize(
        In((7, 33), "f64"), ranges((33,), kind="f64"), 16, "f64", tol=1e-12, expect=lambda *arrays: formula(*arrays, 16)
    ),
    quantize((7, 3), ranges((2, 3)), error="dimension 2 cannot be broadcast to 7"),
    quantize((0,), ranges((2, 1)), id="longer", error="dimension 2 cannot be broadcast to 1"),
    quantize((2, 3), ranges((3,)), id="not_equal", attrs={"auto_broadcast": "none"}, error="ranks 2 and 1 differ"),
    quantize((2, 3), ranges(()), 1, "one_level", error="levels must be at least 2, not 1"),
    quantize(In((2, 3), "i32"), numbers(0, 1, 0, 1, kind="i32"), id="integers", error="i32 is not a floating-point"),
    quantize((2, 3), ranges((), kind="i32"), id="mixed", error="element types differ: f32, i32"),
]


def formula(x: Any, in_low: Any, in_high: Any, out_low: Any, out_high: Any, levels: int) -> Any:
    """Return FakeQuantize by the specification's formula, in f64."""
    kind = x.dtype
    x, in_low, in_high, out_low, out_high = (a.astype(np.float64) for a in (x, in_low, in_high, out_low, out_high))
    value = np.rint((x - in_low) / (in_high - in_low) * (levels - 1)) / (levels - 1) * (out_high - out_low) + out_low
    value = np.where(x > np.maximum(in_low, in_high), out_high, value)
    return np.where(x <= np.minimum(in_low, in_high), out_low, value).astype(kind)


def halves() -> np.ndarray[Any, Any]:
    """Return every finite f16, and numbers out of its range, as f32."""
    with np.errstate(all="ignore"):
        found = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    return np.append(found[np.isfinite(found)], np.array([7e4, -1e30, np.inf, -np.inf, 1e-30], np.float32))


def rounds(x: Any, shape: Shape = (), kind: str = "f8e4m3", shift: bool = False, **options: Any) -> Case:
    """Return a FakeConvert scaled by any numbers in f32, or by powers of two in other types, for which the plugin's
    products are exact, too."""
    x = In(x) if isinstance(x, tuple) else x
    scale = In(shape, x.dtype, const=True, low=0.5, high=3)
    if x.dtype != "f32":
        scale = In(shape, x.dtype, lambda rng: np.exp2(rng.integers(-2, 3, shape)), const=True)
    terms = [scale] + [In(shape, x.dtype, const=True)] * shift
    return Case("FakeConvert", "opset13", [x, *terms], {"destination_type": kind}, **{"oracle": "cpu"} | options)


ONE = const(np.float32(1), "f32")
ROUND = [
    *(
        Case(
            "FakeConvert",
            "opset13",
            [given(halves(), "f32"), ONE],
            {"destination_type": kind},
            oracle="cpu",
            tol=1e-12,
            id=f"every_half_{kind}",
        )
        for kind in ("f8e4m3", "f8e5m2")
    ),
    *(
        case
        for kind in ("f8e4m3", "f8e5m2")
        for case in (
            rounds((7, 33), kind=kind, rankless=True),
            rounds((7, 33), (33,), kind, shift=True),
            rounds((3, 5, 7), (5, 1), kind, shift=True, rankless=True),
            rounds((), (), kind, shift=True),
            rounds((0, 3), (3,), kind),
            rounds(In((7, 33), "f16"), (33,), kind, shift=True),
            rounds(In((7, 33), "bf16"), (7, 1), kind),
        )
    ),
    Case(
        "FakeConvert",
        "opset13",
        [given([np.nan, 1], "f32"), ONE],
        {"destination_type": "f8e4m3"},
        id="nan",
        expect=[np.array([np.nan, 1], np.float32)],
    ),
    rounds((7, 3), (2, 3), error="dimension 2 cannot be broadcast to 7"),
    rounds(In((7, 3), "f64"), error="f64 is not f32, f16 or bf16"),
    rounds((7, 3), kind="f8e8m0", error="destination_type"),
    Case(
        "FakeConvert",
        "opset13",
        [In((7, 3)), In((3,)), In((1, 3))],
        {"destination_type": "f8e4m3"},
        error="ranks 1 and 2 differ",
    ),
]
test_cases = check([*QUANTIZE, *ROUND])


@st.composite
def quantizations(draw: st.DrawFn) -> Case:
    """Draw a FakeQuantize whose ranges broadcast in any way, and may descend."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))

    def broadcast() -> Shape:
        rank = draw(st.integers(0, len(shape)))
        return tuple(draw(st.sampled_from([1, d])) for d in shape[len(shape) - rank :])

    inner, outer = broadcast(), broadcast()
    limits = ranges(inner, inner, outer, outer, const=draw(st.booleans()), order=draw(st.sampled_from([1, -1])))
    levels = draw(st.sampled_from([2, 3, 16, 255, 256, 65536]))
    return quantize(shape, limits, levels)


@st.composite
def conversions(draw: st.DrawFn) -> Case:
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    terms = tuple(draw(st.sampled_from([1, d])) for d in shape[draw(st.integers(0, len(shape))) :])
    kind = draw(st.sampled_from(["f32", "f16", "bf16"]))
    reach = draw(st.sampled_from([0.01, 3, 500, 6e4]))
    return rounds(
        In(shape, kind, low=-reach, high=reach),
        terms,
        draw(st.sampled_from(["f8e4m3", "f8e5m2"])),
        shift=kind == "f32" and draw(st.booleans()),
    )


# ---- a network with 8-bit activations and weights


def quantized() -> Net:
    """Return a network as nncf writes it: two convolutions, the mean over all pixels, and a classifier."""
    rng, net = np.random.default_rng(11), Net()

    def fake(x: Port, low: float, high: float) -> Port:
        limits = [net.const(np.full((1, 1, 1, 1), v, "f4")) for v in (low, high)]
        found: Port = net.layer("FakeQuantize", "opset1", [x, *limits, *limits], {"levels": 256})
        return found

    def weights(*shape: int) -> Port:
        codes = net.layer(
            "Convert", "opset1", [net.const(rng.integers(-127, 128, shape), "i8")], {"destination_type": "f32"}, ["f32"]
        )
        scale = net.const(rng.uniform(0.001, 0.003, (shape[0], *(1,) * (len(shape) - 1))), "f32")
        found: Port = net.layer("Multiply", "opset1", [codes, scale])
        return found

    x = net.parameter("f32", (2, 3, 11, 13))
    conv = {"strides": "1,1", "pads_begin": "1,1", "pads_end": "1,1", "dilations": "1,1", "auto_pad": "explicit"}
    for channels, outputs, low, high in ((3, 16, -2.0, 1.984375), (16, 20, 0.0, 1.5)):
        x = net.layer("Convolution", "opset1", [fake(x, low, high), weights(outputs, channels, 3, 3)], conv)
        x = net.layer("Relu", "opset1", [x])
    x = net.layer("ReduceMean", "opset1", [x, net.const(np.array([2, 3]))], {"keep_dims": False})
    net.result(net.layer("MatMul", "opset1", [x, weights(120, 20)], {"transpose_b": True}))
    return net


def test_a_quantized_network(device: str) -> None:
    """The result is as close to OpenVINO's CPU plugin as the plugin's results are for inputs that differ in the last
    bit: another order of summation may move a value to another level."""
    net, core = quantized(), judge.core()
    request = compile(net, "static", device)
    reference = core.compile_model(core.read_model(*net.build()), "CPU", judge.CONFIG)
    x = np.random.default_rng(12).normal(size=(2, 3, 11, 13)).astype(np.float32)
    wanted = reference([x])[0]
    moved = [np.abs(reference([np.nextafter(x, side)])[0] - wanted).max() for side in (-9, 9)]
    found = request.infer([x])[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=4 * max(moved) + 1e-5 * np.abs(wanted).max())


test_random = sweep(st.one_of(quantizations(), conversions()))
