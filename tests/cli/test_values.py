"""Numbers on the command line reach a model as they are written, or are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ovgpu.cli import main
from tests.harness import Net

from .conftest import Write

LIMITS = {
    "u1": (0, 1),
    "u2": (0, 3),
    "u3": (0, 7),
    "u6": (0, 63),
    "u4": (0, 15),
    "i4": (-8, 7),
    "u8": (0, 255),
    "i8": (-128, 127),
    "i32": (-(2**31), 2**31 - 1),
    "i64": (-(2**63), 2**63 - 1),
    "u64": (0, 2**64 - 1),
}


def same(kind: str) -> Net:
    net = Net()
    net.result(net.parameter(kind, (2,), "x"), name="y")
    return net


@pytest.mark.parametrize("kind", LIMITS)
def test_integers(kind: str, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers up to the limits of the type are exact. Others, and fractions, are errors that give the limits."""
    low, high = LIMITS[kind]
    command = ["run", write(same(kind)), "-d", "CPU", "--save", str(tmp_path / "y.npz"), "--input"]
    for number in (low, high, 1.0):
        for text in (f"{number}", f"[{number},{number}]"):
            assert main([*command, text]) == 0
            (y,) = np.load(tmp_path / "y.npz").values()
            assert y.tolist() == [number, number], text
    for number in (low - 1, high + 1, 1.5):
        for text in (f"{number}", f"[0,{number}]"):
            assert main([*command, text]) == 1
            assert f"an input of type {kind} takes integers from {low} to {high}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ['[1,"a"]', "[1,[2]]", '{"a":1}', "[null,1]", "here"])
@pytest.mark.parametrize("kind", ["f32", "i32", "boolean"])
def test_no_numbers(kind: str, text: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", write(same(kind)), "-d", "CPU", "--input", text]) == 1
    assert "it takes a .npy or .bin file, an image, a number or [list]" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["boolean", "i64", "f32"])
@pytest.mark.parametrize("text", ["true", "false", "[true,true]"])
def test_booleans(kind: str, text: str, write: Write, tmp_path: Path) -> None:
    assert main(["run", write(same(kind)), "-d", "CPU", "--save", str(tmp_path / "y.npz"), "--input", text]) == 0
    (y,) = np.load(tmp_path / "y.npz").values()
    assert y.tolist() == [text != "false"] * 2


def test_seeds(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", write(same("f32")), "-d", "CPU", "--seed", "-1"]) == 1
    assert "--seed must not be negative, not -1" in capsys.readouterr().err
