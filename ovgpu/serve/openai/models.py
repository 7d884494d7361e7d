"""Models of OpenAI's protocol."""

from __future__ import annotations

from typing import Any


def model_of(name: str, created: float) -> dict[str, Any]:
    """Return the description of a model."""
    return {"id": name, "object": "model", "created": int(created), "owned_by": "ovgpu"}
