"""Beam search: the most likely texts, found by following several beginnings at once.

Groups of beams (Vijayakumar et al., arXiv 1610.02424) are penalised for tokens that earlier groups take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.enums import GenerationFinishReason, StopCriteria
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.sampling import Array
from ovgpu.genai.stops import Stops


@dataclass(frozen=True)
class Beam:
    """Tokens after the prompt, the log probability of each, and the row of the last inference that it continues."""

    tokens: tuple[int, ...] = ()
    logs: tuple[float, ...] = ()
    row: int = 0

    @cached_property
    def score(self) -> float:
        """The sum of the log probabilities."""
        return sum(self.logs)

    def normalised(self, length_penalty: float) -> float:
        """Return the score, divided by a power of the length; 0 for no tokens."""
        return attainable(self.score, len(self.tokens), length_penalty) if self.tokens else 0.0


@dataclass(frozen=True)
class Finished:
    """A beam whose text ended."""

    beam: Beam
    score: float
    reason: GenerationFinishReason


@dataclass
class _Group:
    """Beams that compete with each other: those that go on, the best first, and the best of those that ended."""

    ongoing: list[Beam]
    finished: list[Finished] = field(default_factory=list)
    done: bool = False


class BeamSearch:
    """Search for the texts that follow a prompt. ``limit`` is the most tokens of a text."""

    def __init__(self, prompt: Sequence[int], config: GenerationConfig, stops: Stops, limit: int) -> None:
        self._prompt, self._config, self._stops, self._limit = list(prompt), config, stops, limit
        self._size = config.num_beams // config.num_beam_groups  # of a group
        self._penalty = config.length_penalty
        self._groups = [_Group([Beam()]) for _ in range(config.num_beam_groups)]

    @property
    def beams(self) -> list[Beam]:
        """The beams that go on. Their order is that of the rows of the next inference; none are left at the end."""
        return [beam for group in self._groups if not group.done for beam in group.ongoing]

    def advance(self, tables: Array) -> None:
        """Continue each beam by a token. ``tables`` [rows, vocabulary] are the log probabilities after `beams`.

        Before the first call, there is a single row, with those that follow the prompt.
        """
        rows = iter(range(len(tables)) if len(tables) > 1 else [0] * len(self._groups))
        taken: list[int] = []  # tokens of earlier groups
        for group in self._groups:
            if not group.done:
                group.ongoing = [Beam(beam.tokens, beam.logs, next(rows)) for beam in group.ongoing]
                taken += [beam.tokens[-1] for beam in self._advance(group, tables, taken)]
        for group in self._groups:
            if not group.done and len(group.ongoing[0].tokens) == self._limit:
                for beam in group.ongoing:
                    self._finish(group, beam, len(beam.tokens), GenerationFinishReason.LENGTH)
                group.done = True

    def results(self) -> list[tuple[Beam, float, GenerationFinishReason]]:
        """Return the best texts, their scores and why they ended."""
        found = [finished for group in self._groups for finished in group.finished]
        scored = [(one.beam, one.beam.normalised(self._penalty), one.reason) for one in found]
        return sorted(scored, key=lambda entry: -entry[1])[: self._config.num_return_sequences]

    def _advance(self, group: _Group, tables: Array, taken: Sequence[int]) -> list[Beam]:
        """Continue a group's beams. Return the new beams, which penalise later groups even if this one is done."""
        parents, children = group.ongoing, list[Beam]()
        for rank, beam in enumerate(self._candidates(group, tables, taken)):
            reason, cut = self._stops.check(beam.tokens, self._limit + 1)
            if reason is None:
                children.append(beam)
                if len(children) == self._size:
                    break
            elif rank < self._size:
                kept = len(beam.tokens) - cut
                length = len(beam.tokens) if self._stops.is_end(beam.tokens[-1]) else len(beam.tokens) - 1
                self._finish(group, Beam(beam.tokens[:kept], beam.logs[:kept]), length, reason)
        group.done = not children or self._is_done(group, parents[0])
        group.ongoing = [] if group.done else children
        return children

    def _candidates(self, group: _Group, tables: Array, taken: Sequence[int]) -> list[Beam]:
        """Return the most likely continuations of a group's beams by one token, the best first."""
        count = 2 * self._size  # enough for a group of texts that go on, if as many end
        found = []
        for beam in group.ongoing:
            table = tables[beam.row].copy()
            np.subtract.at(table, list(taken), self._config.diversity_penalty)
            table[list(self._banned(beam))] = -np.inf
            best = _greatest(table, count)
            found += [Beam((*beam.tokens, n), (*beam.logs, float(table[n])), beam.row) for n in best.tolist()]
        if len(found) < count:
            raise Error(f"num_beams is {self._config.num_beams}, and the vocabulary has only {len(tables[0])} tokens")
        return sorted(found, key=lambda beam: -beam.score)

    def _banned(self, beam: Beam) -> Iterator[int]:
        """Yield the tokens that would repeat an n-gram of the text and its prompt."""
        size = self._config.no_repeat_ngram_size
        text = [*self._prompt, *beam.tokens]
        if len(text) > 1 and len(text) >= size:
            tail = text[len(text) - size + 1 :]
            for i in range(len(text) - size + 1):
                if text[i : i + size - 1] == tail:
                    yield text[i + size - 1]

    def _finish(self, group: _Group, beam: Beam, length: int, reason: GenerationFinishReason) -> None:
        """Add a text that ended, and drop the worst one if there are too many."""
        group.finished.append(Finished(beam, attainable(beam.score, length, self._penalty), reason))
        group.finished.sort(key=lambda one: -one.score)
        del group.finished[self._size :]

    def _is_done(self, group: _Group, best: Beam) -> bool:
        """Return whether the search of a group ends. ``best`` is the best beam before this step."""
        if len(group.finished) < self._size:
            return False
        criteria = self._config.stop_criteria
        if criteria == StopCriteria.EARLY:
            return True
        length = len(best.tokens)
        if criteria == StopCriteria.NEVER and self._penalty > 0:
            length = self._limit
        return group.finished[-1].score >= attainable(best.score, length, self._penalty)


def _greatest(table: Array, count: int) -> Array:
    """Return the indices of the greatest elements, in order; of equal ones, the first."""
    if count < len(table):
        chosen = np.sort(np.argpartition(-table, count)[:count])
    else:
        chosen = np.arange(len(table))
    order: Array = chosen[np.argsort(-table[chosen], kind="stable")]
    return order


def attainable(score: float, length: int, length_penalty: float) -> float:
    """Return a sum of log probabilities, divided by a power of the length; NaN for 0 / 0."""
    with np.errstate(all="ignore"):
        return float(np.float64(score) / np.float64(length) ** length_penalty)


def log_softmax(logits: Array) -> Array:
    """Return log probabilities [rows, vocabulary], f32. Raises: Error for logits that are no numbers."""
    values = logits.astype(np.float32, copy=False)
    top = values.max(-1, keepdims=True)
    if not np.isfinite(top).all():
        raise Error("the logits have NaN or infinite values: the model, or its computation on this device, is faulty")
    shifted = values - top
    table: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return table
