"""Whole models in f16 and bf16, against the f32 values of OpenVINO.

How far off they may be: a layer in 16 bits rounds its result, by at most one part in 2^11 in f16 and in 2^8 in bf16:
the unit roundoff u. A path from an input to a result with R such layers has R roundings, of signs as good as random,
that the norms and residuals behind them neither shrink nor grow much: sqrt(R) u is what they add up to. Twice that is
allowed, of the largest value; a layer that had lost its meaning is off by parts of 1.

Some small models of random weights are AMPLIFYING: they answer a rounding with far more. OpenVINO's own bf16 is as far
off there, which is their bound, and so is arithmetic in f32 once the weights were rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import pytest

import ovgpu as ov
from ovgpu.passes import prepare

from .drive import DATA, OPENVINO_F32, Array, Call, Decoder, Expected, decoder_inputs, defined, relative_error, replay

AMPLIFYING = {
    "t5_encoder": 0.105,  # scores of attention reach 300, so that weights are 0 or 1: a rounding changes who gets the 1
    "t5_decoder": 0.131,
    "mobilenet_v2": 0.076,  # rounding the weights alone does as much
    "resnet_int8": 0.058,  # what lies at the edge of a level of FakeQuantize moves by a level, in f32 too
}
"""What OpenVINO's bf16 is off by in each of them (see `deviation`), and why."""

MODELS = ("bert", "bilstm", "clip", "convnext", "deberta", "efficientnet", "gemma2", "gpt2", "gru", "llama",
          "llama_int4_asym", "llama_int4_sym", "lstm_state", "mixtral", "qwen3", "resnet", "segformer",
          "spelled_encoder", "swin", "unet", "wav2vec2", "whisper_decoder", "whisper_encoder", "yolos")
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


def deviation(model: Any, calls: list[Call]) -> float:
    """The root of the mean square of all differences, in that of all values."""
    pairs = [pair for call, outputs in zip(calls, replay(model, calls))
             for pair in zip(outputs, defined(call, call.outputs), strict=True)]
    difference, whole = (sum(float(np.nansum(np.square(x, dtype=np.float64))) for x in arrays)
                         for arrays in ((a - b for a, b in pairs), (b for _, b in pairs)))
    return float(np.sqrt(difference / whole))


def openvinos_deviation(name: str, calls: list[Call]) -> float:
    """In bf16, measured where its CPU plugin has that."""
    core = openvino.Core()
    if "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        return AMPLIFYING[name]
    config = OPENVINO_F32 | {"INFERENCE_PRECISION_HINT": "bf16"}
    return deviation(core.compile_model(DATA / name / "model.xml", "CPU", config), calls)


@pytest.mark.parametrize("name", AMPLIFYING)
def test_amplifying(name: str) -> None:
    """In bf16 no more than twice as far off as OpenVINO in bf16; in f16 less than half as far, but for whole levels."""
    calls = Expected.load(DATA / name / "expected.npz").calls
    bound = openvinos_deviation(name, calls)
    assert UNITS["bf16"] < deviation(compiled(name, "bf16", "CPU"), calls) < 2 * bound
    factor = 2 if name == "resnet_int8" else 0.5
    assert UNITS["f16"] < deviation(compiled(name, "f16", "CPU"), calls) < factor * bound


@pytest.mark.parametrize("kind", UNITS)
def test_detector(kind: str, name: str = "detector") -> None:
    """Boxes and scores are right to one unit. Candidates whose scores are nearer to each other may change places, and
    one of them may be the fifth of five instead of the other: OpenVINO in bf16 has the same one there, 5e-5 behind."""
    calls = Expected.load(DATA / name / "expected.npz").calls
    for call, (boxes, indices, scores, count) in zip(calls, replay(compiled(name, kind, "CPU"), calls)):
        wanted_boxes, wanted, wanted_scores, wanted_count = call.outputs
        assert count == wanted_count
        assert relative_error(scores[:, 2], wanted_scores[:, 2]) < UNITS[kind]  # from the best one down
        place = {tuple(row): i for i, row in enumerate(wanted)}
        pairs = [(i, place[tuple(row)]) for i, row in enumerate(indices) if tuple(row) in place]
        assert len(pairs) >= len(wanted) - 1
        found, same = (list(column) for column in zip(*pairs))
        assert relative_error(boxes[found], wanted_boxes[same]) < UNITS[kind]


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
