"""Measurements of texts, and their metrics with vLLM's names."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ovgpu.serve.metrics import Family
from ovgpu.serve.models import Version
from ovgpu.serve.statistics import RECENT, Histogram

if TYPE_CHECKING:
    from ovgpu.serve.openai.choices import Choice

FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
NEXT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80)
WHOLE = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
"""Upper bounds in seconds: to the first token, between tokens, and of a request."""

LABELS = ("model_name", "engine")


class TextMeasurements:
    """Measurements of the texts of a model."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.first, self.next, self.whole = Histogram(FIRST), Histogram(NEXT), Histogram(WHOLE)
        self.prompt_tokens = self.tokens = 0
        self.ends = Counter[str]()
        self._recent = deque[tuple[float, int]](maxlen=RECENT)  # (time.monotonic() at the end, tokens) of texts

    def add_choice(self, choice: Choice, started: float, seconds: float) -> None:
        """Add a text that has ended, ``seconds`` after its request came at the time ``started`` of perf_counter."""
        raw = choice.generation.raw
        times = [1e-3 * time for time, count in zip(raw.m_new_token_times, raw.m_batch_sizes) if count]
        with self.lock:
            self.prompt_tokens += len(choice.generation.prompt)
            self.tokens += choice.tokens
            self.ends[choice.reason or "abort"] += 1
            self._recent.append((time.monotonic(), choice.tokens))
            self.whole.observe(seconds)
            if times:
                self.first.observe(max(times[0] - started, 0.0))
            for before, after in pairwise(times):
                self.next.observe(after - before)

    def rate(self, seconds: float) -> float:
        """Return the tokens per second of texts that ended in the last ``seconds``."""
        now = time.monotonic()
        with self.lock:
            found = [(now - end, tokens) for end, tokens in self._recent if now - end <= seconds]
        return sum(tokens for _, tokens in found) / max(max((age for age, _ in found), default=0.0), 1.0)


def text_families(versions: list[Version]) -> Iterator[Family]:
    """Yield the metrics of models that generate texts."""
    running = Family("gauge", "vllm:num_requests_running", "Texts that run.", LABELS)
    waiting = Family("gauge", "vllm:num_requests_waiting", "Texts that wait.", LABELS)
    usage = Family("gauge", "vllm:kv_cache_usage_perc", "Used part of the KV caches, if they have a limit.", LABELS)
    preemptions = Family("counter", "vllm:num_preemptions_total", "Texts that were computed again.", LABELS)
    prompt = Family("counter", "vllm:prompt_tokens_total", "Tokens of prompts.", LABELS)
    tokens = Family("counter", "vllm:generation_tokens_total", "Generated tokens.", LABELS)
    ends = Family("counter", "vllm:request_success_total", "Texts by their end.", (*LABELS, "finished_reason"))
    first = Family("histogram", "vllm:time_to_first_token_seconds", "Time to the first token.", LABELS)
    following = Family("histogram", "vllm:time_per_output_token_seconds", "Time between tokens.", LABELS)
    latency = Family("histogram", "vllm:inter_token_latency_seconds", "Time between tokens.", LABELS)
    whole = Family("histogram", "vllm:e2e_request_latency_seconds", "Time of a text.", LABELS)
    for version in versions:
        engine: Any = version.engine  # a TextEngine
        labels = (version.name, version.number)
        running.add(labels, engine.running)
        waiting.add(labels, engine.waiting)
        if engine.cache_usage is not None:
            usage.add(labels, engine.cache_usage)
        preemptions.add(labels, engine.preemptions)
        measured = engine.measured
        with measured.lock:
            prompt.add(labels, measured.prompt_tokens)
            tokens.add(labels, measured.tokens)
            for reason, number in measured.ends.items():
                ends.add((*labels, reason), number)
            first.add_histogram(labels, measured.first)
            following.add_histogram(labels, measured.next)
            latency.add_histogram(labels, measured.next)
            whole.add_histogram(labels, measured.whole)
    yield from (running, waiting, usage, preemptions, prompt, tokens, ends, first, following, latency, whole)
