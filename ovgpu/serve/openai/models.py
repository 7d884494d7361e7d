"""Models of OpenAI's protocol, and its methods that run them."""

from __future__ import annotations

from typing import Any

METHODS = ("ChatCompletions", "Completions", "Embeddings", "Rerank", "Transcriptions", "Translations")
CHATS, COMPLETIONS, EMBEDDINGS, RERANK, TRANSCRIPTIONS, TRANSLATIONS = METHODS
"""Names of methods in logs and metrics."""


def model_of(name: str, created: float) -> dict[str, Any]:
    """Return the description of a model."""
    return {"id": name, "object": "model", "created": int(created), "owned_by": "ovgpu"}
