"""Speech that is written down for a request, and its answers: JSON, text, subtitles and events."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from starlette.responses import PlainTextResponse, Response

from ovgpu.serve.calls import Call
from ovgpu.serve.models import Version
from ovgpu.serve.openai.running import Running, json_response
from ovgpu.serve.openai.speech_requests import JSON, VERBOSE, SpeechRequest

if TYPE_CHECKING:  # it imports ovgpu.genai, which servers of other models do not need
    from ovgpu.serve.openai.speech_engine import SpeechEngine, Transcription, WrittenSpeech


class RunningSpeech(Running):
    """Speech of a request that is written down. ``free`` is called when it has ended: its file needs no memory then."""

    def __init__(
        self, version: Version, request: SpeechRequest, method: str, call: Call, free: Callable[[], None]
    ) -> None:
        super().__init__(version, method, call, request.stream)
        self._held.callback(free)
        self._request, self._engine = request, cast("SpeechEngine", version.engine)
        self._transcription: Transcription | None = None
        self._done: Future[WrittenSpeech] | None = None
        self._sent = 0  # pieces

    async def start(self) -> None:
        from ovgpu.serve.openai.speech_engine import Transcription

        self._transcription = Transcription(self._request, self._on_change)
        self._done = self._engine.submit_speech(self._transcription)
        self._done.add_done_callback(lambda _: self._on_change())
        await self._wait()
        if self._done.done():
            self._done.result()

    async def whole(self) -> Response:
        async for _ in self._pieces():
            pass
        return answer(self._request, self._written())

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        begun = False
        async for piece in self._pieces():
            text = piece if begun else piece.lstrip()
            begun |= bool(text)
            if text:
                yield {"type": "transcript.text.delta", "delta": text}
        yield {"type": "transcript.text.done", "text": text_of(self._written())}

    def _written(self) -> WrittenSpeech:
        assert self._done is not None
        return self._done.result()

    async def _pieces(self) -> AsyncIterator[str]:
        """Yield what was written since the last time, until the end."""
        transcription, done = self._transcription, self._done
        assert transcription is not None and done is not None
        while True:
            ended = done.done()
            if new := transcription.pieces[self._sent :]:
                self._sent += len(new)
                yield "".join(new)
            if ended:
                return
            await self._wait()

    def _cancel(self, seconds: float) -> None:
        if self._transcription is not None:
            self._transcription.cancel()
        if self._done is not None:
            self._done.cancel()
        self._transcription = self._done = None  # which refer to this, and to the file


def text_of(written: WrittenSpeech) -> str:
    """Return the whole text."""
    return written.result.texts[0].lstrip()


def answer(request: SpeechRequest, written: WrittenSpeech) -> Response:
    """Return the answer to a request in its format."""
    usage = {"type": "duration", "seconds": math.ceil(written.duration)}
    if request.format == JSON:
        return json_response({"text": text_of(written), "usage": usage})
    if request.format == VERBOSE:
        return json_response({**_verbose(request, written), "usage": usage})
    if request.format == "text":
        return PlainTextResponse(text_of(written) + "\n")
    return PlainTextResponse(subtitles(segments_of(written), request.format))


def _verbose(request: SpeechRequest, written: WrittenSpeech) -> dict[str, Any]:
    result = written.result
    document: dict[str, Any] = {
        "task": "translate" if request.translates else "transcribe",
        "language": result.language,
        "duration": round(written.duration, 3),
        "text": text_of(written),
    }
    if request.segments:
        document["segments"] = [
            {"id": number, "start": start, "end": end, "text": text, "temperature": request.temperature}
            for number, (start, end, text) in enumerate(segments_of(written))
        ]
    if request.words:
        document["words"] = [
            {"word": word.word.strip(), "start": _rounded(word.start_ts), "end": _rounded(word.end_ts)}
            for word in result.words or ()
        ]
    return document


def segments_of(written: WrittenSpeech) -> list[tuple[float, float, str]]:
    """Return (begin, end, text) of each segment, in seconds. One without an end lasts as long as the speech."""
    return [
        (_rounded(chunk.start_ts), _rounded(chunk.end_ts if chunk.end_ts >= 0 else written.duration), chunk.text)
        for chunk in written.result.chunks or ()
    ]


def subtitles(segments: list[tuple[float, float, str]], kind: str) -> str:
    """Return segments as subtitles, of the kind srt or vtt."""
    is_srt = kind == "srt"
    blocks = [] if is_srt else ["WEBVTT"]
    for number, (start, end, text) in enumerate(segments, 1):
        times = f"{_time(start, is_srt)} --> {_time(end, is_srt)}"
        # A blank line would end the block, and an arrow would stand for times.
        lines = [line for line in text.replace("-->", "->").strip().splitlines() if line.strip()]
        blocks.append("\n".join([*([str(number)] if is_srt else ()), times, *lines]))
    return "".join([f"{block}\n\n" for block in blocks])


def _time(seconds: float, is_srt: bool) -> str:
    thousandths = max(round(1000 * seconds), 0)
    hours, rest = divmod(thousandths, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{',' if is_srt else '.'}{rest % 1000:03}"


def _rounded(seconds: float) -> float:
    return round(float(seconds), 3)
