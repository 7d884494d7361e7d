"""Results of a transcription, and its times."""

from __future__ import annotations

from dataclasses import dataclass, field

from ovgpu.genai.metrics import MeanStdPair, PerfMetrics, RawPerfMetrics, milliseconds


@dataclass
class WhisperRawPerfMetrics:
    """Measured durations in microseconds: of features, of the encoder (one per window), of the decoder (one per
    token), and of word timestamps."""

    features_extraction_durations: list[float] = field(default_factory=list)
    encode_inference_durations: list[float] = field(default_factory=list)
    decode_inference_durations: list[float] = field(default_factory=list)
    word_level_timestamps_processing_durations: list[float] = field(default_factory=list)


class WhisperPerfMetrics(PerfMetrics):
    """Times of a transcription: those of `PerfMetrics`, and these. Durations are in milliseconds."""

    def __init__(
        self,
        raw: RawPerfMetrics | None = None,
        load_time: float = 0.0,
        whisper_raw: WhisperRawPerfMetrics | None = None,
    ) -> None:
        super().__init__(raw, load_time)
        self._whisper_raw = whisper_raw or WhisperRawPerfMetrics()

    @property
    def whisper_raw_metrics(self) -> WhisperRawPerfMetrics:
        """The measured values of Whisper's steps."""
        return self._whisper_raw

    def get_features_extraction_duration(self) -> MeanStdPair:
        """Return the duration of computing the features."""
        return milliseconds(self._whisper_raw.features_extraction_durations)

    def get_encode_inference_duration(self) -> MeanStdPair:
        """Return the duration of the encoder, per window."""
        return milliseconds(self._whisper_raw.encode_inference_durations)

    def get_decode_inference_duration(self) -> MeanStdPair:
        """Return the duration of the decoder, per token."""
        return milliseconds(self._whisper_raw.decode_inference_durations)

    def get_word_level_timestamps_processing_duration(self) -> MeanStdPair:
        """Return the duration of finding the times of words."""
        return milliseconds(self._whisper_raw.word_level_timestamps_processing_durations)


@dataclass(frozen=True)
class WhisperDecodedResultChunk:
    """Text between two times in seconds; the end is -1 if there is none."""

    start_ts: float = 0.0
    end_ts: float = 0.0
    text: str = ""


@dataclass(frozen=True)
class WhisperWordTiming:
    """Word, its tokens, and its times in seconds."""

    word: str = ""
    start_ts: float = 0.0
    end_ts: float = 0.0
    token_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, repr=False)
class WhisperDecodedResults:
    """Transcription: one text, with the score 1, and its language, such as "en". As str, it is the text.

    ``chunks`` are None without return_timestamps, ``words`` without word_timestamps.
    """

    texts: list[str]
    scores: list[float]
    language: str
    perf_metrics: WhisperPerfMetrics
    chunks: list[WhisperDecodedResultChunk] | None = None
    words: list[WhisperWordTiming] | None = None

    def __str__(self) -> str:
        return self.texts[0]
