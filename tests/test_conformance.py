"""The command `python -m tests.conformance`, with a few draws."""

from __future__ import annotations

from typing import Any

import pytest

from tests import conformance
from tests.conformance import Sweep, draw, main
from tests.harness import judge
from tests.ops.activation.test_softmax import test_random as softmaxes

NAME = ("Softmax", "opset1")


@pytest.fixture(autouse=True)
def one_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "sweeps", lambda: [Sweep("softmaxes", softmaxes.drawn, {NAME})])


def test_a_seed_repeats_its_draws() -> None:
    first, again, other = ([each.case.name for each in draw([NAME], 9, seed)[NAME]] for seed in (1, 1, 2))
    assert first == again != other and len(first) == 9 and all("opset1" in name for name in first)


def test_agreement(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["Softmax-1", "--draws", "3", "--seed", "1"]) == 0
    text = capsys.readouterr().out
    assert "Softmax-1   3 of 3" in text and "3 of 3 draws of 1 operation versions agree (CPU, seed 1)" in text


@pytest.mark.parametrize(
    ("error", "shown"),
    [(AssertionError("one is 2"), "AssertionError: one is 2"), (judge.Refused("no"), "0 of 0 draws")],
)
def test_no_agreement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, shown: str
) -> None:
    def judged(*case: Any) -> None:
        raise error

    monkeypatch.setattr(conformance, "judged", judged)
    assert main(["Softmax", "--draws", "3", "--seed", "1"]) == 1
    assert shown in capsys.readouterr().out


def test_an_unknown_operation_is_reported() -> None:
    with pytest.raises(SystemExit, match="there is no operation 'Sotmax'"):
        main(["Sotmax"])
