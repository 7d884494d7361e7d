"""Arguments of a `VLMPipeline` and of its generate()."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ovgpu.errors import Error
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.pipeline_arguments import UNSUPPORTED, WITHOUT_EFFECT
from ovgpu.genai.tokenizer import Tokenizer
from ovgpu.genai.vlm.parts import Parts

FORMS = "VLMPipeline takes (models_path, device), or (models, tokenizer, config_dir_path, device)"


@dataclass(frozen=True)
class Arguments:
    """Arguments of a `VLMPipeline`: its parts, configuration and whether it looks up what it proposes."""

    parts: Parts
    config: GenerationConfig
    prompt_lookup: bool

    @staticmethod
    def of(first: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Sort the arguments of one of the two forms.

        Raises: TypeError for others, Error for properties that are not supported.
        """
        rest, properties = list(args), dict(kwargs)

        def take(name: str) -> Any:
            return rest.pop(0) if rest else properties.pop(name, None)

        if first is None:
            first = properties.pop("models", properties.pop("models_path", None))
        models = first if isinstance(first, Mapping) else None
        tokenizer = None if models is None else take("tokenizer")
        folder = first if models is None else take("config_dir_path")
        device = take("device")
        config = None if models is None else take("generation_config")
        paths = isinstance(folder, (str, bytes, os.PathLike))
        if rest or not paths or not isinstance(device, str) or not isinstance(config, GenerationConfig | None):
            raise TypeError(FORMS)
        if models is not None and not isinstance(tokenizer, Tokenizer):
            raise TypeError(FORMS)
        lookup = bool(properties.pop("prompt_lookup", False))
        for name in (*UNSUPPORTED, "draft_model"):
            if properties.get(name):
                raise Error(f"a VLMPipeline does not support {name}")
        ignored = (*WITHOUT_EFFECT, *UNSUPPORTED, "draft_model")
        properties = {name: value for name, value in properties.items() if name not in ignored}
        path = Path(os.fsdecode(folder))
        if tokenizer is None:
            file = path / "generation_config.json"
            config = GenerationConfig(file) if file.is_file() else GenerationConfig()
            tokenizer = Tokenizer(path)
        config = GenerationConfig() if config is None else config.copy()
        return Arguments(Parts(path, tokenizer, device, properties, models), config, lookup)


@dataclass
class Request:
    """Arguments of generate() that are no fields of its configuration."""

    images: Any = None
    videos: Any = None
    videos_metadata: Any = None
    config: GenerationConfig | None = None
    streamer: Any = None
    fields: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Request:
        """Sort the arguments of generate() after the prompt: images, videos, a configuration and a streamer.

        Raises: TypeError for an argument in another place.
        """
        fields = dict(kwargs)
        found = Request(fields=fields)
        rest = list(args)
        given = [rest.pop(0) for _ in range(2) if rest and _shows(rest[0])]
        if rest:
            found.config = rest.pop(0)
        if rest:
            found.streamer = rest.pop(0)
        if rest:
            raise TypeError("generate takes a prompt, images, videos, a generation_config and a streamer")
        image = fields.pop("image", None)
        named = [fields.pop(name, None) for name in ("images", "videos")]
        found.images, found.videos = (given[i] if i < len(given) else value for i, value in enumerate(named))
        found.images = image if found.images is None else found.images
        found.videos_metadata = fields.pop("videos_metadata", None)
        found.config = fields.pop("generation_config", found.config)
        found.streamer = fields.pop("streamer", found.streamer)
        return found


def _shows(value: Any) -> bool:
    """Return whether an argument is a tensor, or a list that may have some."""
    return isinstance(value, (list, tuple)) or hasattr(value, "get_element_type")
