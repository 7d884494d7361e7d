"""Classes Text2ImagePipeline, Image2ImagePipeline and InpaintingPipeline: images by Stable Diffusion."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.files import read_object
from ovgpu.genai.images.autoencoder import AutoencoderKL, check_size
from ovgpu.genai.images.clip_text_model import CLIPTextModel, as_text
from ovgpu.genai.images.config import ImageGenerationConfig
from ovgpu.genai.images.diffusion import Diffusion, Models
from ovgpu.genai.images.metrics import ImageGenerationPerfMetrics
from ovgpu.genai.images.network import refuse_export
from ovgpu.genai.images.overloads import PATH, Form, arguments
from ovgpu.genai.images.pixels import read_image
from ovgpu.genai.images.scheduler import Scheduler
from ovgpu.genai.images.unet import UNet2DConditionModel
from ovgpu.genai.turns import Turns
from ovgpu.tensor import Tensor
from ovgpu.types import Type

SUPPORTED = ("StableDiffusionPipeline", "LatentConsistencyModelPipeline")
Array = np.ndarray[Any, Any]


class ImagePipeline:
    """Base of the three pipelines."""

    _kinds: ClassVar[tuple[str, ...]] = SUPPORTED  # classes in model_index.json
    _sources: ClassVar[tuple[type, ...]]  # pipelines of which it can be made
    _encodes: ClassVar[bool] = True  # whether it needs the VAE encoder
    _strength: ClassVar[float] = 1.0
    _config: ImageGenerationConfig
    _models: Models

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        start = time.perf_counter()
        folder: Form = {"models_path": PATH}
        forms = [folder, {**folder, "device": str}, *({"pipe": kind} for kind in self._sources)]
        given, properties = arguments(type(self).__name__, forms, args, kwargs)
        if "pipe" in given:
            pipe = given["pipe"]
            if pipe._models.is_inpainting_model and not isinstance(self, InpaintingPipeline):
                raise Error(f"a {type(self).__name__} cannot be made of a model for inpainting")
            self._take(pipe._models.copy(), pipe._scheduler)
        else:
            path = Path(os.fsdecode(given["models_path"]))
            kind = read_object(path / "model_index.json").get("_class_name")
            if kind not in self._kinds:
                raise Error(f"{type(self).__name__} does not support a {kind}, only {', '.join(self._kinds)}")
            if "device" in given:
                properties["device"] = given["device"]
            vae = [path / "vae_encoder"] * self._encodes + [path / "vae_decoder"]
            scheduler = Scheduler.from_config(path / "scheduler" / "scheduler_config.json")
            models = Models(
                CLIPTextModel(path / "text_encoder", **properties),
                UNet2DConditionModel(path / "unet", **properties),
                AutoencoderKL(*vae, **properties),
            )
            self._take(models, scheduler)
        self._load_time = 1e3 * (time.perf_counter() - start)

    @classmethod
    def stable_diffusion(
        cls, scheduler: Scheduler, clip_text_model: CLIPTextModel, unet: UNet2DConditionModel, vae: AutoencoderKL
    ) -> Self:
        """Return a pipeline of copies of models. `compile` compiles those that are not.

        Raises: TypeError for arguments of other classes.
        """
        kinds = (Scheduler, CLIPTextModel, UNet2DConditionModel, AutoencoderKL)
        for value, kind in zip((scheduler, clip_text_model, unet, vae), kinds):
            if not isinstance(value, kind):
                raise TypeError(f"{cls.__name__} takes a {kind.__name__}, not {value!r}")
        pipeline = cls.__new__(cls)
        pipeline._load_time = 0.0
        pipeline._take(Models(clip_text_model, unet, vae).copy(), scheduler)
        return pipeline

    latent_consistency_model = stable_diffusion

    @classmethod
    def stable_diffusion_xl(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise RuntimeError: models other than Stable Diffusion and consistency models are not supported."""
        raise Error(f"{cls.__name__} does not support this kind of model, only {', '.join(cls._kinds)}")

    stable_diffusion_3 = flux = stable_diffusion_xl

    def reshape(self, num_images_per_prompt: int, height: int, width: int, guidance_scale: float) -> None:
        """Fix the number of images, their size in pixels, and whether there is guidance. The configuration follows.

        Raises: RuntimeError once the models are compiled, and for a size that is no multiple of the scale factor.
        """
        start = time.perf_counter()
        models, config = self._models.copy(), self._config.copy()
        config.num_images_per_prompt, config.height, config.width = num_images_per_prompt, height, width
        config.guidance_scale = guidance_scale
        config.validate()
        check_size(height, width, models.vae.get_vae_scale_factor())
        rows = 1 + models.unet.do_classifier_free_guidance(guidance_scale)
        models.text_encoder.reshape(rows)
        length = models.text_encoder.get_config().max_position_embeddings
        models.unet.reshape(num_images_per_prompt * rows, height, width, length)
        models.vae.reshape(num_images_per_prompt, height, width)
        self._models, self._config = models, config
        self._load_time += 1e3 * (time.perf_counter() - start)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the models: ``compile(device, **properties)``, or ``compile(text_encode_device, denoise_device,
        vae_device, **properties)``.

        Raises: RuntimeError if they are compiled already; TypeError for other arguments.
        """
        start = time.perf_counter()
        names = ("text_encode_device", "denoise_device", "vae_device")
        given, properties = arguments("compile", [{"device": str}, dict.fromkeys(names, str)], args, kwargs)
        devices = [given["device"]] * 3 if "device" in given else [given[name] for name in names]
        models = self._models.copy()  # if a model fails, none is compiled
        models.text_encoder.compile(devices[0], **properties)
        models.unet.compile(devices[1], **properties)
        models.vae.compile(devices[2], **properties)
        self._models = models
        self._load_time += 1e3 * (time.perf_counter() - start)

    def decode(self, latent: Tensor) -> Tensor:
        """Return images [batch, height, width, 3] of u8, for latents [batch, channels, height, width] of f32.

        Raises: RuntimeError for a tensor that does not fit, and before the models are compiled.
        """
        with self._turns.turn():
            return self._models.vae.decode(latent)

    def get_generation_config(self) -> ImageGenerationConfig:
        """Return a copy of the configuration, which shares its generator."""
        return self._config.copy()

    def set_generation_config(self, config: ImageGenerationConfig) -> None:
        """Set the configuration. Raises: RuntimeError if it is not valid; TypeError for another value."""
        if not isinstance(config, ImageGenerationConfig):
            raise TypeError(f"config is an ImageGenerationConfig, not {config!r}")
        config.validate()
        self._config = config.copy()

    def set_scheduler(self, scheduler: Scheduler) -> None:
        """Set the scheduler. Raises: TypeError for another value."""
        if not isinstance(scheduler, Scheduler):
            raise TypeError(f"scheduler is a Scheduler, not {scheduler!r}")
        self._scheduler = scheduler

    def get_performance_metrics(self) -> ImageGenerationPerfMetrics:
        """Return the times of the last generation."""
        self._metrics._load_time = self._load_time
        return self._metrics

    def export_model(self, export_path: str | bytes | os.PathLike[str]) -> NoReturn:
        """Raise RuntimeError: compiled models are not exported."""
        refuse_export()

    # ----

    def _take(self, models: Models, scheduler: Scheduler) -> None:
        """Keep models, and make the configuration of their kind."""
        self._models, self._scheduler = models, scheduler
        self._turns, self._metrics = Turns(), ImageGenerationPerfMetrics()
        config = ImageGenerationConfig()
        if not isinstance(self, Image2ImagePipeline):
            config.height = config.width = models.image_size
        if models.is_consistency_model:
            config.guidance_scale, config.num_inference_steps = 8.5, 4
        config.strength = self._strength
        self._config = config

    def _generate(
        self, prompt: str, keywords: Mapping[str, Any], image: Array | None = None, mask: Array | None = None
    ) -> Tensor:
        """Return images. The keywords are those of generate()."""
        start = time.perf_counter()
        prompt, fields = as_text(prompt), dict(keywords)
        callback = fields.pop("callback", None)
        if "callback" in keywords and not callable(callback):
            raise Error(f"callback is a function of a step, the number of steps, and latents, not {callback!r}")
        with self._turns.turn():
            config = self._config.copy()
            config.update_generation_config(**fields)
            self._set_size(config, image)
            self._check(config, image is not None)
            denoising = self._scheduler._begin(config.num_inference_steps, config.strength)
            self._metrics = metrics = ImageGenerationPerfMetrics()
            images = Diffusion(self._models, denoising, config, metrics, callback, image, mask).run(prompt)
            metrics._generate = 1e3 * (time.perf_counter() - start)
        return Tensor(Type.u8, []) if images is None else images

    def _set_size(self, config: ImageGenerationConfig, image: Array | None) -> None:
        """Replace negative sizes by those of the image, or of the model."""
        scale, own = self._models.vae.get_vae_scale_factor(), self._models.image_size
        for axis, name in enumerate(("height", "width"), 1):
            if getattr(config, name) < 0:
                from_image = image is not None and isinstance(self, Image2ImagePipeline)
                setattr(config, name, image.shape[axis] // scale * scale if image is not None and from_image else own)

    def _check(self, config: ImageGenerationConfig, has_image: bool) -> None:
        """Raise Error for settings that the model does not support."""
        check_size(config.height, config.width, self._models.vae.get_vae_scale_factor())
        for name in ("height", "width", "num_images_per_prompt"):
            if getattr(config, name) < 1:
                raise Error(f"{name} must be greater than 0, not {getattr(config, name)}")
        unused = ["prompt_2", "prompt_3", "negative_prompt_2", "negative_prompt_3"]
        if self._models.is_consistency_model:
            unused.append("negative_prompt")
        for name in unused:
            if getattr(config, name) is not None:
                raise Error(f"the model has no use for {name}: it must be None")
        if has_image and not 0 <= config.strength <= 1:
            raise Error(f"strength must be from 0 to 1, not {config.strength:g}")
        if not has_image and config.strength != 1:
            raise Error(f"strength must be 1 without an image, not {config.strength:g}")


class Text2ImagePipeline(ImagePipeline):
    """Images of texts, by Stable Diffusion or a latent consistency model, with the interface of openvino_genai.

    - ``Text2ImagePipeline(models_path)``: folder of a model, which `compile` compiles
    - ``Text2ImagePipeline(models_path, device, **properties)``: compiled at once, with properties of
      `Core.compile_model`
    - ``Text2ImagePipeline(pipe)``: with the models of an `Image2ImagePipeline` or `InpaintingPipeline`

    The folder has model_index.json, and folders scheduler, tokenizer, text_encoder, unet and vae_decoder. Threads may
    share a pipeline: it makes the images of one call at a time.

    Raises: RuntimeError if a file is missing, or for another kind of model; TypeError for other arguments.
    """

    _encodes = False

    def generate(self, prompt: str, **kwargs: Any) -> Tensor:
        """Return images of a text, u8 [images, height, width, 3].

        ``kwargs`` are fields of an `ImageGenerationConfig`, which change the configuration of the pipeline, or
        ``generation_config``. ``callback`` is a function of the step, the number of steps, and the latents, a Tensor of
        f32. If it returns a true value, the generation ends, with a tensor of shape []. If it raises an exception, so
        does this method.

        Raises: RuntimeError for settings that are not valid; TypeError for a prompt that is no text.
        """
        return self._generate(prompt, kwargs)


class Image2ImagePipeline(ImagePipeline):
    """Images of a text and an image. It is made as a `Text2ImagePipeline`, and needs a folder vae_encoder, too."""

    _strength = 0.8

    def generate(self, prompt: str, image: Tensor, **kwargs: Any) -> Tensor:
        """Return images of a text, u8 [images, height, width, 3], that are like an image, u8 [1, height, width, 3].

        ``strength`` says how much of the image changes. By default, images are as large as the image, which is resized
        else. ``kwargs`` and errors are those of `Text2ImagePipeline.generate`; RuntimeError for another image.
        """
        return self._generate(prompt, kwargs, read_image(image, "an image", (3,)))


class InpaintingPipeline(ImagePipeline):
    """Images of a text in a part of an image. It is made as an `Image2ImagePipeline`, also of models for inpainting."""

    _kinds = (*SUPPORTED, "StableDiffusionInpaintPipeline")

    def generate(self, prompt: str, image: Tensor, mask_image: Tensor, **kwargs: Any) -> Tensor:
        """Return images of a text, u8 [images, height, width, 3], that are like an image where a mask is dark.

        The image is u8 [1, height, width, 3], the mask u8 [1, height, width, 1 or 3]; both are resized. A model that is
        not for inpainting makes one image. ``kwargs`` and errors are those of `Text2ImagePipeline.generate`;
        RuntimeError for another image or mask.
        """
        mask = read_image(mask_image, "a mask", (1, 3))
        return self._generate(prompt, kwargs, read_image(image, "an image", (3,)), mask)

    flux_fill = ImagePipeline.stable_diffusion_xl


Text2ImagePipeline._sources = (Image2ImagePipeline, InpaintingPipeline)
Image2ImagePipeline._sources = (InpaintingPipeline,)
InpaintingPipeline._sources = (Image2ImagePipeline,)
