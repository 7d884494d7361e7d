"""Calls of the models of tiny pipelines of images, and of pipelines, which `record_wheel.py` makes with openvino_genai,
and `test_images.py` here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.genai.image_cases import FEW, IMAGE, INPAINT, INPAINTING, LCM, SD, TEXT, answer, packed
from tests.genai.image_model import make_folder

CONFIG = ("guidance_scale", "height", "num_images_per_prompt", "num_inference_steps", "rng_seed", "strength", "width")


def component_outcomes(genai: Any, tensor: Any, folder: Path, **properties: Any) -> dict[str, Any]:
    """Return the results of the models of a pipeline, one by one."""
    path = folder / "components"
    if not path.exists():
        make_folder(path)

    def latents(*shape: int) -> Any:
        return tensor(np.random.RandomState(1).normal(size=shape).astype(np.float32))

    text = genai.CLIPTextModel(path / "text_encoder", "CPU", **properties)
    reshaped = genai.CLIPTextModel(path / "text_encoder").reshape(2)
    fixed = genai.CLIPTextModel(path / "text_encoder").reshape(1)
    for model in (reshaped, fixed):
        model.compile("CPU", **properties)
    unet = genai.UNet2DConditionModel(path / "unet", "CPU", **properties)
    small = genai.UNet2DConditionModel(path / "unet").reshape(2, 6, 8, 12)
    small.compile("CPU", **properties)
    both = genai.AutoencoderKL(path / "vae_encoder", path / "vae_decoder", "CPU", **properties)
    decoder = genai.AutoencoderKL(path / "vae_decoder", "CPU", **properties)
    bare = genai.AutoencoderKL(path / "vae_decoder").reshape(1, 6, 8)
    step = tensor(np.array([30], np.int64))

    def predicted(model: Any, states: Any, *shape: int, timestep: Any = step) -> Any:
        model.set_hidden_states("encoder_hidden_states", states)
        return model.infer(latents(*shape), timestep)

    config = unet.get_config()
    answers: dict[str, Callable[[], Any]] = {
        "text": lambda: text.infer("a cat", "dog", True),
        "output 1": lambda: text.get_output_tensor(1),
        "output 2": lambda: text.get_output_tensor(2),
        "text without guidance": lambda: text.infer("a cat", "dog", False),
        "long text": lambda: text.infer("a cat " * 9, "", False),
        "no text": lambda: text.infer(None, "", False),
        "reshaped text": lambda: reshaped.infer("a cat", "dog", True),
        "reshaped text without guidance": lambda: reshaped.infer("a cat", "dog", False),
        "output 1 without guidance": lambda: reshaped.get_output_tensor(1),
        "text in a batch of 1": lambda: fixed.infer("a cat", "dog", True),
        "text that is not compiled": lambda: genai.CLIPTextModel(path / "text_encoder").infer("a", "b", True),
        "compiled text": lambda: text.reshape(2),
        "text compiled twice": lambda: text.compile("CPU"),
        "copied text": lambda: genai.CLIPTextModel(text).infer("a cat", "dog", True),
        "folder without model": lambda: genai.CLIPTextModel(path / "text_encoder_2"),
        "folder of another model": lambda: genai.CLIPTextModel(path / "unet"),
        "config of text": lambda: [text.get_config().max_position_embeddings, text.get_config().num_hidden_layers],
        "adapters": lambda: text.set_adapters(None),
        "prediction": lambda: predicted(unet, text.infer("a cat", "dog", True), 2, 4, 3, 4),
        "fixed prediction": lambda: predicted(small, text.infer("a cat", "dog", True), 2, 4, 3, 4),
        "prediction of other size": lambda: predicted(small, text.infer("a cat", "dog", True), 2, 4, 4, 4),
        "timestep of f64": lambda: predicted(
            unet, text.infer("a", "b", True), 2, 4, 3, 4, timestep=tensor(np.array([30.0]))
        ),
        "other states": lambda: unet.set_hidden_states("states", step),
        "guidance": lambda: [unet.do_classifier_free_guidance(scale) for scale in (0, 1, 1.5)],
        "config of unet": lambda: [config.in_channels, config.sample_size, config.time_cond_proj_dim],
        "images": lambda: decoder.decode(latents(2, 4, 3, 2)),
        "images of f64": lambda: decoder.decode(tensor(np.zeros((1, 4, 2, 2)))),
        "decoder that is not compiled": lambda: bare.decode(latents(1, 4, 3, 4)),
        "scale": lambda: [decoder.get_vae_scale_factor(), *decoder.get_config().block_out_channels],
        "wrong size": lambda: genai.AutoencoderKL(path / "vae_decoder").reshape(1, 5, 8),
        "encoded": lambda: both.encode(latents(1, 3, 4, 6)),
        "encoded at random": lambda: both.encode(latents(1, 3, 4, 6), genai.CppStdGenerator(2)),
        "several encoded": lambda: both.encode(latents(2, 3, 4, 6)),
        "encoded without encoder": lambda: decoder.encode(latents(1, 3, 4, 6)),
        "pipeline of parts": lambda: genai.Text2ImagePipeline.stable_diffusion(
            genai.Scheduler.from_config(path / "scheduler" / "scheduler_config.json"), text, unet, decoder
        ).generate("a cat", **FEW),
    }

    def told(ask: Callable[[], Any]) -> Any:
        value = ask()
        if not hasattr(value, "shape"):
            return value
        return packed(value) if value.data.dtype == np.uint8 else [[*value.shape], value.data.ravel().tolist()]

    return {name: answer(lambda ask=ask: told(ask)) for name, ask in answers.items()}


def pipeline_outcomes(genai: Any, tensor: Any, folder: Path, **properties: Any) -> dict[str, Any]:
    """Return the outcomes of calls of a pipeline other than generate()."""
    path = folder / "pipeline"
    if not path.exists():
        make_folder(path)
    inpainting = make_folder(folder / "inpainting", INPAINTING)
    other = make_folder(folder / "other")
    (other / "model_index.json").write_text('{"_class_name": "NoPipeline"}')

    def config(pipeline: Any) -> Any:
        return [getattr(pipeline.get_generation_config(), name) for name in CONFIG]

    def generated(pipeline: Any, **keywords: Any) -> Any:
        return packed(pipeline.generate("a cat", **keywords))

    def reshaped(*sizes: Any, **keywords: Any) -> Any:
        pipeline = genai.Text2ImagePipeline(path)
        pipeline.reshape(*sizes)
        pipeline.compile("CPU", "CPU", "CPU", **properties)
        return [config(pipeline), generated(pipeline, num_inference_steps=2, **keywords)]

    def continued(**keywords: Any) -> Any:
        pipeline = genai.Text2ImagePipeline(path, "CPU", **properties)
        settings = pipeline.get_generation_config()
        settings.generator, settings.num_inference_steps = genai.CppStdGenerator(9), 2
        pipeline.set_generation_config(settings)
        return [generated(pipeline), generated(pipeline), generated(pipeline, **keywords)]

    def counted() -> Any:
        pipeline = genai.Text2ImagePipeline(path, "CPU", **properties)
        pipeline.generate("a cat", **FEW)
        raw = pipeline.get_performance_metrics().raw_metrics
        names = ("unet_inference_durations", "transformer_inference_durations", "iteration_durations")
        return [len(getattr(raw, name)) for name in names]

    def refused() -> Any:
        settings = genai.ImageGenerationConfig()
        settings.guidance_scale, settings.negative_prompt = 1, "x"
        genai.Text2ImagePipeline(path).set_generation_config(settings)

    def parts(model: str) -> list[Any]:
        place = folder / f"parts of {model}"
        if not place.exists():
            make_folder(place, model)
        return [
            genai.Scheduler.from_config(place / "scheduler" / "scheduler_config.json"),
            genai.CLIPTextModel(place / "text_encoder"),
            genai.UNet2DConditionModel(place / "unet"),
            genai.AutoencoderKL(place / "vae_encoder", place / "vae_decoder"),
        ]

    def compiled() -> Any:
        pipeline = genai.Text2ImagePipeline(path)
        pipeline.compile("CPU", **properties)
        return generated(pipeline, **FEW)

    latents = tensor(np.random.RandomState(1).normal(size=(1, 4, 3, 2)).astype(np.float32))
    inpaint = genai.InpaintingPipeline(path, "CPU", **properties)
    image = genai.Image2ImagePipeline(path, "CPU", **properties)
    ready = genai.Text2ImagePipeline(path, "CPU", **properties)
    answers: dict[str, Callable[[], Any]] = {
        **{name: lambda name=name: config(getattr(genai, name)(path)) for name in (TEXT, IMAGE, INPAINT)},
        "reshaped": lambda: reshaped(2, 6, 10, 1.0),
        "reshaped, with guidance": lambda: reshaped(1, 8, 8, 7.5, guidance_scale=3.0),
        "reshaped, with another size": lambda: reshaped(1, 8, 8, 7.5, height=12),
        "reshaped, with another count": lambda: reshaped(2, 8, 8, 7.5, num_images_per_prompt=1),
        "reshaped to an odd size": lambda: reshaped(1, 7, 8, 7.5),
        "reshaped when compiled": lambda: ready.reshape(1, 8, 8, 7.5),
        "compiled twice": lambda: ready.compile("CPU"),
        "generated before it is compiled": lambda: generated(genai.Text2ImagePipeline(path)),
        **{
            f"{what} {number}": lambda call=call, pipeline=pipeline: call(pipeline)
            for what, call in (
                ("exported", lambda pipeline: pipeline.export_model(folder / "exported")),
                ("decoded", lambda pipeline: packed(pipeline.decode(latents))),
                ("decoded f64", lambda pipeline: pipeline.decode(tensor(np.zeros((1, 4, 2, 2))))),
            )
            for number, pipeline in enumerate((ready, image, inpaint))
        },
        **{
            f"{kind}.{maker} of {model}": lambda kind=kind, maker=maker, model=model: config(
                getattr(getattr(genai, kind), maker)(*parts(model))
            )
            for kind in (TEXT, IMAGE, INPAINT)
            for maker in ("stable_diffusion", "latent_consistency_model")
            for model in (SD, LCM)
        },
        "wrong parts": lambda: genai.Text2ImagePipeline.stable_diffusion(*parts(SD)[::-1]),
        "compiled later": compiled,
        "a generator goes on": continued,
        "a generator starts anew": lambda: continued(rng_seed=9),
        "counts": counted,
        "configuration that is not valid": refused,
        "text of image": lambda: generated(genai.Text2ImagePipeline(image), **FEW),
        "text of inpainting": lambda: generated(genai.Text2ImagePipeline(inpaint), **FEW),
        "image of inpainting": lambda: config(genai.Image2ImagePipeline(inpaint)),
        "inpainting of image": lambda: config(genai.InpaintingPipeline(image)),
        "image of text": lambda: genai.Image2ImagePipeline(ready),
        "inpainting of text": lambda: genai.InpaintingPipeline(ready),
        "text of a model for inpainting": lambda: genai.Text2ImagePipeline(genai.InpaintingPipeline(inpainting)),
        "text by a model for inpainting": lambda: genai.Text2ImagePipeline(inpainting),
        "image by a model for inpainting": lambda: genai.Image2ImagePipeline(inpainting),
        "another pipeline": lambda: genai.Text2ImagePipeline(other),
        "no folder": lambda: genai.Text2ImagePipeline(folder / "none"),
        "folder of a model": lambda: genai.Text2ImagePipeline(path / "unet"),
        "no device": lambda: genai.Text2ImagePipeline(path, 3),
        "no path": lambda: genai.Text2ImagePipeline(3),
    }
    return {name: answer(ask) for name, ask in answers.items()}
