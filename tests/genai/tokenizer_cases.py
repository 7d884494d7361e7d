"""Calls of a Tokenizer, which `record_wheel.py` makes with openvino_genai, and `test_tokenizer.py` here."""

from __future__ import annotations

from typing import Any

import numpy as np

TEXTS = ["abc", "a", "", "<s>a</s>", "0", "Hello, World!", "\xe9\n\u4e2d"]
MESSAGES = [{"role": "user", "content": "hi"}]
VARIABLES = "{{ messages[0].content }}|{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ add_generation_prompt }}"

CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *(("encode", (text,), {}) for text in TEXTS),
    *(("encode", (TEXTS,), {"padding_side": side}) for side in (None, "left", "right", "middle")),
    ("encode", (TEXTS, False), {}),
    ("encode", (TEXTS,), {"add_special_tokens": False}),
    ("encode", ("abc",), {"max_length": 2}),
    ("encode", (TEXTS,), {"max_length": 2, "truncation": True}),
    ("encode", ("abc",), {"truncation": True}),
    ("encode", ("abc",), {"max_length": 6, "pad_to_max_length": True}),
    ("encode", ("abc",), {"max_length": 6, "pad_to_max_length": True, "padding_side": "left"}),
    ("encode", (["abc", "abcdef"],), {"max_length": 5, "pad_to_max_length": True}),
    ("encode", (["abc", "abcdef"],), {"max_length": 5, "pad_to_max_length": True, "truncation": True}),
    ("encode", (3,), {}),
    ("encode", ("a",), {"unknown": 1}),
    *(
        ("decode", (tokens,), {})
        for tokens in ([1, 7, 8, 2], (7, 8), [], [[]], [[1, 7], [8, 9, 7]], [999], [-1], [205])
    ),
    *(("decode", (tokens,), {}) for tokens in ([60, 61, 62], "a", [1.5], 3, np.array([7, 8]), np.array([[1, 7]]))),
    ("decode", ([1, 7, 8, 2],), {"skip_special_tokens": False}),
    ("decode", ([[1, 7], [8, 9, 7]], False), {}),
    *((f"get_{name}_token{id_}", (), {}) for name in ("bos", "eos", "pad") for id_ in ("", "_id")),
    ("get_original_chat_template", (), {}),
    *(("apply_chat_template", (MESSAGES, prompt), {}) for prompt in (True, False)),
    ("apply_chat_template", (MESSAGES,), {}),
    ("apply_chat_template", ([], True), {}),
    ("apply_chat_template", ([], False), {}),
    ("apply_chat_template", (["x"], True), {}),
    ("apply_chat_template", (MESSAGES, True), {"chat_template": VARIABLES}),
    ("apply_chat_template", (MESSAGES, True), {"chat_template": "{{ tools | tojson }}", "tools": [{"a": 1}]}),
    ("apply_chat_template", (MESSAGES, True), {"chat_template": "{{ q }}", "extra_context": {"q": "Q"}}),
    ("apply_chat_template", (MESSAGES, True), {"chat_template": "{{ raise_exception('no') }}"}),
    ("apply_chat_template", (MESSAGES, True), {"chat_template": "{% for"}),
]


def outcomes(tokenizer: Any) -> dict[str, Any]:
    """Return the result of each call, or the name of its exception."""
    found: dict[str, Any] = {}
    for name, args, keywords in CALLS:
        try:
            result = getattr(tokenizer, name)(*args, **keywords)
        except (RuntimeError, TypeError) as e:
            result = "RuntimeError" if isinstance(e, RuntimeError) else "TypeError"
        if hasattr(result, "input_ids"):
            result = [result.input_ids.data.tolist(), result.attention_mask.data.tolist()]
        found[f"{name}{args}{keywords or ''}"] = result
    found["get_vocab"] = {text.decode("latin-1"): token for text, token in tokenizer.get_vocab().items()}
    return found
