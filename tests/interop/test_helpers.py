"""Modules that exist in openvino too: `helpers`, `layout_helpers`, `utils.types`. Both must agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest

import ovgpu as ov

PACKED = ("u1", "u2", "u3", "u4", "u6", "i4", "nf4", "f4e2m1")


def outcome(function: Any, *args: Any) -> Any:
    """Return a result as plain data, or the name of the error."""
    try:
        found = function(*args)
    except Exception as e:
        return type(e).__name__
    if isinstance(found, np.ndarray):
        return found.dtype, found.shape, found.tolist()
    return repr(found)


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("shape", [(1,), (5,), (24,), (3, 7), (2, 0)])
def test_packed_data(name: str, shape: tuple[int, ...]) -> None:
    theirs, mine = getattr(openvino.Type, name), getattr(ov.Type, name)
    low, high = (-8, 8) if name == "i4" else (0, 2**mine.bitwidth)
    values = np.random.default_rng(0).integers(low, high, shape)
    packed = ov.helpers.pack_data(values, mine)
    assert outcome(lambda: packed) == outcome(openvino.helpers.pack_data, values, theirs)
    assert outcome(ov.helpers.unpack_data, packed, mine, shape) == outcome(
        openvino.helpers.unpack_data, packed, theirs, shape
    )


@pytest.mark.parametrize(("values", "name"), [([0.5], "u4"), ([1.0, 2.0], "i4"), ([300], "u1"), ([1], "f32")])
def test_values_that_cannot_be_packed(values: Any, name: str) -> None:
    array = np.array(values)
    assert outcome(ov.helpers.pack_data, array, getattr(ov.Type, name)) == outcome(
        openvino.helpers.pack_data, array, getattr(openvino.Type, name)
    )


@pytest.mark.parametrize("text", ["NCHW", "NDHWC", "[?,C,...]", "[...,W]", ""])
def test_axes_of_layouts(text: str) -> None:
    mine, theirs = ov.layout_helpers, openvino.layout_helpers
    for axis in ("batch", "channels", "depth", "height", "width"):
        for function in (f"has_{axis}", f"{axis}_idx"):
            assert outcome(getattr(mine, function), ov.Layout(text)) == outcome(
                getattr(theirs, function), openvino.Layout(text)
            ), function


def test_layouts_of_ports(tmp_path: Path) -> None:
    x = openvino.opset13.parameter([1, 3])
    openvino.serialize(openvino.Model([openvino.opset13.relu(x)], [x]), tmp_path / "m.xml")
    theirs, model = x.output(0), ov.Core().read_model(tmp_path / "m.xml")
    ov.layout_helpers.set_layout(theirs, ov.Layout("NC"))
    assert ov.layout_helpers.get_layout(theirs) == "NC" == openvino.layout_helpers.get_layout(theirs)
    assert ov.layout_helpers.get_layout(model.input()) == ov.Layout()
    ov.layout_helpers.set_layout(model.input(), ov.Layout("NC"))
    assert ov.layout_helpers.get_layout(model.input()) == "NC" == model.get_parameters()[0].get_layout()


KINDS = [
    int,
    float,
    bool,
    str,
    bytes,
    np.float16,
    np.float32,
    np.float64,
    np.int8,
    np.uint64,
    np.bool_,
    np.str_,
    np.complex64,
    object,
    "f32",
    None,
]


@pytest.mark.parametrize("kind", [*KINDS, *(np.dtype(kind) for kind in KINDS[5:11])], ids=repr)
def test_element_types_of_python_types(kind: Any) -> None:
    for function in ("get_element_type", "get_element_type_str"):
        assert outcome(getattr(ov.utils.types, function), kind) == outcome(
            getattr(openvino.utils.types, function), kind
        ), function


@pytest.mark.parametrize("name", "f16 bf16 f32 f64 i8 u64 boolean string u4 f8e4m3 dynamic".split())
def test_dtypes_of_element_types(name: str) -> None:
    for function in ("get_dtype", "get_numpy_ctype"):
        assert outcome(getattr(ov.utils.types, function), getattr(ov.Type, name)) == outcome(
            getattr(openvino.utils.types, function), getattr(openvino.Type, name)
        ), function


@pytest.mark.parametrize("data", [3, 2.5, [1, 2, 3], np.ones((2, 3))], ids=repr)
def test_arrays_of_data(data: Any) -> None:
    for function in ("get_ndarray", "get_shape"):
        assert outcome(getattr(ov.utils.types, function), data) == outcome(
            getattr(openvino.utils.types, function), data
        )
    assert isinstance(ov.utils.types.make_constant_node(data, ov.Type.f32), openvino.op.Constant)
