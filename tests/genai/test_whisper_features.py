"""Log-mel features of speech, as recorded from openvino_genai, and of the definition."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ovgpu
from ovgpu.genai.whisper.features import FeatureExtractor
from tests.genai import whisper_features_cases as cases
from tests.genai.record_wheel import WHISPER
from tests.genai.whisper_model import sound


@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_features(case: tuple[float, float]) -> None:
    """The recorded tokens tell every 11th feature, to 1 / 6000."""
    told = np.array(json.loads(WHISPER.read_text())["features"][f"{case[0]} s * {case[1]}"])
    assert len(told) > 100
    extractor = FeatureExtractor(**cases.parameters())
    found = extractor.extract(cases.speech(*case)).window(0, cases.FRAMES)
    assert found.shape == (1, 20, cases.FRAMES) and found.dtype == np.float32
    expected = (told - cases.OFFSET) / cases.SCALE
    np.testing.assert_allclose(found.ravel()[:: cases.STEP][: len(told)], expected, rtol=0, atol=0.6 / cases.SCALE)


def test_definition() -> None:
    """One frame by the sums of the definition: a mirrored begin, Hann window, Fourier transform, mel filters."""
    speech = sound(0.5)
    found = FeatureExtractor(n_samples=16000, nb_max_frames=100).extract(speech)
    assert (found.frames, found.active, found.data.shape) == (100, 50, (80, 100))
    mirrored = np.concatenate([speech[200:0:-1], speech]).astype(np.float64)
    frame = mirrored[160 * 7 : 160 * 7 + 400] * (0.5 - 0.5 * np.cos(np.arange(400) * np.pi / 200))
    turns = np.exp(-2j * np.pi * np.outer(np.arange(201), np.arange(400)) / 400)
    power = np.abs(turns @ frame) ** 2
    # Slaney's scale is linear up to 1 kHz, where 15 mel lie
    edges = [mel * 200 / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27) for mel in np.linspace(0, 45.2456, 82)]
    for band in (0, 3, 40, 79):
        low, middle, high = edges[band : band + 3]
        heights = np.interp(np.arange(201) * 40, [low, middle, high], [0, 2 / (high - low), 0])
        assert 4 * found.data[band, 7] - 4 == pytest.approx(np.log10(heights @ power), abs=1e-4)


def test_windows() -> None:
    features = FeatureExtractor(n_samples=16000).extract(sound(0.5))
    found = features.window(90, 30)
    assert found.shape == (1, 80, 30) and not found[:, :, 10:].any()
    assert np.array_equal(found[0, :, :10], features.data[:, 90:])


def test_many_frames() -> None:
    """Frames are transformed in blocks: they do not depend on what follows."""
    speech = sound(50)
    long, short = FeatureExtractor().extract(speech), FeatureExtractor(n_samples=1).extract(speech[16000 * 45 :])
    assert (long.frames, long.active, short.frames) == (5000, 5000, 500)
    top = max(long.data.max(), short.data.max())
    np.testing.assert_allclose(long.data[:, 4510:], short.data[:, 10:], atol=1e-5)
    assert top - long.data.min() <= 2 + 1e-6


def test_parameters(tmp_path: Path) -> None:
    path = tmp_path / "preprocessor_config.json"
    assert FeatureExtractor.of(path) == FeatureExtractor()
    path.write_text(json.dumps({"feature_size": 128, "return_attention_mask": False}))
    assert FeatureExtractor.of(path) == FeatureExtractor(feature_size=128)
    for name, value in (("hop_length", 0), ("n_fft", 2.5), ("n_samples", True), ("sampling_rate", 8000)):
        path.write_text(json.dumps({name: value}))
        with pytest.raises(ovgpu.Error, match=f"{name} must be"):
            FeatureExtractor.of(path)


def test_short_speech() -> None:
    assert FeatureExtractor().extract(sound(0.0126)).frames == 3000
    with pytest.raises(ovgpu.Error, match="the speech has 200 samples: Whisper needs more than 200"):
        FeatureExtractor().extract(sound(0.0125))
