"""Estimates of text generation by Llama-3.1-8B for 1, 4 and 16 prompts at a time, beside vLLM's published latencies.

    python -m bench.kernels.generation [--card H100] [--out bench/results]

As in vLLM's benchmark of latency, each prompt has 256 tokens, and 32 are generated: one by the inference of the
prompts, 31 by decode steps, which are estimated behind 272 tokens. All layers are alike, so that models of one and two
layers are compiled, and the second layer counts 31 times more. Nothing runs on a card: `estimate.py` says how times
follow from machine code. Work of the host is not part of them.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import ovgpu
from bench.kernels import report
from bench.kernels.cards import CARDS, Card, card
from bench.kernels.dry_device import dry_device
from bench.kernels.estimate import of_plan
from bench.kernels.launches import steps_of
from bench.networks import llama
from bench.workloads import F16
from tests.harness.models.transformer import Sizes

RESULTS = Path(__file__).resolve().parents[1] / "results"
LLAMA_8B = Sizes(32, 4096, 32, 14336, 128256, 4096, shared=4)
PROMPT, GENERATED = 256, 32
CONTEXT = PROMPT + GENERATED // 2  # of the decode step that stands for all of them
BATCHES = (1, 4, 16)
VARIANTS: tuple[llama.Variant, ...] = ("f16", "int4")
PUBLISHED = {"f16": (0.236, 0.336), "int4": (0.154, 0.267)}  # seconds of vLLM for one and for 16 prompts; bf16, int4
WARM_UP = 3  # decode steps before the one that is estimated: caches move to memory with spare capacity


def estimates(variant: llama.Variant, layers: int, batch: int, chosen: Card) -> tuple[float, float]:
    """Return the seconds of the inference of the prompts, and of a decode step, of a model with so many layers."""
    model = llama.build(variant, replace(LLAMA_8B, layers=layers))
    with dry_device(chosen) as device:
        core = ovgpu.Core()
        request = core.compile_model(core.read_model(*model.ir), device, F16).create_infer_request()
        begin, found = 0, list[float]()
        for count in (PROMPT, CONTEXT - WARM_UP - 1 - PROMPT, *[1] * (WARM_UP + 1)):
            end = begin + count
            request.infer(
                {
                    "input_ids": np.ones((batch, count), np.int64),
                    "attention_mask": np.ones((batch, end), np.int64),
                    "position_ids": np.tile(np.arange(begin, end), (batch, 1)),
                    "beam_idx": np.arange(batch, dtype=np.int32),
                }
            )
            begin = end
            if end in (PROMPT, CONTEXT):
                plan, launches = steps_of(request._session.last)
                found.append(report.total(of_plan(plan, launches, chosen)))
    gc.collect()
    return found[0], found[1]


def whole(one: float, two: float) -> float:
    """Return the seconds of all layers from those of models of one and of two."""
    return one + (LLAMA_8B.layers - 1) * (two - one)


def row_of(variant: llama.Variant, batch: int, chosen: Card) -> dict[str, float]:
    """Return the estimates in milliseconds: of the prompts, of a decode step, and of both for all tokens."""
    prompts, step = map(whole, *(estimates(variant, layers, batch, chosen) for layers in (1, 2)))
    return {"prompts": 1e3 * prompts, "step": 1e3 * step, "whole": 1e3 * (prompts + (GENERATED - 1) * step)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--card", type=card, default=CARDS["H100"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    result: dict[str, Any] = {v: {str(b): row_of(v, b, options.card) for b in BATCHES} for v in VARIANTS}
    name = f"generation-{options.card.name.lower().replace(' ', '-')}-estimated"
    (options.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / f"{name}.md").write_text(page(result, options.card))
    return 0


def page(result: dict[str, Any], chosen: Card) -> str:
    """Return the results as Markdown."""
    lines = [
        f"# Llama-3.1-8B on {chosen.name}: estimates for 1, 4 and 16 prompts at a time",
        "",
        "Nothing here was measured on a card. `python -m bench.kernels.generation` estimates kernels from their\n"
        "machine code, those of a model with two layers, of which the second one counts 31 times. Times are\n"
        "milliseconds, without work of the host. vLLM's latencies are those that it publishes for an H100\n"
        f"({PROMPT} tokens in, {GENERATED} out; bf16 and int4), for 1 and 16 prompts. Activations are f16 here,\n"
        "which takes as long as bf16.",
        "",
        f"| Weights | Prompts | Prompts of {PROMPT} tokens | Decode step | {GENERATED} tokens | vLLM |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for variant, batches in result.items():
        published = dict(zip((str(BATCHES[0]), str(BATCHES[-1])), PUBLISHED[variant]))
        for batch, found in batches.items():
            theirs = f"{1e3 * published[batch]:.0f}" if batch in published else "-"
            figures = " | ".join(f"{found[part]:.1f}" for part in ("prompts", "step", "whole"))
            lines.append(f"| {variant} | {batch} | {figures} | {theirs} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
