"""Models quantised by nncf, and twins with weights as POT wrote them: the same layers of codes, the same results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest

import ovgpu
from ovgpu.model import Model, Node, Output
from ovgpu.ops.arithmetic.arithmetic import Multiply, Subtract
from ovgpu.ops.convert import Convert
from ovgpu.ops.infrastructure.graph import Constant, Parameter
from ovgpu.ops.quantization import FakeQuantize
from ovgpu.passes import Target, prepare
from ovgpu.types import Type
from tests.harness.models.drive import DATA, OPENVINO_F32, Expected, relative_error, replay

MODELS = ("resnet_int8", "bert_int8", "yolo_int8")
POT_ZERO = 7.6e-6  # of a code: what POT wrote for 0


def constant(value: Any, kind: Type = Type.f32) -> Output:
    op: Any = Constant(element_type=kind, value=np.asarray(value, kind.storage))
    return Node(op, []).ports[0]


def add(op: Any, *inputs: Output) -> Output:
    return Node(op, inputs).ports[0]


def zeros(codes: Output, scale: Any, value: float = 0.0) -> Output:
    """Weights with zero points."""
    floats = add(Convert(destination_type=Type.f32), codes)
    difference = add(Subtract(), floats, constant(np.full_like(scale, value)))
    return add(Multiply(), difference, constant(scale))


def rounded_zeros(codes: Output, scale: Any) -> Output:
    return zeros(codes, scale, POT_ZERO)


def in_f16(codes: Output, scale: Any) -> Output:
    """Weights that are decompressed in f16."""
    floats = add(Convert(destination_type=Type.f16), codes)
    difference = add(Subtract(), floats, constant(np.full_like(scale, POT_ZERO), Type.f16))
    return add(Convert(destination_type=Type.f32), add(Multiply(), difference, constant(scale, Type.f16)))


def fake(codes: Output, scale: Any, kind: Type = Type.f32) -> Output:
    """FakeQuantize of weights that are near their levels."""
    op: Any = codes.node.op
    moved = op.value + np.random.default_rng(1).uniform(-0.3, 0.3, op.value.shape)
    values = [moved * scale, *(n * scale for n in (-127, 127, -127, 127))]
    inputs = [constant(value, kind) for value in values]
    if kind != Type.f32:
        inputs = [add(Convert(destination_type=Type.f32), port) for port in inputs]
    return add(FakeQuantize(levels=255), *inputs)


def fake_f16(codes: Output, scale: Any) -> Output:
    return fake(codes, scale, Type.f16)


FORMS: list[Callable[[Output, Any], Output]] = [zeros, rounded_zeros, in_f16, fake, fake_f16]


def twin(name: str, form: Callable[[Output, Any], Output] | None, halves: bool = False) -> Model:
    """Return a model whose weights of i8 have another form, and which is in f16 if ``halves``."""
    model: Model = ovgpu.Core().read_model(DATA / name / "model.xml")
    moved = {}
    for node in model.ops if form is not None else ():
        floats, scale = (*node.sources, None, None)[:2]
        if node.op.name == "Multiply" and floats is not None and floats.node.op.name == "Convert":
            codes: Any = floats.node.sources[0]
            if codes.node.op.name == "Constant" and codes.spec.type == Type.i8:
                moved[node.ports[0]] = form(codes, scale.node.op.value)  # type: ignore[union-attr, misc]
    for node in model.ops:
        node.sources = [moved.get(s, s) for s in node.sources]  # type: ignore[arg-type]
    model.changed()
    for node in model.ops if halves else ():
        op: Any = node.op
        if isinstance(op, Constant) and op.element_type == Type.f32:
            node.op = Constant(element_type=Type.f16, value=op.value.astype(np.float16))
        elif isinstance(op, Parameter) and op.element_type == Type.f32:
            node.op = replace(op, element_type=Type.f16)
        elif isinstance(op, Convert) and op.destination_type == Type.f32:
            node.op = Convert(destination_type=Type.f16)
    model.validate_nodes_and_infer_types()
    return model


def layers(model: Model, device: bool) -> list[str]:
    """Return the layers of a prepared model and the types of their results; on a device, where it multiplies i8."""
    if device:
        model = prepare(model, Target("CUDA", multiplies_i8=lambda: True))
    else:
        model = prepare(model, Target("CPU", precision=Type.f32))
    nodes = [node for node in model.ops if node.op.name not in ("Constant", "Convert")]
    return [f"{type(node.op).__name__} {node.ports[0].spec.type.get_type_name()}" for node in nodes]


@pytest.mark.parametrize("device", [False, True], ids=["CPU", "card"])
@pytest.mark.parametrize("name", MODELS)
def test_layers(name: str, device: bool) -> None:
    """All forms have the layers that nncf's have."""
    expected = layers(twin(name, None), device)
    assert any("Quantize" in layer or "Compressed" in layer for layer in expected)
    for form in FORMS:
        assert layers(twin(name, form), device) == expected, form.__name__


def test_layers_in_f16() -> None:
    """A model in f16 throughout, as POT wrote them, multiplies codes on a card and gives f16."""
    expected = [layer.replace(" f32", " f16") for layer in layers(twin("resnet_int8", None), True)]
    found = layers(twin("resnet_int8", rounded_zeros, halves=True), True)
    products = [layer for layer in expected if layer.startswith("Quantized")]
    assert products and [layer for layer in found if layer.startswith("Quantized")] == products


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.drawn(3)) for name in MODELS])
def test_values(name: str, form: Callable[[Output, Any], Output], device: str, tmp_path: Path) -> None:
    """Results are those of OpenVINO for the same file."""
    file = tmp_path / "model.xml"
    ovgpu.save_model(twin(name, form), file, compress_to_fp16=False)
    expected = Expected.load(DATA / name / "expected.npz")
    wanted = next(replay(openvino.Core().compile_model(file, "CPU", OPENVINO_F32), expected.calls[:1]))
    found = next(replay(ovgpu.Core().compile_model(file, device), expected.calls[:1]))
    for a, b in zip(found, wanted):
        assert relative_error(a, b) < expected.tolerance
