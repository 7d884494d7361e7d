"""Class Search: a beam search in an engine."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ovgpu.errors import Error
from ovgpu.genai.beam_search import BeamSearch, log_softmax
from ovgpu.genai.decoder import Beams, Decoder
from ovgpu.genai.texts import Generation, Text


class Search:
    """Beam search of a generation, step by step. A decoder has one at a time."""

    def __init__(self, generation: Generation, decoder: Decoder) -> None:
        self.generation, self._decoder = generation, decoder
        self._found = BeamSearch(generation.prompt, generation.config, generation.stops, generation.texts[0].limit)
        self._batch: Beams | None = None
        self._rows: Sequence[Sequence[int]] = [generation.prompt]
        self._parents = [0]

    @property
    def has_ended(self) -> bool:
        return not self.generation.is_running

    def step(self) -> None:
        """Continue each beam by a token."""
        start = time.perf_counter()
        if self._batch is None:
            self._batch = self._decoder.beams()
        try:
            logits = self._batch.step(self._rows, self._parents)
            inferred = time.perf_counter()
            self._found.advance(logits if self._decoder.log_probabilities else log_softmax(logits))
        except Error as e:
            self.generation.fail(e)
            return
        beams = self._found.beams
        self._rows, self._parents = [beam.tokens[-1:] for beam in beams], [beam.row for beam in beams]
        self.generation.raw.add_inference(start, inferred, 1)
        if not beams:
            prompt, limit = self.generation.prompt, self.generation.texts[0].limit
            found = self._found.results()
            self.generation.set_texts(
                [
                    Text(prompt, limit, list(beam.tokens), list(beam.logs), reason, score)
                    for beam, score, reason in found
                ]
            )
