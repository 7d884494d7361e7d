"""All node tests of ONNX that OpenVINO passes."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")
pytest.importorskip("openvino")

import ovgpu

from .suite import check, excluded, passed, suite


def test_every_test_is_listed() -> None:
    assert sorted([*passed(), *excluded()]) == sorted(suite())
    assert all(excluded().values())


@pytest.mark.drawn(12)
@pytest.mark.parametrize("name", passed())
def test_node(name: str) -> None:
    case = suite()[name]
    check(ovgpu, case, (case.model.SerializeToString(),), "CPU", {})
