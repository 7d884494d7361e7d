"""Some mutants of the tests' models, the same ones in every run: `python -m tests.fuzz` draws others for hours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MUTANTS, LONG = 20, 3000


@pytest.mark.emulator
@pytest.mark.timeout(900)
def test_mutants(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    mutants = LONG if pytestconfig.getoption("--long") else MUTANTS
    pytest.importorskip("openvino", reason="OpenVINO judges the mutants")
    command = [sys.executable, "-m", "tests.fuzz", "--mutants", str(mutants), "--seed", "7", "--keep", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{mutants:,} mutants" in ended.stdout
