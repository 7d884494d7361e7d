"""ImageGenerationConfig, generators of random numbers, and metrics as recorded from openvino_genai."""

from __future__ import annotations

import json

import pytest

import ovgpu
import ovgpu.genai
from ovgpu.genai import CppStdGenerator, ImageGenerationConfig, Scheduler
from tests.genai import image_config_cases as cases
from tests.genai.record_wheel import IMAGES

RECORD = json.loads(IMAGES.read_text())


def test_config() -> None:
    found = json.loads(json.dumps(cases.config_outcomes(ImageGenerationConfig)))
    for group, outcomes in found.items():
        assert outcomes == RECORD[group], group


def test_generators() -> None:
    found = cases.generator_outcomes(ovgpu.genai, ovgpu.Shape)
    assert found.keys() == RECORD["generators"].keys()
    for case, numbers in found.items():
        expected = RECORD["generators"][case]
        assert numbers == (expected if isinstance(expected, str) else pytest.approx(expected, rel=2e-7)), case


def test_scheduler_types() -> None:
    assert cases.scheduler_types(ovgpu.genai) == RECORD["scheduler_types"]
    assert Scheduler.Type(5) is Scheduler.Type.PNDM
    for arguments in ((), (3,)):
        with pytest.raises(TypeError):
            Scheduler(*arguments)


def test_metrics() -> None:
    assert json.loads(json.dumps(cases.metrics_outcomes(ovgpu.genai))) == RECORD["metrics"]


def test_every_field_is_described() -> None:
    text = ImageGenerationConfig.__doc__ or ""
    assert {name for name in ImageGenerationConfig._fields if f"``{name}``" not in text} == set()


def test_generation_config_is_a_keyword() -> None:
    """openvino_genai describes the keyword, and ignores it."""
    other, config = ImageGenerationConfig(), ImageGenerationConfig()
    other.height, other.generator = 8, CppStdGenerator(1)
    config.update_generation_config(generation_config=other, width=4)
    assert (config.height, config.width, other.width) == (8, 4, -1) and config.generator is other.generator
    with pytest.raises(ovgpu.Error, match="generation_config must be an ImageGenerationConfig, not 3"):
        config.update_generation_config(generation_config=3)


def test_refused_fields_change_nothing() -> None:
    config = ImageGenerationConfig()
    for wrong in ({"height": 8, "widht": 8}, {"height": 8, "width": "8"}, {"height": 8, "negative_prompt": 3}):
        with pytest.raises(ovgpu.Error):
            config.update_generation_config(**wrong)
    with pytest.raises(ovgpu.Error, match="negative_prompt has no effect unless guidance_scale is above 1"):
        config.update_generation_config(height=8, negative_prompt="x", guidance_scale=0.5)
    assert (config.height, config.generator, config.guidance_scale) == (-1, None, 7.5)


def test_numbers_in_pieces() -> None:
    """Numbers do not depend on how many are taken at once."""
    whole = CppStdGenerator(5).randn_tensor([9000]).data.tolist()
    generator = CppStdGenerator(5)
    parts = [generator.next(), *generator.randn_tensor([2, 2000]).data.ravel().tolist(), generator.next()]
    assert [*parts, *generator.randn_tensor([9000 - len(parts)]).data.tolist()] == whole
