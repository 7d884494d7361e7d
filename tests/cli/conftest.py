"""Fixtures that write models to disk, for commands that read files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.harness.ir import Net
from tests.harness.recall import unjudged
from tests.runtime import models

collect_ignore = unjudged(Path(__file__).parent)
Write = Callable[[Net], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes a model and returns the path of its .xml."""
    monkeypatch.setenv("COLUMNS", "100")

    def write(net: Net) -> str:
        path = tmp_path / f"{net.name}.xml"
        xml, weights = net.build()
        path.write_bytes(xml)
        path.with_suffix(".bin").write_bytes(weights)
        return str(path)

    return write


@pytest.fixture
def stateful(write: Write) -> str:
    """Write a model that computes s = s + x over [1,8]."""
    return write(models.stateful())


@pytest.fixture
def decoder(write: Write) -> str:
    """Write a decoder with the inputs of a language model: a growing cache, and a mask that must be as long."""
    net = Net("decoder")
    ids = net.parameter("i64", (1, -1), "input_ids")
    mask = net.parameter("i64", (1, -1), "attention_mask")
    positions = net.parameter("i64", (1, -1), "position_ids")
    past = net.read_value("cache", "f32", (1, -1), net.const(np.zeros((1, 0), "f4")))
    tokens = net.layer("Convert", "opset1", [positions], {"destination_type": "f32"}, ["f32"])
    cache = net.layer("Concat", "opset1", [past, tokens], {"axis": 1})
    net.assign("cache", cache)
    one = net.layer("Convert", "opset1", [mask], {"destination_type": "f32"}, ["f32"])
    net.result(net.layer("Add", "opset1", [cache, one], names=["seen"]))
    net.result(net.layer("Abs", "opset1", [ids], names=["echo"]))
    return write(net)
