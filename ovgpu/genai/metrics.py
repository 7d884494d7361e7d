"""Classes PerfMetrics and RawPerfMetrics: times of a generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import sqrt
from time import perf_counter
from typing import NamedTuple, Self

from ovgpu.errors import Error

MISSING = -1.0  # mean and standard deviation of no values


class MeanStdPair(NamedTuple):
    """Mean and standard deviation; -1 if there are no values."""

    mean: float = MISSING
    std: float = MISSING


class SummaryStats(NamedTuple):
    """Mean, standard deviation, least and greatest value; -1 if there are no values."""

    mean: float = MISSING
    std: float = MISSING
    min: float = MISSING
    max: float = MISSING

    def as_tuple(self) -> tuple[float, float, float, float]:
        """Return the four numbers."""
        return self.mean, self.std, self.min, self.max


@dataclass
class RawPerfMetrics:
    """Measured values. Durations are in microseconds; ``m_new_token_times`` are times in milliseconds.

    Each generation adds one value of ``generate_durations``, ``inference_durations`` and ``m_times_to_first_token``.
    Each step of it adds one of ``m_new_token_times``, ``m_batch_sizes`` (its number of new tokens),
    ``token_infer_durations`` and ``sampling_durations`` (what follows an inference). ``m_durations`` has a value for
    each token after the first step: its share of the step. The others have one value per prompt or text.
    """

    generate_durations: list[float] = field(default_factory=list)
    tokenization_durations: list[float] = field(default_factory=list)
    detokenization_durations: list[float] = field(default_factory=list)
    chat_template_durations: list[float] = field(default_factory=list)
    m_times_to_first_token: list[float] = field(default_factory=list)
    m_new_token_times: list[float] = field(default_factory=list)
    m_batch_sizes: list[int] = field(default_factory=list)
    m_durations: list[float] = field(default_factory=list)
    inference_durations: list[float] = field(default_factory=list)
    token_infer_durations: list[float] = field(default_factory=list)
    sampling_durations: list[float] = field(default_factory=list)
    grammar_compile_times: list[float] = field(default_factory=list)

    def add_inference(self, start: float, inferred: float, tokens: int) -> None:
        """Add a step with new tokens that ends now. Its inference lasted from ``start`` to ``inferred``, in seconds."""
        end, inference = perf_counter(), 1e6 * (inferred - start)
        self.inference_durations[-1] += inference
        self.add_step(1e3 * end, tokens, inference, 1e6 * (end - inferred))

    def add_step(self, time: float, tokens: int, inference: float, sampling: float) -> None:
        """Add a step that ended at a time, in ms, with new tokens; the durations are in microseconds."""
        if self.m_new_token_times:
            duration = 1e3 * (time - self.m_new_token_times[-1]) / max(tokens, 1)
            self.m_durations += [duration] * tokens
        self.m_new_token_times.append(time)
        self.m_batch_sizes.append(tokens)
        self.token_infer_durations.append(inference)
        self.sampling_durations.append(sampling)


class PerfMetrics:
    """Times of a generation, or of several that were added. Durations are in milliseconds.

    Raises: RuntimeError if metrics of different pipelines are added.
    """

    def __init__(
        self,
        raw: RawPerfMetrics | None = None,
        load_time: float = 0.0,
        input_tokens: int = 0,
        compiler_times: Mapping[str, float] | None = None,
    ) -> None:
        self._raw, self._load_time, self._input_tokens = raw or RawPerfMetrics(), load_time, input_tokens
        self._compiler_times = dict(compiler_times or {})

    @property
    def raw_metrics(self) -> RawPerfMetrics:
        """The measured values."""
        return self._raw

    def get_load_time(self) -> float:
        """Return the time in which the pipeline was made."""
        return self._load_time

    def get_num_input_tokens(self) -> int:
        """Return the number of tokens of the prompt; of the first one if there are several."""
        return self._input_tokens

    def get_num_generated_tokens(self) -> int:
        """Return the number of generated tokens, of all texts together."""
        return sum(self._raw.m_batch_sizes)

    def get_ttft(self) -> MeanStdPair:
        """Return the time to the first token, which includes the tokenizer's."""
        return milliseconds(self._raw.m_times_to_first_token)

    def get_tpot(self) -> MeanStdPair:
        """Return the time per token after the first one."""
        return milliseconds(self._raw.m_durations)

    def get_ipot(self) -> MeanStdPair:
        """Return the time of an inference, the first one included."""
        return milliseconds(self._raw.token_infer_durations)

    def get_throughput(self) -> MeanStdPair:
        """Return the tokens per second after the first one."""
        tpot = self.get_tpot()
        if tpot.mean == 0:
            return MeanStdPair()
        return MeanStdPair(1000 / tpot.mean, 1000 * tpot.std / tpot.mean**2)

    def get_generate_duration(self) -> MeanStdPair:
        """Return the duration of generate()."""
        return milliseconds(self._raw.generate_durations)

    def get_inference_duration(self) -> MeanStdPair:
        """Return the duration of all inferences of a generation."""
        return milliseconds(self._raw.inference_durations)

    def get_sampling_duration(self) -> MeanStdPair:
        """Return the duration of what follows the inference of a step."""
        return milliseconds(self._raw.sampling_durations)

    def get_tokenization_duration(self) -> MeanStdPair:
        """Return the duration of turning a prompt into tokens."""
        return milliseconds(self._raw.tokenization_durations)

    def get_detokenization_duration(self) -> MeanStdPair:
        """Return the duration of turning the tokens of a text into it."""
        return milliseconds(self._raw.detokenization_durations)

    def get_chat_template_duration(self) -> MeanStdPair:
        """Return the duration of applying the chat template."""
        return milliseconds(self._raw.chat_template_durations)

    def get_grammar_compiler_init_times(self) -> dict[str, float]:
        """Return the time in which each compiler of grammars was made."""
        return dict(self._compiler_times)

    def get_grammar_compile_time(self) -> SummaryStats:
        """Return the times in which grammars were compiled."""
        times = self._raw.grammar_compile_times
        return SummaryStats(*milliseconds(times), min(times) / 1e3, max(times) / 1e3) if times else SummaryStats()

    def __add__(self, metrics: PerfMetrics) -> PerfMetrics:
        if metrics._load_time != self._load_time:
            raise Error("only metrics of the same pipeline can be added")
        raws = {f.name: getattr(self._raw, f.name) + getattr(metrics._raw, f.name) for f in fields(RawPerfMetrics)}
        times = self._compiler_times | metrics._compiler_times
        return PerfMetrics(RawPerfMetrics(**raws), self._load_time, self._input_tokens + metrics._input_tokens, times)

    def __iadd__(self, right: PerfMetrics) -> Self:
        total = self + right
        self._raw, self._input_tokens, self._compiler_times = total._raw, total._input_tokens, total._compiler_times
        return self


def milliseconds(microseconds: Sequence[float]) -> MeanStdPair:
    """Return mean and standard deviation in milliseconds."""
    if not microseconds:
        return MeanStdPair()
    values = [value / 1e3 for value in microseconds]
    mean = sum(values) / len(values)
    return MeanStdPair(mean, sqrt(max(sum(value * value for value in values) / len(values) - mean * mean, 0)))


def microseconds_since(start: float) -> float:
    """Return the time since ``start``, which `time.perf_counter` returned, in microseconds."""
    return 1e6 * (perf_counter() - start)
