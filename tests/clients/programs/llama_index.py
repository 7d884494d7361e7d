"""LlamaIndex with openvino_genai: texts, streams, chats, vectors, and an index that retrieves and answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from .genai_samples import REQUIREMENTS as SAMPLES
from .genai_samples import UNWANTED, prepare, printed

__all__ = ["REQUIREMENTS", "UNWANTED", "prepare", "run"]

REQUIREMENTS = [
    *SAMPLES,
    "llama-index-llms-openvino-genai",
    "llama-index-embeddings-openvino-genai",
    "llama-index-embeddings-huggingface",
]


def run(folder: Path, device: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return texts, parts of streams, vectors and scores."""
    script = Path(__file__).parent / "scripts" / "answer_by_index.py"
    models = [str(folder / name) for name in ("llama", "embedding")]
    *_, line = printed(script, *models, device=device, takes_device=True)
    found = {name: np.array(value) for name, value in json.loads(line).items()}
    return {name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in found.items()}
