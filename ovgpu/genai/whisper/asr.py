"""Class ASRPipeline: texts of speech, with openvino_genai's interface for models of several kinds.

Here, they are Whisper models: a `WhisperPipeline` does the work.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ovgpu.errors import Error
from ovgpu.genai.files import read_json
from ovgpu.genai.tokenizer import Tokenizer
from ovgpu.genai.whisper.config import ASRGenerationConfig
from ovgpu.genai.whisper.pipeline import WhisperPipeline
from ovgpu.genai.whisper.results import WhisperPerfMetrics, WhisperRawPerfMetrics

KIND = "whisper"


@dataclass
class ASRRawPerfMetrics(WhisperRawPerfMetrics):
    """Measured durations, as in `WhisperRawPerfMetrics`."""


class ASRPerfMetrics(WhisperPerfMetrics):
    """Times of a transcription, as in `WhisperPerfMetrics`."""

    @property
    def asr_raw_metrics(self) -> ASRRawPerfMetrics:
        """The measured values of the model's steps."""
        return ASRRawPerfMetrics(**vars(self.whisper_raw_metrics))


@dataclass(frozen=True)
class ASRDecodedResultChunk:
    """Text between two times in seconds, or a word with its tokens; the end is -1 if there is none."""

    start_ts: float = 0.0
    end_ts: float = 0.0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, repr=False)
class ASRDecodedResults:
    """Transcriptions: texts, with the score 1, and their languages, such as "en". As str, it is the text.

    ``chunks`` and ``words`` have a list for each text. They are None without return_timestamps and word_timestamps.
    """

    texts: list[str]
    scores: list[float]
    languages: list[str]
    perf_metrics: ASRPerfMetrics
    chunks: list[list[ASRDecodedResultChunk]] | None = None
    words: list[list[ASRDecodedResultChunk]] | None = None

    def __str__(self) -> str:
        return self.texts[0]


class ASRPipeline:
    """Whisper model that writes speech down, with the interface of openvino_genai.

    ``models_path`` is a folder as for `WhisperPipeline`, whose config.json has the model_type "whisper". Properties are
    those of `Core.compile_model`.

    Raises: RuntimeError if a file is missing, or the model is none of Whisper; TypeError for other arguments.
    """

    def __init__(self, models_path: str | os.PathLike[str] | bytes, device: str, **properties: Any) -> None:
        if not isinstance(models_path, (str, os.PathLike, bytes)) or not isinstance(device, str):
            raise TypeError("ASRPipeline takes a folder and the name of a device")
        path = Path(os.fsdecode(models_path)) / "config.json"
        kind = read_json(path).get("model_type")
        if kind != KIND:
            raise Error(f"{path}: model_type is {kind!r}, and ovgpu.genai has {KIND!r} alone")
        properties.pop("word_timestamps", None)  # openvino_genai compiles another model for that
        self._pipeline = WhisperPipeline(models_path, device, **properties)
        self._config = ASRGenerationConfig()
        own = self._pipeline.get_generation_config()
        self._config._values.update(own._values)

    def generate(
        self,
        audio_inputs: Any,
        generation_config: ASRGenerationConfig | None = None,
        streamer: Any = None,
        **kwargs: Any,
    ) -> ASRDecodedResults:
        """Write speech down, see `WhisperPipeline.generate`, whose errors it raises.

        ``kwargs`` are fields of an `ASRGenerationConfig`, which change ``generation_config``, or else that of the
        pipeline.
        """
        config = self._checked(self._config if generation_config is None else generation_config).copy()
        config.update_generation_config(**kwargs)
        found = self._pipeline.generate(audio_inputs, config.for_whisper(), streamer)
        metrics = found.perf_metrics
        times = ASRPerfMetrics(metrics.raw_metrics, metrics.get_load_time(), metrics.whisper_raw_metrics)
        chunks = words = None
        if found.chunks is not None:
            chunks = [[ASRDecodedResultChunk(c.start_ts, c.end_ts, c.text) for c in found.chunks]]
        if found.words is not None:
            words = [[ASRDecodedResultChunk(w.start_ts, w.end_ts, w.word, w.token_ids) for w in found.words]]
        return ASRDecodedResults(found.texts, found.scores, [found.language], times, chunks, words)

    def get_tokenizer(self) -> Tokenizer:
        """Return the tokenizer."""
        return self._pipeline.get_tokenizer()

    def get_generation_config(self) -> ASRGenerationConfig:
        """Return a copy of the configuration, which generate() takes unless it gets another one."""
        return self._config.copy()

    def set_generation_config(self, config: ASRGenerationConfig) -> None:
        """Set the configuration. Raises: RuntimeError if it is not valid for the model."""
        self._pipeline.set_generation_config(self._checked(config).for_whisper())
        self._config = config.copy()

    @staticmethod
    def _checked(config: ASRGenerationConfig) -> ASRGenerationConfig:
        if not isinstance(config, ASRGenerationConfig):
            raise TypeError(f"generation_config is an ASRGenerationConfig, not {config!r}")
        return config
