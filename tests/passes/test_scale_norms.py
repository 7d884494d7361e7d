"""MVN, a scale and a shift become one layer: conditions, and values on both backends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import CudaBackend, rt
from ovgpu.compile import devices
from ovgpu.model import Model
from ovgpu.ops.normalization.normalization import ScaledMVN
from ovgpu.passes import prepare
from tests.emulator import blas_emu, blaslt_emu, cupy_emu
from tests.harness import judge
from tests.harness.ir import Net, Port, feed, take

DATA = Path(__file__).parents[1] / "models" / "data"
SHAPE = (2, 3, 4, 8)


@pytest.fixture(scope="module")
def emulated() -> Iterator[str]:
    rt.bind(cupy_emu, blas_emu, False, blaslt_emu)
    devices.register_backend("EMULATED", CudaBackend)
    yield "EMULATED"
    devices.unregister_backend("EMULATED")
    rt.bind(None, None)


def mvn(net: Net, x: Port, axes: list[int], **attrs: Any) -> Port:
    given = {"eps": 1e-5, "normalize_variance": True, "eps_mode": "inside_sqrt", **attrs}
    port: Port = net.layer("MVN", "opset6", [x, net.const(np.array(axes, np.int64))], given, name="mvn")
    return port


def term(net: Net, x: Port, value: Any, op: str = "Multiply", swapped: bool = False) -> Port:
    inputs = [x, net.const(np.asarray(value, "f4"), x.type)]
    port: Port = net.layer(op, "opset1", inputs[::-1] if swapped else inputs, {"auto_broadcast": "numpy"}, name=op)
    return port


def prepared(net: Net) -> Model:
    return prepare(ov.Core().read_model(*net.build()))


def norms(net: Net) -> list[str]:
    return [n.friendly_name for n in prepared(net).ops if isinstance(n.op, ScaledMVN)]


def random(*shape: int, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(-2, 2, shape).astype("f4")


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "both": ("f32", {}),
    "swapped": ("f32", {"swapped": True}),
    "scale only": ("f32", {"shift": None}),
    "shift only": ("f32", {"scale": None}),
    "two axes": ("f32", {"axes": [-2, -1], "scale": random(4, 8), "shift": random(1, 4, 8)}),
    "a number": ("f32", {"scale": np.float32(1.5), "shift": random(1)}),
    "one of two axes": ("f32", {"axes": [2, 3], "scale": random(4, 1), "shift": random(8)}),
    "subtract": ("f32", {"add": "Subtract"}),
    "outside": ("f32", {"attrs": {"eps_mode": "outside_sqrt", "eps": 0.3}}),
    "f16": ("f16", {}),
    "bf16": ("bf16", {}),
    "dynamic": ("f32", {"shape": (-1, -1, 4, 8)}),
}


SCALE, SHIFT = random(8), random(1, 1, 8)


def build(
    kind: str,
    axes: list[int] | None = None,
    scale: Any = SCALE,
    shift: Any = SHIFT,
    add: str = "Add",
    swapped: bool = False,
    shape: tuple[int, ...] = SHAPE,
    attrs: dict[str, Any] | None = None,
) -> Net:
    net = Net("norm")
    y = mvn(net, net.parameter(kind, shape, "x"), axes or [-1], **(attrs or {}))
    y = y if scale is None else term(net, y, scale, swapped=swapped)
    net.result(y if shift is None else term(net, y, shift, add, swapped=swapped))
    return net


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("device", ["CPU", "EMULATED"])
def test_values(name: str, device: str, emulated: str) -> None:
    kind, options = VARIANTS[name]
    net = build(kind, **options)
    assert len(norms(net)) == 1
    core, openvino = ov.Core(), judge.openvino().Core()
    compiled = core.compile_model(core.read_model(*net.build()), device)
    reference = openvino.compile_model(openvino.read_model(*net.build()), "CPU", judge.CONFIG)
    for rows in (SHAPE, (4096, 1, 4, 8)) if name == "dynamic" else (SHAPE,):  # few rows, and blocks of them
        x = random(*rows, seed=3).astype(getattr(ov.Type, kind).storage)
        found = compiled([x])[0].view(x.dtype).astype("f4")  # bits of bf16 come as f16
        if kind == "f32":
            tolerance, expected = 1e-5, reference([x])[0]
        else:
            tolerance = 2e-3 if kind == "f16" else 2e-2
            plain = openvino.compile_model(openvino.read_model(*build("f32").build()), "CPU", judge.CONFIG)
            expected = plain([x.astype("f4")])[0]
        np.testing.assert_allclose(found, expected, tolerance, tolerance)


def test_the_last_layer_gives_the_name() -> None:
    assert norms(build("f32")) == ["Add"] and norms(build("f32", shift=None)) == ["Multiply"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"axes": [1]}, "other axes than the last ones"),
        ({"axes": [-2, -1], "scale": random(3, 1, 1), "shift": None}, "a scale per row"),
        ({"attrs": {"normalize_variance": False}}, "the mean alone"),
        ({"shape": (2, 3, 4, 1), "scale": random(8), "shift": None}, "a scale that grows the result"),
        ({"add": "Subtract", "swapped": True, "scale": None}, "a constant less the norm"),
        ({"shape": (2, 3, 4, -1)}, "an extent that only running tells"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_others_stay(options: dict[str, Any], why: str) -> None:
    assert norms(build("f32", **options)) == []


def test_layers_without_broadcasting_stay() -> None:
    """The layer stays, as only it checks that shapes are equal."""
    net = Net("norm")
    y = mvn(net, net.parameter("f32", (-1, 3, 4, 8), "x"), [-1])
    scale = net.const(random(1, 1, 1, 8))
    net.result(net.layer("Multiply", "opset1", [y, scale], {"auto_broadcast": "none"}, name="product"))
    with pytest.raises(ov.OpError, match=r"\[Multiply\] dimensions 3 and 1 must be equal"):
        prepared(net)


def test_a_norm_with_other_users_stays() -> None:
    net = Net("norm")
    y = mvn(net, net.parameter("f32", SHAPE, "x"), [-1])
    net.result(term(net, y, random(8)))
    net.result(y)
    assert norms(net) == []


def test_bodies() -> None:
    body = Net("body")
    xi = body.parameter("f32", (1, 8), "xi")
    r = body.result(term(body, mvn(body, xi, [-1]), random(8)))
    net = Net("loop")
    net.result(net.tensor_iterator(body, [feed(net.parameter("f32", (4, 8), "x"), xi, axis=0)], [take(r, axis=0)], []))
    inner: Any = next(n for n in prepared(net).ops if n.op.name == "TensorIterator").op
    assert [n.op.version for n in inner.body.ops if n.op.name == "MVN"] == ["ovgpu"]


@pytest.mark.parametrize(("name", "count"), [("bert", 5), ("gpt2", 5), ("llama", 5)])
def test_stored_models(name: str, count: int) -> None:
    model = prepare(ov.Core().read_model(DATA / name / "model.xml"))
    assert [n.op.version for n in model.ops if n.op.name in ("MVN", "RMS")] == ["ovgpu"] * count
