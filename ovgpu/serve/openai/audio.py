"""Samples of audio files: WAV by Python's own module, others, and other rates, by libsndfile and soxr."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np

from ovgpu.serve.openai.errors import FieldError
from ovgpu.serve.openai.forms import FILE

MAX_SECONDS = 3600  # of speech: a small file may have many samples
BLOCK = 1 << 16  # samples that are read at a time, of all channels
MIN_RATE, MAX_RATE, MAX_CHANNELS = 1000, 1 << 20, 64


Array = np.ndarray[Any, Any]
Blocks = Iterator[Array]
"""Blocks of frames [frames, channels], f32 from -1 to 1."""


def read_samples(data: bytes, rate: int) -> Array:
    """Return the samples [length], f32, of an audio file at a sampling rate. Channels are averaged.

    Raises: FieldError for a file that cannot be read, or is too long.
    """
    if not data:
        raise FieldError(FILE, "the file is empty")
    own, blocks = _open(data)
    if not MIN_RATE <= own <= MAX_RATE:
        raise FieldError(FILE, f"the file has {own} samples per second")
    convert = _resampler(own, rate)
    found, frames = list[Array](), 0
    for block in blocks:
        frames += len(block)
        if frames > MAX_SECONDS * own:
            raise FieldError(FILE, f"the speech is longer than {MAX_SECONDS} seconds")
        with np.errstate(over="ignore", invalid="ignore"):  # of floats, see below
            found.append(convert(block.mean(axis=1, dtype=np.float32), False))
    found.append(convert(np.zeros(0, np.float32), True))
    samples = np.concatenate(found)
    if not np.isfinite(samples).all():
        raise FieldError(FILE, "the file has samples that are no numbers")
    return samples


def _open(data: bytes) -> tuple[int, Blocks]:
    """Return the sampling rate of a file, and its blocks. Raises: FieldError for one that cannot be read."""
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: libsndfile is missing
        return _open_wave(data)
    try:
        file = soundfile.SoundFile(BytesIO(data))
    except soundfile.LibsndfileError as error:
        raise FieldError(FILE, f"the file is no audio that can be read: {error.error_string}") from None

    if file.channels > MAX_CHANNELS:
        raise FieldError(FILE, f"the file has {file.channels} channels")

    def blocks() -> Blocks:
        with file:
            try:
                while len(block := file.read(BLOCK // file.channels, dtype="float32", always_2d=True)):
                    yield block
            except soundfile.LibsndfileError as error:
                raise FieldError(FILE, f"the audio is broken: {error.error_string}") from None

    return file.samplerate, blocks()


def _open_wave(data: bytes) -> tuple[int, Blocks]:
    """Open a WAV file, of integers. Its rate and blocks are those of `_open`."""
    hint = "without the package soundfile, only WAV files of integers can be read"
    try:
        file = wave.open(BytesIO(data))
    except (wave.Error, EOFError, RuntimeError) as error:  # RuntimeError: of chunks whose sizes make no sense
        raise FieldError(FILE, f"the file is no WAV file: {error or 'it is too short'}; {hint}") from None
    width, channels = file.getsampwidth(), file.getnchannels()
    if width not in (1, 2, 3, 4) or not 0 < channels <= MAX_CHANNELS:
        raise FieldError(FILE, f"the WAV file has {channels} channels of {8 * width} bits; {hint}")

    def blocks() -> Blocks:
        with file:
            while raw := file.readframes(BLOCK // channels):
                frames = len(raw) // (width * channels)
                integers = np.frombuffer(raw, np.uint8, frames * width * channels).reshape(-1, width)
                if width == 1:
                    yield (integers.reshape(-1, channels).astype(np.float32) - 128) / 128
                else:
                    wide = np.zeros((len(integers), 4), np.uint8)
                    wide[:, 4 - width :] = integers
                    yield wide.view("<i4").reshape(-1, channels).astype(np.float32) / np.float32(1 << 31)

    return file.getframerate(), blocks()


def _resampler(own: int, rate: int) -> Any:
    """Return a function of samples, and whether they are the last ones, that converts them to another rate."""
    if own == rate:
        return lambda samples, last: samples
    try:
        import soxr
    except ImportError:
        text = f"the file has {own} samples per second, and the server, without the package soxr, takes {rate}"
        raise FieldError(FILE, text) from None
    return soxr.ResampleStream(own, rate, 1, dtype="float32").resample_chunk
