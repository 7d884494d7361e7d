"""Settings of a generation, from the files that transformers writes beside a model, and from the command line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovgpu.genai.sampling import Sampling

NEW_TOKENS = 128  # unless generation_config.json sets max_new_tokens
SAMPLING_NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
NEUTRAL = {
    "num_beams": 1,
    "typical_p": 1,
    "min_new_tokens": 0,
    "min_length": 0,
    "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "bad_words_ids": [],
    "sequence_bias": {},
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "penalty_alpha": 0,
}
"""Settings of generation_config.json that are not implemented, with the values at which they have no effect."""


@dataclass(frozen=True)
class Settings:
    """Settings of a generation. ``context`` is the largest number of tokens of a text, None if it is not known."""

    sampling: Sampling
    ends: frozenset[int]
    max_new_tokens: int
    context: int | None
    ignored: tuple[str, ...] = ()
    """Settings in generation_config.json that would change the text, but are not implemented, as ``name = value``."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `read_settings` reads."""
    add = parser.add_argument
    add(
        "--max-new-tokens",
        type=int,
        metavar="N",
        help=f"end after N tokens (default: max_new_tokens of generation_config.json, or {NEW_TOKENS})",
    )
    add("--ignore-eos", action="store_true", help="go on after a token that ends the text")
    group = parser.add_argument_group(
        "sampling",
        "What is not given comes from generation_config.json, with the "
        "defaults of transformers. The rules are applied in this order, as by openvino_genai.",
    )
    mode = group.add_mutually_exclusive_group()
    mode.add_argument("--sample", action="store_true", help="draw the next token at random")
    mode.add_argument(
        "--greedy", action="store_true", help="take the most likely token (default, unless the file sets do_sample)"
    )
    group.add_argument("--repetition-penalty", type=float, metavar="P", help="divide the scores of earlier tokens by P")
    group.add_argument(
        "--top-k",
        type=int,
        metavar="K",
        help="draw one of the K most likely tokens; 0 for any; this and the next three options imply --sample",
    )
    group.add_argument("--temperature", type=float, metavar="T", help="divide all scores by T; 0 is greedy")
    group.add_argument(
        "--min-p", type=float, metavar="P", help="draw a token at least P times as likely as the most likely one"
    )
    group.add_argument(
        "--top-p", type=float, metavar="P", help="draw one of the most likely tokens, whose probabilities add up to P"
    )
    group.add_argument("--seed", type=int, help="seed of the draws (default: a random one, which is printed)")


def read_settings(folder: Path, args: argparse.Namespace) -> Settings:
    """Return the settings that the options and the files of a folder describe.

    Without generation_config.json, config.json may have the settings, as in older exports. Raises: ValueError for
    values out of range and for files that are no JSON.
    """
    config = read_json(folder / "config.json")
    path = folder / "generation_config.json"
    generation = read_json(path) if path.is_file() else config
    limit = args.max_new_tokens if args.max_new_tokens is not None else generation.get("max_new_tokens") or NEW_TOKENS
    if limit < 1:
        raise ValueError(f"--max-new-tokens must be at least 1, not {limit}")
    text = config.get("text_config")
    configs = [config, text] if isinstance(text, dict) else [config]
    contexts = [c[name] for c in configs for name in CONTEXT_NAMES if isinstance(c.get(name), int)]
    ignored = tuple(
        f"{name} = {generation[name]}"
        for name, neutral in NEUTRAL.items()
        if generation.get(name) not in (None, neutral)
    )
    return Settings(
        _sampling(generation, args),
        frozenset() if args.ignore_eos else _ends([generation, *configs]),
        limit,
        contexts[0] if contexts else None,
        ignored,
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if there is no such file. Raises ValueError for other contents."""
    if not path.is_file():
        return {}
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise ValueError(f"{path} is not JSON: {e}") from None
    if not isinstance(contents, dict):
        raise ValueError(f"{path} has no JSON object")
    return contents


def _sampling(generation: Mapping[str, Any], args: argparse.Namespace) -> Sampling:
    options = {name: value for name in SAMPLING_NAMES if (value := getattr(args, name)) is not None}
    drawn = [name for name in ("top_k", "temperature", "min_p", "top_p") if name in options]
    if args.greedy and drawn:
        raise ValueError(f"--greedy takes the most likely token: leave out --{drawn[0].replace('_', '-')}")
    values = {name: generation[name] for name in SAMPLING_NAMES if generation.get(name) is not None}
    if "top_k" in generation:
        values["top_k"] = generation["top_k"] or 0
    values |= options
    asked = generation.get("do_sample") or False
    if not isinstance(asked, bool):
        raise ValueError(f"do_sample is {asked!r}, neither true nor false")
    sample = args.sample or (not args.greedy and bool(drawn or asked))
    if values.get("temperature") == 0:
        del values["temperature"]
        sample = False
    return Sampling(sample, **values)


def _ends(configs: list[Any]) -> frozenset[int]:
    """Return the tokens that end a text: ``eos_token_id``, a number or a list, of the first file that has it."""
    tokens: Any = next((c["eos_token_id"] for c in configs if c.get("eos_token_id") is not None), [])
    return frozenset(tokens if isinstance(tokens, list) else [tokens])
