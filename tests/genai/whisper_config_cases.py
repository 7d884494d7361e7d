"""Cases of WhisperGenerationConfig, which `record_wheel.py` runs with openvino_genai, and `test_whisper_config.py`
here."""

from __future__ import annotations

from typing import Any

INTEGERS = ("decoder_start_token_id", "pad_token_id", "max_initial_timestamp_index")
LISTS = ("suppress_tokens", "begin_suppress_tokens")
TEXTS = ("language", "task", "initial_prompt", "hotwords")
FLAGS = ("is_multilingual", "return_timestamps", "word_timestamps")
VALUES: tuple[Any, ...] = (0, 3, -1, 2**63, True, None, 1.5, "x", b"x", [1, 2], [], (1, 2), [1.5], [-1], ["x"])
PAIRS: tuple[Any, ...] = ([(0, 1)], [[0, 1]], [], [(0, 1, 2)], [(0,)], [(-1, 0)], [1], None, ((0, 1),), "x")
MAPS: tuple[Any, ...] = ({"<|en|>": 3}, {}, {"en": -1}, {3: 3}, {"en": "x"}, {"en": 1.5}, None, [("en", 3)])

ASSIGNMENTS: list[tuple[str, Any]] = [
    *((name, value) for name in (*INTEGERS, LISTS[0], TEXTS[0], *FLAGS[:2]) for value in VALUES),
    *(("alignment_heads", value) for value in PAIRS),
    *(("lang_to_id", value) for value in MAPS),
]
KEYWORDS: list[dict[str, Any]] = [
    *({name: value} for name in (*INTEGERS, LISTS[0], FLAGS[0]) for value in VALUES),
    *({"language": value} for value in ("x", b"x", None)),
    *({"alignment_heads": value} for value in PAIRS[2:-2]),
    *({"lang_to_id": value} for value in MAPS),
    *({name: "x"} for name in TEXTS),
    *({name: [5]} for name in LISTS),
    *({name: True} for name in FLAGS),
    *({f"{name}_token_id": 7} for name in ("translate", "transcribe", "no_timestamps")),
]

LANGUAGES = {"<|de|>": 2, "<|en|>": 3}
VALID = {"max_new_tokens": 8, "lang_to_id": LANGUAGES}
ENGLISH = {"max_new_tokens": 8, "is_multilingual": False}
COMBINATIONS: list[dict[str, Any]] = [
    {},
    {"max_new_tokens": 8},
    VALID,
    ENGLISH,
    *({**VALID, "language": language} for language in ("en", "<|en|>", "fr", "", "<en>", "EN", "<||>", "|en|")),
    {**VALID, "lang_to_id": {"en": 3}, "language": "en"},
    *({**kind, "task": task} for task in ("transcribe", "translate", "x") for kind in (VALID, ENGLISH)),
    {**ENGLISH, "language": "en"},
    {**VALID, "num_return_sequences": 2},
    {**VALID, "num_return_sequences": 2, "do_sample": True},
    {**VALID, "num_return_sequences": 2, "num_beams": 2},
    {**VALID, "num_beams": 2},
    {**VALID, "num_assistant_tokens": 2},
    {**VALID, "assistant_confidence_threshold": 0.5},
    {**VALID, "word_timestamps": True},
    {**ENGLISH, "word_timestamps": True},
    {**VALID, "suppress_tokens": [-1]},
    {**VALID, "temperature": 0.0},
    {**VALID, "temperature": 0.0, "do_sample": True},
    {**VALID, "echo": True},
]
FILES: list[Any] = [
    {},
    *({name: value} for name in ("pad_token_id", LISTS[0]) for value in (3, -1, 2.5, None, True, "x", [1], [], [1.5])),
    *({"is_multilingual": value} for value in (True, False, 1, None)),
    *(
        {"alignment_heads": value}
        for value in (PAIRS[0], PAIRS[2], PAIRS[4], PAIRS[6], None, [[0, 1], [2, 3]], [[1.5, 0]])
    ),
    *({"lang_to_id": value} for value in (LANGUAGES, {}, {"en": "x"}, {"en": 1.5}, None, [1])),
    {"task_to_id": {"transcribe": 5, "translate": 6}},
    {"task_to_id": {"transcribe": 5}},
    {"task_to_id": {"transcribe": 5, "translate": 6}, "is_multilingual": False},
    {"task_to_id": 3},
    {"language": "en", "task": "translate", "return_timestamps": True, "initial_prompt": "a", "hotwords": "b"},
    {"word_timestamps": True, "apply_chat_template": True},
    {"begin_suppress_tokens": [3, 4], "suppress_tokens": [], "max_length": 448, "eos_token_id": 9},
    {"decoder_start_token_id": 1, "no_timestamps_token_id": 2, "prev_sot_token_id": 3},
    {"max_initial_timestamp_index": 1},
    {"max_initial_timestamp_index": -1},
    {"eos_token_id": [4, 5]},
]
