"""Inputs and outputs of IR of version 10, beside what OpenVINO makes of the same file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree

import ovgpu
from tests.harness import Net
from tests.harness.elements import ELEMENTS

TYPES = ("f16", "f32", "f64", "bf16", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "boolean")
LAYERS = ("a", "b", "c", "d", "e")
TENSORS = ("", "", "p", "q", "p_1", "p,q", "a", "c", "d.1", "e.0")
IR = tuple[bytes, bytes]


def read(library: Any, ir: IR, version: int = 10) -> Any:
    xml, weights = ir
    return library.Core().read_model(xml.replace(b'version="11"', f'version="{version}"'.encode()), weights)


def interface(model: Any) -> list[Any]:
    """Return the types, shapes and names of inputs and outputs, and the names of the layers that compute them."""
    found: list[Any] = [
        (p.get_element_type().get_type_name(), str(p.partial_shape), sorted(p.names), p.node.friendly_name)
        for p in model.inputs
    ]
    for p in model.outputs:
        source = p.node.input_value(0)
        found.append(
            (
                p.get_element_type().get_type_name(),
                str(p.partial_shape),
                sorted(p.names),
                re.sub(r"[A-Z]\w+_\d+$|.*/.*", "made up", source.node.friendly_name),
                source.node.get_type_name(),
                sorted(source.names),
            )
        )
    return found


def agreed(ir: IR, version: int = 10) -> Any:
    """Return ovgpu's model, or None if both refuse the file. Assert that it has the interface of openvino's."""
    try:
        theirs = read(openvino, ir, version)
    except RuntimeError as error:
        assert "collisions" in str(error)
        with pytest.raises(ovgpu.ModelError, match="Export the original model again"):
            read(ovgpu, ir, version)
        return None
    ours = read(ovgpu, ir, version)
    assert interface(ours) == interface(theirs)
    return ours


@pytest.mark.parametrize("kind", TYPES)
def test_types(kind: str, device: str, tmp_path: Path) -> None:
    """Results are those of OpenVINO, to the types of arrays, and a saved model keeps its interface."""
    net = Net()
    x = net.parameter(kind, (2, 3), "x")
    if kind == "boolean":
        y = net.layer("LogicalNot", "opset1", [x], names=["no"], name="y")
    else:
        y = net.layer("Add", "opset1", [x, x], {"auto_broadcast": "numpy"}, names=["twice"], name="y")
    net.result(y)
    ir = net.build()
    ours = agreed(ir)
    given = np.arange(6).reshape(2, 3).astype(ours.input(0).get_element_type().to_dtype())
    if kind == "bf16":
        given = np.arange(6).reshape(2, 3).astype(ELEMENTS["bf16"].dtype).view(np.float16)
    expected = openvino.Core().compile_model(read(openvino, ir), "CPU")([given])[0]
    found = ovgpu.Core().compile_model(ours, device)([given])[0]
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    ovgpu.save_model(ours, tmp_path / "model.xml", compress_to_fp16=False)
    assert interface(openvino.Core().read_model(tmp_path / "model.xml")) == interface(ours)


@st.composite
def graphs(draw: st.DrawFn) -> IR:
    """Draw a graph of two inputs, a layer of one output and a Split, whose layers and tensors may be called alike."""
    net, kind = Net(), draw(st.sampled_from(["f16", "f32", "i64"]))
    x, y = (net.parameter(kind, (2, 4)) for _ in range(2))
    z = net.layer("Add", "opset1", [x, y], {"auto_broadcast": "numpy"})
    parts = net.layer("Split", "opset1", [z, net.const(1)], {"num_splits": 2}, 2)
    for port in draw(st.lists(st.sampled_from([z, *parts]), min_size=1, max_size=3)):
        net.result(port)
    text, weights = net.build()
    root = etree.fromstring(text)
    layers = [e for e in root.iter("layer") if e.get("type") in ("Parameter", "Add", "Split")]
    for element, name in zip(layers, draw(st.permutations(LAYERS)), strict=False):
        element.set("name", name)
        for port in element.iterfind("output/port"):
            port.set("names", draw(st.sampled_from(TENSORS)))
    return etree.tostring(root), weights


@pytest.mark.parametrize("version", [10, 11])
def test_names(version: int, pytestconfig: pytest.Config) -> None:
    """Layers and tensors of the same names: both refuse the file, or the interfaces are equal."""
    outcomes = set()

    @settings(
        max_examples=1000 if pytestconfig.getoption("--long") else 150,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(graphs())
    def check(ir: IR) -> None:
        outcomes.add(agreed(ir, version) is None)

    check()
    assert outcomes == ({True, False} if version == 10 else {False})


@pytest.mark.parametrize("kind", ["f16", "f32", "i64"])
def test_an_output_that_is_an_input(kind: str) -> None:
    """A tensor with a name cannot be both. OpenVINO takes the input's name away where there is none, ovgpu does not."""
    net = Net()
    net.result(net.parameter(kind, (2, 3), "x"))
    xml, weights = net.build()
    assert agreed((xml, weights)) is None
    unnamed = xml.replace(b' names="x"', b"")
    theirs, ours = (read(library, (unnamed, weights)) for library in (openvino, ovgpu))
    for port, other in ((ours.input(0), theirs.input(0)), (ours.output(0), theirs.output(0))):
        assert port.get_element_type().get_type_name() == other.get_element_type().get_type_name()
    assert ours.input("x").node.friendly_name == "x"
