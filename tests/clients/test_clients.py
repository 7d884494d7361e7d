"""The programs that are light to install, and the table of all programs."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from . import table
from .__main__ import check, differences, programs
from .modes import MODES


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", ["benchmark_app", "model_api"])
def test_program(name: str, tmp_path: Path) -> None:
    for module in getattr(import_module(f"tests.clients.programs.{name}"), "MODULES", ()):
        pytest.importorskip(module, reason=f"{module} comes with the extra `test-all`")
    row = check(name, sys.executable, tmp_path)
    assert row.outcomes == {mode: "equal" for mode in MODES if mode != "openvino"}


def test_table() -> None:
    """It has a row for each program, and each program is equal or says why not."""
    rows = table.rows()
    assert sorted(rows) == programs()
    assert all(row.count("|") == 4 + len(table.COLUMNS) for row in rows.values())


def test_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{table.BEGIN}\n{table.END}\nafter\n")
    monkeypatch.setattr(table, "README", readme)
    table.write([table.Row("optimum", {"plug-in": "equal"}, 3)])
    table.write([table.Row("nncf", {"plug-in": "differs: x"}, 1)])
    assert sorted(table.rows()) == ["nncf", "optimum"]
    table.write([table.Row("nncf", {"plug-in": "equal"}, 1)])
    text = readme.read_text()
    assert "differs" not in text and text.startswith("before") and text.endswith("after\n")


@pytest.mark.parametrize(
    "found, message",
    [
        ({"x": np.ones(3, np.float32), "n": np.arange(3)}, ""),
        ({"x": np.full(3, 1.00001, np.float32), "n": np.arange(3)}, ""),
        ({"x": np.full(3, 1.001, np.float32), "n": np.arange(3)}, "differs: x"),
        ({"x": np.full(3, np.nan, np.float32), "n": np.arange(3)}, "differs: x"),
        ({"x": np.ones(4, np.float32), "n": np.arange(1, 4)}, "differs: x, n"),
        ({"x": np.ones(3, np.float32)}, "results"),
    ],
)
def test_comparison(found: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "openvino.npz", x=np.ones(3, np.float32), n=np.arange(3))
    np.savez(tmp_path / "plug-in.npz", **found)
    difference = differences(tmp_path, "plug-in")
    assert difference.startswith(message) and bool(message) == bool(difference)
