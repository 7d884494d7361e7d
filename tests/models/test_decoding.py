"""Long texts of decoders, token by token: the caches grow past what was set aside for them, several times."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from tests.harness import judge

from .drive import DATA, OPENVINO_F32, Array, Decoder

MODELS = ("gpt2", "llama", "mistral", "gemma2")


def prompt(length: int) -> Array:
    return np.random.default_rng(length).integers(3, 200, (2, length))


def decoder(name: str, device: str) -> Decoder:
    return Decoder(ov.Core().compile_model(DATA / name / "model.xml", device))


def wanted(name: str, start: Array, steps: int) -> Array:
    """OpenVINO's tokens."""
    core: Any = judge.core()
    compiled = core.compile_model(core.read_model(DATA / name / "model.xml"), "CPU", OPENVINO_F32)
    return Decoder(compiled).greedy(start, steps)


@pytest.mark.parametrize("name", MODELS)
def test_five_hundred_steps(name: str) -> None:
    found = decoder(name, "CPU")
    np.testing.assert_array_equal(found.greedy(prompt(5), 500), wanted(name, prompt(5), 500))
    variables = [v.current for v in found.request._variables.all.values()]
    assert {v.shape[2] for v in variables} == {504}
    written = sum(s.bytes_written for s in found.request.plan().steps for o in s.outputs if "variable" in o.place)
    assert written == sum(v[:, :, :1].nbytes for v in variables)


@pytest.mark.parametrize("name", MODELS)
def test_past_what_was_set_aside(name: str, device: str) -> None:
    """Twelve steps, of which the ninth moves the caches."""
    start = prompt(120)
    np.testing.assert_array_equal(decoder(name, device).greedy(start, 13), wanted(name, start, 13))
