"""Class Parts: the models and files of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu.api.core import Core
from ovgpu.errors import Error
from ovgpu.genai.files import read_json
from ovgpu.genai.tokenizer import Tokenizer
from ovgpu.model import Model

Array = np.ndarray[Any, Any]
ROLES = {
    "language": "language_model",
    "text_embeddings": "text_embeddings",
    "vision_embeddings": "vision_embeddings",
    "vision_embeddings_merger": "vision_embeddings_merger",
}
"""Names of models, with those that the property MODEL_PROPERTIES has for them."""


@dataclass(frozen=True)
class Parts:
    """Models of a pipeline, its tokenizer, and the folder of its JSON files.

    ``models`` has the texts and the weights of models by name; if it is None, they are in the folder.
    """

    folder: Path
    tokenizer: Tokenizer
    device: str
    properties: Mapping[str, Any]
    models: Mapping[str, Any] | None = None

    @property
    def config(self) -> dict[str, Any]:
        """Contents of config.json."""
        return read_json(self.folder / "config.json")

    @property
    def processor(self) -> dict[str, Any]:
        """Settings of images, in processor_config.json if it also has those of videos, or preprocessor_config.json."""
        both = read_json(self.folder / "processor_config.json")
        if "image_processor" in both and "video_processor" in both:
            return dict(both["image_processor"])
        return read_json(self.folder / "preprocessor_config.json")

    def read(self, name: str) -> Model:
        """Return a model of `ROLES`. Raises: Error if there is none."""
        if self.models is None:
            path = self.folder / f"openvino_{name}_model.xml"
            if not path.is_file():
                raise Error(
                    f"{self.folder} has no {path.name}: `optimum-cli export openvino --model NAME {self.folder}` "
                    "makes one"
                )
            return Core().read_model(path)
        if name not in self.models:
            raise Error(f"the models have no {name}, only {', '.join(self.models)}")
        return Core().read_model(*self.models[name])

    def properties_of(self, name: str) -> dict[str, Any]:
        """Return the properties of a model. Raises: Error for MODEL_PROPERTIES of a model that is not known."""
        common = dict(self.properties)
        own = common.pop("MODEL_PROPERTIES", {})
        if not isinstance(own, Mapping) or {*own} - {*ROLES.values()}:
            raise Error(f"MODEL_PROPERTIES has properties by model: {', '.join(ROLES.values())}; not {own!r}")
        return {**common, **own.get(ROLES[name], {})}

    def compile(self, model: Model, name: str) -> Any:
        """Return a request of a model with the properties of that name."""
        return Core().compile_model(model, self.device, self.properties_of(name)).create_infer_request()

    def token(self, text: str) -> int:
        """Return the token of a special text. Raises: Error if it has none."""
        tokens = self.tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()
        if len(tokens) != 1:
            raise Error(f"{text} must be a token of the tokenizer, and it has {len(tokens)}")
        return int(tokens[0])


def size_of(settings: Mapping[str, Any], name: str, default: int) -> int:
    """Return a setting that is an integer above 0. ``name`` may be that of an object and its field.

    Raises: Error for other values.
    """
    value: Any = settings
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if value is None:
        return default
    if not isinstance(value, int) or value < 1:
        raise Error(f"the images' {name} must be an integer above 0, not {value!r}")
    return value


def mean_and_deviation(settings: Mapping[str, Any]) -> tuple[Array, Array]:
    """Return the numbers that normalise the channels of an image, f32 [3] each. Raises: Error for other values."""
    found = []
    for name, default in (("image_mean", 0.0), ("image_std", 1.0)):
        value = settings.get(name)
        values = [default if value is None else value] * 3 if not isinstance(value, list) else value
        if len(values) != 3 or not all(isinstance(number, (int, float)) for number in values):
            raise Error(f"the images' {name} must be 3 numbers, not {value!r}")
        found.append(np.array(values, np.float32))
    return found[0], found[1]
