"""Class RetrievalEngine: a model that makes vectors of texts, or sorts texts by how well they answer a query."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu.batching.gathering import Observer
from ovgpu.errors import Error
from ovgpu.genai import TextEmbeddingPipeline, TextRerankPipeline
from ovgpu.serve.engines import EngineOptions
from ovgpu.serve.openai.files import EMBEDDINGS
from ovgpu.serve.openai.one_thread import OneThreadEngine

Rows = tuple[list[Any], int]
"""A vector or a score of each text, and the number of their tokens."""


class RetrievalEngine(OneThreadEngine):
    """Model of a folder with its tokenizer, for embeddings or rerank. It runs up to ``max_batch_size`` texts at a time.

    ``options.pipeline`` has fields of `TextEmbeddingPipeline.Config` or `TextRerankPipeline.Config`.
    """

    def __init__(self, task: str, folder: Path, options: EngineOptions, observer: Observer) -> None:
        super().__init__("ovgpu-retrieval", observer)
        self.task, self.max_batch_size = task, options.max_batch_size
        kind: Any = _Embeddings if task == EMBEDDINGS else _Rerank
        fields = dict(options.pipeline)
        for name in fields:
            if name in FIXED or name not in kind.Config._fields:
                known = [name for name in kind.Config._fields if name not in FIXED]
                raise Error(f"pipeline has no setting {name}, only {', '.join(known)}")
        if isinstance(fields.get("pooling_type"), str):
            fields["pooling_type"] = _pooling(fields["pooling_type"])
        self._pipeline = kind(folder, options.device, **fields, **options.properties)
        self.description = f"{task} of up to {options.max_batch_size} texts at a time"

    def rows(self, texts: Sequence[str], query: str | None) -> Future[Rows]:
        """Submit up to ``max_batch_size`` texts. Return the future of a vector of each, or its score for a query."""
        return self.run_later(partial(self._pipeline.rows, texts, query), len(texts))

    def warm_up(self) -> None:
        self.rows(["a"] * self.max_batch_size, None if self.task == EMBEDDINGS else "a").result()
        self.rows(["a"], None if self.task == EMBEDDINGS else "a").result()


class _Embeddings(TextEmbeddingPipeline):
    def rows(self, texts: Sequence[str], query: str | None) -> Rows:
        """Return the vector [width], f32, of each text."""
        tokens = self._documents(texts)
        vectors = np.ascontiguousarray(self._model.infer(tokens), np.float32)
        return [*vectors], int(np.sum(tokens.attention_mask.data))


class _Rerank(TextRerankPipeline):
    def rows(self, texts: Sequence[str], query: str | None) -> Rows:
        """Return the score of each text."""
        tokens = self._tokens(query, texts)
        return self._model.infer(tokens).ravel().tolist(), int(np.sum(tokens.attention_mask.data))


FIXED = ("batch_size", "top_n", "query_instruction")
"""Fields of the pipelines that a request or the engine sets."""


def _pooling(name: str) -> TextEmbeddingPipeline.PoolingType:
    """Return a pooling by its name, such as mean."""
    kinds = TextEmbeddingPipeline.PoolingType.__members__
    if name.upper() not in kinds:
        raise Error(f"pooling_type is {name!r}, not one of {', '.join(kinds).lower()}")
    return kinds[name.upper()]
