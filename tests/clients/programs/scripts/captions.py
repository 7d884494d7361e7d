"""A script with vinowhisper, which the program `vinowhisper` runs: captions of speech, piece by piece."""

from __future__ import annotations

import json
import sys
import wave
from pathlib import Path

import numpy as np
from vinowhisper.transcriber import WhisperTranscriber

model, sound = sys.argv[1:]
with wave.open(sound) as file:
    samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 2**15
results = {}
for name, task in ("de", "transcribe"), ("en", "transcribe"), ("de", "translate"):
    transcriber = WhisperTranscriber(Path(model), "CPU", name, task)
    transcriber.load()
    for begin in (0, 4000):
        results[f"{task} {name} from {begin}"] = list(transcriber.transcribe_stream(samples[begin : begin + 8000]))
print(json.dumps(results))
