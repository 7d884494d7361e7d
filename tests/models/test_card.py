"""Whole models in f32, TF32 and f16, in captured graphs, and decoders with long prompts: on a card all of them
(``--device cuda``), on the emulator, where that takes long, a small one of each kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from tests.harness.models.drive import DATA, Expected, decoder_inputs, relative_error, replay

PRECISIONS = ("f32", "tf32", "f16")
PASSES = 4  # over the calls of a model; graphs are captured in the second
DECODERS, LENGTHS = ("llama", "gpt2", "qwen3", "mistral", "gemma2"), (256, 300, 512, 640)  # tokens of prompts
HALF_TOLERANCE = 3e-2  # of f16 and TF32 against f32, relative to the largest value
# Models that amplify roundings, or flip levels of FakeQuantize by them: the emulator has the same errors to two digits.
AMPLIFYING = {"t5_encoder": 5e-2, "t5_decoder": 5e-2, "resnet_int8": 0.15}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    on_card = metafunc.config.getoption("--device") == "cuda"
    if "name" in metafunc.fixturenames:
        names = sorted(file.parent.name for file in DATA.glob("*/model.xml"))
        metafunc.parametrize("name", names if on_card else ["lstm_state"])
    else:
        metafunc.parametrize(
            ("decoder", "lengths"), [(name, LENGTHS) for name in DECODERS] if on_card else [("llama", (20,))]
        )


def compiled(name: str, device: str, precision: str) -> Any:
    return ov.Core().compile_model(DATA / name / "model.xml", device, {"INFERENCE_PRECISION_HINT": precision})


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_model(name: str, precision: str, emulated: str) -> None:
    expected, model = Expected.load(DATA / name / "expected.npz"), compiled(name, emulated, precision)
    limit = expected.tolerance if precision == "f32" else AMPLIFYING.get(name, HALF_TOLERANCE)
    for _ in range(PASSES):
        for call, outputs in zip(expected.calls, replay(model, expected.calls), strict=True):
            assert [(a.shape, a.dtype) for a in outputs] == [(a.shape, a.dtype) for a in call.outputs]
            assert all(np.isfinite(a).all() for a in outputs if a.dtype.kind == "f")
            assert max(map(relative_error, outputs, call.outputs), default=0.0) <= limit


@pytest.mark.parametrize("precision", PRECISIONS)
def test_prompts(decoder: str, lengths: tuple[int, ...], precision: str, emulated: str) -> None:
    """Prompts of each length, twice, with a token after them, give the logits of NumPy."""
    requests = [compiled(decoder, *target).create_infer_request() for target in ((emulated, precision), ("CPU", "f32"))]
    limit = 1e-4 if precision == "f32" else HALF_TOLERANCE
    for length in lengths * 2:
        tokens = np.random.default_rng(length).integers(0, 90, (1, length + 1))
        mask, outputs = np.ones_like(tokens), list[Any]()
        for request in requests:
            request.reset_state()
            for given in (decoder_inputs(tokens[:, :-1], mask[:, :-1]), decoder_inputs(tokens[:, -1:], mask)):
                outputs.append(np.array(request.infer(given)[0]))
        assert all(np.isfinite(a).all() for a in outputs), f"{length} tokens"
        assert max(map(relative_error, outputs[:2], outputs[2:])) <= limit, f"{length} tokens"
