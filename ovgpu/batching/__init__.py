"""Batches of independent rows: sequences with states, and inferences that arrive from many threads."""

from ovgpu.batching.dynamic_batcher import DynamicBatcher
from ovgpu.batching.pages import PoolFullError
from ovgpu.batching.sequence_batcher import BatchedSequence, BatchFullError, SequenceBatcher

__all__ = ["BatchFullError", "BatchedSequence", "DynamicBatcher", "PoolFullError", "SequenceBatcher"]
