"""Generation of texts from some prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ovgpu.genai.assisted_metrics import AssistedRecord
from ovgpu.genai.decoder import Decoder
from ovgpu.genai.engine import DEFAULT, Engine, Limits
from ovgpu.genai.enums import StreamingStatus
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.grammar import CompiledGrammar
from ovgpu.genai.metrics import RawPerfMetrics
from ovgpu.genai.stops import Stops
from ovgpu.genai.streamers import StreamerBase
from ovgpu.genai.texts import Generation, Text


@dataclass
class Outcome:
    """Texts of a generation, those of the first prompt first, and what the streamer answered last."""

    texts: list[Text]
    status: StreamingStatus = StreamingStatus.RUNNING
    record: AssistedRecord | None = None
    """Inferences of both models, if there was a draft model."""

    @property
    def cancelled(self) -> bool:
        """True if the streamer cancelled the generation."""
        return self.status == StreamingStatus.CANCEL

    @property
    def scores(self) -> list[float]:
        """The score of each text."""
        return [text.score for text in self.texts]

    @property
    def reasons(self) -> list[Any]:
        """Why each text ended."""
        return [text.reason for text in self.texts]


def generate(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    stops: Stops,
    streamer: StreamerBase | None,
    raw: RawPerfMetrics,
    grammar: CompiledGrammar | None = None,
    limits: Limits = DEFAULT,
) -> Outcome:
    """Continue each prompt ``num_return_sequences`` times, by greedy search, random draws or beam search.

    With ``grammar``, all texts follow that. The measured times are added to ``raw``. An exception of the streamer ends
    the generation.
    """
    raw.inference_durations.append(0.0)
    generations = [Generation(prompt, config, stops, raw, grammar, streamer) for prompt in prompts]
    is_one = len(prompts) == config.num_return_sequences == config.num_beams == 1
    run(Engine(decoder, limits, is_one), generations)
    return Outcome([text for generation in generations for text in generation.best_first], generations[0].status)


def run(engine: Engine, generations: Sequence[Generation]) -> None:
    """Run generations in an engine, which has no others, to their end. Raises the first error of one."""
    try:
        engine.add(generations)
        while engine.is_busy:
            engine.step()
            for generation in generations:
                if generation.error is not None:
                    raise generation.error
    finally:
        engine.close()
        engine.forget()
