"""MVN times a scale and plus a shift is one layer: which ones, and its values on both backends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu import devices
from ovgpu.backends.cuda import CudaBackend, rt
from ovgpu.model import Model
from ovgpu.ops.normalization import ScaledMVN
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


def build(kind: str, axes: list[int] | None = None, scale: Any = SCALE, shift: Any = SHIFT,
          add: str = "Add", swapped: bool = False, shape: tuple[int, ...] = SHAPE,
          attrs: dict[str, Any] | None = None) -> Net:
    net = Net("norm")
    y = mvn(net, net.parameter(kind, shape, "x"), axes or [-1], **(attrs or {}))
    y = y if scale is None else term(net, y, scale, swapped=swapped)
    net.result(y if shift is None else term(net, y, shift, add, swapped=swapped))
    return net


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


def test_the_last_layer_stands_for_all() -> None:
    assert norms(build("f32")) == ["Add"] and norms(build("f32", shift=None)) == ["Multiply"]


@pytest.mark.parametrize(("options", "why"), [
    ({"axes": [1]}, "other axes than the last ones"),
    ({"axes": [-2, -1], "scale": random(3, 1, 1), "shift": None}, "a scale per row"),
    ({"attrs": {"normalize_variance": False}}, "the mean alone"),
    ({"shape": (2, 3, 4, 1), "scale": random(8), "shift": None}, "a scale that grows the result"),
    ({"add": "Subtract", "swapped": True, "scale": None}, "a constant less the norm"),
    ({"shape": (2, 3, 4, -1)}, "an extent that only running tells"),
], ids=lambda x: x if isinstance(x, str) else "")
def test_others_stay(options: dict[str, Any], why: str) -> None:
    assert norms(build("f32", **options)) == []


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


# ---- norms that models spell out

class Spelled(Net):
    """A net of f32 layers, and the pieces that norms are made of."""

    def op(self, type: str, *inputs: Port) -> Port:
        attrs = {"keep_dims": True} if type.startswith("Reduce") else {}
        port: Port = self.layer(type, "opset1", inputs, attrs)
        return port

    def number(self, value: float) -> Port:
        return self.const(np.float32(value))

    def mean(self, x: Port, *axes: int) -> Port:
        return self.op("ReduceMean", x, self.const(np.array(axes or (-1,), np.int64)))

    def plus_eps(self, x: Port, eps: float = 1e-2) -> Port:
        return self.op("Add", x, self.number(eps))


def centred(net: Spelled, x: Port) -> Port:
    return net.op("Subtract", x, net.mean(x))


def _torch(net: Spelled, x: Port) -> Port:
    d = centred(net, x)
    return net.op("Divide", d, net.op("Sqrt", net.plus_eps(net.mean(net.op("Power", d, net.number(2))))))


def _tensorflow(net: Spelled, x: Port) -> Port:
    mean = net.mean(x)
    variance = net.mean(net.op("SquaredDifference", x, mean))
    root = net.op("Power", net.op("Add", net.number(1e-2), variance), net.number(-0.5))
    return net.op("Multiply", root, net.op("Subtract", x, mean))


def _reciprocal(net: Spelled, x: Port) -> Port:
    d = centred(net, x)
    root = net.op("Sqrt", net.plus_eps(net.mean(net.op("Multiply", d, d))))
    return net.op("Multiply", d, net.op("Divide", net.number(1), root))


def _rms(net: Spelled, x: Port) -> Port:
    root = net.op("Sqrt", net.plus_eps(net.mean(net.op("Power", x, net.number(2)))))
    return net.op("Multiply", x, net.op("Divide", net.number(1), root))


def _rms_of_two_axes(net: Spelled, x: Port) -> Port:
    square = net.mean(net.op("Multiply", x, x), 2, -1)
    return net.op("Divide", x, net.op("Power", net.plus_eps(square), net.number(0.5)))


SPELLINGS = {"torch": (_torch, "MVN"), "tensorflow": (_tensorflow, "MVN"), "reciprocal": (_reciprocal, "MVN"),
             "rms": (_rms, "RMS"), "rms-of-two-axes": (_rms_of_two_axes, "RMS")}


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("device", ["CPU", "EMULATED"])
@pytest.mark.parametrize("scaled", [False, True])
def test_spelled_out(name: str, device: str, scaled: bool, emulated: str) -> None:
    spell, op = SPELLINGS[name]
    net = Spelled("norm")
    y = spell(net, net.parameter("f32", (-1, 3, 4, 8), "x"))
    net.result(term(net, term(net, y, random(8)), random(8, seed=2), "Add") if scaled else y)
    found = [n.op.name for n in prepared(net).ops if n.op.name not in ("Parameter", "Result", "Constant")]
    assert found == [op]
    core, openvino = ov.Core(), judge.openvino().Core()
    compiled = core.compile_model(core.read_model(*net.build()), device)
    reference = openvino.compile_model(openvino.read_model(*net.build()), "CPU", judge.CONFIG)
    for rows in (2, 600, 0):
        x = random(rows, 3, 4, 8, seed=4)
        np.testing.assert_allclose(compiled([x])[0], reference([x])[0], 1e-5, 1e-5)


def _other_mean(net: Spelled, x: Port) -> Port:
    d = net.op("Subtract", x, net.mean(x, 1))
    return net.op("Divide", d, net.op("Sqrt", net.plus_eps(net.mean(net.op("Power", d, net.number(2))))))


def _other_value(net: Spelled, x: Port) -> Port:
    square = net.op("Power", net.op("Exp", x), net.number(2))
    return net.op("Divide", x, net.op("Sqrt", net.plus_eps(net.mean(square))))


def _cube(net: Spelled, x: Port) -> Port:
    return net.op("Divide", x, net.op("Sqrt", net.plus_eps(net.mean(net.op("Power", x, net.number(3))))))


def _upside_down(net: Spelled, x: Port) -> Port:
    return net.op("Divide", net.op("Sqrt", net.plus_eps(net.mean(net.op("Power", x, net.number(2))))), x)


def _channels(net: Spelled, x: Port) -> Port:
    return net.op("Divide", x, net.op("Sqrt", net.plus_eps(net.mean(net.op("Power", x, net.number(2)), 1))))


def _no_root(net: Spelled, x: Port) -> Port:
    return net.op("Divide", x, net.plus_eps(net.mean(net.op("Power", x, net.number(2)))))


@pytest.mark.parametrize("spell", [_other_value, _cube, _upside_down, _channels, _no_root], ids=lambda f: f.__name__)
def test_what_is_no_norm_stays(spell: Any) -> None:
    net = Spelled("norm")
    net.result(spell(net, net.parameter("f32", SHAPE, "x")))
    assert norms(net) == []


def test_less_another_mean_it_is_an_rms_norm_of_that() -> None:
    net = Spelled("norm")
    net.result(_other_mean(net, net.parameter("f32", SHAPE, "x")))
    assert [n.op.name for n in prepared(net).ops if isinstance(n.op, ScaledMVN)] == ["RMS"]
