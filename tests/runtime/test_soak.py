"""The soak test, for a few seconds."""
from __future__ import annotations

from typing import Any

import pytest

from tests import soak

SHORT = ["--seconds", "2", "--every", "0.5", "--threads", "2", "--models", "lstm_state", "gru"]


def test_nothing_is_left_behind(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main([*SHORT, "--device", device]) == 0
    said = capsys.readouterr().out
    assert "nothing is left behind" in said and " 0 failed" in said


def test_what_is_left_behind_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(soak.Soak, "shapes", lambda self, rng: kept.extend([] for _ in range(500)))
    assert soak.main(SHORT) == 1
    assert "more objects" in capsys.readouterr().out


def test_a_wrong_result_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong(self: soak.Soak, rng: Any) -> None:
        raise AssertionError("wrong")

    monkeypatch.setattr(soak.Soak, "queue", wrong)
    assert soak.main(SHORT) == 1
    assert "AssertionError: wrong" in capsys.readouterr().out


def test_one_interval_tells_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main([*SHORT, "--seconds", "0.1"]) == 1
    assert "nothing to compare" in capsys.readouterr().out
