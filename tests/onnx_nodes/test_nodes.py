"""All node tests of ONNX that OpenVINO passes."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")
pytest.importorskip("openvino")

import ovgpu

from .suite import check, convert, excluded, passed, suite

EXCLUDED = excluded() | {
    "test_div_int32_trunc": "m_pythondiv is true, for which the specification and OpenVINO's reference give the floor",
}


def test_every_test_is_listed() -> None:
    assert sorted([*passed(), *excluded()]) == sorted(suite())
    assert all(EXCLUDED.values()) and set(EXCLUDED) <= set(suite())


@pytest.mark.drawn(12)
@pytest.mark.parametrize("name", [name for name in passed() if name not in EXCLUDED])
def test_node(name: str) -> None:
    case = suite()[name]
    check(ovgpu, case, convert(case), "CPU", {})
