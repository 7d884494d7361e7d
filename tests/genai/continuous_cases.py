"""Runs of a ContinuousBatchingPipeline, which `record_wheel.py` records, and `test_continuous_batching.py` compares."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

PROMPT = "To be, or not"
LONG = "To be, or not to be, that is the question: Whether 'tis nobler in the mind to suffer"
PLAIN = {"max_new_tokens": 6, "ignore_eos": True}
STEPS = 60  # at most

RUNS: dict[str, tuple[dict[str, Any], list[tuple[int, str, dict[str, Any], dict[str, int]]]]] = {
    "one": ({}, [(0, PROMPT, PLAIN, {})]),
    "join": ({}, [(0, PROMPT, PLAIN, {}), (2, "a", PLAIN, {}), (2, LONG, PLAIN, {}), (9, "b", PLAIN, {})]),
    "pieces": ({"max_num_batched_tokens": 8}, [(0, LONG, PLAIN, {}), (0, "a", PLAIN, {}), (5, PROMPT, PLAIN, {})]),
    "few": ({"max_num_seqs": 2}, [(0, text, PLAIN, {}) for text in (PROMPT, "a", "To be", "abc", LONG)]),
    "whole": (
        {"dynamic_split_fuse": False, "max_num_batched_tokens": 100, "max_num_seqs": 4},
        [(0, LONG, PLAIN, {}), (0, "a", PLAIN, {}), (1, PROMPT, PLAIN, {})],
    ),
    "cancelled": ({}, [(0, PROMPT, PLAIN, {"cancel": 2}), (0, "a", PLAIN, {}), (0, "b", PLAIN, {"stop": 3})]),
    "scores": ({}, [(0, PROMPT, {**PLAIN, "logprobs": 1}, {}), (1, "a", {**PLAIN, "logprobs": 1}, {})]),
    "penalties": (
        {},
        [
            (0, PROMPT, {**PLAIN, "repetition_penalty": 1.5, "logprobs": 1}, {}),
            (1, "a", {**PLAIN, "frequency_penalty": 0.5}, {}),
            (1, "a", PLAIN, {}),
        ],
    ),
    "beams": (
        {},
        [
            (0, PROMPT, {"max_new_tokens": 4, "num_beams": 3, "num_return_sequences": 3, "ignore_eos": True}, {}),
            (1, "a", PLAIN, {}),
            (1, "b", {"max_new_tokens": 4, "num_beams": 2, "num_return_sequences": 2, "ignore_eos": True}, {}),
        ],
    ),
    "texts": ({}, [(0, PROMPT, {**PLAIN, "do_sample": True, "top_k": 1, "num_return_sequences": 3}, {})]),
    "prefixes": ({"enable_prefix_caching": True}, [(0, LONG, PLAIN, {}), (3, LONG, PLAIN, {}), (9, LONG, PLAIN, {})]),
}
"""Settings of the scheduler, and requests: the step before which one is added, prompt, fields, and the number of steps
after which it is cancelled or stopped."""

TOGETHER: list[tuple[Any, Any]] = [
    ([PROMPT, "a"], [PLAIN, {**PLAIN, "max_new_tokens": 3}]),
    (PROMPT, PLAIN),
    ({"ids": [PROMPT, "ab"]}, [PLAIN, PLAIN]),
    ({"chats": [[{"role": "user", "content": "hi"}]]}, [PLAIN]),
    ([PROMPT, "a"], [{**PLAIN, "num_beams": 2, "num_return_sequences": 2}, PLAIN]),
    ([PROMPT, "a"], PLAIN),
    ([PROMPT], [{**PLAIN, "max_new_tokens": 0}]),
    (3, PLAIN),
]
"""Prompts and configurations of generate()."""

FIELDS = [
    *(("max_num_seqs", value) for value in (3, True, 1.5, -1, "a", None)),
    *(("dynamic_split_fuse", value) for value in (2, None, [])),
    *(("cache_size", value) for value in (2, -1)),
    ("num_kv_blocks", 10),
    ("cache_interval_multiplier", None),
    ("cache_interval_multiplier", 3),
    ("unknown", 1),
]
"""Values that are assigned to fields of a SchedulerConfig."""


def outcomes(genai: Any, make: Any, names: Iterable[str] = RUNS) -> dict[str, Any]:
    """Return what can be read of each request. ``make`` returns a pipeline for a SchedulerConfig."""
    found = {}
    for name in names:
        settings, requests = RUNS[name]
        scheduler = genai.SchedulerConfig()
        for field, value in settings.items():
            setattr(scheduler, field, value)
        found[name] = _run(genai, make(scheduler), requests)
    return found


def _run(genai: Any, pipeline: Any, requests: Any) -> Any:
    handles: dict[int, Any] = {}
    read: dict[int, list[Any]] = {number: [] for number in range(len(requests))}
    for step in range(STEPS):
        for number, (begin, prompt, fields, _) in enumerate(requests):
            if begin == step:
                handles[number] = pipeline.add_request(number, prompt, genai.GenerationConfig(**fields))
        if len(handles) == len(requests) and not pipeline.has_non_finished_requests():
            break
        pipeline.step()
        for number, handle in handles.items():
            if handle.can_read():
                read[number] += [output for _, output in sorted(handle.read().items(), key=lambda item: -item[1].score)]
            for action, after in requests[number][3].items():
                if step == requests[number][0] + after:
                    getattr(handle, action)()
    assert not pipeline.has_non_finished_requests()
    return [_told(read[number], len(requests[number][3])) for number in handles]


def _told(outputs: Any, ended: int) -> Any:
    """Return the tokens of each text, with their log probabilities, the score and the end."""
    texts = [[output for output in outputs if output.generated_ids]]
    if [output.finish_reason.name for output in outputs].count("NONE") == 0 and len(outputs) > 1:
        texts = [[output] for output in outputs]
    return [
        [
            [token for output in text for token in output.generated_ids],
            [round(log, 3) for output in text for log in output.generated_log_probs],
            round(text[-1].score, 3),
            None if ended else text[-1].finish_reason.name,
        ]
        for text in texts
    ]


def generated(genai: Any, pipeline: Any) -> list[Any]:
    """Return the results of `TOGETHER`."""
    return [_generated(genai, pipeline, *case) for case in TOGETHER]


def _generated(genai: Any, pipeline: Any, prompts: Any, fields: Any) -> Any:
    several = isinstance(fields, list)
    configs = [genai.GenerationConfig(**one) for one in (fields if several else [fields])]
    if isinstance(prompts, dict):
        encode = pipeline.get_tokenizer().encode
        prompts = [
            *(encode(text).input_ids for text in prompts.get("ids", ())),
            *(genai.ChatHistory(chat) for chat in prompts.get("chats", ())),
        ]
    try:
        results = pipeline.generate(prompts, configs if several else configs[0])
    except (RuntimeError, TypeError) as e:
        return "TypeError" if isinstance(e, TypeError) else "RuntimeError"
    return [
        [
            one.m_request_id,
            one.m_generation_ids,
            [round(score, 3) for score in one.m_scores],
            one.m_status.name if hasattr(one, "m_status") else [reason.name for reason in one.finish_reasons],
            one.perf_metrics.get_num_input_tokens(),
        ]
        for one in results
    ]


def settings(kind: Any) -> list[Any]:
    """Return the text of a SchedulerConfig, and what comes of assignments to its fields."""
    config = kind()
    found = [config.to_string()]
    for name, value in FIELDS:
        try:
            setattr(config, name, value)
            found.append(json.loads(json.dumps(getattr(config, name))))
        except (TypeError, AttributeError) as e:
            found.append(type(e).__name__)
    return [*found, config.to_string()]
