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
    variables = [found.request._variables.value(name).array for name in found.request._variables.all]
    assert {v.shape[2] for v in variables} == {504}
    written = sum(s.bytes_written for s in found.request.plan().steps for o in s.outputs if "variable" in o.place)
    assert written == sum(v[:, :, :1].nbytes for v in variables)


@pytest.mark.parametrize("name", MODELS)
def test_past_what_was_set_aside(name: str, device: str) -> None:
    """Twelve steps, of which the ninth moves the caches."""
    start = prompt(120)
    np.testing.assert_array_equal(decoder(name, device).greedy(start, 13), wanted(name, start, 13))


MASKS = [(1, 6), (2, 6), (1, 7), (1, 5), (1, 1), (1, 0), (0, 0)]


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks_of_other_extents(shape: tuple[int, int], name: str, device: str) -> None:
    """After five tokens, with one more: the values beyond an extent are not read, or those that are missing are zeros.

    Of masks without any value OpenVINO's plugin says that they do not fit; it takes the zeros that `Model.evaluate`
    reads in them.
    """
    def step(compiled: Any, mask: Array) -> Array:
        request = compiled.create_infer_request()
        names = {port.any_name for port in compiled.inputs}
        prompt = np.arange(5)[None] + 3, np.ones((1, 5), np.int64), 0
        for tokens, hidden, begin in (prompt, (np.array([[9]]), mask, 5)):
            inputs = {"input_ids": tokens, "attention_mask": hidden, "beam_idx": np.zeros(1, np.int32),
                      "position_ids": np.arange(begin, begin + tokens.shape[1])[None]}
            request.infer({key: value for key, value in inputs.items() if key in names})
        return np.array(request.get_output_tensor(0).data)

    core: Any = judge.core()
    judged = core.compile_model(core.read_model(DATA / name / "model.xml"), "CPU", OPENVINO_F32)
    mask = np.ones(shape, np.int64)
    found = step(ov.Core().compile_model(DATA / name / "model.xml", device), mask)
    np.testing.assert_allclose(found, step(judged, mask if mask.size else np.zeros((1, 6), np.int64)), 1e-4, 1e-4)
