"""Findings of the fuzzer, which have the results that their comments state."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness import guarded, judge
from tests.harness.cases import api
from tests.harness.recall import digest, recall
from tests.harness.tolerance import compare_all

from . import findings, inference
from .corpus import Subject

CASES = sorted(findings.FOLDER.glob("*.xml"))


def expected(subject: Subject, inputs: list[judge.Value]) -> list[judge.Expected]:
    """Return the outputs that OpenVINO's plugin gives."""
    parts = [subject.xml, subject.weights, *(part for value in inputs for part in value)]
    return recall(digest(parts), lambda: guarded.ask(guarded.expect, subject.xml, subject.weights, "cpu", inputs))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_findings(path: Path, device: str) -> None:
    wanted, subject = findings.load(path)
    outcome = inference.answer_with(api(), subject, device)
    if wanted not in (findings.SAME, findings.ANSWERS):
        assert outcome.kind == "refused" and wanted in outcome.text, outcome
        return
    assert outcome.kind == "answered", outcome
    (found,), (call,) = outcome.outputs, subject.calls
    inputs = inference.fed(outcome.inputs, call)
    assert inputs is not None
    if wanted == findings.SAME:
        others = expected(subject, inputs)
    else:  # the devices agree
        (others,) = inference.answer_with(api(), subject, "CPU").outputs
    compare_all(path.stem, [(x.array, x.type) for x in found], others, None)


def test_cases_are_documents() -> None:
    """Every case states its expected result."""
    assert CASES
    for path in CASES:
        assert re.match(rb"<!-- (as OpenVINO|answers|\[\w+\] .*) -->\n<", path.read_bytes()), path
