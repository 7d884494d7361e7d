"""Streamers, results and metrics, compared with what was recorded from openvino_genai."""

from __future__ import annotations

import json
from typing import Any

import pytest

import ovgpu
from ovgpu.genai.enums import GenerationFinishReason, StreamingStatus
from ovgpu.genai.metrics import MeanStdPair, PerfMetrics, RawPerfMetrics
from ovgpu.genai.results import DecodedResults
from ovgpu.genai.streamers import StreamerBase, TextStreamer, as_streamer
from ovgpu.genai.tokenizer import Tokenizer
from tests.genai.make_tokenizer import FOLDER
from tests.genai.record_wheel import PATH
from tests.genai.streamer_cases import chunks, measures, outcomes

pytest.importorskip("tokenizers")


def test_pieces_of_text() -> None:
    found, expected = outcomes(TextStreamer, Tokenizer(FOLDER)), json.loads(PATH.read_text())["streams"]
    assert found == expected and len(found) == len(chunks())
    assert sum(len(after) > 0 for stream in found for after in stream) > 100


@pytest.mark.parametrize(
    "answer, status",
    [
        (None, StreamingStatus.RUNNING),
        (False, StreamingStatus.RUNNING),
        (0, StreamingStatus.RUNNING),
        (True, StreamingStatus.STOP),
        (1, StreamingStatus.STOP),
        *((status, status) for status in StreamingStatus),
    ],
)
def test_answers(answer: Any, status: StreamingStatus) -> None:
    streamer = TextStreamer(Tokenizer(FOLDER), lambda text: answer)
    assert [streamer.write(token) for token in (10, 11, 12)] == [StreamingStatus.RUNNING] * 2 + [status]
    assert streamer.write([13, 3]) == status and streamer.write([]) == StreamingStatus.RUNNING


def test_special_tokens() -> None:
    pieces: list[str] = []
    streamer = TextStreamer(Tokenizer(FOLDER), pieces.append, {"skip_special_tokens": False})
    streamer.write([1, 10, 2])
    streamer.end()
    assert pieces == ["<s>", "a</s>"]


def test_wrong_uses() -> None:
    tokenizer = Tokenizer(FOLDER)
    with pytest.raises(ovgpu.Error, match="returns None, a bool or a StreamingStatus, not 'on'"):
        TextStreamer(tokenizer, lambda text: "on").write([10, 11, 12])
    with pytest.raises(ZeroDivisionError):
        TextStreamer(tokenizer, lambda text: 1 // 0).write([10, 11, 12])
    for token in ("a", 1.5):
        with pytest.raises(TypeError):
            TextStreamer(tokenizer, print).write(token)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="TextStreamer needs a Tokenizer and a function"):
        TextStreamer(tokenizer, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a streamer is a function of a text, or a StreamerBase, not 3"):
        as_streamer(3, tokenizer)
    with pytest.raises(ovgpu.Error, match="a function as streamer needs a tokenizer"):
        as_streamer(print, None)
    for method in ("write", "end"):
        with pytest.raises(ovgpu.Error, match=f"StreamerBase has no method {method}"):
            getattr(StreamerBase(), method)(*[1] * (method == "write"))


def test_metrics_of_nothing() -> None:
    assert json.loads(json.dumps(measures(PerfMetrics()))) == json.loads(PATH.read_text())["perf_metrics"]


def test_metrics() -> None:
    raw = RawPerfMetrics(generate_durations=[7000.0], m_times_to_first_token=[2000.0], grammar_compile_times=[1e3, 3e3])
    for time, tokens in ((10.0, 1), (12.0, 1), (18.0, 2)):
        raw.add_step(time, tokens, 500.0, 20.0)
    metrics = PerfMetrics(raw, 4.0, 9)
    assert raw.m_durations == [2000, 3000, 3000]
    assert (metrics.get_num_generated_tokens(), metrics.get_num_input_tokens(), metrics.get_load_time()) == (4, 9, 4.0)
    assert metrics.get_ttft() == MeanStdPair(2, 0) and tuple(metrics.get_generate_duration()) == (7, 0)
    mean, deviation = metrics.get_tpot()
    assert (mean, deviation) == (pytest.approx(8 / 3), pytest.approx(2**0.5 / 3))
    assert tuple(metrics.get_throughput()) == (pytest.approx(1000 / mean), pytest.approx(1000 * deviation / mean**2))
    assert metrics.get_ipot() == MeanStdPair(0.5, 0) and metrics.get_sampling_duration().mean == pytest.approx(0.02)
    assert metrics.get_grammar_compile_time().as_tuple() == (2, 1, 1, 3)
    both = metrics + metrics
    assert both.get_num_generated_tokens() == 8 and both.raw_metrics.generate_durations == [7000.0] * 2
    both += metrics
    assert both.get_num_input_tokens() == 27 and len(both.raw_metrics.m_durations) == 9
    assert len(raw.m_durations) == 3
    with pytest.raises(ovgpu.Error, match="only metrics of the same pipeline"):
        metrics + PerfMetrics()


def test_results_as_text() -> None:
    reasons = [GenerationFinishReason.STOP] * 2
    assert str(DecodedResults(["a"], [0.0], reasons[:1])) == "a" and str(DecodedResults()) == ""
    assert str(DecodedResults(["a", "b"], [-0.5, -1.25], reasons)) == "-0.500000: a\n-1.250000: b"
    with pytest.raises(AttributeError):
        DecodedResults().texts = []  # type: ignore[misc]
