"""Rules for the tokens of a transcription: the rewritten model and its limits against the rules one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu
from ovgpu.genai import WhisperGenerationConfig
from ovgpu.genai.whisper.rules import TokenRules, add_rules
from ovgpu.genai.whisper.segments import find_segments
from tests.harness.ir import Net

Array = np.ndarray[Any, Any]
VOCABULARY, END, NO_TIMES = 60, 30, 37
CONFIG = WhisperGenerationConfig(
    no_timestamps_token_id=NO_TIMES,
    eos_token_id=END,
    max_initial_timestamp_index=6,
    suppress_tokens=[5, 31, 1000, -1],
    begin_suppress_tokens=[7, END],
)


def masked(logits: Array, generated: list[int], timestamps: bool) -> Array:
    """Return logits [vocabulary] after the rules, as openai/whisper's decoding.py states them."""
    logits = logits.astype(np.float64)
    suppressed = [token for token in CONFIG.suppress_tokens if 0 <= token < VOCABULARY]
    logits[suppressed + ([] if generated else CONFIG.begin_suppress_tokens)] = -np.inf
    if not timestamps:
        return logits
    first = NO_TIMES + 1
    logits[NO_TIMES] = -np.inf
    last_was_time = bool(generated) and generated[-1] >= first
    if last_was_time:
        if len(generated) < 2 or generated[-2] >= first:
            logits[first:] = -np.inf
        else:
            logits[:END] = -np.inf
    times = [token for token in generated if token >= first]
    if times:
        again = last_was_time and len(generated) >= 2 and generated[-2] < first
        logits[first : times[-1] + (not again)] = -np.inf
    if not generated:
        logits[:first] = -np.inf
        logits[first + CONFIG.max_initial_timestamp_index + 1 :] = -np.inf
    if np.logaddexp.reduce(logits[first:]) > logits[:first].max():
        logits[:first] = -np.inf
    return logits


TEXTS = [[], [40], [40, 3], [40, 3, 8], [40, 3, 45], [40, 3, 45, 45], [40, 3, 45, 45, 9], [40, 3, 59], [40, 41], [3, 4]]


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("device", ["CPU", "card"])
def test_rules(device: str, normalise: bool, emulated: str) -> None:
    net = Net()
    net.result(net.parameter("f32", [-1, -1, VOCABULARY], "logits"), "scores")
    model = ovgpu.Core().read_model(*net.build())
    add_rules(model, 0, normalise)
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = ovgpu.Core().compile_model(model, "CPU" if device == "CPU" else emulated, options)
    random = np.random.RandomState(3)
    kinds = set()
    for timestamps in (False, True):
        rules = TokenRules(CONFIG, VOCABULARY, timestamps)
        for rows in ([text] for text in TEXTS):
            logits = random.normal(0, 3, (1, 2, VOCABULARY)).astype(np.float32)
            logits[:, :, NO_TIMES + 1 :] += random.choice([-3, 0, 3])
            limits = np.array([[rules.limits(row)] for row in rows])
            (found,) = compiled([logits, rules.suppressed(rows[0]), limits]).values()
            expected = np.array([[masked(logits[0, -1], rows[0], timestamps)]])
            if normalise:
                expected -= np.logaddexp.reduce(logits[0, -1].astype(np.float64))
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
            kinds.add((np.isfinite(found[0, 0, :NO_TIMES]).any(), np.isfinite(found[0, 0, NO_TIMES + 1 :]).any()))
    assert len(kinds) == 3  # text, times, and both


def test_rows_with_limits_of_their_own() -> None:
    """Rows of beam search have other times before them."""
    net = Net()
    net.result(net.parameter("f32", [-1, -1, VOCABULARY], "logits"), "scores")
    model = ovgpu.Core().read_model(*net.build())
    add_rules(model, 0, normalise=False)
    rules, texts = TokenRules(CONFIG, VOCABULARY, True), [text for text in TEXTS if text]
    logits = np.random.RandomState(4).normal(0, 3, (len(texts), 1, VOCABULARY)).astype(np.float32)
    limits = np.array([[rules.limits(text)] for text in texts])
    (found,) = ovgpu.Core().compile_model(model, "CPU")([logits, rules.suppressed(texts[0]), limits]).values()
    expected = np.array([[masked(row[0], text, True)] for row, text in zip(logits, texts)])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [[1, VOCABULARY], [1, 1, -1]])
def test_other_logits(shape: list[int]) -> None:
    net = Net()
    net.result(net.parameter("f32", shape, "logits"), "scores")
    with pytest.raises(ovgpu.Error, match=r"logits have the shape \[batch, length, vocabulary\], of a known vocab"):
        add_rules(ovgpu.Core().read_model(*net.build()), 0, normalise=False)


@pytest.mark.parametrize(
    ("tokens", "segments", "following"),
    [
        ([100, 1, 2, 110, 110, 3, 120, 99], [(1, 3, 1.0, 1.2), (5, 6, 1.2, 1.4)], 60),  # a single time ends the text
        ([100, 1, 110, 110, 3, 99], [(1, 2, 1.0, 1.2)], 20),  # the rest is done again
        ([104, 1, 2], [(1, 3, 1.08, -1.0)], 60),
        ([104], [], 60),
        ([], [], 60),
        ([1, 2, 99], [], 60),
        ([100, 100, 1, 105], [(1, 3, 1.0, 1.1)], 60),  # the same time twice is a begin
        ([100, 1, 105, 105], [(1, 2, 1.0, 1.1)], 10),
    ],
)
def test_segments(tokens: list[int], segments: list[tuple[int, int, float, float]], following: int) -> None:
    found = find_segments(tokens, 100, 60, np.float32(0.02), np.float32(1))
    assert [(one.first, one.last) for one in found.found] == [one[:2] for one in segments]
    times = [time for one in found.found for time in (one.start, one.end)]
    assert times == pytest.approx([time for one in segments for time in one[2:]], abs=1e-6)
    assert found.next_frame == following
