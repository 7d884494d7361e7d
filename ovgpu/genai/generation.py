"""Generation of texts from some prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ovgpu.genai.assisted_metrics import AssistedRecord
from ovgpu.genai.engine import Engine
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
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    stops: Stops,
    streamer: StreamerBase | None,
    raw: RawPerfMetrics,
    grammar: CompiledGrammar | None = None,
) -> Outcome:
    """Continue each prompt ``num_return_sequences`` times, by greedy search, random draws or beam search.

    ``engine`` has no other generations. With ``grammar``, all texts follow that. The measured times are added to
    ``raw``. An exception of the streamer ends the generation.
    """
    raw.inference_durations.append(0.0)
    generations = [Generation(prompt, config, stops, raw, grammar, streamer) for prompt in prompts]
    run(engine, generations, len(prompts) == config.num_return_sequences == config.num_beams == 1)
    return Outcome([text for generation in generations for text in generation.best_first], generations[0].status)


def run(engine: Engine, generations: Sequence[Generation], alone: bool = False) -> None:
    """Run generations to their end in an engine that has no others, see `Engine.add`. Raises the first error of one.

    Of blocks that wait for others to share them, those of this call stay, and with a limit of blocks also earlier ones;
    after an exception, none.
    """
    kept: Sequence[Generation] = ()
    try:
        engine.add(generations, alone)
        while engine.is_busy:
            engine.step()
            for generation in generations:
                if generation.error is not None:
                    raise generation.error
        kept = generations
    finally:
        engine.close()
        if engine.limits.blocks is None or not kept:
            engine.forget(kept)
