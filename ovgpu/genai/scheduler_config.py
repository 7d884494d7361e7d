"""Class SchedulerConfig: limits of generations that run side by side."""

from __future__ import annotations

from ovgpu.batching.sequence_batcher import MAX_SEQUENCES
from ovgpu.errors import Error
from ovgpu.genai.decoder import Decoder
from ovgpu.genai.engine import Limits
from ovgpu.genai.fields import Absent, Configuration, Flag, Integer, OptionalInteger
from ovgpu.ops.fused.kv_cache import PAGE_TOKENS

GIGABYTE = 1 << 30
CONFIGURATIONS = ("cache_eviction_config", "sparse_attention_config")


class SchedulerConfig(Configuration):
    """Limits of generations that run side by side.

    ``max_num_seqs`` texts run at a time, and a step has ``max_num_batched_tokens`` tokens: one of each text, and with
    ``dynamic_split_fuse`` (bool) pieces of prompts, or else whole prompts. ``num_kv_blocks`` blocks of 16 tokens, or
    ``cache_size`` GB of KV caches, in the type in which they are stored, are there for all texts, and are allocated
    when the first one runs. Without both (0), caches grow until memory is short. A text that finds no block waits, or
    is computed again later.

    With ``enable_prefix_caching`` (bool), prompts that begin like other texts, also ones that have ended, share the
    blocks of these. ``num_linear_attention_blocks`` and ``cache_interval_multiplier`` have no effect.
    ``use_cache_eviction`` and ``use_sparse_attention``, which change the texts, are refused.

    Raises: TypeError for an assigned value of another type, RuntimeError for what is refused, AttributeError for an
    unknown field.
    """

    __slots__ = ()

    max_num_batched_tokens = Integer(256)
    num_kv_blocks = Integer(0)
    cache_size = Integer(0)
    num_linear_attention_blocks = Integer(0)
    cache_interval_multiplier = OptionalInteger(None)
    dynamic_split_fuse = Flag(True)
    use_cache_eviction = Absent(False)
    max_num_seqs = Integer(256)
    enable_prefix_caching = Flag(False)
    use_sparse_attention = Absent(False)
    cache_eviction_config = Absent[None](None)
    sparse_attention_config = Absent[None](None)

    def __init__(self) -> None:
        super().__init__()

    def to_string(self) -> str:
        """Return the settings as text."""
        lines = (f"  {name}: {_text(getattr(self, name))}" for name in self._fields if name not in CONFIGURATIONS)
        return "\n".join(["SchedulerConfig { ", *lines, " }"])

    def limits(self, decoder: Decoder) -> Limits:
        """Return the limits of an engine. Raises: Error for limits that let no text run."""
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if not getattr(self, name):
                raise Error(f"{name} must be at least 1")
        blocks, size = self.num_kv_blocks or None, decoder.bytes_per_token
        if blocks is None and self.cache_size and size:
            blocks = self.cache_size * GIGABYTE // (PAGE_TOKENS * size)
        if blocks == 0:
            raise Error(f"cache_size of {self.cache_size} GB has no room for {PAGE_TOKENS} tokens of {size} bytes")
        texts, tokens = min(self.max_num_seqs, MAX_SEQUENCES // 2), self.max_num_batched_tokens
        return Limits(texts, tokens, blocks, self.dynamic_split_fuse, self.enable_prefix_caching)


def _text(value: object) -> str:
    return "unset" if value is None else str(value).lower()
