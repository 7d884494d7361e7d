"""The soak test, run for a few seconds."""

from __future__ import annotations

from typing import Any

import pytest

from tests import soak

SHORT = ["--seconds", "2", "--every", "0.5", "--threads", "2", "--models", "lstm_state", "gru"]


@pytest.mark.drawn(2)
def test_nothing_is_left_behind(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main([*SHORT, "--device", device]) == 0
    output = capsys.readouterr().out
    assert "nothing is left behind" in output and " 0 failed" in output


def test_leaks_are_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    leaked: list[Any] = []
    monkeypatch.setattr(soak.Soak, "shapes", lambda self, rng: leaked.extend([] for _ in range(500)))
    assert soak.main(SHORT) == 1
    assert "more objects" in capsys.readouterr().out


def test_memory_that_comes_and_goes_is_no_growth() -> None:
    def grown(*resident: int) -> dict[str, int]:
        return soak.grown([{"files": number, "resident MB": each} for number, each in enumerate(resident)])

    assert grown(10, 20) == {"files": 1, "resident MB": 10}
    assert grown(50, 60, 20, 80, 90, 90, 70, 21) == {"files": 4, "resident MB": 1}
    assert grown(10, 20, 30, 40, 50, 60, 70, 80) == {"files": 4, "resident MB": 40}


def test_a_wrong_result_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong(self: soak.Soak, rng: Any) -> None:
        raise AssertionError("wrong")

    monkeypatch.setattr(soak.Soak, "queue", wrong)
    assert soak.main(SHORT) == 1
    assert "AssertionError: wrong" in capsys.readouterr().out


def test_one_interval_is_not_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main([*SHORT, "--seconds", "0.1"]) == 1
    assert "nothing to compare" in capsys.readouterr().out
