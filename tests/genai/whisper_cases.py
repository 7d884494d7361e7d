"""Transcriptions by a tiny Whisper, which `record_wheel.py` runs with openvino_genai, and `test_whisper.py` here."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tests.genai.whisper_model import LANGUAGES, sound

SHORT, OTHER, LONG = (0.5, 3), (0.5, 10), (2.1, 5)
"""Seconds of speech, and its seed. A window has 0.6 s."""
TIMES = {"return_timestamps": True}
FEW = {"max_new_tokens": 9}

CASES: list[tuple[Any, dict[str, Any]]] = [
    *((speech, keywords) for speech in (SHORT, OTHER, (0.6, 9), (0.3, 4)) for keywords in ({}, TIMES)),
    *((speech, keywords) for speech in (LONG, (1.3, 9), (3.3, 6), (0.61, 11)) for keywords in ({}, TIMES)),
    # Languages, tasks, prompts
    *((SHORT, {"language": language}) for language in (*LANGUAGES, "<|en|>", "fr", "")),
    *((SHORT, {"task": task, **TIMES}) for task in ("transcribe", "translate", "x")),
    (LONG, {"language": "zh", "task": "translate"}),
    (SHORT, {"is_multilingual": False, **FEW}),
    (SHORT, {"is_multilingual": False, "language": "en", **FEW}),
    *((SHORT, {**FEW, "initial_prompt": text}) for text in ("Hello there", "a<|endoftext|><|en|>b", "")),
    (SHORT, {**FEW, "hotwords": "z"}),
    (SHORT, {**FEW, **TIMES, "hotwords": "th", "initial_prompt": "th"}),
    (LONG, {**FEW, "hotwords": "z", "initial_prompt": "th"}),
    # Tokens that are suppressed, and rules for times
    (SHORT, {**FEW, "suppress_tokens": [], "begin_suppress_tokens": []}),
    (SHORT, {**FEW, **TIMES, "suppress_tokens": [*range(40)]}),
    (SHORT, {**FEW, "begin_suppress_tokens": [155]}),
    *((SHORT, {**FEW, **TIMES, "max_initial_timestamp_index": n}) for n in (0, 3, 30, 1000)),
    (SHORT, {"max_new_tokens": 2, **TIMES}),
    # Ends
    *((SHORT, {"max_length": n}) for n in (4, 5, 20)),
    (SHORT, {"max_new_tokens": 0}),
    *((SHORT, {"stop_strings": {"oJ"}, "include_stop_str_in_output": include}) for include in (False, True)),
    (OTHER, {"ignore_eos": True, "max_new_tokens": 30}),
    (SHORT, {"min_new_tokens": 20}),
    (SHORT, {"logprobs": 1, **FEW}),
    (SHORT, {"repetition_penalty": 1.5, **FEW}),
    (LONG, {"repetition_penalty": 1.5, "presence_penalty": 0.5, **FEW}),
    (SHORT, {"do_sample": True, "top_k": 1, **TIMES}),
    # Beams
    *((SHORT, {"num_beams": 3, "max_new_tokens": 6, **kind}) for kind in ({}, TIMES)),
    (SHORT, {"num_beams": 4, "length_penalty": 0.5, **TIMES}),
    (LONG, {"num_beams": 3, "max_new_tokens": 16}),
    # Streamers
    *((speech, {"streamer": "function"}) for speech in (SHORT, LONG)),
    *((speech, {"streamer": "object", **kind}) for speech in (SHORT, LONG) for kind in ({}, TIMES)),
    (SHORT, {"streamer": "object", "num_beams": 2, **FEW}),
    (SHORT, {"streamer": "object", "echo": True, **FEW}),
    (LONG, {"streamer": "stop", **TIMES}),
    (LONG, {"streamer": "cancel"}),
    (SHORT, {"streamer": "number"}),
    # Samples
    *(({"type": kind}, FEW) for kind in ("list", "tuple", "generator", "f64", "f16", "i16", "2d", "str", "bytes")),
    *(({"values": values}, FEW) for values in ([], [0.1] * 200, [0, 1] * 300, [True, False] * 300, None, ["a"] * 300)),
    (SHORT, {"num_return_sequences": 2, **FEW}),
    (SHORT, {"top_k": None}),
]
"""Speech and keywords of generate()."""

WORDS: list[tuple[Any, dict[str, Any]]] = [
    *((speech, {"word_timestamps": True, **keywords}) for speech in (SHORT, LONG) for keywords in ({}, TIMES)),
    *((speech, {}) for speech in (OTHER, (0.3, 4), (0.6, 9), (1.3, 5), (1.3, 11), (3.3, 6))),
    ((1.3, 5), {"language": "zh"}),
    (SHORT, {"language": "zh"}),
    (SHORT, {"is_multilingual": False}),
    (SHORT, {"initial_prompt": "th"}),
    (LONG, {"streamer": "stop", **TIMES}),
    (SHORT, {"num_beams": 2, "max_new_tokens": 20}),
    (SHORT, {"max_new_tokens": 3}),
    *((OTHER, {"alignment_heads_": heads}) for heads in ([(0, 0)], [(1, 4), (0, 2)])),
    (SHORT, {"word_timestamps": False}),
]
"""The same for a pipeline with word_timestamps."""


def name_of(case: tuple[Any, dict[str, Any]]) -> str:
    """Return a case as text."""
    speech, keywords = case
    shown = json.dumps(speech)
    return f"{shown[:40]}, {', '.join(f'{key}={value!r}' for key, value in keywords.items())}"


def _speech(given: Any) -> Any:
    if isinstance(given, tuple):
        return sound(*given)
    if "values" in given:
        return given["values"]
    samples = sound(*SHORT)
    kinds = {
        "list": samples.tolist,
        "tuple": lambda: tuple(samples.tolist()),
        "generator": lambda: (sample for sample in samples),
        "f64": lambda: samples.astype(np.float64),
        "f16": lambda: samples.astype(np.float16),
        "i16": lambda: (30000 * samples).astype(np.int16),
        "2d": lambda: samples[np.newaxis],
        "str": lambda: "speech",
        "bytes": lambda: b"speech" * 100,
    }
    return kinds[given["type"]]()


ASR: list[tuple[Any, dict[str, Any]]] = [
    (SHORT, {}),
    (LONG, {**TIMES, "word_timestamps": True}),
    (OTHER, {"word_timestamps": True, "context": "c"}),
    (SHORT, {**FEW, "language": "<|en|>"}),
    (SHORT, {"language": "English"}),
    (SHORT, {"task": "x"}),
    (SHORT, {"streamer": "object", **FEW}),
]
"""The same for an ASRPipeline."""


def asr_outcomes(pipeline: Any) -> dict[str, Any]:
    """Return the outcome of each case of `ASR`: texts, languages, chunks, words, and what a streamer got."""
    found: dict[str, Any] = {}
    for case in ASR:
        log: list[str] = []
        keywords = {**case[1], "streamer": log.append} if "streamer" in case[1] else case[1]
        try:
            result = pipeline.generate(sound(*case[0]), **keywords)
        except RuntimeError:
            found[name_of(case)] = "RuntimeError"
            continue
        parts = [
            lists and [[[c.start_ts, c.end_ts, c.text, c.token_ids] for c in chunks] for chunks in lists]
            for lists in (result.chunks, result.words)
        ]
        counts = [len(value) for value in _durations(result.perf_metrics.asr_raw_metrics)]
        found[name_of(case)] = [result.texts, result.scores, result.languages, *parts, counts, log]
    return found


def _durations(raw: Any) -> list[list[float]]:
    return [raw.decode_inference_durations, raw.encode_inference_durations, raw.features_extraction_durations]


def outcomes(genai: Any, pipeline: Any, cases: Any = CASES) -> dict[str, Any]:
    """Return the outcome of each case: text, language, chunks, words, counts, and what a streamer got; or the
    exception. ``genai`` is the module."""
    return {name_of(case): _outcome(genai, pipeline, *case) for case in cases}


def _outcome(genai: Any, pipeline: Any, speech: Any, keywords: dict[str, Any]) -> Any:
    log: list[Any] = []
    statuses = genai.StreamingStatus

    class Streamer(genai.StreamerBase):  # type: ignore[misc]
        def __init__(self, status: Any = None) -> None:
            super().__init__()
            self.status = status

        def write(self, tokens: Any) -> Any:
            log.append(tokens if isinstance(tokens, list) else [tokens])
            return self.status if self.status is not None and len(log) > 1 else statuses.RUNNING

        def end(self) -> None:
            log.append("end")

    streamers = {"object": Streamer(), "stop": Streamer(statuses.STOP), "cancel": Streamer(statuses.CANCEL)}
    streamers |= {"function": log.append, "number": 3}
    if "alignment_heads_" in keywords:  # openvino_genai does not take them as a keyword
        config = pipeline.get_generation_config()
        config.alignment_heads = keywords["alignment_heads_"]
        keywords = {"generation_config": config}
    if "streamer" in keywords:
        keywords = {**keywords, "streamer": streamers[keywords["streamer"]]}
    try:
        result = pipeline.generate(_speech(speech), **keywords)
    except (RuntimeError, TypeError) as e:
        return "RuntimeError" if isinstance(e, RuntimeError) else "TypeError"
    chunks = result.chunks and [[chunk.start_ts, chunk.end_ts, chunk.text] for chunk in result.chunks]
    words = result.words and [[word.start_ts, word.end_ts, word.word, word.token_ids] for word in result.words]
    raw, own = result.perf_metrics.raw_metrics, result.perf_metrics.whisper_raw_metrics
    counts = [
        result.perf_metrics.get_num_input_tokens(),
        result.perf_metrics.get_num_generated_tokens(),
        len(own.encode_inference_durations),
        len(own.decode_inference_durations),
        *(len(getattr(raw, name)) for name in ("m_durations", "sampling_durations", "detokenization_durations")),
    ]
    if keywords.get("num_beams", 1) > 1:
        del counts[4], counts[1]  # openvino_genai counts the tokens of all beams
    return [result.texts, result.scores, result.language, chunks, words, counts, log]
