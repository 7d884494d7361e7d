"""Class CLIPTextModel: text encoder of CLIP."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from ovgpu.api.core import Core
from ovgpu.errors import Error
from ovgpu.genai.fields import Integer
from ovgpu.genai.images.network import Component, Network
from ovgpu.genai.images.overloads import PATH, Form, arguments, with_device
from ovgpu.genai.images.settings import FileSettings
from ovgpu.genai.text_model import read_model
from ovgpu.genai.tokenizer import Tokenizer
from ovgpu.tensor import Tensor
from ovgpu.types import PartialShape


class CLIPTextModel(Component):
    """Text encoder of CLIP, with its tokenizer.

    - ``CLIPTextModel(root_dir)``: model of a folder "text_encoder", beside which there is a folder "tokenizer"
    - ``CLIPTextModel(model, weights, config, clip_tokenizer)``: text of an IR, and a tensor of its weights
    - ``CLIPTextModel(model)``: copy of another one

    A ``device`` and properties of `Core.compile_model` may follow the first two forms, and compile the model.

    Raises: RuntimeError if a file is missing; TypeError for other arguments.
    """

    class Config(FileSettings):
        """Fields of config.json: ``max_position_embeddings``, the number of tokens, and ``num_hidden_layers``."""

        __slots__ = ()

        max_position_embeddings = Integer(77)
        num_hidden_layers = Integer(12)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        source: Form = {"model": str, "weights": object, "config": self.Config, "clip_tokenizer": Tokenizer}
        forms = (*with_device({"root_dir": PATH}), {"model": CLIPTextModel}, *with_device(source))
        given, properties = arguments("CLIPTextModel", forms, args, kwargs)
        self._config: CLIPTextModel.Config
        self._row = 0  # first row of the outputs that was asked for
        if isinstance(given.get("model"), CLIPTextModel):
            other = given["model"]
            self._config, self._tokenizer = other.get_config(), other._tokenizer
            self._network = other._network.copy()
            return
        if "root_dir" in given:
            model, folder = read_model(given["root_dir"])
            if "text_encoder" not in folder.name:
                raise Error(f"the folder of a text encoder has a name with 'text_encoder', not {folder.name!r}")
            self._config = self.Config(folder / "config.json")
            self._tokenizer = Tokenizer(folder.with_name(folder.name.replace("text_encoder", "tokenizer", 1)))
        else:
            model = Core().read_model(given["model"], given["weights"])
            self._config, self._tokenizer = given["config"].copy(), given["clip_tokenizer"]
        self._network = Network("the text encoder", model)
        if "device" in given:
            self.compile(given["device"], **properties)

    def get_config(self) -> CLIPTextModel.Config:
        """Return a copy of the configuration."""
        return self._config.copy()

    def reshape(self, batch_size: int) -> Self:
        """Fix the number of texts, and that of tokens. Raises: RuntimeError once the model is compiled."""
        model, length = self._network.model, self._config.max_position_embeddings
        model.reshape({0: PartialShape([batch_size, length])})
        return self

    def infer(self, pos_prompt: str, neg_prompt: str, do_classifier_free_guidance: bool) -> Tensor:
        """Return the first output of the model for a text, [1, tokens, width] of f32.

        With ``do_classifier_free_guidance``, it is [2, tokens, width]: that of the negative text comes first. Texts are
        cut and padded to the length of the model. Raises: RuntimeError for a model that was reshaped to one text, and
        gets two; TypeError for values that are no texts.
        """
        texts = [as_text(neg_prompt), as_text(pos_prompt)]
        rows, length = 1 + bool(do_classifier_free_guidance), self._config.max_position_embeddings
        port = self._network.request.model_inputs[0]
        shape = PartialShape(port.partial_shape)
        batch = shape[0].get_length() if shape.is_static else rows
        if shape.is_static and (shape[1].get_length() != length or batch not in (rows, 2)):
            raise Error(f"the text encoder was reshaped to {shape}, and gets {[rows, length]} tokens")
        ids = np.full((batch, length), self._tokenizer.get_pad_token_id(), port.element_type.storage)
        for row, text in zip(ids, texts[-batch:]):
            tokens = self._tokenizer.encode(text).input_ids.data[0, :length]
            row[: len(tokens)] = tokens
        self._network.request.infer([ids])
        self._row = batch - rows
        return self.get_output_tensor(0)

    def get_output_tensor(self, idx: int) -> Tensor:
        """Return an output of the last inference. Raises: RuntimeError if the model has none of this index."""
        return Tensor(self._network.output(idx)[self._row :])


def as_text(text: Any) -> str:
    """Return a prompt. Raises: TypeError for another value."""
    try:
        text = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        raise TypeError(f"a prompt is a text in UTF-8, not {text!r}") from None
    if not isinstance(text, str):
        raise TypeError(f"a prompt is a text, not {text!r}")
    return text
