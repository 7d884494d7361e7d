"""The coverage command: its counts and its exit status."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.coverage import KERNELS, ROOT, _ranges, percent


def test_ranges() -> None:
    assert _ranges([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
    assert _ranges([]) == "" and percent([]) == 100.0 and percent([True, False]) == 50.0


@pytest.mark.long
@pytest.mark.timeout(120)
def test_lines_of_kernels_are_counted() -> None:
    """The tests of one kernel reach all its lines, and far fewer of all lines than are required."""
    command = [sys.executable, "-m", "tests.coverage", "--lines", "tests/kernels/test_range.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if "/" in line}
    assert rows["cuda_kernels/range.cu"][1:] == ["0", "100.0"], done.stdout + done.stderr
    assert {f"cuda_kernels/{path.name}" for path in KERNELS.glob("*.cu*")} <= set(rows)
    assert float(rows["cuda_kernels/topk.cu"][2]) == 0 and float(rows["ovgpu/backends/cuda/sources.py"][2]) > 50
    assert done.returncode == 1
