"""Speech that is written down: texts beside those of WhisperPipeline, their formats, streams, and wrong requests."""

from __future__ import annotations

import gc
import http.client
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ovgpu.genai as ov_genai
from ovgpu.genai.enums import StreamingStatus
from ovgpu.serve.openai.speech import subtitles
from ovgpu.serve.openai.speech_engine import Transcription
from ovgpu.serve.openai.speech_requests import SpeechRequest
from tests.genai.whisper_model import make_folder, sound
from tests.harness.servers.serving import SECONDS, Serving, serving
from tests.serve.openai.client import EXACT, answer, call, chat, form
from tests.serve.openai.test_audio import wav
from tests.serve.openai.test_connections import wait

pytest.importorskip("tokenizers")
pytest.importorskip("python_multipart")

TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
SHORT, LONG = (0.3, 4), (1.3, 5)
GRANULARITIES = "timestamp_granularities[]"


@pytest.fixture(scope="module")
def speech_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("speech")
    make_folder(found / "whisper" / "1")
    return found


@pytest.fixture(scope="module")
def speech(speech_folder: Path) -> Iterator[Serving]:
    with serving(speech_folder, engine={"properties": EXACT}, body_mib=1) as found:
        yield found


@pytest.fixture(scope="module")
def whisper(speech_folder: Path) -> ov_genai.WhisperPipeline:
    return ov_genai.WhisperPipeline(speech_folder / "whisper" / "1", "CPU", **EXACT)


def post(server: Serving, path: str = TRANSCRIPTIONS, file: Any = SHORT, **fields: Any) -> tuple[int, bytes, Any]:
    """Return the answer to a form, whose file is a sound or has the given bytes."""
    data = wav(sound(*file)) if isinstance(file, tuple) else file
    body, headers = form(data, **{"model": "whisper", **fields})
    return answer(server, path, body, **headers)


def test_texts(speech: Serving, whisper: Any) -> None:
    for path, task in ((TRANSCRIPTIONS, "transcribe"), ("/v3/audio/translations", "translate")):
        for file in (SHORT, LONG):
            expected = whisper.generate(sound(*file), task=task).texts[0].lstrip()
            status, data, headers = post(speech, path, file)
            usage = {"type": "duration", "seconds": 1 if file == SHORT else 2}
            assert (status, json.loads(data)) == (200, {"text": expected, "usage": usage})
            status, data, headers = post(speech, path, file, response_format="text")
            assert data.decode() == expected + "\n" and headers["content-type"] == "text/plain; charset=utf-8"
    expected = whisper.generate(sound(*SHORT), language="zh", initial_prompt="th").texts[0].lstrip()
    assert json.loads(post(speech, language="ZH", prompt="th")[1])["text"] == expected
    drawn = {json.loads(post(speech, temperature="1")[1])["text"] for _ in range(4)}
    assert len(drawn) > 1


def test_times(speech: Serving, whisper: Any) -> None:
    """Segments have the text and the times of chunks, words those of words. Subtitles have the segments."""
    expected = whisper.generate(sound(*LONG), return_timestamps=True, word_timestamps=True)
    found = json.loads(
        post(speech, file=LONG, response_format="verbose_json", **{GRANULARITIES: ["word", "segment"]})[1]
    )
    assert (found["task"], found["language"], found["duration"]) == ("transcribe", expected.language, 1.3)
    assert found["text"] == expected.texts[0].lstrip()
    starts = [chunk.start_ts for chunk in expected.chunks]
    ends = [chunk.end_ts if chunk.end_ts >= 0 else 1.3 for chunk in expected.chunks]
    assert [segment["text"] for segment in found["segments"]] == [chunk.text for chunk in expected.chunks]
    assert [segment["start"] for segment in found["segments"]] == pytest.approx(starts, abs=1e-3)
    assert [segment["end"] for segment in found["segments"]] == pytest.approx(ends, abs=1e-3)
    assert [word["word"] for word in found["words"]] == [word.word.strip() for word in expected.words]
    assert [word["end"] for word in found["words"]] == pytest.approx([word.end_ts for word in expected.words], abs=1e-3)
    for kind, head, number, point in (("srt", "", r"\d+\n", ","), ("vtt", "WEBVTT\n\n", "", r"\.")):
        subtitles = post(speech, file=LONG, response_format=kind)[1].decode()
        time = rf"00:00:(\d\d){point}(\d\d\d)"
        blocks = re.findall(rf"{number}{time} --> {time}\n(.*)\n\n", subtitles)
        assert subtitles.startswith(head) and len(blocks) == len(starts) > 1
        assert [block[-1] for block in blocks] == [chunk.text.strip() for chunk in expected.chunks]
        assert [float(f"{block[0]}.{block[1]}") for block in blocks] == pytest.approx(starts, abs=1e-3)
        assert [float(f"{block[2]}.{block[3]}") for block in blocks] == pytest.approx(ends, abs=1e-3)
    words = json.loads(post(speech, response_format="verbose_json", **{GRANULARITIES: "word"})[1])
    assert "segments" not in words and words["words"]


def test_subtitles_of_any_text() -> None:
    segments = [(3661.5, 3662.0004, " a\n\n b --> c "), (3662.0, 36000.0, "")]
    wanted = "1\n01:01:01,500 --> 01:01:02,000\na\n b -> c\n\n2\n01:01:02,000 --> 10:00:00,000\n\n"
    assert subtitles(segments, "srt") == wanted
    assert subtitles([], "vtt") == "WEBVTT\n\n"


def test_streams(speech: Serving, whisper: Any) -> None:
    for file in (SHORT, LONG):
        expected = whisper.generate(sound(*file)).texts[0].lstrip()
        status, data, headers = post(speech, file=file, stream="true")
        assert status == 200 and headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in data.decode().split("\n\n") if line]
        *deltas, done = map(json.loads, lines[:-1])
        assert lines[-1] == "[DONE]" and {event["type"] for event in deltas} == {"transcript.text.delta"}
        assert done == {"type": "transcript.text.done", "text": expected}
        assert "".join([event["delta"] for event in deltas]) == expected


def test_a_client_that_leaves(speech: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its transcription ends with the next piece, or does not begin."""
    gate, statuses = threading.Semaphore(0), list[StreamingStatus]()
    write = Transcription.write

    def gated(self: Transcription, piece: str) -> StreamingStatus:
        found = write(self, piece)  # the first piece is sent before the client leaves
        if statuses or not gate.acquire(timeout=SECONDS):
            return found
        statuses.append(write(self, ""))
        return statuses[-1]

    monkeypatch.setattr(Transcription, "write", gated)
    service = speech.server.service
    assert service is not None
    version = service.models.current["whisper"]
    body, headers = form(wav(sound(3.3, 6)), model="whisper", stream="true")
    running, waiting = (http.client.HTTPConnection(speech.http, timeout=SECONDS) for _ in range(2))
    running.request("POST", TRANSCRIPTIONS, body, headers)
    response = running.getresponse()
    assert response.readline().startswith(b"data: ")
    waiting.request("POST", TRANSCRIPTIONS, body, headers)
    wait(lambda: version.in_flight == 2 and version.engine.waiting == 1)
    waiting.close()
    response.close()
    running.close()
    wait(lambda: version.in_flight == 0)
    gate.release()
    wait(lambda: statuses == [StreamingStatus.CANCEL])
    assert post(speech)[0] == 200 and version.engine.waiting == 0
    assert speech.server.held.free == 1 << 30


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("file", {"file": None}),
    ("file", {"file": b""}),
    ("file", {"file": b"no audio"}),
    ("model", {"model": []}),
    ("model", {"model": ["a", "b"]}),
    ("language", {"language": "xx"}),
    ("temperature", {"temperature": "hot"}),
    ("temperature", {"temperature": "1.5"}),
    ("temperature", {"temperature": "nan"}),
    ("response_format", {"response_format": "xml"}),
    ("response_format", {"response_format": "srt", "stream": "true"}),
    ("stream", {"stream": "perhaps"}),
    (GRANULARITIES, {GRANULARITIES: "word"}),
    (GRANULARITIES, {GRANULARITIES: "page", "response_format": "verbose_json"}),
    ("include[]", {"include[]": "logprobs"}),
]


@pytest.mark.parametrize(("param", "fields"), WRONG)
def test_wrong_fields(param: str, fields: dict[str, Any], speech: Serving) -> None:
    status, data, _ = post(speech, **fields)
    error = json.loads(data)["error"]
    assert status == 400 and error["param"] == param and error["type"] == "invalid_request_error", error


def test_wrong_bodies(speech: Serving) -> None:
    body, headers = form(wav(sound(*SHORT)), model="whisper")
    kind = headers["content-type"]
    for wrong, content_type, message in (
        (body, "application/json", "not multipart/form-data"),
        (body, "multipart/form-data", "no form"),
        (body[:-30], kind, "ends before its form does"),
        (b"x" + body, kind, "no form"),
        (b"", kind, "ends before"),
        (body.replace(b"whisper", b"whispe\xff"), kind, "not UTF-8"),
        (form(None, **{f"f{n}": "x" for n in range(65)})[0], kind, "more than 64 fields"),
        (body.replace(b'"model"', b'"file"; filename="x"'), kind, "two files"),
    ):
        status, data, _ = answer(speech, TRANSCRIPTIONS, wrong, **{"content-type": content_type})
        assert status == 400 and message in json.loads(data)["error"]["message"], data
    assert post(speech, file=bytes(1 << 20))[0] == 413
    status, data, _ = post(speech, model="none")
    assert status == 404 and json.loads(data)["error"]["code"] == "model_not_found"
    assert "needs more than 200" in json.loads(post(speech, file=(0.01, 1))[1])["error"]["message"]
    assert speech.server.held.free == 1 << 30


def test_files_are_freed(speech: Serving) -> None:
    """Requests that have ended, also with errors and streams, leave no garbage with their files."""
    gc.collect()
    gc.disable()
    try:
        wrong = ({"file": b"no audio"}, {"language": "xx"}, {"stream": "true", "file": b"x"})
        for fields in ({}, {"stream": "true"}, *wrong):
            post(speech, **fields)
        wait(lambda: not any(isinstance(found, SpeechRequest) for found in gc.get_objects()))
    finally:
        gc.enable()


def test_beside_others(speech: Serving) -> None:
    assert [model["id"] for model in call(speech, "/v1/models")[1]["data"]] == ["whisper"]
    status, found = call(speech, "/v1/chat/completions", chat(model="whisper"))
    assert status == 404 and "is for speech2text, not text_generation" in found["error"]["message"]
    post(speech)
    metrics = answer(speech, "/metrics")[1]
    assert b'ovgpu_requests_success{api="OpenAI",interface="REST",method="Transcriptions"' in metrics


def test_a_model_of_english_alone(tmp_path: Path) -> None:
    """English may be named. It knows no other language, and translates nothing. Its files count as the model's."""
    folder = make_folder(tmp_path / "whisper" / "1", is_multilingual=False, alignment_heads=[])
    with serving(tmp_path, engine={"properties": EXACT}, poll_seconds=0.0) as server:
        assert post(server, language="en")[1] == post(server)[1]
        for path, fields, param in (
            (TRANSCRIPTIONS, {"language": "de"}, "language"),
            (TRANSLATIONS, {}, "model"),
            (TRANSCRIPTIONS, {"response_format": "verbose_json", GRANULARITIES: "word"}, GRANULARITIES),
        ):
            status, data, _ = post(server, path, **fields)
            assert status == 400 and json.loads(data)["error"]["param"] == param
        make_folder(folder)
        assert call(server, "/v1/config/reload", {})[0] == 201
        assert post(server, language="de")[0] == 200


def test_front_ends(speech_folder: Path, speech: Serving) -> None:
    with serving(speech_folder, engine={"properties": EXACT}, processes=2) as fronts:
        for fields in ({}, {"response_format": "srt"}, {"language": "xx"}):
            assert post(fronts, **fields)[:2] == post(speech, **fields)[:2]
        last = [post(server, stream="true")[1].split(b"\n\n")[-3:] for server in (fronts, speech)]
        assert last[0] == last[1] and last[0][1:] == [b"data: [DONE]", b""]


def test_card(speech_folder: Path, emulated: str, speech: Serving) -> None:
    with serving(speech_folder, emulated, engine={"properties": EXACT}) as card:
        assert post(card, file=LONG)[:2] == post(speech, file=LONG)[:2]
