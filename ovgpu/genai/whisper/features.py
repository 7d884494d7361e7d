"""Class FeatureExtractor: log-mel spectrograms of speech, as Whisper's encoder takes them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.files import read_json

Array = np.ndarray[Any, Any]
LEAST = 1e-10  # of the energy in a band
RANGE = 8.0  # powers of ten below the greatest energy that are told apart
MAX_FREQUENCY = 8000.0  # Hz, of the highest band
BLOCK = 4096  # frames that are transformed at once, which bounds the memory


@dataclass(frozen=True)
class Features:
    """Log-mel spectrogram ``data`` [bands, frames], f32.

    The speech fills the first ``active`` frames, or less if it is shorter than a window.
    """

    data: Array
    active: int

    @property
    def frames(self) -> int:
        """The number of frames."""
        return int(self.data.shape[1])

    def window(self, start: int, frames: int) -> Array:
        """Return frames from ``start`` on [1, bands, frames]. Zeros follow the last one."""
        found = self.data[:, start : start + frames]
        return np.pad(found, ((0, 0), (0, frames - found.shape[1])))[np.newaxis]


@dataclass(frozen=True)
class FeatureExtractor:
    """Parameters of preprocessor_config.json: ``feature_size`` bands, a frame of ``n_fft`` samples every ``hop_length``
    samples, and windows of ``n_samples`` samples, which are ``nb_max_frames`` frames and ``chunk_length`` seconds."""

    feature_size: int = 80
    sampling_rate: int = 16000
    hop_length: int = 160
    n_fft: int = 400
    chunk_length: int = 30
    n_samples: int = 480000
    nb_max_frames: int = 3000

    @staticmethod
    def of(path: Path) -> FeatureExtractor:
        """Return that of a preprocessor_config.json; that of Whisper without such a file.

        Raises: Error for a parameter that is no positive integer, or a rate that is less than twice the frequency of
        the highest band.
        """
        data = read_json(path)
        values = {field.name: data[field.name] for field in fields(FeatureExtractor) if field.name in data}
        for name, value in values.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise Error(f"{path}: {name} must be an integer above 0, not {value!r}")
        found = FeatureExtractor(**values)
        if found.sampling_rate < 2 * MAX_FREQUENCY:
            raise Error(f"{path}: sampling_rate must be {2 * MAX_FREQUENCY:g} or more, not {found.sampling_rate}")
        return found

    def extract(self, speech: Array) -> Features:
        """Return the features of samples [length], f32, which silence fills up to the length of a window.

        Raises: Error for samples that are too few to be mirrored at the begin.
        """
        half = self.n_fft // 2
        if len(speech) <= half:
            raise Error(f"the speech has {len(speech)} samples: Whisper needs more than {half}")
        padded = np.zeros(max(len(speech), self.n_samples) + 2 * half, np.float32)
        padded[half : half + len(speech)] = speech
        padded[:half] = padded[half + 1 : 2 * half + 1][::-1]  # only the begin is mirrored, as in openvino_genai
        frames = (len(padded) - self.n_fft) // self.hop_length
        logs = self._logs(padded, frames)
        np.maximum(logs, logs.max(initial=-np.inf) - np.float32(RANGE), out=logs)
        logs += 4
        logs /= 4
        return Features(logs, len(speech) // self.hop_length)

    def _logs(self, samples: Array, frames: int) -> Array:
        """Return the logarithms to base 10 of the energy in each band of the first frames [bands, frames], f32."""
        starts = np.lib.stride_tricks.sliding_window_view(samples, self.n_fft)[:: self.hop_length][:frames]
        found = np.empty((self.feature_size, frames), np.float32)
        for begin in range(0, frames, BLOCK):
            spectrum = np.fft.rfft(starts[begin : begin + BLOCK] * self._window)
            power = spectrum.real**2 + spectrum.imag**2
            found[:, begin : begin + BLOCK] = np.log10(np.maximum(self._filters @ power.T, LEAST))
        return found

    @cached_property
    def _window(self) -> Array:
        """Periodic Hann window [n_fft]."""
        return 0.5 * (1 - np.cos(2 * np.pi * np.arange(self.n_fft) / self.n_fft))

    @cached_property
    def _filters(self) -> Array:
        """Triangular filters [bands, n_fft / 2 + 1] of equal area, whose centres are equally far apart on Slaney's mel
        scale: linear up to 1 kHz, logarithmic above."""
        bins = np.arange(1 + self.n_fft // 2) * (self.sampling_rate / 2 / (self.n_fft // 2))
        centres = _hertz(np.linspace(0, _mel(MAX_FREQUENCY), self.feature_size + 2))
        slopes = centres[:, np.newaxis] - bins
        widths = np.diff(centres)[:, np.newaxis]
        triangles = np.maximum(0, np.minimum(-slopes[:-2] / widths[:-1], slopes[2:] / widths[1:]))
        scaled: Array = triangles * (2 / (centres[2:] - centres[:-2]))[:, np.newaxis]
        return scaled


def _mel(hertz: float) -> float:
    """Return a frequency of 1 kHz or more on Slaney's scale."""
    return float(15 + np.log(hertz / 1000) * 27 / np.log(6.4))


def _hertz(mels: Array) -> Array:
    """Return the frequencies of points on Slaney's scale."""
    found: Array = np.where(mels < 15, 200 * mels / 3, 1000 * np.exp((mels - 15) * np.log(6.4) / 27))
    return found
