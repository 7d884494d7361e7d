"""CONTRIBUTING's "Add an op in ten minutes", followed to the letter in a copy of the source tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / ".github" / "CONTRIBUTING.md"
FILES = re.compile(r"^`([\w/.]+)`\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(python -m tests\.register .*)$", re.MULTILINE)
CHECKS = [
    "tests/ops/arithmetic/test_foo.py",
    "tests/test_opsets.py::test_the_registry_has_what_is_listed",
    "tests/test_readme.py::test_tables_are_up_to_date",
    "tests/test_style.py",
    "tests/kernels/test_gate.py::test_recorded_spills",
]


@pytest.mark.long
def test_add_an_op(tmp_path: Path) -> None:
    """Three files and one command make an operation with a kernel that all checks of generated lists accept."""
    for name in ("ovgpu", "cuda_kernels", "tests", "bench"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("README.md", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    guide = GUIDE.read_text()
    files = FILES.findall(guide)
    assert [Path(path).suffix for path, _ in files] == [".py", ".cu", ".py"]
    for path, text in files:
        assert not (tmp_path / path).exists()
        (tmp_path / path).write_text(text)
    (command,) = COMMAND.findall(guide)
    run(tmp_path, *command.split()[1:])
    assert '"Foo": ["opset1"]' in (tmp_path / "tests" / "opsets.json").read_text()
    assert '"foo<__half>"' in (tmp_path / "tests" / "kernels" / "instances.json").read_text()
    run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHECKS)


def run(folder: Path, *arguments: str) -> None:
    """Run Python in a folder, which comes first on the path; raise AssertionError with the output if it fails."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert not done.returncode, done.stdout[-4000:] + done.stderr[-2000:]
