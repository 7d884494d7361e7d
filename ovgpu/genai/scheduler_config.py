"""Class SchedulerConfig: how openvino_genai would share memory among requests."""

from __future__ import annotations

from typing import Any

from ovgpu.genai.fields import Absent, Configuration, Flag, Integer, OptionalInteger


class SchedulerConfig(Configuration):
    """Settings of openvino_genai's scheduler. An `LLMPipeline` takes them as ``scheduler_config``, without effect: its
    caches grow with the texts, and it runs all texts of a call at once.

    Fields are integers from 0 on: ``max_num_batched_tokens``, ``num_kv_blocks``, ``cache_size`` in GB,
    ``num_linear_attention_blocks``, ``cache_interval_multiplier`` (or None), ``max_num_seqs``; or bools:
    ``dynamic_split_fuse``, ``enable_prefix_caching``.

    Raises: TypeError for an assigned value of another type; RuntimeError for ``use_cache_eviction`` and
    ``use_sparse_attention``, which would change the texts.
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
    cache_eviction_config = Absent[Any](None)
    sparse_attention_config = Absent[Any](None)

    def __init__(self) -> None:
        super().__init__()

    def to_string(self) -> str:
        """Return the fields as openvino_genai prints them."""
        lines = [f"  {name}: {_text(value)}" for name, value in self._values.items() if not name.endswith("_config")]
        return "\n".join(["SchedulerConfig { ", *lines, " }"])


def _text(value: Any) -> str:
    return "unset" if value is None else str(value).lower()
