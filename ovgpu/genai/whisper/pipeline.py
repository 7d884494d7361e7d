"""Class WhisperPipeline: texts of speech."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.engine import Engine
from ovgpu.genai.enums import StreamingStatus
from ovgpu.genai.files import read_json
from ovgpu.genai.generation import generate
from ovgpu.genai.metrics import RawPerfMetrics, microseconds_since
from ovgpu.genai.stops import Stops
from ovgpu.genai.streamers import StreamerBase, as_streamer, write_tokens
from ovgpu.genai.tokenizer import Tokenizer
from ovgpu.genai.turns import Turns
from ovgpu.genai.whisper.config import WhisperGenerationConfig
from ovgpu.genai.whisper.features import FeatureExtractor, Features
from ovgpu.genai.whisper.models import Encoder, WhisperDecoder
from ovgpu.genai.whisper.results import (
    WhisperDecodedResultChunk,
    WhisperDecodedResults,
    WhisperPerfMetrics,
    WhisperRawPerfMetrics,
    WhisperWordTiming,
)
from ovgpu.genai.whisper.segments import Segment, find_segments
from ovgpu.genai.whisper.words import time_words

ENCODER, DECODER = "openvino_encoder_model.xml", "openvino_decoder_model.xml"
Array = np.ndarray[Any, Any]


class WhisperPipeline:
    """Whisper model that writes speech down, with the interface of openvino_genai.

    ``models_path`` is a folder with openvino_encoder_model.xml, openvino_decoder_model.xml, which has a state, a
    tokenizer, and the JSON files of the model. Properties are those of `Core.compile_model`, and ``word_timestamps``, a
    field of the configuration. Threads may share a pipeline: it runs one transcription at a time.

    Raises: RuntimeError if a file is missing, or a model is none of Whisper; TypeError for other arguments.
    """

    def __init__(self, models_path: str | os.PathLike[str] | bytes, device: str, **properties: Any) -> None:
        start = time.perf_counter()
        if not isinstance(models_path, (str, os.PathLike, bytes)) or not isinstance(device, str):
            raise TypeError("WhisperPipeline takes a folder and the name of a device")
        folder = Path(os.fsdecode(models_path))
        for name in (ENCODER, DECODER):
            if not (folder / name).is_file():
                raise Error(f"{folder} has no {name}: `optimum-cli export openvino --model NAME {folder}` makes one")
        path = folder / "generation_config.json"
        self._config = WhisperGenerationConfig(path) if path.is_file() else WhisperGenerationConfig()
        words = properties.pop("word_timestamps", None)
        if words is not None:
            self._config.update_generation_config(word_timestamps=words)
        self._tokenizer = Tokenizer(folder)
        if self._config.eos_token_id == -1:
            self._config.set_eos_token_id(self._tokenizer.get_eos_token_id())
        self._extractor = FeatureExtractor.of(folder / "preprocessor_config.json")
        positions = read_json(folder / "config.json").get("max_source_positions", 1500)
        if not isinstance(positions, int) or positions < 1:
            raise Error(f"{folder / 'config.json'}: max_source_positions must be an integer above 0, not {positions!r}")
        # Seconds between two tokens of times, and between two frames, in f32 as in openvino_genai
        self._precision = np.float32(self._extractor.chunk_length) / np.float32(positions)
        self._hop = np.float32(self._extractor.hop_length) / np.float32(self._extractor.sampling_rate)
        self._encoder = Encoder(folder / ENCODER, device, properties)
        self._decoder = WhisperDecoder(folder / DECODER, device, properties, self._encoder.positions)
        self._turns = Turns()
        self._load_time = 1e3 * (time.perf_counter() - start)

    def generate(
        self,
        raw_speech_input: Any,
        generation_config: WhisperGenerationConfig | None = None,
        streamer: Any = None,
        **kwargs: Any,
    ) -> WhisperDecodedResults:
        """Write speech down.

        ``raw_speech_input`` has the samples [length] from -1 to 1, at the sampling rate of the model, 16 kHz: an array
        or a sequence of numbers, which are not scaled. Longer speech than a window, 30 s, is written down window by
        window, as with ``return_timestamps``. ``kwargs`` are fields of a `WhisperGenerationConfig`, which change
        ``generation_config``, or else that of the pipeline. ``streamer`` is a function or a `StreamerBase`, which gets
        the text while it is generated, or window by window if there are times. If it raises an exception, the
        transcription ends with that.

        Raises: RuntimeError for a configuration that is not valid, and for speech that is too short; TypeError for
        samples that are no numbers.
        """
        start = time.perf_counter()
        config = self._resolved(generation_config, kwargs)
        writer = as_streamer(streamer, self._tokenizer)
        samples = _samples(raw_speech_input)
        with self._turns.turn():
            return self._transcribe(samples, config, writer, start)

    def get_tokenizer(self) -> Tokenizer:
        """Return the tokenizer."""
        return self._tokenizer

    def get_generation_config(self) -> WhisperGenerationConfig:
        """Return a copy of the configuration, which generate() takes unless it gets another one."""
        return self._config.copy()

    def set_generation_config(self, config: WhisperGenerationConfig) -> None:
        """Set the configuration. It keeps stop tokens and languages of the former one if it has none.

        Raises: RuntimeError if it is not valid.
        """
        self._config = self._resolved(config, {})

    # ----

    def _resolved(self, config: WhisperGenerationConfig | None, keywords: Mapping[str, Any]) -> WhisperGenerationConfig:
        """Return the configuration of a transcription."""
        if config is not None and not isinstance(config, WhisperGenerationConfig):
            raise TypeError(f"generation_config is a WhisperGenerationConfig, not {config!r}")
        base = self._config
        resolved = (base if config is None else config).copy()
        resolved.update_generation_config(**keywords)
        if not resolved.stop_token_ids:
            resolved.stop_token_ids = base.stop_token_ids
        if resolved.eos_token_id == -1:
            resolved.set_eos_token_id(base.eos_token_id)
        if not resolved.lang_to_id:
            resolved.lang_to_id = base.lang_to_id
        resolved.validate()
        return resolved

    def _transcribe(
        self, samples: Array, config: WhisperGenerationConfig, writer: StreamerBase | None, start: float
    ) -> WhisperDecodedResults:
        """Write samples down."""
        raw, own = RawPerfMetrics(inference_durations=[0.0]), WhisperRawPerfMetrics()
        begin = time.perf_counter()
        prompts = [self._context(text, config) for text in (config.initial_prompt, config.hotwords)]
        raw.tokenization_durations.append(microseconds_since(begin) if any(prompts) else 0.0)
        begin = time.perf_counter()
        features = self._extractor.extract(samples)
        own.features_extraction_durations.append(microseconds_since(begin))
        own.word_level_timestamps_processing_durations.append(0.0)
        run = _Transcription(self, config, writer, features, prompts, raw, own)
        run.run()
        times = raw.m_new_token_times
        raw.m_times_to_first_token += [1e3 * time - 1e6 * start for time in times[:1]]
        raw.m_durations += [1e3 * (after - before) for before, after in pairwise(times)]
        text = self._decode(run.tokens, raw)
        chunks = None
        if config.return_timestamps:
            chunks = [WhisperDecodedResultChunk(s.start, s.end, self._decode(tokens, raw)) for s, tokens in run.chunks]
        metrics = WhisperPerfMetrics(raw, self._load_time, own)
        raw.generate_durations.append(microseconds_since(start))
        return WhisperDecodedResults([text], [1.0], run.language, metrics, chunks, run.words)

    def _context(self, text: str | None, config: WhisperGenerationConfig) -> list[int]:
        """Return the tokens of a text that stands before the speech."""
        if text is None:
            return []
        ids = self._tokenizer.encode(f" {text}", add_special_tokens=False).input_ids.data[0].tolist()
        special = {config.decoder_start_token_id, config.eos_token_id, config.no_timestamps_token_id}
        return [token for token in ids if token not in special]

    def _decode(self, tokens: Sequence[int], raw: RawPerfMetrics) -> str:
        begin = time.perf_counter()
        text: str = self._tokenizer.decode(tokens)
        raw.detokenization_durations.append(microseconds_since(begin))
        return text


@dataclass
class _Transcription:
    """Windows of a speech, one after the other."""

    pipeline: WhisperPipeline
    config: WhisperGenerationConfig
    writer: StreamerBase | None
    features: Features
    prompts: list[list[int]]  # initial prompt and hotwords
    raw: RawPerfMetrics
    own: WhisperRawPerfMetrics
    tokens: list[int] = field(default_factory=list)
    chunks: list[tuple[Segment, list[int]]] = field(default_factory=list)
    words: list[WhisperWordTiming] | None = None
    language: str = ""
    task: list[int] = field(default_factory=list)  # tokens that begin the text of each window

    def run(self) -> None:
        """Write all windows down, or those before the streamer ends it."""
        frames = self.pipeline._extractor.nb_max_frames
        timestamps = self.config.return_timestamps or self.features.frames > frames
        start = 0
        while start < self.features.frames:
            hidden = self._encode(start)
            self.pipeline._decoder.begin(hidden, self.config, timestamps)
            if not self.task:
                self._begin()
            status, tokens, count = self._window(start, frames, timestamps)
            if status != StreamingStatus.RUNNING:
                break
            if self.config.word_timestamps:
                self._time_words(tokens, start, frames)
            start += count
        if self.writer is not None and timestamps:
            self.writer.end()

    def _encode(self, start: int) -> Array:
        window = self.features.window(start, self.pipeline._extractor.nb_max_frames)
        begin = time.perf_counter()
        hidden = self.pipeline._encoder.encode(window)
        self.own.encode_inference_durations.append(microseconds_since(begin))
        self.raw.inference_durations[0] += microseconds_since(begin)
        return hidden

    def _begin(self) -> None:
        """Find the language, and the tokens that begin each text."""
        config = self.config
        self.task, self.language = [config.decoder_start_token_id], "en"
        if not config.is_multilingual:
            return
        if config.language is not None:
            self.language, token = config.language, config.language_token(config.language)
        else:
            begin = time.perf_counter()
            token = self.pipeline._decoder.detect_language(config)
            self.raw.inference_durations[0] += microseconds_since(begin)
            self.language = next(name for name, other in config.lang_to_id.items() if other == token)
        self.language = "".join(character for character in self.language if character not in "<|>")
        task = config.translate_token_id if config.task == "translate" else config.transcribe_token_id
        self.task += [token, task]

    def _window(self, start: int, frames: int, timestamps: bool) -> tuple[StreamingStatus, list[int], int]:
        """Write a window down. Return the streamer's answer, the tokens, and the number of frames that are done."""
        config, pipeline = self.config, self.pipeline
        before = [*(self.prompts[0] if start == 0 else ()), *self.prompts[1]]
        prompt = [config.prev_sot_token_id, *before] if before else []
        prompt += [*self.task, *(() if timestamps else (config.no_timestamps_token_id,))]
        raw = RawPerfMetrics()
        stops = Stops(config, pipeline._tokenizer)
        writer = None if timestamps else self.writer
        outcome = generate(Engine(pipeline._decoder), [prompt], config, stops, writer, raw)
        tokens, status = outcome.texts[0].tokens, outcome.status
        if not timestamps:
            self._add_metrics(raw, [(0, len(raw.m_batch_sizes))])
            self.tokens += tokens
            return status, tokens, self.features.frames
        offset = np.float32(start) * pipeline._hop
        segments = find_segments(tokens, config.no_timestamps_token_id + 1, frames, pipeline._precision, offset)
        self._add_metrics(raw, [(segment.first, segment.last) for segment in segments.found])
        found = [(segment, tokens[segment.first : segment.last]) for segment in segments.found]
        self.chunks += found
        new = [token for _, part in found for token in part]
        self.tokens += new
        if self.writer is not None:
            status = write_tokens(self.writer, new)
        return status, tokens, segments.next_frame

    def _time_words(self, tokens: Sequence[int], start: int, frames: int) -> None:
        """Add the words of a window."""
        begin = time.perf_counter()
        config, pipeline = self.config, self.pipeline
        text = [*(token for token in tokens if token < config.eos_token_id), config.eos_token_id]
        scores = pipeline._decoder.scores([*self.task, config.no_timestamps_token_id, *text], config.alignment_heads)
        active = self.features.active - start
        if not 0 <= active <= frames:
            active = frames
        offset = np.float32(start) * pipeline._hop
        words = time_words(scores, len(self.task), active // 2, text, pipeline._tokenizer, self.language, offset)
        self.words = [*(self.words or ()), *words]
        self.own.word_level_timestamps_processing_durations[0] += microseconds_since(begin)

    def _add_metrics(self, raw: RawPerfMetrics, ranges: Sequence[tuple[int, int]]) -> None:
        """Add the measured values of a window. Of the values per token, those in the ranges count."""
        self.raw.inference_durations[0] += sum(raw.inference_durations)
        for name in ("m_new_token_times", "m_batch_sizes", "token_infer_durations", "sampling_durations"):
            values = getattr(raw, name)
            getattr(self.raw, name).extend(value for first, last in ranges for value in values[first:last])
        self.own.decode_inference_durations += [
            value for first, last in ranges for value in raw.token_infer_durations[first:last]
        ]


def _samples(speech: Any) -> Array:
    """Return samples [length], f32. Raises: TypeError for another rank, and for values that are no real numbers."""
    if isinstance(speech, (str, bytes)):
        raise TypeError("speech is a sequence of numbers, not a text")
    try:
        values = np.asarray(speech if hasattr(speech, "__len__") else [*speech])
        if values.dtype.kind not in "fiub" and len(values):
            raise TypeError
        with np.errstate(over="ignore"):
            samples = np.asarray(values, np.float32)
    except (TypeError, ValueError):
        raise TypeError(f"speech is a sequence of numbers, not a {type(speech).__name__} of others") from None
    if samples.ndim != 1:
        raise TypeError(f"speech has the shape [length], not {list(samples.shape)}: it has a single channel")
    return samples
