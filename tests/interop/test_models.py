"""Models of the openvino package as models of ovgpu: weights shared, or copied where they cannot be matched."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

import ovgpu
from ovgpu.errors import OpError
from ovgpu.interop import models as module
from ovgpu.interop.models import from_openvino
from ovgpu.model import Model, all_nodes

from ..ir.models import MODELS, param

Files = tuple[bytes, bytes]


def files(model: Model, folder: Path) -> Files:
    ovgpu.serialize(model, folder / "m.xml")
    return (folder / "m.xml").read_bytes(), (folder / "m.bin").read_bytes()


def constants(model: Model) -> dict[str, Any]:
    return {n.friendly_name: n.op for n in all_nodes(model) if n.op.name == "Constant"}


def named(values: Any, name: str, kind: ov.Type | None = None) -> Any:
    found = ops.constant(values, kind) if kind is not None else ops.constant(values)
    found.set_friendly_name(name)
    return found


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets an entry whenever a model's constants are copied."""
    found: list[str] = []
    read = module._read_copied
    monkeypatch.setattr(module, "_read_copied", lambda model: (found.append(model.friendly_name), read(model))[1])
    return found


@pytest.mark.parametrize("name", MODELS)
def test_equal_to_the_file(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    ov.serialize(model, tmp_path / "m.xml")
    expected = files(ovgpu.read_model(tmp_path / "m.xml"), tmp_path)
    assert files(from_openvino(model), tmp_path) == expected


def test_memory_is_shared_and_outlives_the_model(copied: list[str]) -> None:
    values = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)
    x = param(3, 4, name="x")
    model = ov.Model([ops.matmul(x, ops.constant(values, shared_memory=True), False, False)], [x], "m")
    found = from_openvino(model)
    (constant,) = constants(found).values()
    assert np.shares_memory(constant.value, values)
    assert not copied
    model = ov.Model([ops.add(x, named(np.full((3, 4), 7, np.float32), "sevens"))], [x], "m")
    (constant,) = constants(from_openvino(model)).values()
    del model
    gc.collect()
    assert (constant.value == 7).all()


@pytest.mark.parametrize(
    "kind",
    [
        "boolean",
        "u1",
        "i4",
        "u4",
        "nf4",
        "f4e2m1",
        "i8",
        "u8",
        "f8e4m3",
        "f8e5m2",
        "f8e8m0",
        "i16",
        "u16",
        "f16",
        "bf16",
        "i32",
        "u32",
        "f32",
        "i64",
        "u64",
        "f64",
    ],
)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3)])
def test_element_types(kind: str, shape: tuple[int, ...], copied: list[str], tmp_path: Path) -> None:
    element = getattr(ov.Type, kind)
    constant = ov.op.Constant(element, ov.Shape(list(shape)), np.ones(shape, np.float32).ravel().tolist())
    model = ov.Model([ops.result(constant)], [], "m")
    ov.serialize(model, tmp_path / "m.xml")
    expected = files(ovgpu.read_model(tmp_path / "m.xml"), tmp_path)
    assert files(from_openvino(model), tmp_path) == expected
    assert not copied


def test_equal_names_are_copied(copied: list[str]) -> None:
    x = param(2, name="x")
    y = ops.add(ops.multiply(x, named(np.array([2, 3], np.float32), "c")), named(np.array([5, 7], np.float32), "c"))
    found = from_openvino(ov.Model([y], [x], "m"))
    assert copied == ["m"]
    assert ovgpu.compile_model(found, "CPU")([np.ones(2, np.float32)])[0].tolist() == [7, 10]


def test_equal_names_in_a_body_are_copied(copied: list[str]) -> None:
    xi = param(1, name="xi")
    body = ov.Model([ops.multiply(xi, named(np.array([2], np.float32), "c"))], [xi], "body")
    x = param(3, name="x")
    loop = ops.tensor_iterator()
    loop.set_body(body)
    loop.set_sliced_input(xi, ops.add(x, named(np.array([5, 6, 7], np.float32), "c")).output(0), 0, 1, 1, -1, 0)
    y = loop.get_concatenated_slices(body.results[0].output(0), 0, 1, 1, -1, 0)
    found = from_openvino(ov.Model([y], [x], "m"))
    assert copied == ["m"]
    assert ovgpu.compile_model(found, "CPU")([np.zeros(3, np.float32)])[0].tolist() == [10, 12, 14]


def test_strings_are_copied(copied: list[str]) -> None:
    from_openvino(MODELS["strings"]())
    assert copied == ["model"]


def test_names_with_special_characters() -> None:
    x = param(2, name="x")
    model = ov.Model([ops.add(x, named(np.array([2, 3], np.float32), 'a "b" <c>&\n type="Const" \u00e9'))], [x], "m")
    assert ovgpu.compile_model(from_openvino(model), "CPU")([np.zeros(2, np.float32)])[0].tolist() == [2, 3]


# ---- read_model with a function


@pytest.fixture
def document(tmp_path: Path) -> Files:
    x = param(2, name="x")
    ov.serialize(ov.Model([ops.add(x, named(np.array([2, 3], np.float32), "c"))], [x], "m"), tmp_path / "m.xml")
    return (tmp_path / "m.xml").read_bytes(), (tmp_path / "m.bin").read_bytes()


@pytest.mark.parametrize(
    "given",
    [np.array([5, 7], np.float32), np.array([5, 7], np.float32).tobytes(), ovgpu.Tensor(np.array([5, 7], np.float32))],
    ids=["array", "bytes", "Tensor"],
)
def test_weights_by_name(document: Files, given: Any) -> None:
    model = ovgpu.read_model(document[0], weights={"c": given}.__getitem__)
    assert ovgpu.compile_model(model, "CPU")([np.zeros(2, np.float32)])[0].tolist() == [5, 7]
    compiled = ovgpu.Core().compile_model(document[0], "CPU", weights=lambda name: given)
    assert compiled([np.zeros(2, np.float32)])[0].tolist() == [5, 7]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda name: {}[name], r"\[Const\] the function that gives the weights failed: KeyError: 'c' \(layer 'c'"),
        (lambda name: None, r"\[Const\] the function that gives the weights failed: .*not NoneType"),
        (lambda name: b"1234567", r"\[Const\] the constant has 8 bytes, and the function that gives the weights 7"),
    ],
)
def test_bad_weights_by_name(document: Files, given: Any, message: str) -> None:
    with pytest.raises(OpError, match=message):
        ovgpu.read_model(document[0], weights=given)
