"""Most of these tests compare with openvino: where it is not installed, they are left out."""
from __future__ import annotations

from pathlib import Path

from tests.harness.recall import unjudged

collect_ignore = unjudged(Path(__file__).parent)
