"""Graphs around eager steps: consecutive launches become graphs, and evaluated steps run between them."""

from __future__ import annotations

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.ops.convert import Convert
from tests.emulator import cupy_emu
from tests.harness.ir import Net
from tests.harness.replay import eager
from tests.harness.store import runnables


@pytest.fixture(autouse=True)
def unbound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the CUDA form of Convert, so that it is evaluated."""
    monkeypatch.setattr(Convert, "cuda", None)


def around() -> Net:
    """Return a model of Relu, a Convert from f8, and Exp."""
    net = Net("around")
    x = net.layer("Relu", "opset1", [net.parameter("f32", (2, 3), "x")], name="relu")
    table = net.raw_const(bytes([0x38, 0x40, 0x48]), "f8e4m3", (3,), "table")  # 1, 2, 4
    factor = net.layer(
        "Convert",
        "opset1",
        [
            net.layer(
                "Gather",
                "opset8",
                [table, net.parameter("i32", (3,), "i"), net.const(0)],
                {"batch_dims": 0},
                outputs=["f8e4m3"],
            )
        ],
        {"destination_type": "f32"},
        name="convert",
    )
    y = net.layer("Add", "opset1", [x, factor], name="add")
    net.result(net.layer("Exp", "opset1", [y], name="exp"))
    return net


def test_evaluated_steps_run_between_graphs(emulated: str) -> None:
    compiled = ov.Core().compile_model(ov.Core().read_model(*around().build()), emulated)
    request = compiled.create_infer_request()
    graphs = []
    for run in range(4):
        x = np.random.default_rng(run).uniform(-1, 1, (2, 3)).astype(np.float32)
        i = np.roll(np.arange(3, dtype=np.int32), run)
        cupy_emu.counters.reset()
        (y,) = request.infer([x, i]).to_tuple()
        graphs.append(cupy_emu.counters.graph_launches)
        assert np.allclose(y, np.exp(np.maximum(x, 0) + np.array([1, 2, 4], np.float32)[i]), rtol=1e-6)
    assert graphs == [0, 2, 2, 2]


def test_an_error_of_an_evaluated_step_names_the_layer(emulated: str) -> None:
    compiled = ov.Core().compile_model(ov.Core().read_model(*around().build()), emulated)
    request = compiled.create_infer_request()
    x, i = np.ones((2, 3), np.float32), np.zeros(3, np.int32)
    for _ in range(2):
        request.infer([x, i])

    def fail(*_: object) -> None:
        raise ValueError("no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Convert, "evaluate", fail)
        with pytest.raises(ov.Error, match=r"(?s)^\[Convert\].*no.*layer 'convert'"):
            request.infer([x, i])
    assert np.allclose(request.infer([x, i]).to_tuple()[0], np.exp(2), rtol=1e-6)


def test_listed_cases_exist() -> None:
    """The list has no case that no longer exists. Each case that runs is compared with the list elsewhere."""
    known: dict[str, set[str]] = {}
    for case in runnables():
        known.setdefault(case.group, set()).add(case.name)
    for group, names in eager().items():
        assert group in known, group
        stray = set() if names == "all" else {name.rsplit(" (", 1)[0] for name in names} - known[group]
        assert not stray, f"{group}: {stray}"
