"""Injected faults replace text of the kernels: all of it is there, also for faults that are not drawn."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from ovgpu.backends.cuda import sources


def test_texts_are_in_the_files() -> None:
    faults = [
        fault
        for file in sorted(Path(__file__).parent.glob("test_broken_*.py"))
        for fault in getattr(import_module(f"tests.kernels.{file.stem}"), "FAULTS", ())
    ]
    assert len(faults) > 200
    texts = {path.name: path.read_text() for path in sources.folder().glob("*.cu*")}
    assert [fault for fault in faults if fault.sound not in texts[fault.file]] == []
