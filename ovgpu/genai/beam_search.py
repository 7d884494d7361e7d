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

    def advance(self, logs: Array, tokens: Array) -> None:
        """Continue each beam by a token. ``logs`` [rows, n], f32, are the log probabilities of the ``tokens`` [rows, n]
        after each of `beams`: all of them, or as many of the most likely ones as `candidates` says.

        Before the first call, there is a single row, with those that follow the prompt. Raises: Error for log
        probabilities that are no numbers, and for too few tokens.
        """
        if np.isnan(logs).any():
            raise Error(
                "the logits have NaN or infinite values: the model, or its computation on this device, is faulty"
            )
        rows = iter(range(len(logs)) if len(logs) > 1 else [0] * len(self._groups))
        taken: list[int] = []  # tokens of earlier groups
        for group in self._groups:
            if not group.done:
                group.ongoing = [Beam(beam.tokens, beam.logs, next(rows)) for beam in group.ongoing]
                taken += [beam.tokens[-1] for beam in self._advance(group, logs, tokens, taken)]
        if any(len(beam.tokens) == self._limit for beam in self.beams):
            self.stop()

    def stop(self) -> None:
        """End all beams, as at the limit of tokens."""
        for group in self._groups:
            if not group.done:
                for beam in group.ongoing:
                    self._finish(group, beam, len(beam.tokens), GenerationFinishReason.LENGTH)
                group.done = True

    def results(self) -> list[tuple[Beam, float, GenerationFinishReason]]:
        """Return the best texts, their scores and why they ended."""
        found = [finished for group in self._groups for finished in group.finished]
        scored = [(one.beam, one.beam.normalised(self._penalty), one.reason) for one in found]
        return sorted(scored, key=lambda entry: -entry[1])[: self._config.num_return_sequences]

    def _advance(self, group: _Group, logs: Array, tokens: Array, taken: Sequence[int]) -> list[Beam]:
        """Continue a group's beams. Return the new beams, which penalise later groups even if this one is done."""
        parents, children = group.ongoing, list[Beam]()
        for rank, beam in enumerate(self._candidates(group, logs, tokens, taken)):
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

    def _candidates(self, group: _Group, logs: Array, tokens: Array, taken: Sequence[int]) -> list[Beam]:
        """Return the most likely continuations of a group's beams by one token, the best first."""
        count = 2 * self._size  # enough for a group of texts that go on, if as many end
        found = []
        for beam in group.ongoing:
            table, own = logs[beam.row].copy(), tokens[beam.row]
            for token in taken:
                table[own == token] -= self._config.diversity_penalty
            table[np.isin(own, [*self._banned(beam)])] = -np.inf
            for place in _greatest(table, own, count).tolist():
                found.append(Beam((*beam.tokens, int(own[place])), (*beam.logs, float(table[place])), beam.row))
        if len(found) < count:
            raise Error(f"num_beams is {self._config.num_beams}, and the vocabulary has only {logs.shape[1]} tokens")
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


def candidates(config: GenerationConfig, longest: int) -> int | None:
    """Return the number of most likely tokens after each beam among which a search finds its own.

    None stands for all tokens: any number of them may repeat an n-gram, and a negative penalty may prefer any.
    ``longest`` is the most tokens of a text with its prompt.
    """
    if config.no_repeat_ngram_size <= longest or config.diversity_penalty < 0:
        return None
    size = config.num_beams // config.num_beam_groups
    penalised = config.num_beams - size  # at most: the tokens of earlier groups
    return 2 * size + penalised


def _greatest(logs: Array, tokens: Array, count: int) -> Array:
    """Return the places of the greatest log probabilities, in order; of equal ones, that of the first token."""
    chosen = np.argpartition(-logs, count)[:count] if count < len(logs) else np.arange(len(logs))
    order: Array = chosen[np.lexsort((tokens[chosen], -logs[chosen]))]
    return order


def attainable(score: float, length: int, length_penalty: float) -> float:
    """Return a sum of log probabilities, divided by a power of the length; NaN for 0 / 0."""
    with np.errstate(all="ignore"):
        return float(np.float64(score) / np.float64(length) ** length_penalty)
