"""Generations of a ContinuousBatchingPipeline: their handles, what is read from these, and their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ovgpu.errors import Error
from ovgpu.genai.enums import GenerationFinishReason, GenerationStatus, StreamingStatus
from ovgpu.genai.metrics import PerfMetrics
from ovgpu.genai.texts import Generation, Text

ENDS = {
    GenerationFinishReason.STOP: StreamingStatus.STOP,
    GenerationFinishReason.TOOL_CALL: StreamingStatus.TOOL_CALL_STOP,
}
STATUSES = {
    StreamingStatus.RUNNING: GenerationStatus.FINISHED,
    StreamingStatus.STOP: GenerationStatus.STOP,
    StreamingStatus.TOOL_CALL_STOP: GenerationStatus.STOP,
    StreamingStatus.CANCEL: GenerationStatus.CANCEL,
}


@dataclass(frozen=True)
class GenerationOutput:
    """Tokens of a text, the log probability of each, the score of the text so far, and why it ended: NONE while it goes
    on. With ``echo``, the prompt's tokens come first; their log probabilities are 0."""

    generated_ids: list[int]
    generated_log_probs: list[float]
    score: float
    finish_reason: GenerationFinishReason


class GenerationHandle:
    """Generation that was added to a `ContinuousBatchingPipeline`, for any thread."""

    def __init__(self, generation: Generation, metrics: Callable[[], PerfMetrics]) -> None:
        self._generation, self._metrics = generation, metrics
        self._read = 0  # tokens that were read, with the prompt's if they are echoed
        self._ended = False  # True if the end was read

    def get_status(self) -> GenerationStatus:
        """Return RUNNING, FINISHED, CANCEL or STOP if `cancel` or `stop` was called, or IGNORED if it failed."""
        return status_of(self._generation)

    def can_read(self) -> bool:
        """Return whether there are tokens, or an end, that were not read. Several texts are read at their end."""
        generation = self._generation
        if self._ended or generation.error is not None:
            return False
        return not generation.is_running or self._settled() > self._read

    def read(self) -> dict[int, GenerationOutput]:
        """Return what was not read, by the number of the text. The best text comes first.

        Raises: RuntimeError if there is nothing, and the error of a generation that failed.
        """
        if self._generation.error is not None:
            raise self._generation.error
        if not self.can_read():
            raise Error("there is nothing to read: ask can_read() before")
        self._ended = not self._generation.is_running  # before the tokens are read, of which there may be more then
        if self._ended:
            return {i: self._output(text, None) for i, text in enumerate(self._generation.best_first)}
        settled = self._settled()
        output = self._output(self._generation.texts[0], settled)
        self._read = settled
        return {0: output}

    def read_all(self) -> list[GenerationOutput]:
        """Return the outputs of `read`, or none."""
        return [*self.read().values()] if self.can_read() or self._generation.error is not None else []

    def cancel(self) -> None:
        """End the generation at the next step."""
        self._end(StreamingStatus.CANCEL)

    def stop(self, finish_reason: GenerationFinishReason = GenerationFinishReason.STOP) -> None:
        """End the generation at the next step, with the reason STOP or TOOL_CALL. Raises: RuntimeError for others."""
        if finish_reason not in ENDS:
            raise Error(f"finish_reason must be STOP or TOOL_CALL, not {finish_reason!r}")
        self._end(ENDS[finish_reason])

    def get_perf_metrics(self) -> PerfMetrics:
        """Return the times of the generation. Raises: RuntimeError before its end."""
        if self._generation.is_running:
            raise Error("the generation has not ended")
        return self._metrics()

    def _end(self, status: StreamingStatus) -> None:
        if self._generation.is_running:
            self._generation.status = status

    @property
    def _before(self) -> list[int]:
        """The tokens before those that are generated."""
        return list(self._generation.prompt) if self._generation.config.echo else []

    def _settled(self) -> int:
        """Return the number of tokens that no stop string cuts off; 0 for several texts, which may change places."""
        generation = self._generation
        if len(generation.texts) > 1 or generation.config.is_beam_search():
            return 0
        generated = len(generation.texts[0].logs) - generation.stops.window
        return len(self._before) + generated if generated > 0 else 0

    def _output(self, text: Text, until: int | None) -> GenerationOutput:
        """Return the tokens of a text from the first one that was not read."""
        before = self._before
        ids, logs = [*before, *text.tokens][:until], [*[0.0] * len(before), *text.logs][:until]
        reason = GenerationFinishReason.NONE if until is not None or text.reason is None else text.reason
        return GenerationOutput(ids[self._read :], logs[self._read :], _score(text, logs[len(before) :]), reason)


@dataclass(frozen=True)
class GenerationResult:
    """Texts that follow a prompt, whose number is ``m_request_id``, with their scores; the best text comes first."""

    m_request_id: int
    m_generation_ids: list[str]
    m_scores: list[float]
    m_status: GenerationStatus
    perf_metrics: PerfMetrics
    extended_perf_metrics: Any = None

    def get_generation_ids(self) -> list[str]:
        """Return the texts."""
        return self.m_generation_ids


@dataclass(frozen=True)
class EncodedGenerationResult:
    """Tokens of texts that follow a prompt, and the rest of `GenerationResult`."""

    m_request_id: int
    m_generation_ids: list[list[int]]
    m_scores: list[float]
    finish_reasons: list[GenerationFinishReason]
    perf_metrics: PerfMetrics
    extended_perf_metrics: Any = None


def status_of(generation: Generation) -> GenerationStatus:
    """Return the status of a generation."""
    if generation.error is not None:
        return GenerationStatus.IGNORED
    if generation.status == StreamingStatus.RUNNING and generation.is_running:
        return GenerationStatus.RUNNING
    return STATUSES[generation.status]


def _score(text: Text, logs: list[float]) -> float:
    return sum(logs, 0.0) if text.normalised is None else text.normalised
