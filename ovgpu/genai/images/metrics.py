"""Classes ImageGenerationPerfMetrics and RawImageGenerationPerfMetrics: times of a generation of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ovgpu.genai.metrics import MeanStdPair, milliseconds


@dataclass
class RawImageGenerationPerfMetrics:
    """Measured durations in microseconds: of each step, and of its inference by the UNet."""

    unet_inference_durations: list[float] = field(default_factory=list)
    transformer_inference_durations: list[float] = field(default_factory=list)
    iteration_durations: list[float] = field(default_factory=list)


class ImageGenerationPerfMetrics:
    """Times of a generation of images, in milliseconds. Models with a transformer in place of the UNet have none."""

    def __init__(self) -> None:
        self._raw = RawImageGenerationPerfMetrics()
        self._text_encoders: dict[str, float] = {}
        self._load_time = self._generate = self._vae_encoder = self._vae_decoder = 0.0

    @property
    def raw_metrics(self) -> RawImageGenerationPerfMetrics:
        """The measured values."""
        return self._raw

    def get_load_time(self) -> float:
        """Return the time in which the pipeline was made."""
        return self._load_time

    def get_generate_duration(self) -> float:
        """Return the duration of generate()."""
        return self._generate

    def get_inference_duration(self) -> float:
        """Return the duration of all inferences."""
        steps = sum(self._raw.unet_inference_durations or self._raw.transformer_inference_durations) / 1e3
        return steps + sum(self._text_encoders.values()) + self._vae_encoder + self._vae_decoder

    def get_text_encoder_infer_duration(self) -> dict[str, float]:
        """Return the duration of each text encoder, by its name."""
        return dict(self._text_encoders)

    def get_vae_encoder_infer_duration(self) -> float:
        """Return the duration of encoding images; 0 if there were none."""
        return self._vae_encoder

    def get_vae_decoder_infer_duration(self) -> float:
        """Return the duration of decoding the images."""
        return self._vae_decoder

    def get_iteration_duration(self) -> MeanStdPair:
        """Return the duration of a step."""
        return milliseconds(self._raw.iteration_durations)

    def get_unet_infer_duration(self) -> MeanStdPair:
        """Return the duration of an inference of the UNet."""
        return milliseconds(self._raw.unet_inference_durations)

    def get_transformer_infer_duration(self) -> MeanStdPair:
        """Return the duration of an inference of the transformer."""
        return milliseconds(self._raw.transformer_inference_durations)

    def get_first_and_other_iter_duration(self) -> tuple[float, float]:
        """Return the duration of the first step, and the mean of the others; 0 if there are none."""
        return _first_and_others(self._raw.iteration_durations)

    def get_first_and_other_unet_infer_duration(self) -> tuple[float, float]:
        """Return the duration of the UNet's first inference, and the mean of the others; 0 if there are none."""
        return _first_and_others(self._raw.unet_inference_durations)

    def get_first_and_other_trans_infer_duration(self) -> tuple[float, float]:
        """Return the duration of the transformer's first inference, and the mean of the others; 0 if there are none."""
        return _first_and_others(self._raw.transformer_inference_durations)


def _first_and_others(durations: Sequence[float]) -> tuple[float, float]:
    """Return the first duration, and the mean of the others, in milliseconds."""
    first, others = durations[:1], durations[1:]
    return sum(first) / 1e3, sum(others) / 1e3 / max(len(others), 1)
