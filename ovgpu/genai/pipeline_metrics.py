"""Metrics of the steps of a ContinuousBatchingPipeline."""

from __future__ import annotations

from dataclasses import dataclass

from ovgpu.genai.engine import Usage
from ovgpu.ops.fused.kv_cache import PAGE_TOKENS


@dataclass(frozen=True)
class PipelineMetrics:
    """Metrics of the last step: requests that had not ended, those of them that it advanced, percent of the KV caches
    that had tokens, and the bytes of these caches. ``max_cache_usage`` and ``avg_cache_usage`` are of all steps."""

    requests: int = 0
    scheduled_requests: int = 0
    cache_usage: float = 0.0
    max_cache_usage: float = 0.0
    avg_cache_usage: float = 0.0
    cache_size_in_bytes: int = 0
    kv_cache_size_in_bytes: int = 0
    la_peak_pool_blocks: int = 0


class Meter:
    """Metrics of steps. ``blocks`` is the number of blocks, None if it grows; ``size`` the bytes of a token."""

    def __init__(self, blocks: int | None, size: int) -> None:
        self._fixed, self._blocks, self._size = blocks is not None, blocks or 0, size
        self._sum = self._steps = 0.0
        self.metrics = PipelineMetrics()

    def add(self, usage: Usage) -> None:
        """Add a step."""
        if not self._fixed and usage.blocks > self._blocks:
            self._blocks = 1 << (usage.blocks - 1).bit_length()
        used = 100 * usage.blocks / self._blocks if self._blocks else 0.0
        self._sum, self._steps = self._sum + used, self._steps + 1
        held = self._blocks * PAGE_TOKENS * self._size
        self.metrics = PipelineMetrics(
            usage.generations,
            usage.advanced,
            used,
            max(used, self.metrics.max_cache_usage),
            self._sum / self._steps,
            held,
            held,
        )
