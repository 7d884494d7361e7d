"""Class SpeechEngine: a model that writes speech down."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ovgpu.batching.gathering import Observer
from ovgpu.errors import Error
from ovgpu.genai import WhisperGenerationConfig, WhisperPipeline
from ovgpu.genai.enums import StreamingStatus
from ovgpu.genai.whisper.results import WhisperDecodedResults
from ovgpu.serve.engines import EngineOptions
from ovgpu.serve.openai.audio import read_samples
from ovgpu.serve.openai.errors import FieldError
from ovgpu.serve.openai.files import SPEECH
from ovgpu.serve.openai.one_thread import OneThreadEngine
from ovgpu.serve.openai.speech_requests import SpeechRequest


@dataclass(frozen=True)
class WrittenSpeech:
    """Speech that was written down, and its duration in seconds."""

    result: WhisperDecodedResults
    duration: float


class Transcription:
    """Transcription of a request, on the thread of an engine. ``pieces`` of its text are added while it runs.

    ``on_change`` is called on that thread for each piece.
    """

    def __init__(self, request: SpeechRequest, on_change: Callable[[], None]) -> None:
        self.request, self._on_change = request, on_change
        self.pieces: list[str] = []
        self._cancelled = False

    def cancel(self) -> None:
        """End the transcription at its next piece."""
        self._cancelled = True

    def write(self, piece: str) -> StreamingStatus:
        """Add a piece of the text."""
        self.pieces.append(piece)
        self._on_change()
        return StreamingStatus.CANCEL if self._cancelled else StreamingStatus.RUNNING


class SpeechEngine(OneThreadEngine):
    """Model of a folder that writes speech down, one request at a time, in the order in which they come."""

    task = SPEECH
    description = "speech, one request at a time"

    def __init__(self, folder: Path, options: EngineOptions, observer: Observer) -> None:
        if options.pipeline:
            raise Error("pipeline has no settings for speech")
        super().__init__("ovgpu-speech", observer)
        self._pipeline = _Whisper(folder, options.device, **options.properties)

    def submit_speech(self, transcription: Transcription) -> Future[WrittenSpeech]:
        """Submit a transcription. Raises: FieldError for a request that the model does not allow."""
        request = transcription.request
        config = self._config(request)

        def write_down() -> WrittenSpeech:
            samples = read_samples(request.file, self._pipeline.rate)
            result = self._pipeline.generate(samples, config, transcription.write)
            return WrittenSpeech(result, len(samples) / self._pipeline.rate)

        return self.run_later(write_down)

    def _config(self, request: SpeechRequest) -> WhisperGenerationConfig:
        config = self._pipeline.get_generation_config()
        language = request.language
        if language is not None and not config.is_multilingual:
            if language != "en":
                raise FieldError("language", "the model knows no other language than 'en'")
            language = None
        if language is not None and f"<|{language}|>" not in config.lang_to_id:
            known = ", ".join(sorted(name.strip("<|>") for name in config.lang_to_id))
            raise FieldError("language", f"the model does not know the language {language!r}, only {known}")
        if request.translates and not config.is_multilingual:
            raise FieldError("model", "the model does not translate")
        if request.words and not config.alignment_heads:
            text = "the model has no alignment_heads, which times of words need, in generation_config.json"
            raise FieldError("timestamp_granularities[]", text)
        if config.is_multilingual:
            config.update_generation_config(task="translate" if request.translates else "transcribe")
        drawn = {"do_sample": True, "temperature": request.temperature, "rng_seed": secrets.randbits(32)}
        config.update_generation_config(
            **(drawn if request.temperature else {"do_sample": False}),
            num_beams=1,
            return_timestamps=request.segments,
            word_timestamps=request.words,
        )
        config.language, config.initial_prompt = language, request.prompt
        return config

    def warm_up(self) -> None:
        silence = np.zeros(self._pipeline.rate, np.float32)
        self.run_later(partial(self._pipeline.generate, silence, max_new_tokens=2, num_beams=1)).result()


class _Whisper(WhisperPipeline):
    @property
    def rate(self) -> int:
        """Samples per second."""
        return self._extractor.sampling_rate
