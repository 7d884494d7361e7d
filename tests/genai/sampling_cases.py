"""Rules for drawing tokens, and the distributions that they give, for `test_sampling.py` and `compare_draws.py`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
RULES: dict[str, float] = {
    "temperature": 0.7,
    "top_k": 7,
    "top_p": 0.8,
    "min_p": 0.1,
    "repetition_penalty": 1.4,
    "presence_penalty": 0.6,
    "frequency_penalty": 0.4,
}
SETTINGS: list[dict[str, Any]] = [
    {},
    *({name: RULES[name]} for name in RULES),
    *({a: RULES[a], b: RULES[b]} for a, b in combinations(RULES, 2)),
]
"""No rule, each one alone, and all pairs: fields of GenerationConfig, and of ovgpu's Sampling."""


def distribution(
    logits: Sequence[float] | Array,
    prompt: Sequence[int],
    generated: Sequence[int],
    *,
    temperature: float = 1,
    top_k: int = 0,
    top_p: float = 1,
    min_p: float = 0,
    repetition_penalty: float = 1,
    presence_penalty: float = 0,
    frequency_penalty: float = 0,
    logit_bias: dict[int, float] | None = None,
) -> Array:
    """Return the probabilities [v], f64, with which openvino_genai draws the next token."""
    scores = np.array(logits, np.float64)
    for token, bias in (logit_bias or {}).items():
        scores[token] += bias
    for token in {*prompt, *generated}:
        scores[token] = scores[token] / repetition_penalty if scores[token] >= 0 else scores[token] * repetition_penalty
    for token in {*generated}:
        for penalty in (presence_penalty, frequency_penalty * list(generated).count(token)):
            scores[token] -= penalty if scores[token] >= 0 else -penalty
    order = np.argsort(-scores, kind="stable")
    weights = np.exp((scores - scores.max()) / temperature)
    if top_k:
        weights[order[top_k:]] = 0
    likely = np.cumsum(weights[order] / weights.sum())
    kept = np.zeros(len(scores), bool)
    kept[order[: int((likely <= top_p).sum()) + 1]] = True
    weights = np.where(kept & (weights >= min_p), weights, 0)
    probabilities: Array = weights / weights.sum()
    return probabilities


def distance(counts: Array, probabilities: Array) -> tuple[float, float]:
    """Return Pearson's chi-square of counted draws, and the most that is allowed.

    Outcomes that are expected less than five times count as one. A draw that has no probability is infinitely far.
    The bound is five standard deviations of the cube root, which is normally distributed (Wilson and Hilferty 1931).
    """
    if counts[probabilities == 0].any():
        return np.inf, 0.0
    expected = probabilities * counts.sum()
    rare = expected < 5
    expected = np.append(expected[~rare], expected[rare].sum())
    found = np.append(counts[~rare], counts[rare].sum())
    found, expected = found[expected > 0], expected[expected > 0]
    freedom = max(len(expected) - 1, 1)
    variance = 2 / (9 * freedom)
    return float(((found - expected) ** 2 / expected).sum()), freedom * (1 - variance + 5 * variance**0.5) ** 3
