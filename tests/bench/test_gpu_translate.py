"""Torch's modules of `bench.gpu_peers`, on the CPU: translated from the IR, or written for Llama."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

import ovgpu as ov
from bench import gpu_peers, workloads
from bench.gpu_engines import engine, error, results
from bench.gpu_translate import translated
from bench.workloads import WORKLOADS, workload
from tests.harness.ir import Net

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch comes with the extra `models` alone")
TRANSLATED = [name for name in WORKLOADS if "sequences" not in name and name != "gpt2_decode" and "_b" not in name]


@pytest.mark.parametrize("name", TRANSLATED)
def test_torch_gives_the_same(name: str) -> None:
    """Models that are translated, and Llama, agree with NumPy in f32; states go on and can be reset. Then the same
    module in 16 bits, with channels last, agrees within the workload's tolerance."""
    found = workload(name, tiny=True)
    makers = gpu_peers.peers(found, SimpleNamespace(torch="cpu", modes=["eager"]))
    peer = makers["reference"]()
    plain = replace(found, config={}, ir=found.peer_ir or found.ir)
    wanted, tolerance = engine(plain, "CPU"), found.tolerance if name.startswith("elementwise_f16") else 1e-5
    for _ in range(2):
        assert error(results(peer, found), results(wanted, found)) < tolerance
    if found.half:
        assert error(results(makers["torch eager"](), found), results(wanted, found)) < workloads.F16_TOLERANCE


def check_translation(net: Net, *shapes: tuple[int, ...], runs: int = 1) -> str:
    """Compare the torch module of a net with NumPy; return its code."""
    import torch

    ir, random = net.build(), np.random.default_rng(1)
    module, core = translated(ir), ov.Core()
    request = core.compile_model(core.read_model(*ir), "CPU").create_infer_request()
    for _ in range(runs):
        inputs = [random.standard_normal(shape, np.float32) for shape in shapes]
        found, wanted = module(*map(torch.from_numpy, inputs)), request.infer(inputs).to_tuple()
        assert error([y.numpy() for y in found], wanted) < 1e-5
    return str(module.code)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("shape", "fused"),
    [((1, 4, 1, 1), True), ((4, 1, 1), True), ((5,), False), ((), False), ((1, 1, 1, 1), False), ((1, 1, 5, 5), False)],
)
def test_constants_that_are_added_to_a_convolution(shape: tuple[int, ...], fused: bool, first: bool) -> None:
    """A vector along the channels is the bias, and anything else stays a sum."""
    net = Net()
    x = net.parameter("f32", (1, 3, 5, 5), "x")
    attrs = {"strides": [1, 1], "dilations": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1]}
    draw = np.random.default_rng(2).standard_normal
    y = net.layer("Convolution", "opset1", [x, net.const(draw((4, 3, 3, 3), np.float32))], attrs)
    other = net.const(np.asarray(draw(shape, np.float32), np.float32))
    net.result(net.layer("Add", "opset1", [other, y] if first else [y, other]))
    assert (" + " not in check_translation(net, (1, 3, 5, 5))) is fused


@pytest.mark.parametrize(
    ("weights", "transposes", "bias", "fused"),
    [
        ((6, 4), (False, True), (1, 1, 6), True),
        ((4, 6), (False, False), (6,), True),
        ((1, 4, 6), (False, False), (6,), False),
        ((3, 6), (True, False), (6,), False),
        ((4, 6), (False, False), (1, 3, 1), False),
        ((4, 6), (False, False), (), False),
    ],
)
def test_constants_that_are_added_to_a_product(
    weights: tuple[int, ...], transposes: tuple[bool, bool], bias: tuple[int, ...], fused: bool
) -> None:
    """Linear layers have a bias; other products keep the sum."""
    net, draw = Net(), np.random.default_rng(3).standard_normal
    x = net.parameter("f32", (2, 3, 4), "x")
    y = net.layer(
        "MatMul",
        "opset1",
        [x, net.const(draw(weights, np.float32))],
        dict(zip(("transpose_a", "transpose_b"), transposes)),
    )
    net.result(net.layer("Add", "opset1", [y, net.const(np.asarray(draw(bias, np.float32), np.float32))]))
    assert (" + " not in check_translation(net, (2, 3, 4))) is fused


def test_states_are_read_before_they_change() -> None:
    """Two states change places, and a result is the state before, also through a view."""
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    a, b = (
        net.read_value(name, "f32", (2, 3), net.const(np.full((2, 3), k, np.float32))) for k, name in enumerate("ab")
    )
    net.assign("a", net.layer("Add", "opset1", [b, x]))
    net.assign("b", a)
    net.result(net.layer("Reshape", "opset1", [a, net.const(np.array([3, 2]))], {"special_zero": False}))
    net.result(b)
    check_translation(net, (2, 3), runs=3)


def test_operations_that_torch_has_no_rule_for_are_named() -> None:
    net = workloads.row("CumSum", 3, {}, np.int64(1), columns=3)
    with pytest.raises(NotImplementedError, match="CumSum"):
        translated(net.build())
