"""`python -m bench.gpu_vision` with a fake torch."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import gpu_vision, gpu_vision_torch, gpu_vision_workloads


def test_compiled_modes_come_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All workloads run and are compared before the first slow torch.compile."""
    order: list[tuple[str, str]] = []

    class Peer(gpu_vision.Ovgpu):
        def __init__(self, workload: Any, mode: str, **_: Any) -> None:
            order.append((workload.title, mode))
            super().__init__(workload, "CPU")

    class Fake(SimpleNamespace):
        def __getattr__(self, name: str) -> Any:
            return Fake()

        def __call__(self) -> int:
            return 0

    monkeypatch.setitem(sys.modules, "torch", Fake(__version__="0"))
    monkeypatch.setattr(gpu_vision_torch, "Peer", Peer)
    for name in ("lstm_b1", "bilstm"):
        workload = replace(gpu_vision_workloads.TINY[name](), module=lambda: None, title=name)
        monkeypatch.setitem(gpu_vision.TINY, name, partial(lambda given: given, workload))
    out = tmp_path / "vision.json"
    options = gpu_vision.parse(["--tiny", "--check", "--torch", "cuda", "--device", "CPU", "--out", str(out), "--modes",
                                "graph", "compile+graph", "--only", "lstm_b1", "bilstm"])
    gpu_vision.Run(options).all()
    assert order == [("lstm_b1", "eager"), ("lstm_b1", "graph"), ("lstm_b1", "graph"),
                     ("bilstm", "eager"), ("bilstm", "graph"), ("bilstm", "graph"),
                     ("lstm_b1", "eager"), ("lstm_b1", "compile+graph"),
                     ("bilstm", "eager"), ("bilstm", "compile+graph")]
    items = json.loads(out.read_text())["items"]
    assert {engine: row["right"] for engine, row in items["bilstm"]["engines"].items()} == {
        "ovgpu": True, "torch graph": True, "torch graph-tf32": True, "torch compile+graph": True}
