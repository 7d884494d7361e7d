"""Class AutoencoderKL: latents to images, and images to latents."""

from __future__ import annotations

import os
from typing import Any, NoReturn, Self

import numpy as np

from ovgpu.api.core import Core
from ovgpu.errors import Error
from ovgpu.genai.fields import Integer, Real
from ovgpu.genai.images.generators import Generator, draw
from ovgpu.genai.images.network import Network, refuse_export
from ovgpu.genai.images.overloads import PATH, Form, arguments, with_device
from ovgpu.genai.images.settings import FileSettings, Items
from ovgpu.genai.text_model import layer, read_model
from ovgpu.model import Model, Output
from ovgpu.ops.activation.activation import Clamp
from ovgpu.ops.arithmetic.arithmetic import Add, Multiply
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.preprocess import PrePostProcessor
from ovgpu.tensor import Tensor
from ovgpu.types import Layout, PartialShape, Type

Array = np.ndarray[Any, Any]


class AutoencoderKL:
    """Variational autoencoder: a decoder of latents to images, and an encoder of images if there is one.

    - ``AutoencoderKL([vae_encoder_path, ]vae_decoder_path)``: models of folders
    - ``AutoencoderKL([vae_encoder_model, vae_encoder_weights, ]vae_decoder_model, vae_decoder_weights,
      vae_decoder_config)``: texts of IRs, and tensors of their weights
    - ``AutoencoderKL(model)``: copy of another one

    A ``device`` and properties of `Core.compile_model` may follow the first two forms, and compile the models.

    Raises: RuntimeError if a file is missing; TypeError for other arguments.
    """

    class Config(FileSettings):
        """Fields of config.json: ``in_channels``, ``latent_channels`` and ``out_channels``, ``scaling_factor`` and
        ``shift_factor`` of latents, ``block_out_channels``, whose number says how much smaller latents are."""

        __slots__ = ()

        block_out_channels = Items([64], Integer(0), "a list of integers from 0 on")
        in_channels = Integer(3)
        latent_channels = Integer(4)
        out_channels = Integer(3)
        scaling_factor = Real(1.0)
        shift_factor = Real(0.0)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        decoder: Form = {"vae_decoder_model": str, "vae_decoder_weights": object, "vae_decoder_config": self.Config}
        encoder: Form = {"vae_encoder_model": str, "vae_encoder_weights": object}
        forms = (
            {"vae_decoder_path": PATH},
            {"vae_encoder_path": PATH, "vae_decoder_path": PATH},
            {"vae_decoder_path": PATH, "device": str},
            {"vae_encoder_path": PATH, "vae_decoder_path": PATH, "device": str},
            {"model": AutoencoderKL},
            *with_device(decoder),
            *with_device({**encoder, **decoder}),
        )
        given, properties = arguments("AutoencoderKL", forms, args, kwargs)
        self._config: AutoencoderKL.Config
        self._encoder: Network | None = None
        if "model" in given:
            other = given["model"]
            self._config, self._decoder = other.get_config(), other._decoder.copy()
            self._encoder = None if other._encoder is None else other._encoder.copy()
            return
        encoding: Model | None = None
        if "vae_decoder_path" in given:
            model, folder = read_model(given["vae_decoder_path"])
            self._config = self.Config(folder / "config.json")
            if "vae_encoder_path" in given:
                encoding = read_model(given["vae_encoder_path"])[0]
        else:
            model = Core().read_model(given["vae_decoder_model"], given["vae_decoder_weights"])
            self._config = given["vae_decoder_config"].copy()
            if "vae_encoder_model" in given:
                encoding = Core().read_model(given["vae_encoder_model"], given["vae_encoder_weights"])
        self._decoder = Network("the VAE decoder", _with_pixels(model, self._config))
        if encoding is not None:
            self._encoder = Network("the VAE encoder", encoding)
        if "device" in given:
            self.compile(given["device"], **properties)

    def get_config(self) -> AutoencoderKL.Config:
        """Return a copy of the configuration."""
        return self._config.copy()

    def get_vae_scale_factor(self) -> int:
        """Return the height and width of an image, divided by those of its latents."""
        return scale_factor(self._config)

    def compile(self, device: str, **properties: Any) -> None:
        """Compile the models for a device. Raises: RuntimeError if they were compiled before."""
        for network in (self._encoder, self._decoder):
            if network is not None:
                network.compile(device, properties)

    def export_model(self, export_path: str | bytes | os.PathLike[str]) -> NoReturn:
        """Raise RuntimeError: there are no files of compiled models."""
        refuse_export()

    def reshape(self, batch_size: int, height: int, width: int) -> Self:
        """Fix the number of images that are decoded, and their size in pixels. The encoder takes one image.

        Raises: RuntimeError once the models are compiled, and for a size that is no multiple of the scale factor.
        """
        scale = self.get_vae_scale_factor()
        model = self._decoder.model
        check_size(height, width, scale)
        if self._encoder is not None:
            _fix_image(self._encoder.model, 1, height, width)
        _fix_image(model, batch_size, height // scale, width // scale)
        return self

    def decode(self, latent: Tensor) -> Tensor:
        """Return images [batch, height, width, 3] of u8, for latents [batch, channels, height, width] of f32.

        Raises: RuntimeError for a tensor that does not fit.
        """
        self._decoder.request.set_input_tensor(latent)
        self._decoder.request.infer()
        return Tensor(self._decoder.output())

    def encode(self, image: Tensor, generator: Generator | None = None) -> Tensor:
        """Return latents of an image [1, 3, height, width] of f32, from -1 to 1.

        Without a generator, they are the mean of the distribution, from which it draws. Raises: RuntimeError without an
        encoder, for several images, and for a tensor that does not fit.
        """
        if self._encoder is None:
            raise Error("there is no VAE encoder: give its folder to AutoencoderKL, too")
        request = self._encoder.request
        names = request.model_outputs[0].get_names()
        if len(request.model_outputs) != 1 or not names & {"latent_sample", "latent_parameters"}:
            raise Error(f"the VAE encoder has one output latent_parameters or latent_sample, not {sorted(names)}")
        request.set_input_tensor(image)
        request.infer()
        latents = self._encoder.output()
        if "latent_parameters" in names:
            latents = _sampled(latents, generator)
        config = self._config
        return Tensor((latents - np.float32(config.shift_factor)) * np.float32(config.scaling_factor))


def scale_factor(config: AutoencoderKL.Config) -> int:
    """Return the height and width of an image, divided by those of its latents."""
    return 1 << max(len(config.block_out_channels) - 1, 0)


def check_size(height: int, width: int, scale: int) -> None:
    """Raise Error for a size that is no multiple of the scale factor. Negative numbers are not known yet."""
    if any(extent >= 0 and extent % scale for extent in (height, width)):
        raise Error(f"height and width must be multiples of {scale}, not {height} and {width}")


def _fix_image(model: Model, batch: int, height: int, width: int) -> None:
    model.reshape({0: PartialShape([batch, model.inputs[0].partial_shape[1], height, width])})


def _sampled(parameters: Array, generator: Generator | None) -> Array:
    """Return a sample of a normal distribution, or its mean. Parameters have twice the channels: mean, log variance."""
    if len(parameters) != 1:
        raise Error(f"the VAE encoder takes a single image, not {len(parameters)}")
    mean, logarithm = np.split(parameters, 2, axis=1)
    if generator is None:
        return mean
    deviation = np.exp(0.5 * np.clip(logarithm, -30, 20).astype(np.float64)).astype(np.float32)
    sample: Array = mean + deviation * draw(generator, mean.shape)
    return sample


def _with_pixels(model: Model, config: AutoencoderKL.Config) -> Model:
    """Return a decoder of scaled latents [batch, channels, height, width] to u8 [batch, height, width, 3]."""
    processor = PrePostProcessor(model)
    if config.scaling_factor != 1:
        processor.input().preprocess().scale(config.scaling_factor)
    if config.shift_factor != 0:
        processor.input().preprocess().mean(-config.shift_factor)
    processor.output().postprocess().custom(_pixels)
    processor.output().postprocess().convert_element_type(Type.u8)
    processor.output().model().set_layout(Layout("NCHW"))
    processor.output().tensor().set_layout(Layout("NHWC"))
    return processor.build()


def _pixels(image: Output) -> Output:
    """Return values from 0 to 255 of an image from -1 to 1."""
    half, most = (layer(Constant(element_type=Type.f32, value=np.array([value], np.float32))) for value in (0.5, 255))
    shifted = layer(Add(), layer(Multiply(), image, half), half)
    return layer(Multiply(), layer(Clamp(min=0.0, max=1.0), shifted), most)
