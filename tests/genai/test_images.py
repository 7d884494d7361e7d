"""Pipelines of images: images, latents, models and errors as recorded from openvino_genai, and wrong uses."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu
import ovgpu.genai
from tests.genai import image_cases as cases
from tests.genai import image_parts_cases
from tests.genai.record_wheel import IMAGES

pytest.importorskip("tokenizers")

RECORD = json.loads(IMAGES.read_text())
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> cases.Asked:
    return cases.Asked(ovgpu.genai, ovgpu.Tensor, tmp_path_factory.mktemp("images"), **EXACT)


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
