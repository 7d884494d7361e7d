"""Pad on the emulated device against its definition: all modes, negative pads, joined axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import CudaBackend
from ovgpu.ops.base.strided import Axes
from ovgpu.ops.movement.pad import Pad, Pad12
from tests.emulator import nvrtc
from tests.harness.ir import Net
from tests.kernels.recorded import draws, run_op

from .gate import ToCompile

MODES: tuple[Any, ...] = ("constant", "edge", "reflect", "symmetric")
CASES = [  # shape, pads before, pads after
    ((5,), (2,), (3,)),
    ((5, 6), (2, 0), (1, 3)),
    ((2, 3, 4, 5), (0, 0, 1, 2), (0, 0, 2, 1)),
    ((2, 3, 8), (1, 0, 0), (0, 0, 0)),
    ((3, 1, 4), (0, 0, 3), (0, 0, -2)),
    ((6, 7), (-2, 1), (0, -3)),
    ((2, 3, 2, 3, 3), (1, 1, 1, 1, 1), (1, 0, 1, 0, 1)),
    ((40, 33), (0, 5), (3, 0)),
]


def pads(*values: tuple[int, ...]) -> list[Any]:
    return [np.array(v) for v in values]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_pads(case: Any, mode: Any, backend: CudaBackend) -> None:
    shape, begin, end = case
    names = run_op(backend, Pad12(pad_mode=mode), [draws(shape, np.float32), *pads(begin, end)])
    assert len(names) == 1


@pytest.mark.parametrize("kind", [np.int8, np.float16, np.float64], ids=lambda k: np.dtype(k).name)
def test_a_value_of_any_type(kind: Any, backend: CudaBackend) -> None:
    run_op(backend, Pad(pad_mode="constant"), [draws((3, 5), kind), *pads((1, 2), (0, 4)), draws((), kind)])


def test_axes_that_are_not_padded_are_joined(backend: CudaBackend) -> None:
    inputs = [draws((2, 3, 2, 3, 2), np.float32), *pads((0, 1, 0, 0, 0), (0, 1, 0, 0, 0))]
    assert run_op(backend, Pad(pad_mode="constant"), inputs) == ["pad<unsigned int, CONSTANT, int, 2>"]
    assert run_op(backend, Pad(pad_mode="edge"), inputs) == ["pad<unsigned int, EDGE, int, 4>"]


@pytest.mark.parametrize("amount", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_empty_pads_are_free(mode: str, amount: int, emulated: str) -> None:
    net = Net()
    x = net.layer("Exp", "opset1", [net.parameter("f32", (2, 5))])
    given = [net.const(np.array(v)) for v in ([0, 0], [0, amount])]
    x = net.layer("Pad", "opset12", [x, *given], {"pad_mode": mode})
    net.result(net.layer("SoftMax", "opset8", [x], {"axis": 1}))
    request = ov.Core().compile_model(ov.Core().read_model(*net.build()), emulated).create_infer_request()
    found = request.infer([np.zeros((2, 5), np.float32)])[0]
    assert found.shape == (2, 5 + amount) and request.plan().kernels == 2 + amount


def test_empty_data(backend: CudaBackend) -> None:
    run_op(backend, Pad(pad_mode="constant"), [draws((0, 3), np.float32), *pads((2, 0), (1, 1))])
    run_op(backend, Pad(pad_mode="constant"), [draws((3,), np.float32), *pads((-5,), (4,))])


def test_other_layouts(backend: CudaBackend) -> None:
    for mode in MODES:
        run_op(backend, Pad(pad_mode=mode), [draws((6, 8), np.int32), *pads((1, 2), (2, 1))], lambda x: x.T[::-2])


def test_64_bit_offsets(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Axes, "index", "long long")
    run_op(backend, Pad(pad_mode="reflect"), [draws((4, 5), np.float32), *pads((1, 2), (2, 1))])


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_compiles_for_devices(architecture: str, to_compile: ToCompile) -> None:
    sizes = ("unsigned char", "unsigned short", "unsigned int", "unsigned long long")
    expressions = [
        f"pad<{t}, {mode.upper()}, {i}, {r}>" for t in sizes for mode in MODES for i, r in (("int", 2), ("int", 4))
    ]
    expressions += [f"pad<unsigned int, {mode.upper()}, long long, 8>" for mode in MODES]
    expressions = to_compile("pad.cu", expressions)
    usage = nvrtc.compile_file("pad.cu", architecture, expressions).usage
    assert len(usage) == len(expressions)
    assert not any(u.spill_stores or u.spill_loads for u in usage.values())
