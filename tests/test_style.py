"""Style rules that a machine can check."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_LINES = 700
CODE = {".py", ".cu", ".cuh", ".h", ".cpp"}
TEXT = CODE | {".md", ".toml", ".xml", ".json", ".txt", ".yml", ".yaml", ".cfg"}
TOP = {"ovgpu", "cuda_kernels", "findings", "tests", "bench", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"}
# A docstring or comment that opens so has no subject, or is a riddle.
RIDDLE = re.compile(r"[`*(\"]*(What|Those|Of|That which|Whether|How|Which|Such|As it|The ones?)\b")
OPENING = re.compile(rf"(#|//|\"\"\"|''')\s*{RIDDLE.pattern}")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
MACHINE_PATH = re.compile(r"(?<![\w./])(/(home|root|work|mnt|Users|tmp)/\w|[A-Z]:\\Users)")


def tracked() -> list[Path]:
    """Return the files under version control; without a repository, those of a source tree."""
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
        if file.suffix in CODE and (lines := len(file.read_text(encoding="utf-8").splitlines())) > MAX_LINES:
            long[str(file.relative_to(ROOT))] = lines
    assert not long, f"longer than {MAX_LINES} lines: {long}"


def test_top_level() -> None:
    assert {top for file in FILES if not (top := file.relative_to(ROOT).parts[0]).startswith(".")} <= TOP


@pytest.mark.parametrize("suffix", sorted(TEXT))
def test_no_machine_paths(suffix: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for file in FILES
        if file.suffix == suffix
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("top", ["ovgpu", "cuda_kernels", "tests", "bench"])
def test_docstrings_and_comments_open_with_a_subject_or_a_verb(top: str) -> None:
    texts = {
        file: file.read_text(encoding="utf-8")
        for file in FILES
        if file.suffix in CODE and file.relative_to(ROOT).parts[0] == top
    }
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text.strip()[:100]}"
        for file, source in texts.items()
        if OPENING.search(source)  # parsing all files takes seconds
        for line, text in (prose if file.suffix == ".py" else comments)(source)
        if RIDDLE.match(text.strip())
    ]
    assert not found, "\n".join(found)


def test_benchmarks_share_only_the_harness_and_the_emulator_with_tests() -> None:
    stray = {"bench": r"tests\.(?!harness\b|emulator\b)\w+", "tests": r"bench\b[\w.]*"}
    found = []
    for file in FILES:
        top, *folders = file.relative_to(ROOT).parts
        if file.suffix == ".py" and top in stray and folders[0] != "bench":
            imports = rf"^\s*(?:from|import) ({stray[top]})"
            found += [
                f"{file.relative_to(ROOT)}: {name}" for name in re.findall(imports, file.read_text(), re.MULTILINE)
            ]
    assert not found, "\n".join(found)


def test_public_names_have_docstrings() -> None:
    """Functions and classes of modules of ovgpu. A class that sets ``__doc__`` has one as well."""
    found = []
    for file in FILES:
        if file.suffix == ".py" and file.relative_to(ROOT).parts[0] == "ovgpu":
            found += [
                f"{file.relative_to(ROOT)}:{node.lineno}: {node.name}"
                for node in ast.parse(file.read_text(encoding="utf-8")).body
                if isinstance(node, Definition) and not node.name.startswith("_") and not is_documented(node)
            ]
    assert not found, "\n".join(found)


def is_documented(node: Definition) -> bool:
    """Return whether a function or class has a docstring."""
    assigned = [
        target.id
        for statement in node.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    ]
    return ast.get_docstring(node) is not None or "__doc__" in assigned


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the docstrings and comments of Python source; adjacent comment lines count as one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | Definition) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield token.start[0], token.string.lstrip("# ")
            last = token.start[0] if token.line.lstrip().startswith("#") else -1


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the line comments of C++ source; lines that belong together once."""
    last = -1
    for number, line in enumerate(source.splitlines(), 1):
        code, mark, text = line.partition("// ")
        if mark:
            if number != last + 1:
                yield number, text
            last = number if not code.strip() else -1
