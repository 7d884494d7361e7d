"""WhisperPipeline: texts, chunks, languages, streams and errors as recorded from openvino_genai, and wrong uses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from time import sleep
from typing import Any
from unittest.mock import Mock

import pytest

import ovgpu
import ovgpu.genai
from ovgpu.genai import WhisperPipeline
from ovgpu.genai.enums import StreamingStatus
from ovgpu.genai.places import Requests
from tests.emulator import state
from tests.genai import close
from tests.genai import whisper_cases as cases
from tests.genai.record_wheel import WHISPER
from tests.genai.whisper_model import EN, FORCED, make_folder, sound

pytest.importorskip("tokenizers")

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
RECORD = json.loads(WHISPER.read_text())
Pipelines = Callable[..., WhisperPipeline]


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Pipelines:
    """Return a function that makes the pipeline on a device, once."""

    folder = make_folder(tmp_path_factory.mktemp("whisper"))

    @cache
    def make(device: str = "CPU", **properties: Any) -> WhisperPipeline:
        return WhisperPipeline(folder, device, **EXACT, **properties)

    return make


assert_equal = partial(close.assert_close, tolerance=1e-6)  # times, rounded to f32


# ---- comparison with openvino_genai


@pytest.mark.parametrize("case", cases.CASES, ids=cases.name_of)
def test_transcriptions(case: Any, pipelines: Pipelines) -> None:
    name = cases.name_of(case)
    found = cases.outcomes(ovgpu.genai, pipelines(), [case])[name]
    assert_equal(json.loads(json.dumps(found)), RECORD["transcriptions"][name])


def test_transcriptions_on_a_card(pipelines: Pipelines, emulated: str) -> None:
    """Some cases: with times and without, several windows, a language that is detected, penalties, beams."""
    speeches = [cases.OTHER, {"values": [0, 1] * 300}, cases.LONG, cases.SHORT, cases.SHORT]
    keywords: list[dict[str, Any]] = [
        cases.TIMES,
        cases.FEW,
        {"repetition_penalty": 1.5, "presence_penalty": 0.5, **cases.FEW},
        {"is_multilingual": False, **cases.FEW},
        {"num_beams": 3, "max_new_tokens": 6, **cases.TIMES},
    ]
    chosen = [*zip(speeches, keywords)]
    assert all(case in cases.CASES for case in chosen)
    for name, outcome in cases.outcomes(ovgpu.genai, pipelines(emulated), chosen).items():
        assert_equal(json.loads(json.dumps(outcome)), RECORD["transcriptions"][name])


@pytest.mark.parametrize("case", cases.WORDS, ids=cases.name_of)
def test_words(case: Any, pipelines: Pipelines) -> None:
    name = cases.name_of(case)
    found = cases.outcomes(ovgpu.genai, pipelines(word_timestamps=True), [case])[name]
    assert_equal(json.loads(json.dumps(found)), RECORD["words"][name])


def test_words_on_a_card(pipelines: Pipelines, emulated: str) -> None:
    case: Any = cases.SHORT, {"is_multilingual": False}
    (found,) = cases.outcomes(ovgpu.genai, pipelines(emulated, word_timestamps=True), [case]).values()
    assert_equal(json.loads(json.dumps(found)), RECORD["words"][cases.name_of(case)])


def test_asr_pipeline(pipelines: Pipelines, tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    pipeline = ovgpu.genai.ASRPipeline(folder, "CPU", **EXACT, word_timestamps=True)
    assert_equal(json.loads(json.dumps(cases.asr_outcomes(pipeline))), RECORD["asr"])
    config = pipeline.get_generation_config()
    assert type(config) is ovgpu.genai.ASRGenerationConfig and config.max_length == 44 and not config.word_timestamps
    assert pipeline.get_tokenizer().get_eos_token() == "<|endoftext|>"
    config.language = "xx"
    with pytest.raises(ovgpu.Error, match="the model does not know the language 'xx'"):
        pipeline.set_generation_config(config)
    config.language = "en"
    pipeline.set_generation_config(config)
    assert pipeline.generate(sound(0.5), max_new_tokens=2).languages == ["en"]
    with pytest.raises(TypeError, match="generation_config is an ASRGenerationConfig"):
        pipeline.generate(sound(0.5), pipelines().get_generation_config())  # type: ignore[arg-type]
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_asr"}))
    with pytest.raises(ovgpu.Error, match=r"model_type is 'qwen3_asr', and ovgpu\.genai has 'whisper' alone"):
        ovgpu.genai.ASRPipeline(folder, "CPU")


# ---- on a card


@pytest.mark.parametrize("timestamps", [False, True])
def test_a_decode_step_is_one_graph(timestamps: bool, pipelines: Pipelines, emulated: str) -> None:
    """A token and its log probability come back. The hidden states are uploaded in the first step alone."""
    pipeline, run, seen = pipelines(emulated), Requests.step, []

    def counted(self: Requests, inputs: Any) -> Any:
        state.counters.reset()
        found = run(self, inputs)
        counters = state.counters
        seen.append((counters.graph_launches, counters.launches, counters.allocs, counters.d2h_bytes))
        uploaded.append(counters.h2d_bytes)
        return found

    uploaded: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Requests, "step", counted)
        pipeline.generate(sound(*cases.OTHER), return_timestamps=timestamps, max_new_tokens=9, ignore_eos=True)
    hidden = 30 * 40 * 4
    assert seen[3:] == [(1, 0, 0, 8)] * 6
    assert uploaded[0] > hidden and all(count < hidden / 4 for count in uploaded[3:])


def test_cache_position(tmp_path: Path, emulated: str) -> None:
    """An input of some exports. Here, the tokens depend on it alone."""
    folder = make_folder(tmp_path, cache_position=True)
    for device in (emulated, "CPU"):
        pipeline = WhisperPipeline(folder, device, **EXACT)
        expected = pipeline.get_tokenizer().decode(FORCED[3:])  # the prompt has four tokens
        assert expected and pipeline.generate(sound(0.5), language="en").texts == [expected]
    assert pipeline.generate(sound(0.5), language="en", num_beams=2).texts == [expected]


# ---- wrong uses, and what a failure leaves


def test_a_streamer_that_fails(pipelines: Pipelines) -> None:
    """It ends the transcription with its exception, and the next one is as ever."""
    pipeline = pipelines()
    expected = pipeline.generate(sound(*cases.SHORT)).texts

    def fail(text: str) -> None:
        raise KeyboardInterrupt

    for keywords in ({}, cases.TIMES):
        with pytest.raises(KeyboardInterrupt):
            pipeline.generate(sound(*cases.SHORT), streamer=fail, **keywords)
        assert pipeline.generate(sound(*cases.SHORT)).texts == expected


def test_threads_share_a_pipeline(pipelines: Pipelines) -> None:
    """One transcription runs after the other, also if one of them waits in its streamer."""
    pipeline = pipelines()
    speeches = [cases.SHORT, cases.OTHER, cases.LONG]
    expected = [pipeline.generate(sound(*speech)).texts for speech in speeches]
    with ThreadPoolExecutor(3) as pool:
        found = pool.map(lambda speech: pipeline.generate(sound(*speech), streamer=lambda text: sleep(0)), speeches * 2)
        assert [result.texts for result in found] == expected * 2


def test_a_first_time_without_limit(pipelines: Pipelines) -> None:
    found = [
        pipelines().generate(sound(*cases.SHORT), max_initial_timestamp_index=n, **cases.TIMES).chunks for n in (-1, 30)
    ]
    assert found[0] == found[1]


def test_a_streamer_cannot_generate(pipelines: Pipelines) -> None:
    pipeline = pipelines()
    with pytest.raises(ovgpu.Error, match="a streamer cannot call generate"):
        pipeline.generate(sound(*cases.SHORT), streamer=lambda text: pipeline.generate([0.0] * 300))


def test_a_streamer_without_an_answer(pipelines: Pipelines) -> None:
    class Streamer(ovgpu.genai.StreamerBase):
        def write(self, token: Any) -> Any:
            return None

    for keywords in ({}, cases.TIMES, {"num_beams": 2}):
        with pytest.raises(ovgpu.Error, match="write of a streamer returns a StreamingStatus, not None"):
            pipelines().generate(sound(*cases.SHORT), streamer=Streamer(), **keywords)


def test_a_streamer_that_stops(pipelines: Pipelines) -> None:
    """No further token follows."""
    for status in (StreamingStatus.STOP, StreamingStatus.CANCEL):
        found = pipelines().generate(sound(*cases.SHORT), streamer=Mock(return_value=status), word_timestamps=True)
        assert found.texts == ["thHn"[: len(found.texts[0])]] and found.words is None
        assert found.perf_metrics.get_num_generated_tokens() <= 4


def test_a_window_without_text(pipelines: Pipelines) -> None:
    """A single token is a time: the window is skipped."""
    found = pipelines().generate(sound(*cases.LONG), max_new_tokens=1, word_timestamps=True)
    assert (found.texts, found.words) == ([""], [])
    assert len(found.perf_metrics.whisper_raw_metrics.encode_inference_durations) == 4


def test_words_of_incomplete_characters(pipelines: Pipelines) -> None:
    """A window may have no word."""
    found = pipelines().generate(sound(1.3, 6), word_timestamps=True)
    assert found.words and found.words[-1].end_ts < 0.61


def test_configuration(pipelines: Pipelines) -> None:
    pipeline = pipelines()
    before = pipeline.get_generation_config()
    assert before.max_length == 44 and before.lang_to_id["<|en|>"] == EN
    changed = before.copy()
    changed.language = "en"
    try:
        pipeline.set_generation_config(changed)
        changed.language = "de"
        assert pipeline.generate(sound(*cases.SHORT), max_new_tokens=2).language == "en"
        pipeline.set_generation_config(ovgpu.genai.WhisperGenerationConfig(max_new_tokens=3))
        found = pipeline.get_generation_config()
        assert (found.eos_token_id, found.stop_token_ids) == (before.eos_token_id, before.stop_token_ids)
        assert (found.lang_to_id, found.max_length) == (before.lang_to_id, 2**64 - 1)
        with pytest.raises(ovgpu.Error, match="num_return_sequences"):
            pipeline.set_generation_config(ovgpu.genai.WhisperGenerationConfig(num_return_sequences=2))
    finally:
        pipeline.set_generation_config(before)
    with pytest.raises(TypeError, match="generation_config is a WhisperGenerationConfig"):
        pipeline.generate(sound(*cases.SHORT), ovgpu.genai.GenerationConfig(max_new_tokens=3))  # type: ignore[arg-type]
    with pytest.raises(ovgpu.Error, match="WhisperGenerationConfig has no field speed"):
        pipeline.generate(sound(*cases.SHORT), speed=2)


def test_metrics(pipelines: Pipelines) -> None:
    found = pipelines().generate(sound(*cases.LONG), hotwords="th")
    metrics, raw = found.perf_metrics, found.perf_metrics.raw_metrics
    assert str(found) == found.texts[0] and metrics.get_load_time() > 0
    total = raw.generate_durations[0]
    assert len(raw.generate_durations) == len(raw.inference_durations) == len(raw.tokenization_durations) == 1
    assert 0 < raw.inference_durations[0] < total and 0 < raw.m_times_to_first_token[0] < total
    assert raw.m_times_to_first_token[0] + sum(raw.m_durations) < total
    parts = (
        metrics.get_features_extraction_duration(),
        metrics.get_encode_inference_duration(),
        metrics.get_decode_inference_duration(),
    )
    assert all(0 < 1e3 * pair.mean < total for pair in parts)
    assert metrics.get_word_level_timestamps_processing_duration().mean == 0
    both = metrics + metrics
    assert both.get_num_generated_tokens() == 2 * metrics.get_num_generated_tokens() > 0


def test_heads_that_are_not_there(pipelines: Pipelines) -> None:
    config = pipelines().get_generation_config()
    config.word_timestamps = True
    for heads, message in (
        ([(2, 0)], "alignment_heads has layer 2, and the model has 2 cross-attentions"),
        ([(1, 5)], r"alignment_heads has head 5, and '.*encoder_attn.*' has 5 heads"),
        ([], "word_timestamps needs alignment_heads"),
    ):
        config.alignment_heads = heads
        with pytest.raises(ovgpu.Error, match=message):
            pipelines().generate(sound(*cases.SHORT), config)


def test_folders(tmp_path: Path) -> None:
    """Files that are missing, and models that are none of Whisper."""
    with pytest.raises(ovgpu.Error, match=r"has no openvino_encoder_model\.xml: `optimum-cli export"):
        WhisperPipeline(tmp_path, "CPU")
    with pytest.raises(TypeError, match="WhisperPipeline takes a folder and the name of a device"):
        WhisperPipeline(3, "CPU")  # type: ignore[arg-type]
    folder = make_folder(tmp_path)
    encoder, decoder = (folder / f"openvino_{half}_model" for half in ("encoder", "decoder"))
    with pytest.raises(ovgpu.Error, match="max_source_positions must be an integer above 0, not 0"):
        (folder / "config.json").write_text(json.dumps({"max_source_positions": 0}))
        WhisperPipeline(folder, "CPU")
    (folder / "config.json").unlink()
    for suffix in (".xml", ".bin"):
        decoder.with_suffix(suffix).rename(tmp_path / f"old{suffix}")
        shutil.copy(encoder.with_suffix(suffix), decoder.with_suffix(suffix))
    with pytest.raises(ovgpu.Error, match="the model has no state"):
        WhisperPipeline(folder, "CPU")
    for suffix in (".xml", ".bin"):
        shutil.copy(tmp_path / f"old{suffix}", encoder.with_suffix(suffix))
    with pytest.raises(ovgpu.Error, match="is no encoder of Whisper, which has an input input_features"):
        WhisperPipeline(folder, "CPU")
