"""Log-mel features of openvino_genai, which it does not show: a model tells them by its tokens.

`record_wheel.py` runs that, and `test_whisper_features.py` compares.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.genai import whisper_model

FRAMES = 130  # of the window; n_samples is less, so that the speech may be longer than that
SCALE, OFFSET = 3000, 6000  # a token is SCALE * feature + OFFSET
VOCABULARY = 12000
STEP = 11  # every so many features are told
CASES = [(0.3, 1.0), (0.6, 1.0), (1.3, 1.0), (0.7, 0.001), (0.2, 0.0), (0.0126, 1.0)]
"""Seconds of speech, and its loudness."""


def parameters() -> dict[str, int]:
    """Return the contents of preprocessor_config.json."""
    return {
        "chunk_length": 1,
        "feature_size": 20,
        "hop_length": 160,
        "n_fft": 400,
        "n_samples": 16000 * 6 // 10,
        "nb_max_frames": FRAMES,
        "sampling_rate": 16000,
    }


def speech(seconds: float, loudness: float) -> Any:
    """Return the samples of a case."""
    return whisper_model.sound(seconds, 5) * loudness


def told(folder: Path, genai: Any, openvino: Any) -> dict[str, list[int]]:
    """Return the tokens of each case, for openvino_genai and a folder with a Whisper's tokenizer."""
    _save_models(folder, openvino)
    (folder / "preprocessor_config.json").write_text(json.dumps(parameters()))
    (folder / "generation_config.json").write_text(json.dumps({"is_multilingual": False, "eos_token_id": 0}))
    pipeline = genai.WhisperPipeline(folder, "CPU", INFERENCE_PRECISION_HINT="f32")
    found = {}

    class Streamer(genai.StreamerBase):  # type: ignore[misc]
        def write(self, tokens: Any) -> Any:
            log.extend(tokens if isinstance(tokens, list) else [tokens])
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    for seconds, loudness in CASES:
        log: list[int] = []
        samples = speech(seconds, loudness).tolist()
        count = 20 * min(FRAMES, max(round(100 * seconds), 60)) // STEP
        pipeline.generate(samples, streamer=Streamer(), max_new_tokens=count, ignore_eos=True)
        found[f"{seconds} s * {loudness}"] = log
    return found


def _save_models(folder: Path, ov: Any) -> None:
    """Write an encoder that returns its features, and a decoder whose n-th token tells the feature STEP * n."""
    from openvino import opset13 as ops
    from openvino.op.util import Variable, VariableInfo

    features = ops.parameter([-1, 20, FRAMES], ov.Type.f32, name="input_features")
    features.output(0).set_names({"input_features"})
    hidden = ops.transpose(features, [0, 2, 1])
    hidden.output(0).set_names({"last_hidden_state"})
    ov.save_model(ov.Model([hidden], [features]), folder / "openvino_encoder_model.xml", compress_to_fp16=False)

    ids = ops.parameter([-1, -1], ov.Type.i64, name="input_ids")
    states = ops.parameter([-1, -1, 20], ov.Type.f32, name="encoder_hidden_states")
    rows = ops.parameter([-1], ov.Type.i32, name="beam_idx")
    for parameter in (ids, states, rows):
        parameter.output(0).set_names({parameter.get_friendly_name()})
    info = VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape([1]), ov.Type.f32, "count"
    variable = Variable(info)
    number = lambda value: ops.constant(value, ov.Type.f32)
    count = ops.add(ops.read_value(number([-1]), variable), number([1]))
    flat = ops.reshape(ops.transpose(states, [0, 2, 1]), [-1], False)  # all frames of a band, then the next one
    chosen = ops.gather(flat, ops.convert(ops.multiply(count, number(STEP)), "i64"), 0)
    value = ops.add(ops.multiply(chosen, number(SCALE)), number(OFFSET))
    tokens = number([[[*range(VOCABULARY)]]])
    zeros = ops.unsqueeze(ops.multiply(ops.convert(ids, "f32"), number(0)), 2)
    logits = ops.add(ops.negative(ops.abs(ops.subtract(tokens, value))), zeros)
    logits.output(0).set_names({"logits"})
    model = ov.Model([logits.output(0)], [ops.assign(count, variable)], [ids, states, rows])
    ov.save_model(model, folder / "openvino_decoder_model.xml", compress_to_fp16=False)
