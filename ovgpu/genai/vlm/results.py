"""Results of a VLMPipeline, its times, and metadata of videos."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ovgpu.genai.metrics import MeanStdPair, PerfMetrics, RawPerfMetrics, milliseconds
from ovgpu.genai.results import DecodedResults


@dataclass
class VLMRawPerfMetrics:
    """Measured durations in microseconds, one per generation: of all that precedes the language model, and of images
    and videos alone. ``per_image_slice_counts`` has 1 for each image.

    The embeddings of texts are computed by the language model here, so that ``text_embedding_durations`` are 0. There
    is no audio.
    """

    prepare_embeddings_durations: list[float] = field(default_factory=list)
    vision_encoding_durations: list[float] = field(default_factory=list)
    audio_encoding_durations: list[float] = field(default_factory=list)
    text_embedding_durations: list[float] = field(default_factory=list)
    per_image_slice_counts: list[int] = field(default_factory=list)


class VLMPerfMetrics(PerfMetrics):
    """Times of a generation: those of `PerfMetrics`, and these. Durations are in milliseconds."""

    def __init__(
        self,
        raw: RawPerfMetrics | None = None,
        load_time: float = 0.0,
        input_tokens: int = 0,
        compiler_times: dict[str, float] | None = None,
        vlm_raw: VLMRawPerfMetrics | None = None,
    ) -> None:
        super().__init__(raw, load_time, input_tokens, compiler_times)
        self._vlm_raw = vlm_raw or VLMRawPerfMetrics()

    @property
    def vlm_raw_metrics(self) -> VLMRawPerfMetrics:
        """The measured values of what precedes the language model."""
        return self._vlm_raw

    def get_prepare_embeddings_duration(self) -> MeanStdPair:
        """Return the duration of all that precedes the language model."""
        return milliseconds(self._vlm_raw.prepare_embeddings_durations)

    def get_vision_encoding_duration(self) -> MeanStdPair:
        """Return the duration of embedding images and videos."""
        return milliseconds(self._vlm_raw.vision_encoding_durations)

    def get_audio_encoding_duration(self) -> MeanStdPair:
        """Return -1: there is no audio."""
        return milliseconds(self._vlm_raw.audio_encoding_durations)

    def get_text_embedding_duration(self) -> MeanStdPair:
        """Return 0: the language model computes the embeddings of texts."""
        return milliseconds(self._vlm_raw.text_embedding_durations)

    def get_total_image_slice_count(self) -> int:
        """Return the number of images."""
        return sum(self._vlm_raw.per_image_slice_counts)


@dataclass(frozen=True, repr=False)
class VLMDecodedResults(DecodedResults):
    """Generated texts about images, see `DecodedResults`. The last two fields, of models that speak, are empty."""

    perf_metrics: VLMPerfMetrics = field(default_factory=VLMPerfMetrics)
    full_token_ids: list[Any] = field(default_factory=list)
    intermediate_hidden_states: list[Any] = field(default_factory=list)


@dataclass
class VideoMetadata:
    """Frames per second of a video, and the numbers of the frames that count; all of them if it is empty."""

    fps: float = 0.0
    frames_indices: list[int] = field(default_factory=list)
