"""OpenVINO answers every model that ovgpu refuses, and every finding of the fuzzer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import refusals
from tests.fuzz.corpus import Subject, of_test
from tests.harness import Case, In

ROOT = Path(__file__).parent.parent


def subject(shape: tuple[int, ...], axis: int) -> Subject:
    """Return a model of one Softmax, or one that cannot be read."""
    return of_test(Case("Softmax", "opset8", [In(shape)], {"axis": axis}))


def asked(subjects: list[Subject]) -> list[refusals.Question]:
    return [refusals.Question("Softmax-8", str(i), True, lambda s=s: s) for i, s in enumerate(subjects)]  # type: ignore[misc]


def check_answers() -> None:
    subjects = [subject((2, 3), 1), subject((2, 3), 2)]
    found = list(refusals.answers(asked(subjects * refusals.BATCH)))
    assert [each.kind for each in found] == [refusals.COMPUTES, refusals.READING] * refusals.BATCH
    assert found[0].text.startswith("[2, 3] [")


def run(*arguments: str) -> None:
    """Run Python apart from the threads of this process, since workers are forked."""
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_answers() -> None:
    """An axis that exists gives a result, another one an error on reading, also after a change of processes."""
    pytest.importorskip("openvino")
    run("-c", "from tests.test_refusals import check_answers; check_answers()")


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    """The table counts the answers, and both answers follow where OpenVINO computes what ovgpu refuses."""
    questions = asked([subject((2, 3), 2)] * 2)
    outcomes = [refusals.Outcome(refusals.READING, "no axis"), refusals.Outcome(refusals.COMPUTES, "[2, 3] [1.0]")]
    assert refusals.report(questions, outcomes)
    printed = capsys.readouterr().out
    assert "OpenVINO: [2, 3] [1.0]" in printed
    assert "ovgpu: " in printed and "axis 2 is out of range for rank 2" in printed
    assert "2 models: 1 refuses on reading, 0 refuses later, 1 computes, 0 dies" in printed
    assert not refusals.report(questions[:1], [refusals.Outcome(refusals.DIES, "hung")])


def test_names() -> None:
    """The names of operations choose their cases; those with values of their own are not models for OpenVINO."""
    found = list(refusals.questions(["Gather-8", "CumSum"]))
    assert {question.group for question in found} == {"Gather-8", "CumSum-3"}
    private = [question for question in found if b"private." in question.subject().xml]
    assert private and not any(question.refused for question in private)
    assert any(question.refused for question in found)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_openvino_answers() -> None:
    """No model ends OpenVINO's process."""
    pytest.importorskip("openvino")
    run("-m", "tests.refusals")
