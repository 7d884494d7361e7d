"""Assisted generation: the texts of plain generation, in fewer inferences."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu
import ovgpu.genai as ov_genai
from ovgpu.genai.assisted import PromptLookup
from tests.genai.generation_cases import make_folder

pytest.importorskip("tokenizers")

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
TEXT = "To be, or not to be, or not"
LOOKUP = {"num_assistant_tokens": 3, "max_ngram_size": 2}
Pipelines = Callable[..., ov_genai.LLMPipeline]


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Pipelines:
    """Return a function that makes a pipeline of a model, with an assistant: "", "lookup" or the name of a model."""

    @cache
    def folder(model: str) -> Path:
        return make_folder(model, tmp_path_factory.mktemp(model))

    @cache
    def make(assistant: str, device: str = "CPU", model: str = "llama") -> ov_genai.LLMPipeline:
        properties: dict[str, Any] = {"prompt_lookup": True} if assistant == "lookup" else {}
        if assistant not in ("", "lookup"):
            properties = {"draft_model": ov_genai.draft_model(folder(assistant))}
        return ov_genai.LLMPipeline(folder(model), device, **properties, **EXACT)

    return make


MODES: list[dict[str, Any]] = [
    {"ignore_eos": True},
    {"ignore_eos": True, "repetition_penalty": 1.5, "logprobs": 1},
    {"ignore_eos": True, "do_sample": True, "temperature": 0.3},
    {"ignore_eos": True, "do_sample": True, "top_k": 5, "frequency_penalty": 0.3, "logprobs": 1},
    {"stop_token_ids": {55}},
    {"stop_token_ids": {55}, "min_new_tokens": 20},
    {"ignore_eos": True, "stop_strings": {"qZ"}, "echo": True},
]


@pytest.mark.parametrize("assistant", ["lookup", "llama", "gpt2"])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_the_texts_of_plain_generation(assistant: str, mode: dict[str, Any], pipelines: Pipelines) -> None:
    """Tokens, scores, reasons and streamed texts, with a draft that is always right, and one that hardly ever is."""
    plain, assisted = pipelines(""), pipelines(assistant)
    ids = plain.get_tokenizer().encode(TEXT)
    own = LOOKUP if assistant == "lookup" else {}
    pieces: list[list[str]] = [[], []]
    expected = plain.generate(ids, max_new_tokens=30, **mode, streamer=pieces[0].append)
    found = assisted.generate(ids, max_new_tokens=30, **mode, **own, streamer=pieces[1].append)
    assert (found.tokens, found.finish_reasons) == (expected.tokens, expected.finish_reasons)
    assert found.scores == pytest.approx(expected.scores, abs=1e-3)
    assert "".join(pieces[1]) == "".join(pieces[0])
    steps = found.perf_metrics.raw_metrics.m_batch_sizes
    assert sum(steps) == expected.perf_metrics.get_num_generated_tokens()
    if assistant == "llama" and not mode.get("do_sample") and "repetition_penalty" not in mode:
        assert set(steps[1:-1]) <= {6}  # five proposed tokens, and the one after them


@pytest.mark.parametrize("assistant", ["lookup", "llama"])
def test_on_a_card(assistant: str, pipelines: Pipelines, emulated: str) -> None:
    ids = pipelines("").get_tokenizer().encode(TEXT)
    own = LOOKUP if assistant == "lookup" else {}
    expected = pipelines("").generate(ids, max_new_tokens=16, ignore_eos=True)
    found = pipelines(assistant, emulated).generate(ids, max_new_tokens=16, ignore_eos=True, **own)
    assert found.tokens == expected.tokens


@pytest.mark.parametrize(
    "model, assistant, on_card", [("gemma2", "lookup", False), ("mistral", "gpt2", False), ("mistral", "lookup", True)]
)
def test_sliding_windows(model: str, assistant: str, on_card: bool, pipelines: Pipelines, emulated: str) -> None:
    """Tokens that were refused leave the caches: in windows of eight tokens, they would take the place of others."""
    ids = pipelines("").get_tokenizer().encode(TEXT)
    own = LOOKUP if assistant == "lookup" else {}
    expected = pipelines("", "CPU", model).generate(ids, max_new_tokens=20, ignore_eos=True)
    assisted = pipelines(assistant, emulated if on_card else "CPU", model)
    assert assisted.generate(ids, max_new_tokens=20, ignore_eos=True, **own).tokens == expected.tokens


def test_dropped_tokens(pipelines: Pipelines) -> None:
    """Caches become shorter where they are, and later tokens overwrite the dropped ones."""
    text = pipelines("lookup")._decoder.verifier()
    variables = text._text._request._session.variables
    expected = text.step([5, 6, 7, 8, 9], 1)
    text.drop(2)
    assert {variables.value(name).array.shape[2] for name in variables.all} == {3}
    before = [value.array.__array_interface__["data"] for value in variables.now.values]
    text.step([50, 51, 52, 53], 1)
    text.drop(4)
    assert np.array_equal(text.step([8, 9], 1), expected)
    assert [value.array.__array_interface__["data"] for value in variables.now.values] == before


def test_several_prompts_and_chats(pipelines: Pipelines) -> None:
    prompts, options = [TEXT, "a"], {"max_new_tokens": 8, "ignore_eos": True}
    plain, drafted = pipelines(""), pipelines("llama")
    found = drafted.generate(prompts, **options)
    assert found.texts == plain.generate(prompts, **options).texts
    raw = found.perf_metrics.raw_metrics
    assert len(raw.inference_durations) == 1 and sum(raw.m_batch_sizes) == 16
    history = ov_genai.ChatHistory([{"role": "user", "content": "hi"}])
    assert drafted.generate(history, **options).texts == plain.generate(history, **options).texts


def test_a_threshold_ends_a_draft(pipelines: Pipelines) -> None:
    """At a threshold that no token reaches, nothing is proposed; at a low one, 15 tokens are."""
    drafted = pipelines("llama")
    ids = drafted.get_tokenizer().encode(TEXT)
    expected = pipelines("").generate(ids, max_new_tokens=20, ignore_eos=True).tokens
    for threshold, sizes in ((1.0, [1] * 20), (1e-6, [1, 16, 3])):
        found = drafted.generate(ids, max_new_tokens=20, ignore_eos=True, assistant_confidence_threshold=threshold)
        assert found.tokens == expected and found.perf_metrics.raw_metrics.m_batch_sizes == sizes


def test_prompt_lookup() -> None:
    lookup = PromptLookup(3)
    assert lookup.propose([1, 2, 3, 4, 5, 2, 3], 2) == [4, 5]
    assert lookup.propose([1, 2, 3, 4, 5, 2, 3], 9) == [4, 5, 2, 3]
    assert lookup.propose([1, 2, 9, 1, 3, 8, 1, 3], 1) == [8]  # the longest n-gram counts
    assert lookup.propose([1, 2, 3], 4) == [] == lookup.propose([1], 4)
    assert lookup.propose([7, 7], 3) == [7]


def test_without_an_assistant(pipelines: Pipelines) -> None:
    """As in openvino_genai, settings of an assistant have no effect then."""
    plain = pipelines("")
    options = {"max_new_tokens": 6, "ignore_eos": True}
    for own in ({"num_assistant_tokens": 3}, LOOKUP, {"assistant_confidence_threshold": 0.4}):
        assert plain.generate(TEXT, **options, **own) == plain.generate(TEXT, **options)


def test_errors(pipelines: Pipelines, tmp_path: Path) -> None:
    for own in ({}, {"num_assistant_tokens": 3}):
        with pytest.raises(ovgpu.Error, match="needs num_assistant_tokens and max_ngram_size in each call"):
            pipelines("lookup").generate(TEXT, max_new_tokens=3, **own)
    for wrong in ({"num_beams": 2}, {"do_sample": True, "num_return_sequences": 2}):
        with pytest.raises(ovgpu.Error, match="assisted generation has one text"):
            pipelines("llama").generate(TEXT, max_new_tokens=3, **wrong)
    with pytest.raises(ovgpu.Error, match=r"nothing has no openvino_model\.xml"):
        ov_genai.draft_model(tmp_path / "nothing", "CPU")


def test_metrics_of_both_models(pipelines: Pipelines) -> None:
    """A draft that is always right: each inference of the model takes three tokens of it, and adds one."""
    drafted, options = pipelines("llama"), {"ignore_eos": True, "num_assistant_tokens": 3}
    found = drafted.generate([TEXT], max_new_tokens=20, **options)
    metrics = found.extended_perf_metrics
    main, draft = metrics.main_model_metrics, metrics.draft_model_metrics
    assert main.raw_metrics.m_batch_sizes == [1, 4, 4, 4, 4, 3] == found.perf_metrics.raw_metrics.m_batch_sizes
    assert draft.get_num_generated_tokens() == 14 and main.get_num_generated_tokens() == 20
    assert metrics.get_num_draft_tokens() == metrics.get_num_accepted_tokens() == 14
    assert metrics.get_num_rejected_tokens() == 0
    assert metrics.get_draft_acceptance_rate() == metrics.get_draft_processed_to_candidate_ratio() == 1
    times = main.raw_metrics.m_durations
    assert main.get_ttft().mean == pytest.approx(times[0] / 1e3)
    assert metrics.get_ttst() == main.get_ttst() and main.get_ttst().mean == pytest.approx(times[1] / 1e3)
    assert metrics.get_latency().mean == pytest.approx(sum(times[2:]) / 4e3)
    assert main.get_tpot().mean == pytest.approx((sum(times[2:5]) / 4 + times[5] / 3) / 4e3)
    assert main.get_generate_duration().mean == pytest.approx(sum(times) / 1e3)
    assert draft.get_inference_duration().mean == pytest.approx(sum(draft.raw_metrics.m_durations) / 1e3)
    assert metrics.get_draft_to_main_inference_duration_ratio() > 0
    total = metrics + metrics
    assert total.get_num_accepted_tokens() == 28 and total.get_num_generated_tokens() == 40
    assert total.main_model_metrics.get_ttst() == pytest.approx(main.get_ttst())
    wrong = pipelines("gpt2").generate(drafted.get_tokenizer().encode(TEXT), max_new_tokens=9, **options)
    assert wrong.extended_perf_metrics.get_num_rejected_tokens() > 9
    assert (
        pipelines("lookup").generate([TEXT], max_new_tokens=9, ignore_eos=True, **LOOKUP).extended_perf_metrics is None
    )
