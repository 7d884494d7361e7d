"""openvino's builders and transformations on graphs of ovgpu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13

import ovgpu as ov
from ovgpu import opset13 as ops

X = np.array([[1, -1, 2]], np.float32)


@pytest.fixture
def model(tmp_path: Path) -> ov.Model:
    """y = relu(x), as a model of ovgpu."""
    x = opset13.parameter([1, 3], openvino.Type.f32, name="x")
    openvino.serialize(openvino.Model([opset13.relu(x, name="y")], [x]), tmp_path / "m.xml")
    return ov.Core().read_model(tmp_path / "m.xml")


def results(model: Any) -> list[list[Any]]:
    return [value.tolist() for value in ov.compile_model(model, "CPU")([X]).to_tuple()]


def test_builders_make_nodes_of_ovgpu(model: ov.Model) -> None:
    y = model.get_results()[0].input_value(0)
    doubled = ops.multiply(y, np.float32(2), name="doubled")
    total = ops.add(doubled, ops.constant(np.ones(3, np.float32)))
    assert type(doubled) is type(total) is ov.Node and doubled.input_value(0) is y
    assert doubled.friendly_name == "doubled" and total.get_output_shape(0) == [1, 3]
    parts = ops.split(total, 1, 3)
    joined = ops.concat([parts.output(2), y, parts.output(0)], 1)
    model.add_results([ops.result(total, name="total"), ops.result(joined)])
    model.validate_nodes_and_infer_types()
    assert results(model) == [[[1, 0, 2]], [[3, 1, 5]], [[5, 1, 0, 2, 3]]]
    assert model.get_results()[1].friendly_name == "total"


def test_built_nodes_replace_others(model: ov.Model) -> None:
    x, result = model.get_parameters()[0], model.get_results()[0]
    result.input(0).replace_source_output(ops.negative(x).output(0))
    model.validate_nodes_and_infer_types()
    assert results(model) == [[[-1, 1, -2]]]


def test_types_and_values_pass_through(model: ov.Model) -> None:
    x = model.get_parameters()[0]
    converted = ops.convert(x, destination_type="i8")
    reshaped = ops.reshape(converted, ov.Shape([3]), special_zero=False)
    assert reshaped.get_element_type() == ov.Type.i8 and reshaped.get_output_partial_shape(0) == ov.PartialShape([3])
    with pytest.raises(RuntimeError, match="shape"):
        ops.add(x, np.ones(2, np.float32))


def test_custom_preprocessing(model: ov.Model) -> None:
    from ovgpu.utils.decorators import custom_preprocess_function

    @custom_preprocess_function
    def halved(port: Any) -> Any:
        return ops.multiply(port, np.float32(0.5))

    steps = ov.preprocess.PrePostProcessor(model)
    steps.input().preprocess().custom(halved)
    assert results(steps.build()) == [[[0.5, 0, 1]]]


def test_transformations_change_models(model: ov.Model) -> None:
    from ovgpu._offline_transformations import apply_moc_transformations

    y = model.get_results()[0].input_value(0)
    model.get_results()[0].input(0).replace_source_output(ops.relu(ops.relu(y)).output(0))
    model.set_rt_info("kept", "key")
    apply_moc_transformations(model, cf=True)
    assert type(model) is ov.Model and model.get_rt_info("key") == "kept" and results(model) == [[[1, 0, 2]]]
    assert all(node.model is model for node in model.ops)
