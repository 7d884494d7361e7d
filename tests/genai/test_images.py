"""Pipelines of images: images, latents, models and errors as recorded from openvino_genai, and wrong uses."""

from __future__ import annotations

import base64
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest

import ovgpu
import ovgpu.genai
from ovgpu.genai import (
    AutoencoderKL,
    CLIPTextModel,
    Generator,
    Scheduler,
    Text2ImagePipeline,
    TorchGenerator,
    UNet2DConditionModel,
)
from tests.emulator import state
from tests.genai import image_cases as cases
from tests.genai import image_parts_cases
from tests.genai.image_model import make_folder
from tests.genai.record_wheel import IMAGES

pytest.importorskip("tokenizers")

RECORD = json.loads(IMAGES.read_text())
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> cases.Asked:
    return cases.Asked(ovgpu.genai, ovgpu.Tensor, tmp_path_factory.mktemp("images"), **EXACT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("pipeline") / "model")


def assert_equal(found: Any, expected: Any) -> None:
    """Compare nested values; numbers of f32 within their rounding, and pixels within one level of 256.

    Of these, 1 in 200 may differ, where the rounding of f32 decides.
    """
    if isinstance(expected, (list, dict)):
        assert type(found) is type(expected) and len(found) == len(expected), f"{found} is not {expected}"
        for key in expected if isinstance(expected, dict) else range(len(expected)):
            if key == "pixels":
                a, b = (
                    np.frombuffer(base64.b64decode(value[key]), np.uint8).astype(int) for value in (found, expected)
                )
                assert a.size == b.size and np.abs(a - b).max(initial=0) <= 1 and np.sum(a != b) <= a.size / 200
            else:
                assert_equal(found[key], expected[key])
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=2e-5, abs=2e-5)
    else:
        assert found == expected


@pytest.mark.parametrize("case", cases.CASES, ids=cases.name_of)
def test_images(case: tuple[str, str, dict[str, Any]], asked: cases.Asked) -> None:
    assert_equal(asked.outcome(*case), RECORD["images"][cases.name_of(case)])


@pytest.mark.parametrize("case", cases.DENOISED, ids=cases.name_of)
def test_latents(case: tuple[str, dict[str, Any]], asked: cases.Asked) -> None:
    assert_equal(asked.latents(*case), RECORD["latents"][cases.name_of(case)])


def test_scheduler_files(asked: cases.Asked) -> None:
    assert {cases.name_of(case): asked.file(*case) for case in cases.FILES} == RECORD["files"]


def test_components(tmp_path: Path) -> None:
    found = image_parts_cases.component_outcomes(ovgpu.genai, ovgpu.Tensor, tmp_path, **EXACT)
    for name, outcome in found.items():
        assert_equal([name, outcome], [name, RECORD["components"][name]])


def test_pipelines(tmp_path: Path) -> None:
    found = image_parts_cases.pipeline_outcomes(ovgpu.genai, ovgpu.Tensor, tmp_path, **EXACT)
    for name, outcome in found.items():
        assert_equal([name, outcome], [name, RECORD["pipelines"][name]])


# ---- on a card


def test_images_on_a_card(tmp_path: Path, emulated: str) -> None:
    """Guidance, a consistency model, and an inpainting model."""
    asked = cases.Asked(ovgpu.genai, ovgpu.Tensor, tmp_path, emulated, **EXACT)
    chosen: list[tuple[str, str, dict[str, Any]]] = [
        (cases.TEXT, cases.SD, {**cases.FEW, "negative_prompt": "dog"}),
        (cases.IMAGE, cases.LCM, {"strength": 1}),
        (cases.INPAINT, cases.INPAINTING, {**cases.FEW, "strength": 0.5}),
    ]
    for case in chosen:
        assert_equal(asked.outcome(*case), RECORD["images"][cases.name_of(case)])


def test_a_step_is_one_graph(tmp_path: Path, emulated: str) -> None:
    """Only latents and the timestep are uploaded; the text is on the card for all steps. The prediction comes back."""
    pipeline = ovgpu.genai.Text2ImagePipeline(make_folder(tmp_path / "model"), emulated)
    seen = []

    def count(step: int, steps: int, latents: ovgpu.Tensor) -> None:
        counters = state.counters
        moved = counters.h2d_bytes, counters.d2h_bytes
        seen.append((counters.graph_launches, counters.launches, counters.allocs, *moved))
        counters.reset()

    for _ in range(2):
        pipeline.generate("a cat", num_inference_steps=4, callback=count)
    latents = 2 * 4 * 8 * 8 * 4  # bytes of both rows
    again = [1, 0, 0, latents + 8, latents]
    assert len(seen) == 10 and [list(counts) for counts in seen[1:5] + seen[6:]] == [again] * 8


# ---- other uses


def test_callback_ends_the_generation(folder: Path) -> None:
    pipeline = Text2ImagePipeline(folder, "CPU")
    seen: list[tuple[int, int, list[int]]] = []

    def stop(step: int, steps: int, latents: ovgpu.Tensor) -> bool:
        seen.append((step, steps, [*latents.shape]))
        return step == 2

    images = pipeline.generate("a cat", num_inference_steps=9, num_images_per_prompt=2, callback=stop)
    assert [*images.shape] == [] and images.element_type == ovgpu.Type.u8
    assert seen == [(step, 10, [2, 4, 8, 8]) for step in range(3)]
    raw = pipeline.get_performance_metrics().raw_metrics
    assert len(raw.iteration_durations) == len(raw.unet_inference_durations) == 3
    assert pipeline.get_performance_metrics().get_vae_decoder_infer_duration() == 0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_callback_that_raises(error: type[BaseException], folder: Path) -> None:
    pipeline = Text2ImagePipeline(folder, "CPU")
    expected = pipeline.generate("a cat", **cases.FEW).data
    with pytest.raises(error):
        pipeline.generate("a dog", **cases.FEW, callback=Mock(side_effect=error))
    np.testing.assert_array_equal(pipeline.generate("a cat", **cases.FEW).data, expected)


def test_callback_that_generates(folder: Path) -> None:
    pipeline = Text2ImagePipeline(folder, "CPU")
    with pytest.raises(ovgpu.Error, match="cannot call generate"):
        pipeline.generate("a", **cases.FEW, callback=lambda *_: pipeline.generate("b", **cases.FEW))


def test_pipelines_share_a_scheduler(folder: Path) -> None:
    """A scheduler keeps nothing of a generation, also if another pipeline generates in between."""
    pipeline, other = Text2ImagePipeline(folder, "CPU"), Text2ImagePipeline(folder, "CPU")
    expected = pipeline.generate("a cat", num_inference_steps=6).data
    scheduler = Scheduler.from_config(folder / "scheduler" / "scheduler_config.json")
    for each in (pipeline, other):
        each.set_scheduler(scheduler)

    def generate_other(*_: Any) -> None:
        other.generate("b", **cases.FEW)

    found = pipeline.generate("a cat", num_inference_steps=6, callback=generate_other)
    np.testing.assert_array_equal(found.data, expected)


def test_threads_share_a_pipeline(folder: Path) -> None:
    pipeline = Text2ImagePipeline(folder, "CPU")
    seeds = [*range(6)]
    expected = [pipeline.generate("a cat", **cases.FEW, rng_seed=seed).data for seed in seeds]
    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(lambda seed: pipeline.generate("a cat", **cases.FEW, rng_seed=seed).data, seeds)]
    np.testing.assert_array_equal(found, expected)


def test_models_of_memory(folder: Path) -> None:
    """Models from texts of IRs and tensors of weights, as those of folders; copies have results of their own."""

    def source(name: str) -> tuple[str, ovgpu.Tensor]:
        weights = np.fromfile(folder / name / "openvino_model.bin", np.uint8)
        return (folder / name / "openvino_model.xml").read_text(), ovgpu.Tensor(weights)

    tokenizer = ovgpu.genai.Tokenizer(folder / "tokenizer")
    text = CLIPTextModel(
        *source("text_encoder"), CLIPTextModel.Config(folder / "text_encoder" / "config.json"), tokenizer, "CPU"
    )
    unet = UNet2DConditionModel(*source("unet"), UNet2DConditionModel.Config(folder / "unet" / "config.json"), 2, "CPU")
    config = AutoencoderKL.Config(folder / "vae_decoder" / "config.json")
    vae = AutoencoderKL(*source("vae_encoder"), *source("vae_decoder"), vae_decoder_config=config, device="CPU")
    scheduler = Scheduler.from_config(folder / "scheduler" / "scheduler_config.json")
    pipeline = Text2ImagePipeline.stable_diffusion(scheduler, text, unet, vae)
    expected = Text2ImagePipeline(folder, "CPU").generate("a cat", **cases.FEW).data
    np.testing.assert_array_equal(pipeline.generate("a cat", **cases.FEW).data, expected)
    copy = CLIPTextModel(text)
    first, second = text.infer("a", "b", True).data, copy.infer("c", "d", True).data
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(text.get_output_tensor(0).data, first)


def test_wrong_arguments(folder: Path) -> None:
    pipeline = Text2ImagePipeline(folder, "CPU")
    with pytest.raises(ovgpu.Error, match="ImageGenerationConfig has no field num_steps, only "):
        pipeline.generate("a", num_steps=3)
    for name in ("num_images_per_prompt", "height", "width"):
        with pytest.raises(ovgpu.Error, match=f"{name} must be greater than 0, not 0"):
            pipeline.generate("a", **{name: 0})
    with pytest.raises(TypeError, match=r"Text2ImagePipeline takes \(models_path\); \(models_path, device\); \(pipe\)"):
        Text2ImagePipeline(folder, "CPU", "CPU")
    with pytest.raises(TypeError, match="Text2ImagePipeline takes"):
        Text2ImagePipeline(folder, CACHE_DIR="")
    with pytest.raises(TypeError, match="scheduler is a Scheduler, not 3"):
        pipeline.set_scheduler(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="config is an ImageGenerationConfig, not None"):
        pipeline.set_generation_config(None)  # type: ignore[arg-type]
    with pytest.raises(ovgpu.Error, match="Text2ImagePipeline does not support this kind of model, only StableDiff"):
        Text2ImagePipeline.stable_diffusion_xl()
    with pytest.raises(ovgpu.Error, match="the property CACHE_DIR keeps own ones"):
        CLIPTextModel(folder / "text_encoder", "CPU", blob_path=folder)
    with pytest.raises(ovgpu.Error, match="LoRA adapters are not applied"):
        UNet2DConditionModel(folder / "unet").set_adapters(3)  # type: ignore[arg-type]
    image, mask = cases.picture(1, 16, 16, 3), cases.picture(1, 16, 16, 1)
    for wrong in ("image", None, image.tolist(), image[0], image[:, :0], image.astype(np.int8)):
        with pytest.raises(ovgpu.Error, match=r"an image (is a tensor of u8 \[1, height, width, |has 3 chan)"):
            ovgpu.genai.InpaintingPipeline(folder, "CPU").generate("a", wrong, mask)
    with pytest.raises(ovgpu.Error, match=r"a mask is a tensor of u8 \[1, height, width, channels\]"):
        ovgpu.genai.InpaintingPipeline(folder, "CPU").generate("a", image, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a prompt is a text in UTF-8"):
        pipeline.generate(b"\xff")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [cases.SD, cases.LCM])
@pytest.mark.parametrize("name", [cases.TEXT, cases.IMAGE])
def test_reshaped_pipelines(name: str, kind: str, tmp_path: Path) -> None:
    """Two images of a fixed size, by models of fixed shapes as by others."""
    folder, image = make_folder(tmp_path / "model", kind), cases.picture(1, 20, 24, 3)
    fixed, free = (getattr(ovgpu.genai, name)(folder) for _ in range(2))
    fixed.reshape(2, 12, 16, 3.0)
    config = fixed.get_generation_config()
    assert (config.num_images_per_prompt, config.height, config.width, config.guidance_scale) == (2, 12, 16, 3.0)
    found = []
    for pipeline in (fixed, free):
        pipeline.compile("CPU", **EXACT)
        pipeline.set_generation_config(config)
        inputs = ["a cat"] if name == cases.TEXT else ["a cat", image]
        found.append(pipeline.generate(*inputs, **cases.FEW).data)
    assert found[0].shape == (2, 12, 16, 3) and np.abs(found[0].astype(int) - found[1]).max() <= 1


def test_failed_calls_change_nothing(folder: Path) -> None:
    """A pipeline of which one model cannot be compiled or reshaped is as it was before."""
    pipeline = Text2ImagePipeline(folder)
    with pytest.raises(ovgpu.Error, match="TPU"):
        pipeline.compile("CPU", "TPU", "CPU")
    with pytest.raises(ovgpu.Error, match="does not fit"):
        pipeline.reshape(1, 0, 0, 1.0)
    assert pipeline.get_generation_config().height == 16
    pipeline.compile("CPU")
    config = pipeline.get_generation_config()
    config.guidance_scale, config.negative_prompt = 1, "dog"
    with pytest.raises(ovgpu.Error, match="negative_prompt has no effect"):
        pipeline.set_generation_config(config)
    assert pipeline.generate("a cat", **cases.FEW).shape == ovgpu.Shape([1, 16, 16, 3])


def test_wrong_files(tmp_path: Path) -> None:
    for name in ("model_index.json", "unet/openvino_model.xml", "unet/config.json", "scheduler/scheduler_config.json"):
        folder = make_folder(tmp_path / name.replace("/", " "))
        (folder / name).write_text("[")
        with pytest.raises(ovgpu.Error, match=name.rpartition("/")[2]):
            Text2ImagePipeline(folder)
        (folder / name).unlink()
        with pytest.raises(ovgpu.Error, match=name.rpartition("/")[2]):
            Text2ImagePipeline(folder)
    folder = make_folder(tmp_path / "xl")
    (folder / "model_index.json").write_text('{"_class_name": "StableDiffusionXLPipeline"}')
    with pytest.raises(ovgpu.Error, match="does not support a StableDiffusionXLPipeline, only StableDiff"):
        Text2ImagePipeline(folder, "CPU")
    (folder / "unet" / "config.json").write_text('{"sample_size": "8"}')
    with pytest.raises(ovgpu.Error, match=r"config\.json: sample_size must be an integer from 0 "):
        UNet2DConditionModel(folder / "unet")


@pytest.mark.parametrize(
    ("settings", "steps", "message"),
    [
        ({}, 0, "num_inference_steps must be from 1 to 1000, not 0"),
        ({"num_train_timesteps": 5}, 6, "num_inference_steps must be from 1 to 5, not 6"),
        ({"steps_offset": 2}, 1000, "steps_offset 2 goes beyond the last of 1000 training steps"),
        ({"trained_betas": [0.1, 0.2]}, 2, "there are 2 trained_betas for 1000 training steps"),
    ],
)
def test_wrong_schedulers(settings: dict[str, Any], steps: int, message: str, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "scheduler_config.json"
    path.write_text(json.dumps({"_class_name": "DDIMScheduler", "clip_sample": False, **settings}))
    pipeline = Text2ImagePipeline(folder, "CPU")
    with pytest.raises(ovgpu.Error, match=message):
        pipeline.set_scheduler(Scheduler.from_config(path))
        pipeline.generate("a", num_inference_steps=steps)


@pytest.mark.parametrize("steps", [1, 7, 9, 11, 1000])
def test_trailing_steps(steps: int, asked: cases.Asked) -> None:
    """As many steps as wanted, whatever the rounding; the last one is a training step."""
    timesteps = asked.scheduler("DDIM", timestep_spacing="trailing")._begin(steps, 1.0).timesteps
    assert len(timesteps) == steps and timesteps[0] == 999 and timesteps[-1] >= 0


def test_wrong_generators(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(Generator):
        def randn_tensor(self, shape: Any) -> Any:
            return np.zeros(3, np.float32)

    pipeline = Text2ImagePipeline(folder, "CPU")
    with pytest.raises(ovgpu.Error, match=r"randn_tensor returned float32 \[3\], not float32 \[1, 4, 8, 8\]"):
        pipeline.generate("a", generator=Short())
    with pytest.raises(ovgpu.Error, match="the generator Generator has no method next"):
        pipeline.generate("a", generator=Generator())
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ovgpu.Error, match="TorchGenerator needs the package torch"):
        TorchGenerator(3)


def test_torch_generator(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It draws all numbers of a tensor at once, from a generator of the CPU with its seed."""
    torch = Mock(float32="float32")
    torch.Generator.side_effect = lambda device: Mock(manual_seed=lambda seed: (device, seed))
    torch.randn.side_effect = lambda count, **_: Mock(numpy=lambda: np.arange(count, dtype=np.float32) / count)
    monkeypatch.setitem(sys.modules, "torch", torch)
    generator = TorchGenerator(3)
    assert isinstance(generator, ovgpu.genai.CppStdGenerator) and generator.next() == 0
    np.testing.assert_array_equal(generator.randn_tensor([2, 2]).data, [[0, 0.25], [0.5, 0.75]])
    wanted = {"generator": ("cpu", 3), "dtype": "float32"}
    assert torch.randn.call_args_list == [call(1, **wanted), call(4, **wanted)]
    Text2ImagePipeline(folder, "CPU").generate("a", **cases.FEW, generator=generator)
    assert torch.randn.call_args_list[2:] == [call(4 * 8 * 8, **wanted)]
    for wrong in (-1, 2**32, 1.0):
        with pytest.raises(TypeError, match="a seed is an integer from 0 to 4294967295"):
            TorchGenerator(wrong)  # type: ignore[arg-type]
