"""Whole models in f16 and bf16, against the f32 values of OpenVINO.

How far off they may be: a layer in 16 bits rounds its result, by at most one part in 2^11 in f16 and in 2^8 in bf16:
the unit roundoff u. A path from an input to a result with R such layers has R roundings, of signs as good as random,
that the norms and residuals behind them neither shrink nor grow much: sqrt(R) u is what they add up to. Twice that is
allowed, of the largest value; a layer that had lost its meaning is off by parts of 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.passes import prepare

from .drive import DATA, Array, Decoder, Expected, decoder_inputs, defined, relative_error, replay

MODELS = ("bert", "llama", "resnet", "whisper_encoder", "lstm_state", "unet")
UNITS = {"f16": 2.0**-11, "bf16": 2.0**-8}
NOISE = 2


def roundings(name: str, kind: str) -> int:
    """The most layers in 16 bits on a path through a model."""
    half = getattr(ov.Type, kind)
    depth: dict[int, int] = {}
    for node in prepare(ov.Core().read_model(DATA / name / "model.xml"), precision=half, cache=half).ops:
        before = max((depth[id(s)] for s in node.inputs if s is not None), default=0)
        for port in node.outputs:
            depth[id(port)] = before + (port.element_type == half and node.op.name != "Constant")
    return max(depth.values())


def compiled(name: str, kind: str, device: str) -> Any:
    return ov.Core().compile_model(DATA / name / "model.xml", device, {"INFERENCE_PRECISION_HINT": kind})


def errors(name: str, kind: str, device: str) -> list[float]:
    """Of each call's outputs."""
    calls = Expected.load(DATA / name / "expected.npz").calls
    found = replay(compiled(name, kind, device), calls)
    return [relative_error(a, b) for call, outputs in zip(calls, found)
            for a, b in zip(outputs, defined(call, call.outputs), strict=True)]


@pytest.mark.parametrize("kind", UNITS)
@pytest.mark.parametrize("name", MODELS)
def test_values(name: str, kind: str) -> None:
    found = max(errors(name, kind, "CPU"))
    assert UNITS[kind] / 4 < found < NOISE * np.sqrt(roundings(name, kind)) * UNITS[kind]


@pytest.mark.parametrize(("name", "kind"), [("bert", "f16"), ("lstm_state", "bf16")])
def test_values_on_the_device(name: str, kind: str, emulated: str) -> None:
    found = max(errors(name, kind, emulated))
    assert UNITS[kind] / 4 < found < NOISE * np.sqrt(roundings(name, kind)) * UNITS[kind]


@pytest.mark.parametrize("kind", UNITS)
def test_greedy(kind: str, name: str = "llama") -> None:
    """Every token is the best one in f32, or one that the error may put before it."""
    (run, *_), steps = Expected.load(DATA / name / "expected.npz").greedy, 24
    decoder = Decoder(compiled(name, kind, "CPU"))
    tokens = decoder.greedy(run.prompt, steps)
    text: Array = np.concatenate([run.prompt, tokens], axis=1)
    request = compiled(name, "f32", "CPU").create_infer_request()
    request.infer(decoder_inputs(text, np.ones_like(text)))
    logits = np.array(request.get_tensor("logits").data)[:, run.prompt.shape[1] - 1 : -1]
    chosen = np.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
    error = NOISE * np.sqrt(roundings(name, kind)) * UNITS[kind] * np.abs(logits).max()
    assert (logits.max(-1) - chosen <= 2 * error).all()
    assert (logits.argmax(-1) == tokens).mean() > 0.8
