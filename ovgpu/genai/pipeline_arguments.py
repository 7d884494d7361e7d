"""Arguments of an `LLMPipeline`, and files of its models."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovgpu.errors import Error
from ovgpu.genai.files import model_path
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.scheduler_config import SchedulerConfig
from ovgpu.genai.tokenizer import Tokenizer

WITHOUT_EFFECT = ("ATTENTION_BACKEND",)
"""Properties of openvino_genai that choose among its backends: here all give the same results."""
UNSUPPORTED = ("MAX_PROMPT_LEN", "MIN_RESPONSE_LEN")


@dataclass(frozen=True)
class Draft:
    """A smaller model that proposes tokens, see `draft_model`."""

    path: str
    device: str
    properties: dict[str, Any]


def draft_model(models_path: str | os.PathLike[str] | bytes, device: str = "", **kwargs: Any) -> Any:
    """Return a value for the property ``draft_model`` of an `LLMPipeline`: a smaller model with the same tokens.

    By default, its device and its properties, ``kwargs``, are those of the pipeline. Raises: RuntimeError if the folder
    has no model.
    """
    return Draft(model_path(Path(os.fsdecode(models_path))), device, kwargs)


@dataclass
class Arguments:
    """Arguments of an `LLMPipeline`: what `Core.read_model` takes, and the rest."""

    model: tuple[Any, ...]
    tokenizer: Tokenizer
    device: str
    config: GenerationConfig
    properties: dict[str, Any]
    prompt_lookup: bool
    draft: Draft | None
    scheduler: SchedulerConfig | None

    @staticmethod
    def of(first: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Sort the arguments of one of the three forms by their types."""
        rest, properties = list(args), dict(kwargs)
        first = properties.pop("model", properties.pop("models_path", first) if first is None else first)
        weights = properties.pop("weights", None)
        if weights is None and rest and not isinstance(rest[0], (str, Tokenizer)):
            weights = rest.pop(0)
        tokenizer = properties.pop("tokenizer", None)
        if tokenizer is None and rest and isinstance(rest[0], Tokenizer):
            tokenizer = rest.pop(0)
        device = rest.pop(0) if rest else properties.pop("device", None)
        config = properties.pop("generation_config", None)
        if rest and (rest[0] is None or isinstance(rest[0], GenerationConfig)):
            config = rest.pop(0)
        properties = {**(rest.pop(0) if rest else properties.pop("config", None) or {}), **properties}
        if rest or not isinstance(device, str) or not isinstance(first, (str, bytes, os.PathLike)):
            raise TypeError(
                "LLMPipeline takes (models_path, [tokenizer,] device), or (model, weights, tokenizer, device)"
            )
        lookup, draft = bool(properties.pop("prompt_lookup", False)), properties.pop("draft_model", None)
        if draft is not None and not isinstance(draft, Draft):
            raise TypeError(f"draft_model is what the function draft_model returns, not {draft!r}")
        scheduler = properties.pop("scheduler_config", None)
        if not isinstance(scheduler, SchedulerConfig | None):
            raise TypeError(f"scheduler_config is a SchedulerConfig, not {scheduler!r}")
        adapters = properties.pop("adapters", None)
        for name in UNSUPPORTED:
            if properties.get(name):
                raise Error(f"ovgpu.genai does not support {name}")
        properties = {name: value for name, value in properties.items() if name not in (*WITHOUT_EFFECT, *UNSUPPORTED)}
        if weights is not None:
            if not isinstance(tokenizer, Tokenizer):
                raise TypeError("a model with its weights needs a Tokenizer")
            config = GenerationConfig() if config is None else config.copy()
            config.adapters = adapters if config.adapters is None else config.adapters
            return Arguments((first, weights), tokenizer, device, config, properties, lookup, draft, scheduler)
        if config is not None:
            raise TypeError("LLMPipeline takes a generation_config only with weights: call set_generation_config")
        folder = Path(os.fsdecode(first))
        model = model_path(folder)
        path = folder / "generation_config.json"
        own = GenerationConfig(path) if path.is_file() else GenerationConfig()
        own.adapters = adapters
        return Arguments((model,), tokenizer or Tokenizer(folder), device, own, properties, lookup, draft, scheduler)
