"""Classes DecodedResults and EncodedResults: generated texts, or their tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ovgpu.genai.assisted_metrics import SDPerModelsPerfMetrics
from ovgpu.genai.enums import GenerationFinishReason
from ovgpu.genai.metrics import PerfMetrics


@dataclass(frozen=True, repr=False)
class DecodedResults:
    """Generated texts: those of the first prompt come first.

    ``scores`` are sums of log probabilities (0 for greedy search, unless logprobs is set), ``finish_reasons`` say why
    each text ended. ``parsed`` has the message of each text (a dict) if there are parsers. As str, it is the text, or a
    line with score and text for each of several.
    """

    texts: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    finish_reasons: list[GenerationFinishReason] = field(default_factory=list)
    perf_metrics: PerfMetrics = field(default_factory=PerfMetrics)
    extended_perf_metrics: SDPerModelsPerfMetrics | None = None
    parsed: list[Any] = field(default_factory=list)

    def __str__(self) -> str:
        if len(self.texts) == 1:
            return self.texts[0]
        return "\n".join(f"{score:f}: {text}" for score, text in zip(self.scores, self.texts))


@dataclass(frozen=True, repr=False)
class EncodedResults:
    """Tokens of generated texts, and the rest of `DecodedResults`."""

    tokens: list[list[int]]
    scores: list[float]
    finish_reasons: list[GenerationFinishReason]
    perf_metrics: PerfMetrics
    extended_perf_metrics: SDPerModelsPerfMetrics | None = None
