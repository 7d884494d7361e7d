"""Samples of audio files: formats, channels, sampling rates, broken files, and servers without the libraries."""

from __future__ import annotations

import sys
import wave
from io import BytesIO
from typing import Any

import numpy as np
import pytest

from ovgpu.serve.openai import audio
from ovgpu.serve.openai.audio import read_samples
from ovgpu.serve.openai.errors import FieldError
from tests.genai.whisper_model import sound

RATE = 16000
SPEECH = 0.9 * sound(0.3, 5) / np.abs(sound(0.3, 5)).max()


def wav(samples: Any, width: int = 2, rate: int = RATE) -> bytes:
    """Return a WAV file of samples [length] or [length, channels], as integers of ``width`` bytes."""
    data, file = np.atleast_2d(samples.T).T, BytesIO()
    integers = np.clip(np.round(data * 2 ** (8 * width - 1)), -(2 ** (8 * width - 1)), 2 ** (8 * width - 1) - 1)
    if width == 1:
        integers += 128
    with wave.open(file, "wb") as out:
        out.setnchannels(data.shape[1])
        out.setsampwidth(width)
        out.setframerate(rate)
        out.writeframes(np.ascontiguousarray(integers).astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes())
    return file.getvalue()


@pytest.fixture(params=[False, True], ids=["soundfile", "alone"])
def alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether only Python's own module reads files."""
    if request.param:
        monkeypatch.setitem(sys.modules, "soundfile", None)
        monkeypatch.setitem(sys.modules, "soxr", None)
    else:
        pytest.importorskip("soundfile")
    found: bool = request.param
    return found


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav(width: int, alone: bool) -> None:
    found = read_samples(wav(SPEECH, width), RATE)
    assert found.dtype == np.float32 and found.shape == SPEECH.shape
    np.testing.assert_allclose(found, SPEECH, rtol=0, atol=2.0 ** (1 - 8 * width) + 1e-7)
    stereo = np.stack([SPEECH, np.zeros_like(SPEECH)], 1)
    np.testing.assert_allclose(read_samples(wav(stereo, width), RATE), found / 2, rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "MP3", "AIFF"])
def test_other_formats(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile = pytest.importorskip("soundfile")
    file = BytesIO()
    soundfile.write(file, SPEECH, RATE, format=kind)
    found = read_samples(file.getvalue(), RATE)[: len(SPEECH)]
    assert np.corrcoef(found, SPEECH)[0, 1] > 0.9 if kind == "MP3" else np.abs(found - SPEECH).max() < 0.3
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(FieldError, match="without the package soundfile, only WAV"):
        read_samples(file.getvalue(), RATE)


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_rates(rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tone stays what it is, and one above half of the new rate vanishes."""
    pytest.importorskip("soxr")
    own, new = np.arange(rate) / rate, np.arange(RATE) / RATE
    found = read_samples(wav(0.5 * np.sin(2 * np.pi * 440 * own), rate=rate), RATE)
    assert len(found) == RATE
    inner = slice(500, -500)
    np.testing.assert_allclose(found[inner], 0.5 * np.sin(2 * np.pi * 440 * new)[inner], rtol=0, atol=1e-3)
    if rate > 2 * 9000:
        high = read_samples(wav(0.5 * np.sin(2 * np.pi * 9000 * own), rate=rate), RATE)
        assert np.abs(high[inner]).max() < 1e-3
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(FieldError, match=f"{rate} samples per second, and the server, without the package soxr, takes"):
        read_samples(wav(SPEECH, rate=rate), RATE)


def test_broken_files(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = wav(SPEECH)
    for data, message in (
        (b"", "empty"),
        (b"RIFF", "no "),
        (whole[:20], "no "),
        (b"x" * 1000, "no "),
        (wav(SPEECH, rate=10), "10 samples per second"),
        (wav(np.zeros((10, 65))), "65 channels"),
    ):
        with pytest.raises(FieldError, match=message) as error:
            read_samples(data, RATE)
        assert error.value.param == "file"
    assert len(read_samples(whole[:-1000], RATE)) == len(SPEECH) - 500
    monkeypatch.setattr(audio, "MAX_SECONDS", 0.2)
    with pytest.raises(FieldError, match="longer than"):
        read_samples(whole, RATE)


def test_floats() -> None:
    soundfile = pytest.importorskip("soundfile")
    for value in (np.nan, np.inf):
        file = BytesIO()
        soundfile.write(file, np.full((100, 2), value, np.float32), RATE, format="WAV", subtype="FLOAT")
        with pytest.raises(FieldError, match="no numbers"):
            read_samples(file.getvalue(), RATE)
