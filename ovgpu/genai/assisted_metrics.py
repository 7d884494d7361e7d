"""Metrics of assisted generation: of both models, and of the tokens that were proposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from ovgpu.genai.metrics import MeanStdPair, PerfMetrics, RawPerfMetrics, milliseconds


def _raw() -> RawPerfMetrics:
    return RawPerfMetrics(inference_durations=[0.0])


@dataclass
class AssistedRecord:
    """Inferences of both models in a generation, and the number of tokens that were proposed, and accepted."""

    main: RawPerfMetrics = field(default_factory=_raw)
    draft: RawPerfMetrics = field(default_factory=_raw)
    proposed: int = 0
    accepted: int = 0


def assisted_metrics(metrics: PerfMetrics, record: AssistedRecord | None) -> SDPerModelsPerfMetrics | None:
    """Return the metrics of a generation with those of both models, if there was a draft model."""
    return None if record is None else SDPerModelsPerfMetrics(metrics, record)


def add_inference(raw: RawPerfMetrics, start: float, inferred: float, end: float, tokens: int) -> None:
    """Add an inference that gave new tokens. Times are in seconds; ``end`` is that of what follows it."""
    raw.inference_durations[-1] += 1e6 * (inferred - start)
    raw.m_durations.append(1e6 * (end - start))
    raw.m_batch_sizes.append(tokens)


class SDPerfMetrics(PerfMetrics):
    """Times of one model in assisted generations: in the raw values, ``m_durations`` has the duration of each inference
    and what follows it, in microseconds, and ``m_batch_sizes`` its number of new tokens."""

    def __init__(self, raw: RawPerfMetrics | None = None, counts: Sequence[int] | None = None) -> None:
        """``counts`` are the numbers of inferences of the generations that were added."""
        super().__init__(raw)
        self._counts = list(counts if counts is not None else [len(self.raw_metrics.m_durations)])

    def get_ttft(self) -> MeanStdPair:
        """Return the duration of the first inference."""
        return milliseconds(self._durations(0, 1))

    def get_ttst(self) -> MeanStdPair:
        """Return the duration of the second inference."""
        return milliseconds(self._durations(1, 2))

    def get_latency(self) -> MeanStdPair:
        """Return the duration of an inference from the third one on."""
        return milliseconds(self._durations(2, None))

    def get_tpot(self) -> MeanStdPair:
        """Return the time per token from the third inference on."""
        sizes = self._parts(self.raw_metrics.m_batch_sizes, 2, None)
        return milliseconds([time / size for time, size in zip(self._durations(2, None), sizes) if size])

    def get_generate_duration(self) -> MeanStdPair:
        """Return the duration of all inferences of a generation, and what follows them."""
        ends = accumulate(self._counts, initial=0)
        return milliseconds([sum(self.raw_metrics.m_durations[begin:end]) for begin, end in pairwise(ends)])

    def __add__(self, metrics: PerfMetrics) -> SDPerfMetrics:
        assert isinstance(metrics, SDPerfMetrics)
        return SDPerfMetrics(super().__add__(metrics).raw_metrics, self._counts + metrics._counts)

    def _durations(self, first: int, last: int | None) -> list[float]:
        return self._parts(self.raw_metrics.m_durations, first, last)

    def _parts(self, values: Sequence[Any], first: int, last: int | None) -> list[Any]:
        """Return some of the values of each generation."""
        ends = list(accumulate(self._counts, initial=0))
        return [value for begin, end in pairwise(ends) for value in values[begin:end][first:last]]


class SDPerModelsPerfMetrics(PerfMetrics):
    """Times of assisted generations with a draft model, and in ``main_model_metrics`` and ``draft_model_metrics`` those
    of both models."""

    def __init__(self, metrics: PerfMetrics, record: AssistedRecord) -> None:
        super().__init__(metrics.raw_metrics, metrics.get_load_time(), metrics.get_num_input_tokens())
        self.main_model_metrics, self.draft_model_metrics = SDPerfMetrics(record.main), SDPerfMetrics(record.draft)
        self._proposed, self._accepted = record.proposed, record.accepted

    def get_ttst(self) -> MeanStdPair:
        """Return the duration of the second inference of the main model."""
        return self.main_model_metrics.get_ttst()

    def get_latency(self) -> MeanStdPair:
        """Return the duration of an inference of the main model from the third one on."""
        return self.main_model_metrics.get_latency()

    def get_num_draft_tokens(self) -> int:
        """Return the number of proposed tokens."""
        return self._proposed

    def get_num_accepted_tokens(self) -> int:
        """Return the number of proposed tokens that are in the text."""
        return self._accepted

    def get_num_rejected_tokens(self) -> int:
        """Return the number of proposed tokens that are not in the text."""
        return self._proposed - self._accepted

    def get_num_draft_processed_tokens(self) -> int:
        """Return the number of tokens that the draft model chose, those included that it did not propose."""
        return self.draft_model_metrics.get_num_generated_tokens()

    def get_draft_acceptance_rate(self) -> float:
        """Return the share of proposed tokens that are in the text; 0 for none."""
        return self._accepted / self._proposed if self._proposed else 0.0

    def get_draft_processed_to_candidate_ratio(self) -> float:
        """Return the number of tokens that the draft model chose per proposed token; 0 for none."""
        return self.get_num_draft_processed_tokens() / self._proposed if self._proposed else 0.0

    def get_draft_to_main_inference_duration_ratio(self) -> float:
        """Return the inferences' duration of the draft model, divided by that of the main model; 0 for none."""
        draft, main = (
            sum(metrics.raw_metrics.inference_durations)
            for metrics in (self.draft_model_metrics, self.main_model_metrics)
        )
        return draft / main if main else 0.0

    def __add__(self, metrics: PerfMetrics) -> SDPerModelsPerfMetrics:
        assert isinstance(metrics, SDPerModelsPerfMetrics)
        proposed, accepted = self._proposed + metrics._proposed, self._accepted + metrics._accepted
        total = SDPerModelsPerfMetrics(super().__add__(metrics), AssistedRecord(proposed=proposed, accepted=accepted))
        total.main_model_metrics = self.main_model_metrics + metrics.main_model_metrics
        total.draft_model_metrics = self.draft_model_metrics + metrics.draft_model_metrics
        return total
