"""Classes TextRun and Search: a text, and a beam search, while an engine runs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgpu.batching.pages import Tokens
from ovgpu.genai.beam_search import BeamSearch
from ovgpu.genai.decoder import Chooser, DecoderInputs
from ovgpu.genai.enums import GenerationFinishReason
from ovgpu.genai.places import Step
from ovgpu.genai.sampling import checked_token
from ovgpu.genai.texts import Feed, Generation, Text

NOTHING = Tokens()


@dataclass
class Slot:
    """Place in a decoder, and the blocks of its tokens. If it ``reorders``, other slots have other rows of it."""

    place: Any
    reorders: bool
    held: Tokens = NOTHING


class Run(ABC):
    """Texts of a generation that an engine runs together. Each has a slot while they run."""

    width = 1
    """The most texts."""

    alone = False
    """True if it shares no inferences with others."""

    def __init__(self, generation: Generation, chooser: Chooser) -> None:
        self.generation, self.chooser = generation, chooser
        self.slots: list[Slot] = []

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """True if all texts have ended."""

    @property
    @abstractmethod
    def known(self) -> Sequence[int]:
        """The tokens with which the first slot begins, and all that it has got, or will get, but for those of beams."""

    @property
    @abstractmethod
    def fed(self) -> int:
        """The number of tokens that each slot has got."""

    @property
    @abstractmethod
    def left(self) -> int:
        """The number of tokens that each slot has not got."""

    @property
    @abstractmethod
    def one_by_one(self) -> bool:
        """True if the model takes prompts whole, and then one token at a time."""

    @abstractmethod
    def share(self, count: int) -> None:
        """Begin behind tokens that the slot has from another text."""

    @abstractmethod
    def steps(self, count: int) -> dict[Any, Step]:
        """Return the inputs by place for the next ``count`` tokens. Raises: Error if nothing follows the grammar."""

    @abstractmethod
    def take(self, results: Mapping[Any, Any]) -> tuple[int, Sequence[int]]:
        """Take the outputs of a step by place.

        Returns: the number of tokens that were chosen, and the slots, by number, that go on; one for each text that
        continues it. Raises: Error if the logits are not numbers.
        """

    @abstractmethod
    def stop(self) -> None:
        """End the texts as at the limit of tokens."""

    @abstractmethod
    def restart(self, inputs: DecoderInputs) -> None:
        """Begin again, with ``inputs`` of an empty text. The last step may have been interrupted."""


class TextRun(Run):
    """A text. It begins again with all tokens that it has."""

    def __init__(self, generation: Generation, chooser: Chooser, text: Text, feed: Feed) -> None:
        super().__init__(generation, chooser)
        self.text, self.feed = text, feed

    @property
    def has_ended(self) -> bool:
        return self.text.reason is not None

    @property
    def known(self) -> Sequence[int]:
        return self.feed.known

    @property
    def fed(self) -> int:
        return self.feed.fed

    @property
    def left(self) -> int:
        return self.feed.left

    @property
    def one_by_one(self) -> bool:
        return self.feed.one_by_one

    def share(self, count: int) -> None:
        self.feed.share(count)

    def steps(self, count: int) -> dict[Any, Step]:
        return {self.slots[0].place: self.feed.next(count)}

    def take(self, results: Mapping[Any, Any]) -> tuple[int, Sequence[int]]:
        if self.left:
            return 0, [0]
        values, index = results[self.slots[0].place].to_tuple(), self.chooser.output
        self.feed.accept(checked_token(values[index]))
        self.text.logs.append(values[index + 1].item())
        self._check_end()
        return 1, [0]

    def stop(self) -> None:
        self.text.reason = GenerationFinishReason.LENGTH

    def restart(self, inputs: DecoderInputs) -> None:
        text = self.text
        if text.reason is None:
            del text.tokens[len(text.logs) :]  # without its log probability, a token was not accepted
            if text.tokens:
                self._check_end()
        self.feed.restart(inputs)

    def _check_end(self) -> None:
        self.text.reason, cut = self.generation.stops.check(self.text.tokens, self.text.limit)
        self.text.cut(cut)


class Search(Run):
    """A beam search. After the prompt, each beam is a text with a slot. It begins again with the prompt alone."""

    def __init__(self, generation: Generation, chooser: Chooser, inputs: DecoderInputs) -> None:
        super().__init__(generation, chooser)
        self.width = generation.config.num_beams
        self._counted = 0  # tokens of each beam that `take` has counted, also before it began again
        self.restart(inputs)

    def restart(self, inputs: DecoderInputs) -> None:
        generation = self.generation
        limit = generation.texts[0].limit
        self._search = BeamSearch(generation.prompt, generation.config, generation.stops, limit)
        self._inputs, self._parents = [inputs], [0]
        self._fed = self._chosen = 0

    @property
    def has_ended(self) -> bool:
        return not self.generation.is_running

    @property
    def known(self) -> Sequence[int]:
        return self.generation.prompt

    @property
    def fed(self) -> int:
        return self._fed

    @property
    def left(self) -> int:
        return len(self.known) + self._chosen - self._fed

    @property
    def one_by_one(self) -> bool:
        return self._inputs[0].one_by_one

    def share(self, count: int) -> None:
        self._inputs[0].skip(count)
        self._fed = count

    def steps(self, count: int) -> dict[Any, Step]:
        rows: list[Sequence[int]] = [beam.tokens[-1:] for beam in self._search.beams]
        if not self._chosen:
            rows = [self.known[self._fed : self._fed + count]]
        self._fed += count
        if self.slots[0].reorders:
            return {self.slots[0].place: self._inputs[0].next(rows, self._parents)}
        return {slot.place: inputs.next([row]) for slot, inputs, row in zip(self.slots, self._inputs, rows)}

    def take(self, results: Mapping[Any, Any]) -> tuple[int, Sequence[int]]:
        if self.left:
            return 0, [0]
        index, found = self.chooser.output, [results[place] for place in {slot.place: None for slot in self.slots}]
        logs, *ranked = (
            np.concatenate([outputs[i][:, -1] for outputs in found])
            for i in range(index, len(self.chooser.compiled.outputs))
        )
        tokens = ranked[0] if ranked else np.broadcast_to(np.arange(logs.shape[1]), logs.shape)
        self._search.advance(logs, tokens)
        self._chosen += 1
        new, self._counted = self._chosen > self._counted, max(self._chosen, self._counted)
        beams = self._search.beams
        if not beams:
            self._end()
            return new, [0]
        self._parents = [beam.row for beam in beams]
        if not self.slots[0].reorders:
            self._inputs = [copy(self._inputs[parent]) for parent in self._parents]
        return new, self._parents

    def stop(self) -> None:
        self._search.stop()
        self._end()

    def _end(self) -> None:
        prompt, limit = self.generation.prompt, self.generation.texts[0].limit
        self.generation.set_texts(
            [
                Text(prompt, limit, list(beam.tokens), list(beam.logs), reason, score)
                for beam, score, reason in self._search.results()
            ]
        )
