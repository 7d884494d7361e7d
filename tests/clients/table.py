"""The table in README.md of programs and their outcomes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .modes import MODES

HERE = Path(__file__).parent
README = HERE / "README.md"
BEGIN, END = "<!-- begin: written by `python -m tests.clients --write` -->", "<!-- end -->"
COLUMNS = [mode for mode in MODES if mode != "openvino"]


@dataclass(frozen=True)
class Row:
    """Outcome of a program in each mode: "equal", or what is wrong. ``results`` is the number of its arrays."""

    name: str
    outcomes: dict[str, str]
    results: int


def rows() -> dict[str, str]:
    """Return the lines of the table by program."""
    found = README.read_text().partition(BEGIN)[2].partition(END)[0]
    return {line.split("|")[1].strip("` "): line for line in found.strip().splitlines()[2:]}


def summary(name: str) -> str:
    """Return the first line of the documentation of a program's module."""
    module = ast.parse((HERE / "programs" / f"{name}.py").read_text())
    return (ast.get_docstring(module) or "").partition("\n")[0].rstrip(".")


def write(new: Iterable[Row]) -> None:
    """Replace or add rows."""
    lines = rows()
    for row in new:
        outcomes = " | ".join(row.outcomes.get(mode, "-") for mode in COLUMNS)
        lines[row.name] = f"| `{row.name}` | {summary(row.name)} | {row.results} | {outcomes} |"
    table = [
        f"| Program | What runs | Results | {' | '.join(COLUMNS)} |",
        f"| --- | --- | ---: |{' --- |' * len(COLUMNS)}",
        *(lines[name] for name in sorted(lines)),
    ]
    text = README.read_text()
    block = "\n".join([BEGIN, *table, END])
    README.write_text(re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: block, text, flags=re.S))
