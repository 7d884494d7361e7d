"""Some mutants of the tests' models, the same ones in every run: `python -m tests.fuzz` draws others for hours."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MUTANTS = 300  # about half a minute of one core, a third of it to start


@pytest.mark.emulator
@pytest.mark.timeout(900)
def test_mutants(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="OpenVINO judges the mutants")
    command = [sys.executable, "-m", "tests.fuzz", "--mutants", str(MUTANTS), "--seed", "7", "--keep", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{MUTANTS:,} mutants" in ended.stdout
