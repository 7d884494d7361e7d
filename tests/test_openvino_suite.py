"""The runner of OpenVINO's own Python tests, on a suite of four."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from . import openvino_suite

SUITE = """
import numpy as np
import openvino
import openvino.opset13 as ops
import pytest
from tests.utils import relu

@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_relu(kind):
    compiled = openvino.Core().compile_model(relu(kind), "CPU")
    assert compiled([np.array([-1, 2], kind)])[0].tolist() == [0, 2]

def test_class():
    assert type(openvino.compile_model(relu(np.float32))) is openvino.CompiledModel

def test_of_openvino_alone():
    assert openvino.__name__ == "openvino"

def test_that_fails():
    assert openvino is None
"""
UTILS = """
import openvino
from openvino.runtime import opset13 as ops

def relu(kind):
    x = ops.parameter([2], kind)
    return openvino.Model([ops.relu(x)], [x], "relu")
"""


def test_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openvino")
    folder, listing = tmp_path / "suite", tmp_path / "listing.txt"
    folder.mkdir()
    for name, text in {"__init__": "", "utils": UTILS, "test_small": SUITE, "test_broken": "import nope"}.items():
        (folder / f"{name}.py").write_text(text)
    of_before = "tests/test_before.py::test_kept 5 5 3  # expects the text of openvino's error"
    listing.write_text(f"# old\ntests/test_small.py::test_relu 2 1 0  # old\n{of_before}\n")
    monkeypatch.setattr(openvino_suite, "LISTING", listing)
    monkeypatch.setattr(sys, "argv", ["suite", str(folder), "--write"])
    openvino_suite.main()
    printed = capsys.readouterr().out
    assert "openvino: 4 of 6 pass" in printed and "ovgpu compiled 0 models" in printed
    assert "plug-in: 4 of the 4 cases" in printed and "replaced: 3 of the 4 cases" in printed
    lines = listing.read_text().splitlines()
    assert lines[:2] == [
        "# plug-in: 9 of the 9 cases that pass with openvino",
        "# replaced: 6 of the 9 cases that pass with openvino",
    ]
    assert "#     2  expects the text of openvino's error" in lines
    assert [line for line in lines if line[0] != "#"] == [
        "tests/test_small.py::test_relu 2 2 2",
        of_before,
        "tests/test_small.py::test_class 1 1 1",
        "tests/test_small.py::test_of_openvino_alone 1 1 0  # ? AssertionError: assert 'ovgpu' == 'openvino'",
    ]


def test_the_listing_explains_every_failure() -> None:
    lines = openvino_suite.LISTING.read_text().splitlines()
    counts = [line.partition("  # ") for line in lines if line[0] != "#"]
    for row, _, why in counts:
        cases, *passed = map(int, row.split()[1:])
        assert all(number == cases for number in passed) or (why and not why.startswith("? ")), row
    total = sum(int(row.split()[1]) for row, _, _ in counts)
    for column, mode in enumerate(openvino_suite.COLUMNS):
        passed = sum(int(row.split()[2 + column]) for row, _, _ in counts)
        assert f"# {mode}: {passed} of the {total} cases that pass with openvino" in lines
