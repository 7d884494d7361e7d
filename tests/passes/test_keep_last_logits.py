"""Rewrites of decoders: a batch of one text, and logits of the last position alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ovgpu
from ovgpu.debug import LAST_LOGITS
from ovgpu.genai.batch import fix_batch
from ovgpu.passes.keep_last_logits import keep_last_logits
from tests.emulator import state
from tests.harness.ir import Net
from tests.harness.models.drive import DATA, Decoder

PROMPT = np.array([[1, 37, 80, 9, 12, 13, 60, 9, 71, 72, 37, 80]])


@pytest.mark.parametrize("model", ["llama", "gpt2", "llama_int4_sym"])
def test_for_programs_that_read_no_others(model: str, emulated: str) -> None:
    """With OVGPU_LAST_LOGITS, one row goes to the host, and a program that reads the last one gets the same."""
    core = ovgpu.Core()
    read = core.read_model(DATA / model / "model.xml")
    whole = Decoder(core.compile_model(read, emulated))
    with LAST_LOGITS(1):
        compiled = core.compile_model(read, emulated)
    last = Decoder(compiled)
    assert compiled.output("logits").partial_shape[1].is_dynamic
    for step in range(4):
        tokens = PROMPT if step == 0 else PROMPT[:, step : step + 1]
        state.counters.reset()
        last.step(tokens)
        assert state.counters.d2h_bytes == last.logits.nbytes == 4 * last.logits.shape[-1]
        whole.step(tokens)
        np.testing.assert_allclose(last.logits, whole.logits[:, -1:], 1e-4, 1e-4)


def test_other_models_stay() -> None:
    """Without states, or with texts of one length, all rows are computed."""
    stateless = head()
    fixed = ovgpu.Core().read_model(DATA / "llama" / "model.xml")
    fixed.reshape({port.any_name: [1] if port.any_name == "beam_idx" else [1, 3] for port in fixed.inputs})
    for model in stateless, fixed:
        assert not keep_last_logits(model)
    with LAST_LOGITS(1):
        assert ovgpu.Core().compile_model(stateless, "CPU")(np.ones((1, 3, 4), np.float32))[0].shape == (1, 3, 5)


@pytest.mark.parametrize("model", ["llama", "gemma2", "llama_int8"])
def test_the_rewrites_cost_decode_steps_nothing(model: str, emulated: str) -> None:
    """A decode step stays one graph of as many kernels as before."""
    counts = []
    for rewritten in False, True:
        core = ovgpu.Core()
        read = core.read_model(DATA / model / "model.xml")
        if rewritten:
            assert fix_batch(read) and keep_last_logits(read, 0)
        decoder = Decoder(core.compile_model(read, emulated))
        token = decoder.start(PROMPT)
        prompt_rows = decoder.logits.shape[1]
        for _ in range(3):
            token = decoder.step(token)
        state.counters.reset()
        decoder.step(token)
        assert (state.counters.launches, state.counters.allocs) == (0, 0)  # beside the graph
        counts.append((state.counters.graph_launches, state.counters.graph_kernels))
        assert prompt_rows == (1 if rewritten else PROMPT.shape[1])
    assert counts[0] == counts[1] and counts[0][0] == 1


@pytest.mark.parametrize("model", ["gpt2", "gemma2", "llama_int4_sym"])
def test_last_logits(model: str) -> None:
    """The rewritten model computes the last row of the logits, for any number of tokens."""
    compiled = []
    for rewritten in False, True:
        read = ovgpu.Core().read_model(DATA / model / "model.xml")
        assert not rewritten or (fix_batch(read) and keep_last_logits(read, 0))
        compiled.append(Decoder(ovgpu.Core().compile_model(read, "CPU")))
    for part in np.split(PROMPT, [4, 5, 8], axis=1):
        for decoder in compiled:
            decoder.step(part)
        np.testing.assert_allclose(compiled[1].logits, compiled[0].logits[:, -1:], 1e-5, 1e-5)


def head(after: Callable[[Net, Any, Any], Any] = lambda net, logits, hidden: logits, **attrs: Any) -> ovgpu.Model:
    """Build a product [?,?,4] x [4,5] with layers after it."""
    net = Net("head")
    hidden = net.parameter("f32", (-1, -1, 4), "input_ids")
    weights = net.const(np.arange(20, dtype="f4").reshape(4, 5))
    logits = net.layer("MatMul", "opset1", [hidden, weights], attrs)
    net.result(net.layer("Tanh", "opset1", [after(net, logits, hidden)], names=["logits"]))
    return ovgpu.Core().read_model(*net.build())


REWRITTEN = {
    "scale": lambda net, x, _: net.layer("Divide", "opset1", [x, net.const(np.full((1, 1, 5), 3, "f4"))]),
    "number": lambda net, x, _: net.layer("Multiply", "opset1", [net.const(np.array(0.1, "f4")), x]),
    "bias": lambda net, x, _: net.layer("Add", "opset1", [x, net.const(np.ones(5, "f4"))]),
    "clamp": lambda net, x, _: net.layer("Clamp", "opset1", [x], {"min": -1, "max": 1}),
}
KEPT = {
    "other rows": lambda net, x, _: net.layer("Add", "opset1", [x, net.const(np.ones((1, 3, 5), "f4"))]),
    "two products": lambda net, x, _: net.layer("Add", "opset1", [x, x]),
    "softmax": lambda net, x, _: net.layer("Softmax", "opset8", [x], {"axis": 1}),
    "hidden states": lambda net, x, hidden: hidden,
}


@pytest.mark.parametrize("name", [*REWRITTEN, *KEPT])
def test_heads_of_other_forms(name: str) -> None:
    after = (REWRITTEN | KEPT)[name]
    x = np.random.default_rng(0).standard_normal((1, 3, 4), np.float32)
    model = head(after)
    before = ovgpu.Core().compile_model(model, "CPU")(x)[0]
    assert fix_batch(model) and keep_last_logits(model, 0) == (name in REWRITTEN)
    found = ovgpu.Core().compile_model(model, "CPU")(x)[0]
    assert found.shape[:2] == (1, 1 if name in REWRITTEN else 3)
    np.testing.assert_allclose(found[:, -1], before[:, -1], 1e-5)


def test_a_fixed_batch_stays() -> None:
    net = Net()
    net.result(net.parameter("i64", (2, -1), "input_ids"))
    model = ovgpu.Core().read_model(*net.build())
    assert not fix_batch(model) and str(model.inputs[0].partial_shape) == "[2,?]"
