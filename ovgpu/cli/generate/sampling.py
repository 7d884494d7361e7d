"""Choice of the next token from logits, by the rules and in the order of transformers' logits processors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.ops.base.storage import decode

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sampling:
    """Rules for the next token: the most likely one, or with ``sample`` a random one that the other rules allow.

    Neutral values are 0 for ``top_k`` and 1 for all others. Raises: ValueError for a value out of range.
    """

    sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, holds, range_ in (
            ("temperature", 0 < self.temperature < np.inf, "above 0"),
            ("top-k", self.top_k >= 0, "0 or more"),
            ("top-p", 0 <= self.top_p <= 1, "from 0 to 1"),
            ("repetition-penalty", 0 < self.repetition_penalty < np.inf, "above 0"),
        ):
            if not holds:
                raise ValueError(f"--{name} must be {range_}, not {getattr(self, name.replace('-', '_')):g}")

    def __str__(self) -> str:
        rules = [f"repetition penalty {self.repetition_penalty:g}"] if self.repetition_penalty != 1 else []
        if self.sample:
            rules += [f"temperature {self.temperature:g}"]
            rules += [f"top-k {self.top_k}"] if self.top_k else []
            rules += [f"top-p {self.top_p:g}"] if self.top_p < 1 else []
        return ", ".join(["sampled" if self.sample else "greedy", *rules])


class Chooser:
    """Choice of tokens, with the state of its random numbers."""

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self.sampling = sampling
        self._random = np.random.default_rng(seed)

    def choose(self, logits: Array, seen: Sequence[int]) -> int:
        """Return the token to follow those in ``seen``, given its logits [vocabulary].

        Raises: Error for logits that are not numbers.
        """
        scores = decode(logits)
        if self.sampling.repetition_penalty != 1:
            scores = penalised(scores, seen, self.sampling.repetition_penalty)
        best = int(np.argmax(scores))  # NaN counts as the largest number
        if np.isnan(scores[best]):
            raise Error("the logits have NaN: the model, or its computation on this device, is faulty")
        if not self.sampling.sample:
            return best
        odds = np.cumsum(probabilities(scores, self.sampling))
        return int(np.searchsorted(odds, self._random.random() * odds[-1], side="right"))


def probabilities(scores: Array, sampling: Sampling) -> Array:
    """Return the probability [vocabulary] of each token, in f64, after temperature, top-k and top-p."""
    with np.errstate(over="ignore"):  # a very low temperature leaves the best token alone
        scores = (scores.astype(np.float64) - scores.max()) / sampling.temperature
    if sampling.top_k:
        scores = best_k(scores, sampling.top_k)
    if sampling.top_p < 1:
        scores = nucleus(scores, sampling.top_p)
    return softmax(scores)


def penalised(scores: Array, seen: Sequence[int], penalty: float) -> Array:
    """Return scores in which tokens in ``seen`` are less likely, for a penalty above 1.

    Keskar et al., CTRL (arXiv:1909.05858), section 4.1, divide a score by the penalty. As in transformers, a negative
    score is multiplied instead.
    """
    tokens, scores = np.array(seen, np.int64), scores.copy()
    earlier = scores[tokens]
    scores[tokens] = np.where(earlier < 0, earlier * penalty, earlier / penalty)
    return scores


def best_k(scores: Array, k: int) -> Array:
    """Return scores that are -inf except the k largest, and those equal to the smallest of these."""
    if k >= scores.size:
        return scores
    return _kept(scores, scores >= np.partition(scores, -k)[-k])


def nucleus(scores: Array, p: float) -> Array:
    """Return scores that are -inf except the fewest largest ones whose probabilities add up to ``p``, at least one.

    Holtzman et al., The Curious Case of Neural Text Degeneration (arXiv:1904.09751), section 3.1.
    """
    candidates = np.flatnonzero(scores > -np.inf)
    ascending = candidates[np.argsort(scores[candidates], kind="stable")]
    removed = np.cumsum(softmax(scores[ascending])) <= 1 - p
    removed[-1] = False
    keep = np.zeros(scores.shape, np.bool_)
    keep[ascending[~removed]] = True
    return _kept(scores, keep)


def softmax(scores: Array) -> Array:
    """Return the probabilities that the scores stand for, in f64."""
    powers = np.exp(scores.astype(np.float64) - scores.max())
    result: Array = powers / powers.sum()
    return result


def _kept(scores: Array, keep: Array) -> Array:
    result: Array = np.where(keep, scores, -np.inf)
    return result
