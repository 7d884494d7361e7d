"""Most of these tests compare with openvino; they are skipped where it is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovgpu.compile import devices
from tests.harness.recall import unjudged

collect_ignore = unjudged(Path(__file__).parent)


@pytest.fixture(autouse=True)
def no_warnings_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings of cards that cannot be used are given once per process."""
    monkeypatch.setattr(devices, "_warned", set())
