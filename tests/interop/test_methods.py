"""Methods of openvino's objects take ovgpu's values; in openvino's place they return them, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest

import ovgpu as ov
from ovgpu import opset13 as ops
from tests.integrations.test_programs import run

MODEL = """
import numpy as np
from {ov} import op
x = ov.opset13.parameter([-1, 3], np.float32, name="x")
x.output(0).get_tensor().set_names({{"x"}})
v = op.util.Variable(op.util.VariableInfo())
m = ov.Model([ov.opset13.relu(x)], [x], "m")
"""

CALLS = {
    "m.reshape(ov.PartialShape([5, 3])); str(m.input(0).partial_shape)": "[5,3]",
    "m.reshape({0: ov.PartialShape([6, 3])}); str(m.input(0).partial_shape)": "[6,3]",
    "m.reshape({m.input(0): [ov.Dimension(1, 4), 3]}); str(m.input(0).partial_shape)": "[1..4,3]",
    "m.reshape({'x': (ov.Dimension(2), 3)}); str(m.input(0).shape)": "[2,3]",
    "x.set_layout(ov.Layout('NC')); str(x.layout)": "[N,C]",
    "x.layout = ov.Layout('CN'); str(x.get_layout())": "[C,N]",
    "x.set_element_type(ov.Type.f16); x.get_element_type() == ov.Type.f16": "True",
    "x.element_type = ov.Type.i32; x.element_type == ov.Type.i32": "True",
    "x.set_partial_shape(ov.PartialShape([4, -1])); str(x.partial_shape)": "[4,?]",
    "x.partial_shape = ov.PartialShape([7, 3]); str(x.get_partial_shape())": "[7,3]",
    "x.set_output_type(0, ov.Type.i8, ov.PartialShape([2])); str(x.output(0).get_partial_shape())": "[2]",
    "t = ov.Tensor(ov.Type.f32, ov.Shape([1, 3])); "
    "m.evaluate([t], [ov.Tensor(np.ones((1, 3), 'f4'))]); t.data.tolist()": "[[1.0, 1.0, 1.0]]",
    "t = ov.Tensor(ov.Type.f32, ov.Shape([5])); "
    "m.evaluate([t], [ov.Tensor(np.ones((1, 3), 'f4'))]); str(t.shape), float(t.data.sum())": "('[1,3]', 3.0)",
    "c = [ov.op.Constant(ov.Tensor(np.full(9, i, 'f4'))) for i in range(50)]; "
    "junk = [np.full(9, -1, 'f4') for _ in range(50)]; [x.data[0] == i for i, x in enumerate(c)].count(True)": "50",
    "v.update(op.util.VariableInfo()); i = v.info; i.data_shape = ov.PartialShape([2, -1]); str(i.data_shape)": "[2,?]",
    "i = op.util.VariableInfo(); i.data_type = ov.Type.f32; i.data_type == ov.Type.f32": "True",
    "m.reshape([2, 3]); m.input(0).get_tensor().set_lower_value(ov.Tensor(np.ones((2, 3), 'f4'))); "
    "m.input(0).get_tensor().get_lower_value().data.sum()": "6.0",
    "m.set_rt_info(ov.Type.f32.get_type_name(), 'a'); m.get_rt_info('a').value": "f32",
}

RETURNED = {
    "m.input(0).partial_shape": "PartialShape",
    "m.input(0).get_partial_shape()": "PartialShape",
    "m.reshape([2, 3]) or m.input(0).shape": "Shape",
    "x.element_type": "Type",
    "m.input(0).get_element_type()": "Type",
    "x.layout": "Layout",
    "x.get_output_element_type(0)": "Type",
    "x.get_output_partial_shape(0)[0]": "Dimension",
    "ov.utils.types.get_element_type(np.float32)": "Type",
    "ov.opset13.constant(np.ones(3, 'f4')).get_tensor_view()": "Tensor",
}


def value(code: str, names: dict[str, Any]) -> Any:
    """Return the value of an expression; statements may precede it, separated by "; "."""
    *statements, expression = code.split("; ")
    for statement in statements:
        exec(statement, names)
    return eval(expression, names)


@pytest.mark.parametrize("name", ["ovgpu", "openvino"])
@pytest.mark.parametrize("code", CALLS)
def test_methods_take_values(code: str, name: str) -> None:
    """A program with ``import ovgpu as ov`` and one with ``import openvino as ov`` beside it, in one process."""
    names: dict[str, Any] = {"ov": {"ovgpu": ov, "openvino": openvino}[name]}
    exec(MODEL.format(ov=name), names)
    assert str(value(code, names)) == CALLS[code]


def test_openvino_keeps_its_values() -> None:
    """Programs that use openvino itself, beside ovgpu, get what openvino gives."""
    x = ops.parameter([2, 3], ov.Type.f32)
    assert type(x.element_type) is openvino.Type and type(x.output(0).partial_shape) is openvino.PartialShape
    assert type(openvino.opset13.parameter([2], np.float32).get_output_shape(0)) is openvino.Shape
    with pytest.raises(TypeError, match="incompatible function arguments"):
        x.set_element_type([ov.Type.f32])


def test_in_the_place_of_openvino(tmp_path: Path) -> None:
    calls = """
import ovgpu; ovgpu.replace_openvino()
import openvino as ov, openvino.utils.types
from tests.interop.test_methods import CALLS, MODEL, RETURNED, value
for table in (CALLS, RETURNED):
    for code, expected in table.items():
        names = {"ov": ov}
        exec(MODEL.format(ov="openvino"), names)
        found = value(code, names)
        assert str(found) == expected if table is CALLS else type(found) is getattr(ov, expected), (code, found)
print(len(CALLS), len(RETURNED))
"""
    assert run("-c", calls, cwd=tmp_path) == f"{len(CALLS)} {len(RETURNED)}"


def test_strings_are_evaluated() -> None:
    x = ops.parameter([2], ov.Type.string)
    model, result = ov.Model([ops.result(x)], [x], "m"), ov.Tensor(ov.Type.string, ov.Shape([2]))
    assert model.evaluate([result], [ov.Tensor(["a", "bb"])])
    assert result.str_data.tolist() == ["a", "bb"]


def test_a_subclass_of_model_says_what_it_is_made_of() -> None:
    class Mine(ov.Model):
        pass

    x = ops.parameter([2], ov.Type.f32)
    with pytest.raises(TypeError, match="Mine is made of nodes of ovgpu"):
        Mine([ops.relu(x)], [x], "m")


@pytest.mark.parametrize("given", ["[2, 3]", "ov.PartialShape([2, -1])", "ov.Shape([2, 3])", "('x', [2, 3])"])
def test_models_are_converted_with_shapes(given: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    code = f"""
import onnx, ovgpu
from onnx import helper
ports = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n", 3]) for n in "xy"]
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ports[:1], ports[1:])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9), "a.onnx")
ovgpu.replace_openvino()
import openvino as ov
m = ov.convert_model("a.onnx", input={given})
print(m.input(0).partial_shape, type(m.input(0).partial_shape) is ov.PartialShape)
"""
    assert run("-c", code, cwd=tmp_path) in ("[2,3] True", "[2,?] True")


DISPATCH = """
import ovgpu; ovgpu.replace_openvino()
import numpy as np, openvino as ov
from openvino.utils.data_helpers.data_dispatcher import _data_dispatch
x = ov.opset13.parameter([2], np.float32, name="x")
r = ov.Core().compile_model(ov.Model([ov.opset13.relu(x)], [x], "m"), "CPU").create_infer_request()
for shared in (True, False):
    for given in (np.ones(2, np.float32), [np.ones(2, np.float32)], {0: ov.Tensor(np.ones(2, np.float32))}):
        found = _data_dispatch(r, given, shared)
        tensors = found.values() if isinstance(found, dict) else [found]
        assert all(type(t) is ov.Tensor for t in tensors)
        print([t.data.tolist() for t in tensors] or r.get_input_tensor().data.tolist())
"""


def test_inputs_by_the_function_of_openvino(tmp_path: Path) -> None:
    """openvino's function for inputs works on requests of ovgpu, in its place."""
    lines = run("-c", DISPATCH, cwd=tmp_path).splitlines()
    assert lines == ["[[1.0, 1.0]]"] * 3 + ["[1.0, 1.0]"] * 2 + ["[[1.0, 1.0]]"]
