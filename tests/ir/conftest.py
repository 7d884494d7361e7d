"""Most of these tests compare with openvino; they are skipped where it is not installed."""

from __future__ import annotations

from pathlib import Path

from tests.harness.recall import unjudged

collect_ignore = unjudged(Path(__file__).parent)
