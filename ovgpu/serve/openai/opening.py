"""Choice of an engine: for the texts of a model, or for its tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ovgpu.api.core import Core
from ovgpu.batching.gathering import Observer
from ovgpu.errors import Error
from ovgpu.serve.engines import Engine, EngineOptions, engine_of
from ovgpu.serve.openai.files import has_tokenizer


def open_served_engine(path: Path, options: EngineOptions, observer: Observer) -> Engine:
    """Read and compile a model, and return its engine: a `TextEngine` for a decoder with a tokenizer in its folder.

    Raises: Error for one on a server with front ends.
    """
    model = Core().read_model(path)
    if not (options.text and has_tokenizer(path) and _generates_text(model)):
        return engine_of(model, str(path), options, observer)
    if options.front_ends:
        raise Error("a model that generates text needs --processes 1; `text = false` serves its tensors")
    from ovgpu.serve.openai.text_engine import TextEngine  # imports ovgpu.genai, which few servers need

    return TextEngine(model, path.parent, options, observer)


def _generates_text(model: Any) -> bool:
    """Return whether a model is a decoder."""
    from ovgpu.genai.decoder import find_logits

    try:
        find_logits(model)
    except Error:
        return False
    return True
