"""The benchmark of sequences: engines agree, and a batch takes one launch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from bench import engines


@pytest.fixture
def sequences(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(engines.__file__).parent))
    module = __import__("sequences")
    monkeypatch.setattr(module, "HIDDEN", 32)
    monkeypatch.setattr(module, "DECODER", module.Sizes(1, 32, 4, 32, 64, 128, shared=2))
    yield module
    del sys.modules["sequences"]


@pytest.mark.parametrize("kind", ["lstm", "decoder"])
def test_engines_agree(kind: str, sequences: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sequences.STEPS, kind, 3)
    found = {engine: sequences.worker(kind, engine, 3, "CPU") for engine in sequences.HEADS}
    engines.agree("three", {engine: run["sample"] for engine, run in found.items()})
    assert all(run["steps_per_second"] > 0 for run in found.values())


@pytest.mark.parametrize("kind", ["lstm", "decoder"])
def test_a_step_of_all_sequences_is_one_graph(kind: str, sequences: Any) -> None:
    counts = {str(n): {engine: sequences.counted(kind, engine, n) for engine in ("slots", "ovgpu")} for n in (1, 4)}
    assert [counts[n]["slots"]["host_launches"] for n in ("1", "4")] == [1, 1]
    assert counts["4"]["ovgpu"]["host_launches"] == 4
    assert all(c["allocations"] == 0 for found in counts.values() for c in found.values())
    assert f"| {kind} | 4 | slots of a batch | 1 |" in sequences.counts_table({kind: counts})
