"""Shared parts of the benchmarks: agreement of engines, and reports."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from bench import engines


def test_values_agree_to_a_thousandth_and_tokens_exactly() -> None:
    engines.agree("values", {"a": [1000.0, 2.0], "b": [1000.5, 1.5]})
    engines.agree("tokens", {"a": [1000, 2], "b": [1000, 2]})
    for a, b in (([1000.0, 2.0], [1002.0, 2.0]), ([1000, 2], [1000, 3]), ([1.0, 2.0], [1.0]), ([1.0], [float("nan")])):
        with pytest.raises(SystemExit, match="b and a differ"):
            engines.agree("model", {"a": a, "b": b})


def test_a_report_has_medians_and_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = engines.medians({"a": [{"ms": 3.0, "count": 1}, {"ms": 9.0, "count": 1}, {"ms": 4.0, "count": 1}]}, "ms")
    assert figures == {"a": {"ms": 4.0}}
    options = Namespace(device="CPU", rounds=3, out=tmp_path)
    engines.publish(options, "trial", "A trial", ["Engine", "ms"], [["a", "4.00"]], {"figures": figures}, "Of note.")
    text = (tmp_path / "trial-cpu.md").read_text()
    assert text.startswith(
        "# A trial\n\n| Engine | ms |\n| --- | ---: |\n| a | 4.00 |\n\nOf note.\n\nMedian of 3 rounds,"
    )
    found = json.loads((tmp_path / "trial-cpu.json").read_text())
    assert (found["device"], found["rounds"], found["figures"]) == ("CPU", 3, figures)
    assert "Of note." in capsys.readouterr().out
