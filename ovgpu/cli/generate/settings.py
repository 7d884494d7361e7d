"""Settings of a generation, from the files that transformers writes beside a model, and from the command line."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from ovgpu.genai.fields import UNLIMITED
from ovgpu.genai.files import read_json
from ovgpu.genai.generation_config import GenerationConfig

NEW_TOKENS = 128  # unless generation_config.json sets max_new_tokens
OPTIONS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
NEUTRAL = {
    "num_beams": 1,
    "typical_p": 1,
    "min_length": 0,
    "encoder_repetition_penalty": 1,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "bad_words_ids": [],
    "sequence_bias": {},
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "penalty_alpha": 0,
}
"""Settings of generation_config.json that have no effect, with the values at which they never have one."""
ONE_TEXT = {"num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0, "num_return_sequences": 1}


@dataclass(frozen=True)
class Settings:
    """Settings of a generation. ``context`` is the largest number of tokens of a text, None if it is not known."""

    config: GenerationConfig
    context: int | None
    ignored: tuple[str, ...] = ()
    """Settings in generation_config.json that would change the text, but have no effect, as ``name = value``."""


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
        "What is not given comes from generation_config.json. "
        "The rules are applied in this order, as by openvino_genai.",
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
    options that contradict each other, Error for values out of range and for files that are no JSON.
    """
    config = read_json(folder / "config.json")
    path = folder / "generation_config.json"
    if not path.is_file():
        path = folder / "config.json"
    generation = GenerationConfig(path) if path.is_file() else GenerationConfig()
    generation.update_generation_config(**ONE_TEXT)
    text = config.get("text_config")
    configs = [config, text] if isinstance(text, dict) else [config]
    _set_ends(generation, configs)
    _set_options(generation, args)
    generation.validate()
    contexts = [c[name] for c in configs for name in CONTEXT_NAMES if isinstance(c.get(name), int)]
    written = read_json(path)
    ignored = tuple(
        f"{name} = {written[name]}" for name, value in NEUTRAL.items() if written.get(name) not in (None, value)
    )
    return Settings(generation, contexts[0] if contexts else None, ignored)


def _set_ends(generation: GenerationConfig, configs: list[dict[str, object]]) -> None:
    """Take the tokens that end a text, a number or a list, from config.json if generation_config.json has none."""
    if generation.stop_token_ids:
        return
    ends: object = next((c["eos_token_id"] for c in configs if c.get("eos_token_id") is not None), [])
    tokens = ends if isinstance(ends, list) else [ends]
    if tokens:
        generation.update_generation_config(stop_token_ids=set(tokens), eos_token_id=tokens[0])


def _set_options(generation: GenerationConfig, args: argparse.Namespace) -> None:
    options = {name: value for name in OPTIONS if (value := getattr(args, name)) is not None}
    drawn = [name for name in ("top_k", "temperature", "min_p", "top_p") if name in options]
    if args.greedy and drawn:
        raise ValueError(f"--greedy takes the most likely token: leave out --{drawn[0].replace('_', '-')}")
    sample = args.sample or (not args.greedy and bool(drawn or generation.do_sample))
    if options.get("temperature", generation.temperature) == 0:
        options["temperature"], sample = 1.0, False
    if args.max_new_tokens is not None and args.max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens must be at least 1, not {args.max_new_tokens}")
    limit = args.max_new_tokens
    if limit is None:
        limit = generation.max_new_tokens if generation.max_new_tokens != UNLIMITED else NEW_TOKENS
    seed = int.from_bytes(os.urandom(4), "big") if args.seed is None else args.seed
    generation.update_generation_config(
        **options, do_sample=sample, max_new_tokens=limit, ignore_eos=args.ignore_eos, rng_seed=seed
    )
