"""The harness itself: OpenVINO's answers to many models at once, and sweeps that fail."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.harness import Case, In, const, given, joint, judge
from tests.harness.sweep import LIMITS, run

FEW = settings(LIMITS, max_examples=20, derandomize=True)


@pytest.fixture(autouse=True)
def openvino() -> None:
    judge.openvino()


def test_answers_are_those_to_single_models() -> None:
    """There are none to a model of an unknown operation, one that is refused, and one whose inputs are."""
    cases = [
        Case("Relu", "opset1", [In((2, 3))]),
        Case("Rely", "opset1", [In((2, 3))]),
        Case("Split", "opset1", [In((4, 3), "i8"), const(0)], {"num_splits": 2}, 2),
        Case("Gather", "opset8", [In((2, 3)), given([9]), given(0)]),
        Case("Atan2", "opset17", [In((3,)), In((3,))]),
        Case("Add", "opset1", [In((3,), "f64"), In((3,), "f64")], oracle="cpu"),
    ]
    questions = [question for case in cases if (question := case.question())]
    assert len(questions) == len(cases)
    found = joint.answers(questions)
    assert [answer is None for answer in found] == [False, True, False, True, True, False]
    for question, answer in zip(questions, found):
        single = judge.Judge(question.xml, question.weights, "cpu")
        for inputs, outputs in zip(question.inputs, answer or (), strict=answer is not None):
            for a, b in zip(single.expect(inputs), outputs, strict=True):
                assert (a.type, a.computed) == (b.type, b.computed)
                np.testing.assert_array_equal(a.array, b.array)


@st.composite
def relus(draw: st.DrawFn) -> Case:
    return Case("Relu", "opset1", [In((draw(st.integers(1, 9)),))])


def test_a_sweep_shrinks_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare_all(where: str, found: list[Any], wanted: list[judge.Expected], tol: Any) -> None:
        assert found[0][0].size == wanted[0].array.size < 5

    run(relus().filter(lambda case: case.inputs[0].shape[0] < 5), "CPU", FEW)
    monkeypatch.setattr(importlib.import_module("tests.harness.sweep"), "compare_all", compare_all)
    with pytest.raises(AssertionError) as caught:
        run(relus(), "CPU", FEW)
    assert "Relu opset1 {} of f32.5 (" in "\n".join(caught.value.__notes__)


def test_a_sweep_of_refused_cases_fails() -> None:
    with pytest.raises(AssertionError, match="OpenVINO refuses 20 of 20 draws"):
        run(st.integers(1, 99).map(lambda n: Case("Rely", "opset1", [In((n,))])), "CPU", FEW)
