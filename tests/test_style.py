"""Habits that a machine can check."""
from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LONGEST = 700
CODE = {".py", ".cu", ".cuh", ".h", ".cpp"}
TEXT = CODE | {".md", ".toml", ".xml", ".json", ".txt", ".yml", ".yaml", ".cfg"}
TOP = {"ovgpu", "cuda_kernels", "tests", "bench", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"}
MACHINE_PATH = re.compile(r"(?<![\w./])(/(home|root|work|mnt|Users|tmp)/\w|[A-Z]:\\Users)")


def tracked() -> list[Path]:
    """The files under version control; without a repository, those of a source tree."""
    try:
        done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
        names = done.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        names = [str(p.relative_to(ROOT)) for top in TOP for p in (ROOT / top).rglob("*")]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


FILES = tracked()


def test_files_are_short() -> None:
    long = {}
    for file in FILES:
        if file.suffix in CODE and (lines := len(file.read_text(encoding="utf-8").splitlines())) > LONGEST:
            long[str(file.relative_to(ROOT))] = lines
    assert not long, f"longer than {LONGEST} lines: {long}"


def test_top_level() -> None:
    assert {top for file in FILES if not (top := file.relative_to(ROOT).parts[0]).startswith(".")} <= TOP


@pytest.mark.parametrize("suffix", sorted(TEXT))
def test_no_machine_paths(suffix: str) -> None:
    found = [f"{file.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
             for file in FILES if file.suffix == suffix
             for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
             if MACHINE_PATH.search(line)]
    assert not found, "\n".join(found)
