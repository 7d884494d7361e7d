"""Class UNet2DConditionModel: noise of latents."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from ovgpu.api.core import Core
from ovgpu.errors import Error
from ovgpu.genai.fields import Integer
from ovgpu.genai.images.autoencoder import AutoencoderKL, scale_factor
from ovgpu.genai.images.network import Component, Network
from ovgpu.genai.images.overloads import PATH, Form, arguments, with_device
from ovgpu.genai.images.settings import FileSettings
from ovgpu.genai.text_model import read_model
from ovgpu.tensor import Tensor
from ovgpu.types import PartialShape

Array = np.ndarray[Any, Any]
STATES = "encoder_hidden_states"


class UNet2DConditionModel(Component):
    """UNet that predicts the noise of latents.

    - ``UNet2DConditionModel(root_dir)``: model of a folder, beside which there is a folder "vae_decoder"
    - ``UNet2DConditionModel(model, weights, config, vae_scale_factor)``: text of an IR, and a tensor of its weights
    - ``UNet2DConditionModel(model)``: copy of another one

    A ``device`` and properties of `Core.compile_model` may follow the first two forms, and compile the model.

    Raises: RuntimeError if a file is missing; TypeError for other arguments.
    """

    class Config(FileSettings):
        """Fields of config.json: ``in_channels``, ``sample_size`` (height and width of latents), ``time_cond_proj_dim``
        (width of the embedded guidance of consistency models, -1 for others)."""

        __slots__ = ()

        in_channels = Integer(4)
        sample_size = Integer(0)
        time_cond_proj_dim = Integer(-1, -(2**31), 2**31 - 1)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        source: Form = {"model": str, "weights": object, "config": self.Config, "vae_scale_factor": int}
        forms = (*with_device({"root_dir": PATH}), {"model": UNet2DConditionModel}, *with_device(source))
        given, properties = arguments("UNet2DConditionModel", forms, args, kwargs)
        self._config: UNet2DConditionModel.Config
        if isinstance(given.get("model"), UNet2DConditionModel):
            other = given["model"]
            self._config, self._scale = other.get_config(), other._scale
            self._network = other._network.copy()
            return
        if "root_dir" in given:
            model, folder = read_model(given["root_dir"])
            self._config = self.Config(folder / "config.json")
            self._scale = scale_factor(AutoencoderKL.Config(folder.with_name("vae_decoder") / "config.json"))
        else:
            model = Core().read_model(given["model"], given["weights"])
            self._config, self._scale = given["config"].copy(), given["vae_scale_factor"]
        self._network = Network("the UNet", model)
        if "device" in given:
            self.compile(given["device"], **properties)

    def get_config(self) -> UNet2DConditionModel.Config:
        """Return a copy of the configuration."""
        return self._config.copy()

    def do_classifier_free_guidance(self, guidance_scale: float) -> bool:
        """Return whether the model runs for a negative text, too."""
        return guidance_scale > 1 and self._config.time_cond_proj_dim < 0

    def reshape(self, batch_size: int, height: int, width: int, tokenizer_model_max_length: int) -> Self:
        """Fix the batch, the size of images in pixels, and the number of tokens.

        Raises: RuntimeError once the model is compiled.
        """
        sizes = {
            "sample": {0: batch_size, 2: height // self._scale, 3: width // self._scale},
            "timestep": {0: 1},
            STATES: {0: batch_size, 1: tokenizer_model_max_length},
            "timestep_cond": {0: batch_size},
        }
        shapes = {}
        for port in self._network.model.inputs:
            name = port.get_any_name()
            shapes[name] = PartialShape(
                [sizes.get(name, {}).get(axis, extent) for axis, extent in enumerate(port.partial_shape)]
            )
        self._network.model.reshape(shapes)
        return self

    def set_hidden_states(self, tensor_name: str, encoder_hidden_states: Tensor) -> None:
        """Set an input of the next inferences, such as "encoder_hidden_states" [batch, tokens, width].

        Raises: RuntimeError for a model without such an input, or a tensor that does not fit.
        """
        self._network.request.set_tensor(tensor_name, encoder_hidden_states)

    def infer(self, sample: Tensor, timestep: Tensor) -> Tensor:
        """Return the prediction for latents [batch, channels, height, width] of a training step [1].

        Raises: RuntimeError for tensors that do not fit.
        """
        request = self._network.request
        request.set_tensor("sample", sample)
        request.set_tensor("timestep", timestep)
        request.infer()
        return Tensor(self._network.output())

    def keep_hidden_states(self, tensor_name: str, states: Array) -> None:
        """Set an input as `set_hidden_states` does. A CUDA device gets it once for all steps."""
        self._network.keep(tensor_name, states)

    def predict(self, latents: Array, timestep: int) -> Array:
        """Return the prediction for latents. The timestep gets the type and rank that the model wants."""
        ports = {port.get_any_name(): port for port in self._network.request.model_inputs}
        if "timestep" not in ports:
            raise Error(f"the UNet has no input timestep, only {', '.join(ports)}")
        port = ports["timestep"]
        step = np.full([1] * len(port.partial_shape), timestep, port.element_type.storage)
        found: Array = self.infer(Tensor(latents, shared_memory=True), Tensor(step)).data
        return found
