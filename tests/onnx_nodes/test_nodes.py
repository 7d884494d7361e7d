"""All node tests of ONNX that OpenVINO passes."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")
pytest.importorskip("openvino")

import ovgpu

from .suite import check, convert, excluded, suite

EXCLUDED = excluded() | {
    "test_div_int32_trunc": "m_pythondiv is true, for which the specification and OpenVINO's reference give the floor",
}


def test_exclusions_are_tests() -> None:
    assert set(EXCLUDED) <= set(suite()) and all(EXCLUDED.values())


@pytest.mark.parametrize("name", [name for name in suite() if name not in EXCLUDED])
def test_node(name: str) -> None:
    case = suite()[name]
    check(ovgpu, case, convert(case), "CPU", {})
