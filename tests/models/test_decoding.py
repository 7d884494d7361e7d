"""Long texts of decoders, token by token: the caches outgrow their capacity several times."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from tests.harness import judge
from tests.harness.models.drive import DATA, OPENVINO_F32, Array, Decoder

MODELS = ("gpt2", "llama", "mistral", "gemma2")


def prompt(length: int) -> Array:
    return np.random.default_rng(length).integers(3, 200, (2, length))


def decoder(name: str, device: str) -> Decoder:
    return Decoder(compiled(name, device))


@cache
def compiled(name: str, device: str) -> Any:
    return ov.Core().compile_model(DATA / name / "model.xml", device)


def judging(name: str) -> Any:
    """Compile a model with OpenVINO."""
    core: Any = judge.core()
    return core.compile_model(core.read_model(DATA / name / "model.xml"), "CPU", OPENVINO_F32)


def expected_tokens(name: str, start: Array, steps: int) -> Array:
    """Decode with OpenVINO."""
    return Decoder(judging(name)).greedy(start, steps)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", MODELS)
def test_five_hundred_steps(name: str) -> None:
    found = decoder(name, "CPU")
    np.testing.assert_array_equal(found.greedy(prompt(5), 500), expected_tokens(name, prompt(5), 500))
    variables = [found.request._session.variables.value(name).array for name in found.request._session.variables.all]
    assert {v.shape[2] for v in variables} == {504}
    written = sum(s.bytes_written for s in found.request.plan().steps for o in s.outputs if "variable" in o.location)
    assert written == sum(v[:, :, :1].nbytes for v in variables)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", MODELS)
def test_past_the_initial_capacity(name: str, device: str) -> None:
    """Twelve steps are decoded, of which the ninth moves the caches."""
    start = prompt(120)
    np.testing.assert_array_equal(decoder(name, device).greedy(start, 13), expected_tokens(name, start, 13))


MASKS = [(1, 6), (2, 6), (1, 7), (1, 5), (1, 1), (1, 0), (0, 0)]


@pytest.mark.drawn(16)
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks_of_other_extents(shape: tuple[int, int], name: str, device: str) -> None:
    """With a mask of another extent after five tokens, extra values are not read, and missing values count as zeros."""
    found = masked_step(compiled(name, device), np.ones(shape, np.int64))
    np.testing.assert_allclose(found, expected_step(name, shape), 1e-4, 1e-4)


def masked_step(compiled: Any, mask: Array) -> Array:
    """Return the logits of a token with this mask, after a prompt of five tokens."""
    request = compiled.create_infer_request()
    names = {port.any_name for port in compiled.inputs}
    prompt = np.arange(5)[None] + 3, np.ones((1, 5), np.int64), 0
    for tokens, hidden, begin in (prompt, (np.array([[9]]), mask, 5)):
        inputs = {
            "input_ids": tokens,
            "attention_mask": hidden,
            "beam_idx": np.zeros(1, np.int32),
            "position_ids": np.arange(begin, begin + tokens.shape[1])[None],
        }
        request.infer({key: value for key, value in inputs.items() if key in names})
    return np.array(request.get_output_tensor(0).data)


@cache
def expected_step(name: str, shape: tuple[int, int]) -> Array:
    """Return OpenVINO's logits. Its plugin refuses masks without any value; it gets the zeros instead that
    `Model.evaluate` reads. A model that has had one mask may crash with another, so each mask has its own."""
    return masked_step(judging(name), np.ones(shape, np.int64) if 0 not in shape else np.zeros((1, 6), np.int64))
