"""Cases of GenerationConfig, which `record_wheel.py` runs with openvino_genai, and `test_generation_config.py` here."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

SIZES = ("max_new_tokens", "top_k", "rng_seed", "num_beams", "logprobs")
REALS = ("temperature", "top_p", "diversity_penalty")
VALUES: tuple[Any, ...] = (0, 1, 3, -1, 2**64 - 1, 2**64, True, None, 1.0, 2.5, "x", [1], {1}, {"x"})

ASSIGNMENTS: list[tuple[str, Any]] = [
    *((name, value) for name in (*SIZES[:2], *REALS[:1], "do_sample", "num_assistant_tokens") for value in VALUES),
    *(("stop_strings", value) for value in ({"a", "b"}, set(), {1}, ["a"], "a", None)),
    *(("stop_token_ids", value) for value in ({1, 2}, set(), {-1}, {1.5}, [1], None, {2**63})),
    *(("eos_token_id", value) for value in (-1, -2, 5, 2**63, 1.0, None)),
    *(("stop_criteria", value) for value in (1, "EARLY", None)),
    ("unknown", 1),
    ("temperature", 0.1),
    ("rng_seed", 2**33),
]
"""Fields that are assigned, and their values."""

KEYWORDS: list[dict[str, Any]] = [
    {name: value}
    for name, values in {
        **dict.fromkeys(("max_new_tokens", "top_k", "num_assistant_tokens"), (0, 1, 3, -1, 2.0, 2.5, True, None, [1])),
        **dict.fromkeys(("temperature", "diversity_penalty"), (0, 1, -1, 0.1, True, None, [1])),
        **dict.fromkeys(("do_sample", "echo"), (True, False, 0, 1, None)),
        "stop_strings": ({"a", "b"}, "abc", ["a"], None),
        "stop_token_ids": ({1, 2}, [1], None),
        "eos_token_id": (-1, 5, None),
        "stop_criteria": (1, None),
    }.items()
    for value in values
]
"""Keywords of GenerationConfig(**keywords)."""

LIMITED = {"max_new_tokens": 8}
SAMPLED = {**LIMITED, "do_sample": True}
BEAMS = {**LIMITED, "num_beams": 4}
COMBINATIONS: list[dict[str, Any]] = [
    {},
    LIMITED,
    SAMPLED,
    BEAMS,
    {"eos_token_id": 3},
    {"stop_token_ids": {3}},
    {"stop_strings": {"a"}},
    {"max_length": 5},
    {"ignore_eos": True},
    {"ignore_eos": True, "eos_token_id": 3},
    {"ignore_eos": True, "max_length": 5},
    {"stop_token_ids": {-3}, **LIMITED},
    {"max_new_tokens": 0},
    {"max_new_tokens": 0, "echo": True},
    {"min_new_tokens": 9, **LIMITED},
    {"min_new_tokens": 8, **LIMITED},
    {"num_return_sequences": 0, **LIMITED},
    {"num_return_sequences": 2, **LIMITED},
    {"num_return_sequences": 2, **SAMPLED},
    {"num_return_sequences": 4, **BEAMS},
    {"num_return_sequences": 5, **BEAMS},
    *({name: value, **LIMITED} for name in ("frequency_penalty", "presence_penalty") for value in (-2, 2, 2.1, -2.1)),
    *({"repetition_penalty": value, **LIMITED} for value in (0, -1, 0.1, 9)),
    *({name: 0.5, **BEAMS} for name in ("frequency_penalty", "presence_penalty", "repetition_penalty")),
    *({"top_p": value, **kind} for value in (0, -1, 0.1, 1, 1.1) for kind in (LIMITED, SAMPLED)),
    *({"temperature": value, **kind} for value in (0, -1, 0.1) for kind in (LIMITED, SAMPLED)),
    *({"min_p": value, **kind} for value in (0, -0.1, 0.9, 1) for kind in (LIMITED, SAMPLED)),
    *({"top_k": value, **SAMPLED} for value in (0, 1, 2**40)),
    *({"num_beam_groups": value, **BEAMS} for value in (2, 3)),
    *({"num_beam_groups": value, "diversity_penalty": 0.5, **BEAMS} for value in (1, 2, 3, 4)),
    *({"num_beam_groups": value, **LIMITED} for value in (0, 2)),
    {"num_beams": 0, **LIMITED},
    {"num_beams": 4, **SAMPLED},
    {"no_repeat_ngram_size": 0, **BEAMS},
    {"no_repeat_ngram_size": 0, **LIMITED},
    {"no_repeat_ngram_size": 2, **BEAMS},
    {"num_assistant_tokens": 3, **LIMITED},
    {"num_assistant_tokens": 3, **BEAMS},
    {"num_assistant_tokens": 3, "num_return_sequences": 2, **SAMPLED},
    {"assistant_confidence_threshold": 0.4, **LIMITED},
    {"assistant_confidence_threshold": 0.4, "num_assistant_tokens": 3, **LIMITED},
    {"assistant_confidence_threshold": 0.4, "max_ngram_size": 3, **LIMITED},
    {"max_ngram_size": 3, **LIMITED},
    {"max_ngram_size": 3, "num_assistant_tokens": 0, **LIMITED},
    {"max_ngram_size": 3, "num_assistant_tokens": 3, **LIMITED},
    {"tree_depth": 2, **LIMITED},
    {"tree_depth": 2, "num_assistant_tokens": 1, **LIMITED},
    {"tree_depth": 2, "num_assistant_tokens": 2, **LIMITED},
    {"tree_depth": 2, "num_assistant_tokens": 2, "branching_factor": 0, **LIMITED},
    {"tree_depth": 2, "num_assistant_tokens": 2, **SAMPLED},
    {"tree_depth": 2, "num_assistant_tokens": 2, **BEAMS},
    {"tree_depth": 2, "num_assistant_tokens": 2, "max_ngram_size": 2, **LIMITED},
]
"""Keywords of configurations that are validated, and asked for their mode."""

FILES: list[Any] = [
    {},
    {"eos_token_id": 2},
    {"eos_token_id": [2, 3]},
    {"eos_token_id": []},
    {"eos_token_id": 2, "stop_token_ids": [5], "max_length": 20, "max_new_tokens": 10},
    {"eos_token_id": None, "temperature": None, "top_k": 5, "top_p": 0.5, "do_sample": True, "min_p": 0.125},
    {"stop_strings": ["a", "b"], "num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    {"stop_strings": "a"},
    {"early_stopping": True},
    {"early_stopping": False},
    {"early_stopping": "never"},
    {"early_stopping": "sometimes"},
    {"repetition_penalty": 1.5, "length_penalty": 2, "no_repeat_ngram_size": 3, "num_return_sequences": 2},
    {"rng_seed": 3, "apply_chat_template": False, "echo": True, "logprobs": 2, "ignore_eos": True},
    {"transformers_version": "5.0", "suppress_tokens": [1], "typical_p": 0.5},
    {"num_assistant_tokens": 4, "max_ngram_size": 2, "assistant_confidence_threshold": 0.25},
    {"temperature": [1]},
    {"temperature": "warm"},
    {"do_sample": "yes"},
    {"do_sample": 1},
    {"top_k": 2.5},
    {"top_k": -1},
    {"max_length": True},
]
"""Contents of generation_config.json."""

MODES = ("is_greedy_decoding", "is_beam_search", "is_multinomial", "is_assisting_generation", "is_prompt_lookup")


def plain(value: Any) -> Any:
    """Return a value of a field for JSON."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return value.name if hasattr(type(value), "__members__") else value


def shown(value: Any) -> str:
    """Return a case as text, with sets in order."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={shown(item)}" for name, item in value.items())
    return f"{{{str(sorted(value))[1:-1]}}}" if isinstance(value, set) else repr(value)


def fields_of(config: Any) -> dict[str, Any]:
    """Return the fields of a configuration, of openvino_genai or ovgpu."""
    kind = type(config)
    names = [name for name in dir(kind) if not name.startswith("_") and not callable(getattr(kind, name))]
    return {name: plain(getattr(config, name)) for name in names}


def changed(make: Any, kind: Any) -> Any:
    """Return the fields that differ from their defaults, or the name of the exception."""
    try:
        config = make()
    except Exception as e:
        return next(
            name for name in ("RuntimeError", "TypeError", "AttributeError") if name in map(_name, type(e).mro())
        )
    defaults = fields_of(kind())
    return {name: value for name, value in fields_of(config).items() if value != defaults[name]}


def _name(kind: type) -> str:
    return kind.__name__


def outcomes(kind: Any, cases: Any = sys.modules[__name__]) -> dict[str, dict[str, Any]]:
    """Return the outcome of every case of a module for a class of configurations, by group and case."""

    def assigned(name: str, value: Any) -> Any:
        config = kind()
        setattr(config, name, value)
        return config

    def validated(keywords: dict[str, Any]) -> Any:
        config = kind(**keywords)
        modes = {name: getattr(config, name)() for name in MODES}
        try:
            config.validate()
        except RuntimeError:
            return {"valid": False, **modes}
        return {"valid": True, **modes}

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "generation_config.json"

        def read(contents: Any) -> Any:
            path.write_text(json.dumps(contents))
            return kind(str(path))

        return {
            "assignments": {
                f"{n} = {shown(v)}": changed(lambda n=n, v=v: assigned(n, v), kind) for n, v in cases.ASSIGNMENTS
            },
            "keywords": {shown(case): changed(lambda case=case: kind(**case), kind) for case in cases.KEYWORDS},
            "combinations": {shown(case): validated(case) for case in cases.COMBINATIONS},
            "files": {json.dumps(case): changed(lambda case=case: read(case), kind) for case in cases.FILES},
        }
