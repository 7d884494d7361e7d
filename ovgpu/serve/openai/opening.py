"""Choice of an engine: for the texts of a model, or for its tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ovgpu.api.core import Core
from ovgpu.batching.gathering import Observer
from ovgpu.errors import Error
from ovgpu.serve.engines import Engine, EngineOptions, engine_of
from ovgpu.serve.openai.files import EMBEDDINGS, GENERATION, RERANK, SPEECH, TASKS, has_tokenizer, speech_file


def open_served_engine(path: Path, options: EngineOptions, observer: Observer) -> Engine:
    """Read and compile a model, and return the engine of its task.

    By default, a decoder with a tokenizer in its folder generates text, Whisper writes speech down, and others have
    inferences. Raises: Error for a task that the model cannot do.
    """
    task = options.task
    if task not in ("", *TASKS):
        raise Error(f"task is {task!r}, not one of {', '.join(TASKS)}")
    if task == SPEECH or (not task and speech_file(path.parent) == path):
        from ovgpu.serve.openai.speech_engine import SpeechEngine  # imports ovgpu.genai, which few servers need

        return SpeechEngine(path.parent, options, observer)
    model = Core().read_model(path)
    if not task and has_tokenizer(path) and _is_decoder(model):
        task = GENERATION
    if task not in (GENERATION, EMBEDDINGS, RERANK):
        return engine_of(model, str(path), options, observer)
    # These import ovgpu.genai, too.
    if task == GENERATION:
        from ovgpu.serve.openai.text_engine import TextEngine

        return TextEngine(model, path.parent, options, observer)
    from ovgpu.serve.openai.retrieval import RetrievalEngine

    return RetrievalEngine(task, path.parent, options, observer)


def _is_decoder(model: Any) -> bool:
    from ovgpu.genai.decoder import find_logits

    try:
        find_logits(model)
    except Error:
        return False
    return True
