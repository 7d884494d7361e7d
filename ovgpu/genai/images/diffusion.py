"""Class Diffusion: one generation of images, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.images import pixels
from ovgpu.genai.images.autoencoder import AutoencoderKL
from ovgpu.genai.images.clip_text_model import CLIPTextModel
from ovgpu.genai.images.config import ImageGenerationConfig
from ovgpu.genai.images.denoising import Denoising
from ovgpu.genai.images.generators import draw
from ovgpu.genai.images.metrics import ImageGenerationPerfMetrics
from ovgpu.genai.images.unet import STATES, UNet2DConditionModel
from ovgpu.genai.metrics import microseconds_since
from ovgpu.tensor import Tensor

Array = np.ndarray[Any, Any]
Callback = Callable[[int, int, Tensor], Any]
PERIOD = 10000  # greatest one of the embedding of a guidance scale


@dataclass
class Models:
    """Models of a pipeline."""

    text_encoder: CLIPTextModel
    unet: UNet2DConditionModel
    vae: AutoencoderKL

    def copy(self) -> Models:
        """Return the same models, with inference requests of their own."""
        return Models(CLIPTextModel(self.text_encoder), UNet2DConditionModel(self.unet), AutoencoderKL(self.vae))

    @property
    def is_consistency_model(self) -> bool:
        """True if the UNet takes the guidance scale as an input."""
        return self.unet.get_config().time_cond_proj_dim > 0

    @property
    def is_inpainting_model(self) -> bool:
        """True if the UNet takes a mask and the latents of a masked image, too."""
        return self.unet.get_config().in_channels == 2 * self.vae.get_config().latent_channels + 1

    @property
    def image_size(self) -> int:
        """Height and width of the images for which the model was trained."""
        return self.unet.get_config().sample_size * self.vae.get_vae_scale_factor()


@dataclass
class Diffusion:
    """One generation. An image is u8 [1, height, width, 3], a mask u8 [1, height, width, 1 or 3]; None without."""

    models: Models
    denoising: Denoising
    config: ImageGenerationConfig
    metrics: ImageGenerationPerfMetrics
    callback: Callback | None
    image: Array | None = None
    mask: Array | None = None

    def run(self, prompt: str) -> Tensor | None:
        """Return the images, u8 [images, height, width, 3], or None if the callback ends the generation."""
        self._encode_text(prompt)
        self._prepare()
        steps = len(self.denoising.timesteps)
        denoised = self._latents
        for index in range(steps):
            start = time.perf_counter()
            with np.errstate(all="ignore"):  # settings of a scheduler may give infinite latents
                denoised = self._step(index)
            ended = self.callback is not None and bool(self.callback(index, steps, Tensor(denoised)))
            self.metrics.raw_metrics.iteration_durations.append(microseconds_since(start))
            if ended:
                return None
        start = time.perf_counter()
        images = self.models.vae.decode(Tensor(denoised))
        self.metrics._vae_decoder = microseconds_since(start) / 1e3
        return images

    # ----

    @property
    def _rows(self) -> int:
        """Rows of the UNet for an image: 2 with guidance."""
        return 1 + self.models.unet.do_classifier_free_guidance(self.config.guidance_scale)

    def _encode_text(self, prompt: str) -> None:
        """Compute what the UNet gets of the text, and of the guidance scale."""
        config, unet = self.config, self.models.unet
        count = config.num_images_per_prompt
        start = time.perf_counter()
        states = self.models.text_encoder.infer(prompt, config.negative_prompt or "", self._rows > 1)
        self.metrics._text_encoders["text_encoder"] = microseconds_since(start) / 1e3
        unet.keep_hidden_states(STATES, np.repeat(states.data, count, axis=0))
        if self.models.is_consistency_model:
            embedded = _embedded(config.guidance_scale, unet.get_config().time_cond_proj_dim)
            unet.keep_hidden_states("timestep_cond", np.repeat(embedded, count, axis=0))

    def _prepare(self) -> None:
        """Compute the first latents, and those of a given image and mask.

        Random numbers are drawn for the image, the noise, and the masked image, in this order.
        """
        config, vae = self.config, self.models.vae
        scale, count = vae.get_vae_scale_factor(), config.num_images_per_prompt
        shape = (count, vae.get_config().latent_channels, config.height // scale, config.width // scale)
        starts_from_noise = self.image is None or (self.mask is not None and config.strength == 1)
        self._blends = self.mask is not None and not self.models.is_inpainting_model
        if self._blends and count > 1:
            raise Error("a model without inputs for a mask makes one image at a time")
        image = None
        if self.image is not None:
            image = pixels.normalised(pixels.resize(self.image, config.height, config.width))
            if self._blends or not starts_from_noise:
                self._image_latents = self._encode(image)
        self._noise = draw(self._generator, shape)
        if starts_from_noise:
            self._latents = self._noise * self.denoising.init_noise_sigma
        else:
            latents = np.repeat(self._image_latents, count, axis=0)
            self._latents = self.denoising.add_noise(latents, self._noise, self.denoising.timesteps[0])
        self._extra: list[Array] = []  # further channels of the UNet's input
        if self.mask is not None and image is not None:
            mask = pixels.binary_mask(pixels.resize(self.mask, config.height, config.width))
            self._mask = mask[:, :, ::scale, ::scale]
            if not self._blends:
                parts = self._mask, self._encode(np.where(mask < 0.5, image, np.float32(0)))
                self._extra = [np.repeat(part, self._rows * count, axis=0) for part in parts]

    def _step(self, index: int) -> Array:
        """Compute the next latents, and return those that the decoder or the callback would get."""
        denoising, rows = self.denoising, self._rows
        sample = denoising.scale(np.concatenate([self._latents] * rows), index)
        start = time.perf_counter()
        prediction = self.models.unet.predict(np.concatenate([sample, *self._extra], 1), denoising.timesteps[index])
        self.metrics.raw_metrics.unet_inference_durations.append(microseconds_since(start))
        if rows > 1:
            without, with_text = np.split(prediction, 2)
            prediction = without + np.float32(self.config.guidance_scale) * (with_text - without)
        self._latents, denoised = denoising.step(prediction, self._latents, index, self._generator)
        if self._blends:
            self._latents = self._blended(index)
        return self._latents if denoised is None else denoised

    def _blended(self, index: int) -> Array:
        """Return the latents where the mask is 1, and elsewhere those of the image with the noise of the next step."""
        latents, timesteps = self._image_latents, self.denoising.timesteps
        if index + 1 < len(timesteps):
            latents = self.denoising.add_noise(latents, self._noise, timesteps[index + 1])
        blended: Array = (np.float32(1) - self._mask) * latents + self._mask * self._latents
        return blended

    @property
    def _generator(self) -> Any:
        return self.config.generator

    def _encode(self, image: Array) -> Array:
        start = time.perf_counter()
        latents: Array = self.models.vae.encode(Tensor(image), self._generator).data
        self.metrics._vae_encoder += microseconds_since(start) / 1e3
        return latents


def _embedded(guidance_scale: float, width: int) -> Array:
    """Return sines and cosines [1, width] of a guidance scale, f32."""
    half = width // 2
    distance = np.float32(np.log(PERIOD) / (half - 1)) if half > 1 else np.float32(0)
    factors = np.exp(np.float64(-distance * np.arange(half, dtype=np.float32))).astype(np.float32)
    angles = (factors * ((np.float32(guidance_scale) - np.float32(1)) * np.float32(1000))).astype(np.float64)
    embedded = np.zeros((1, width), np.float32)
    embedded[0, :half], embedded[0, half : 2 * half] = np.sin(angles), np.cos(angles)
    return embedded
