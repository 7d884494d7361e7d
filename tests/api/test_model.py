"""Models, nodes and ports: every expression gives what openvino gives for the same file."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest

import ovgpu.model
import ovgpu.types
from ovgpu.ir import read_model
from ovgpu.model import Model, RTMap
from ovgpu.types import OVAny
from tests.harness.ir import Net, feed, take

CORE = ov.Core()
THEIRS = SimpleNamespace(
    **{
        name: getattr(ov, name)
        for name in ("PartialShape", "Dimension", "Shape", "Layout", "Type", "set_batch", "get_batch")
    }
)
OURS = SimpleNamespace(
    **{name: getattr(ovgpu.types, name) for name in ("PartialShape", "Dimension", "Shape", "Layout", "Type")},
    set_batch=ovgpu.model.set_batch,
    get_batch=ovgpu.model.get_batch,
)


def sample(inputs: int = 2, shape: Any = (2, 3)) -> tuple[bytes, bytes]:
    """Build ``y = relu(2 * (a + b))``, its shape, and an independent state."""
    net = Net("sample")
    names = ["a", "b"][:inputs]
    x = net.parameter("f32", shape, names[0])
    if inputs == 2:
        x = net.layer("Add", "opset1", [x, net.parameter("f32", shape, names[1])], name="sum")
    x = net.layer("Multiply", "opset1", [x, net.const(np.float32(2), name="two")], name="double")
    read = net.read_value("v1", "f32", (-1, 3), net.const(np.zeros((1, 3), np.float32)))
    net.assign("v1", net.layer("Relu", "opset1", [read], name="next"))
    net.result(net.layer("Relu", "opset1", [x], name="relu", names=["y", "why"]), name="out0")
    net.result(net.layer("ShapeOf", "opset3", [x], {"output_type": "i64"}, outputs=["i64"], names=["shape"]))
    return net.build()


def both(code: str, files: tuple[bytes, bytes] | None = None) -> tuple[Any, Any]:
    """Evaluate an expression for openvino's model and ours; statements may precede it, separated by "; "."""
    xml, weights = files or sample()
    return (outcome(code, THEIRS, CORE.read_model(xml, weights)), outcome(code, OURS, read_model(xml, weights)))


def outcome(code: str, library: SimpleNamespace, model: Any) -> Any:
    names: dict[str, Any] = {"m": model, "lib": library, "copy": copy, "np": np, "pytest": pytest}
    *statements, expression = code.split("; ")
    try:
        for statement in statements:
            exec(statement, names)
        return plain(eval(expression, names))
    except Exception as error:
        return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")


def plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and type(value).__name__ in ("list", "tuple"):
        return [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, map(plain, value)))
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist()
    name = type(value).__name__
    if name in ("OVAny",):
        return plain(value.value)
    if name in ("Output", "ConstOutput", "Input"):
        return "port", sorted(value.get_names()) if name != "Input" else None, str(value.get_partial_shape())
    if hasattr(value, "get_type_name") and hasattr(value, "get_friendly_name"):
        return "node", value.get_type_name(), value.get_friendly_name()
    return str(value)


ONE = sample(1, (2, 3))
PLAIN = sample(1, (2, 3))[0].replace(b"y,why", b"y"), sample(1)[1]
DYNAMIC = sample(2, (-1, 3))


@pytest.mark.parametrize(
    "code",
    [
        "m.inputs",
        "m.outputs",
        "m.input(0)",
        "m.input(1)",
        "m.input('b')",
        "m.output('y')",
        "m.output('why')",
        "m.output(1)",
        "m.output('shape')",
        "m.input()",
        "m.output()",
        "m.input(2)",
        "m.input('y')",
        "m.output('a')",
        "m.input('none')",
        "m.input(1.5)",
        "m.input(True)",
        "m.input(-1)",
        "m.input(0).get_any_name()",
        "m.input(0).any_name",
        "m.output(0).any_name",
        "m.output(0).names",
        "m.output(0).get_element_type()",
        "m.output(1).element_type",
        "m.output(1).shape",
        "m.output(0).get_shape()",
        "m.output(0).partial_shape",
        "m.output(0).get_index()",
        "m.output(0).index",
        "m.output(0).node",
        "m.output(0).get_node().input_value(0)",
        "m.output(0).get_node().input_value(0).get_node()",
        "m.input(0) == m.inputs[0]",
        "m.input(0) == m.input(1)",
        "hash(m.input(0)) == hash(m.input('a'))",
        "{m.input('a'): 1}[m.inputs[0]]",
        "m.output('y') in m.outputs",
        "m.input(0).get_target_inputs()",
        "[p.get_node() for p in m.input(0).get_target_inputs()]",
        "m.input(0).get_element_type().get_type_name()",
        "m.get_friendly_name()",
        "m.friendly_name",
        "m.is_dynamic()",
        "m.dynamic",
        "m.get_parameters()",
        "m.parameters",
        "m.get_results()",
        "m.results",
        "m.get_sinks()",
        "m.sinks",
        "len(m.get_ops())",
        "sorted(n.get_type_name() for n in m.get_ops())",
        "sorted(n.get_friendly_name() for n in m.get_ordered_ops())",
        "m.get_output_size()",
        "m.get_output_op(1)",
        "m.get_output_op(7)",
        "m.get_output_shape(1)",
        "m.get_output_partial_shape(0)",
        "m.get_output_element_type(0)",
        "m.get_result()",
        "m.get_result_index(m.outputs[1])",
        "m.get_result_index(m.results[1].input_value(0))",
        "m.get_parameter_index(m.parameters[1])",
        "[v.info.variable_id for v in m.get_variables()]",
        "str(m.get_variables()[0].info.data_shape)",
        "str(m.get_variables()[0].info.data_type)",
        "m.get_variable_by_id('v1').info.variable_id",
        "m.get_variable_by_id('none')",
        "copy.copy(m)",
        "copy.deepcopy(m).inputs",
        "m.clone().outputs",
        "c = copy.deepcopy(m); c.input(0).set_names({'new'}); [m.input(0), c.input(0)]",
        "m.set_friendly_name('new'); m.friendly_name",
    ],
)
def test_models(code: str) -> None:
    theirs, ours = both(code)
    assert ours == theirs


@pytest.mark.parametrize(
    "code",
    [
        "m.input()",
        "m.input().get_partial_shape().is_dynamic",
        "list(m.input().partial_shape)",
        "m.input().shape",
        "m.reshape([4, 3]); m.inputs + m.outputs",
        "m.reshape((-1, 3)); m.inputs + m.outputs",
        "m.reshape('1..4,3'); m.inputs + m.outputs",
        "m.reshape(lib.PartialShape([7, 3])); m.outputs",
        "m.reshape(['?', '3']); m.input().partial_shape",
        "m.reshape([lib.Dimension(1, 5), 3]); m.outputs",
        "m.reshape({'a': [9, 3]}); m.outputs",
        "m.reshape({0: [9, 3]}); m.outputs",
        "m.reshape({m.input(): [9, 3]}); m.outputs",
        "m.reshape({m.output(0): [9, 3]})",
        "m.reshape({'none': [9, 3]})",
        "m.reshape({3: [1]})",
        "m.reshape(5)",
        "m.reshape(None)",
        "m.reshape({'a': 5})",
        "m.reshape([1.5, 3])",
        "m.reshape([4]); m.outputs",
        "m.reshape({}); m.inputs",
        "m.reshape([-1, (2, 5)]); m.outputs",
        "m.reshape([5, 3], {'v1': [4, 3]}); m.outputs",
        "m.reshape({'a': [5, 3]}, variables_shapes={'v1': lib.PartialShape([4, 3])}); "
        "str(m.get_variables()[0].info.data_shape)",
    ],
)
def test_reshape_of_one_input(code: str) -> None:
    theirs, ours = both(code, ONE)
    assert ours == theirs


@pytest.mark.parametrize(
    "code",
    [
        "m.reshape([4, 3])",
        "m.reshape({'a': [4, 3], 'b': [4, 3]}); m.inputs + m.outputs",
        "m.reshape({'a': [4, 3], 1: [1, 3]}); m.inputs + m.outputs",
        "m.reshape({'a': [4, 3]})",
        "m.reshape({m.input('a'): [-1, 3], m.input('b'): [-1, 3]}); m.is_dynamic()",
        "pytest.raises(Exception, m.reshape, {'a': [5, 7]}); m.inputs + m.outputs",
    ],
)
def test_reshape_of_two_inputs(code: str) -> None:
    theirs, ours = both(code)
    assert ours == theirs


def test_reshape_that_fails_changes_nothing() -> None:
    model = read_model(*sample())
    with pytest.raises(RuntimeError, match=r"\[Add\]"):
        model.reshape({"a": [5, 7]}, {"v1": [4, 3]})
    with pytest.raises(RuntimeError, match=r"there is no variable 'none': the model has \['v1'\]"):
        model.reshape({}, {"none": [4, 3]})
    assert str(model.inputs) == str(read_model(*sample()).inputs)
    assert str(model.get_variables()[0].data_shape) == "[?,3]"


@pytest.mark.parametrize(
    "code", ["str(m)", "repr(m)", "repr(m.inputs[0])", "str(m.outputs)", "repr(m.results[0].input(0))"]
)
def test_print(code: str) -> None:
    theirs, ours = both(code, PLAIN)
    assert ours == theirs


@pytest.mark.parametrize(
    "code",
    [
        "lib.get_batch(m)",
        "lib.set_batch(m, 5)",
        "m.parameters[0].set_layout(lib.Layout('NC')); lib.get_batch(m)",
        "m.parameters[0].set_layout(lib.Layout('NC')); lib.set_batch(m, 5)",
        "[p.set_layout(lib.Layout('NC')) for p in m.parameters]; lib.set_batch(m, 5); m.inputs + m.outputs",
        "[p.set_layout(lib.Layout('NC')) for p in m.parameters]; lib.set_batch(m, -1); m.inputs + m.outputs",
        "[p.set_layout(lib.Layout('NC')) for p in m.parameters]; lib.set_batch(m); m.inputs + m.outputs",
        "[p.set_layout(lib.Layout('NC')) for p in m.parameters]; lib.set_batch(m, lib.Dimension(1, 4)); m.inputs",
        "[p.set_layout(lib.Layout('NC')) for p in m.parameters]; lib.set_batch(m, 5); lib.get_batch(m)",
        "[p.set_layout(lib.Layout(t)) for p, t in zip(m.parameters, ['NC', 'CN'])]; lib.get_batch(m)",
        "m.parameters[0].set_layout(lib.Layout('C...N')); m.parameters[0].layout",
        "m.parameters[0].layout = lib.Layout('NC'); m.parameters[0].get_layout()",
        "m.parameters[0].layout",
        "m.results[0].set_layout(lib.Layout('HW')); m.results[0].layout",
    ],
)
def test_layouts_and_batch(code: str) -> None:
    theirs, ours = both(code)
    assert ours == theirs


@pytest.mark.parametrize(
    "code",
    [
        "n.get_type_name()",
        "n.type_info.name",
        "n.get_type_info().version_id",
        "n.get_friendly_name()",
        "n.friendly_name",
        "n.set_friendly_name('new'); n.friendly_name",
        "n.input(0)",
        "n.input(5)",
        "n.output(0)",
        "n.output(5)",
        "n.inputs()",
        "n.outputs()",
        "[i.get_index() for i in n.inputs()]",
        "n.input_value(0)",
        "n.input_value(5)",
        "n.input_values()",
        "n.get_input_size()",
        "n.get_output_size()",
        "n.get_element_type()",
        "n.get_output_element_type(0)",
        "n.get_output_shape(0)",
        "n.get_output_shape(5)",
        "n.get_output_partial_shape(0)",
        "n.get_input_shape(0)",
        "n.get_input_partial_shape(0)",
        "n.get_input_element_type(0)",
        "n.shape",
        "n.input(0).get_source_output().get_node()",
        "n.input(0).get_index()",
        "n.input(0).get_element_type()",
        "n.input(0).get_shape()",
        "n.input(0).get_partial_shape()",
        "n.input(0).get_node()",
        "n.output(0).get_target_inputs()",
        "n.rt_info['user_data_x'] = 'v'; n.get_rt_info()['user_data_x']",
        "'none' in n.rt_info",
        "n.output(0).rt_info['k'] = 'v'; n.output(0).get_rt_info()['k']",
        "n.input(0).rt_info['k'] = 'v'; n.input(0).get_rt_info()['k']",
        "n.output(0).set_names({'q', 'p'}); n.output(0).get_any_name()",
        "n.output(0).add_names({'z'}); m.output(0).get_names()",
        "m.output(0).set_names({'own'}); n.output(0).get_names()",
        "m.output(0).add_names({'own'}); [m.output(0), n.output(0), m.output('y'), m.output('own')]",
        "m.input(0).set_names({'only'}); m.input('only')",
        "m.input(0).set_names({'only'}); m.input('a')",
        "n.input(0).replace_source_output(m.input(0)); m.validate_nodes_and_infer_types(); n.input_value(0)",
        "n.input(0).replace_source_output(m.input(0)); m.get_ops().__len__()",
        "m.parameters[0].set_partial_shape(lib.PartialShape([-1, 3])); m.parameters[1].set_partial_shape("
        "lib.PartialShape([-1, 3])); m.validate_nodes_and_infer_types(); m.inputs + m.outputs",
        "m.parameters[0].set_element_type(lib.Type.f16); m.parameters[1].set_element_type(lib.Type.f16); "
        "m.parameters[0].element_type",
        "m.parameters[0].partial_shape",
        "m.parameters[0].get_partial_shape()",
        "[c.get_data() for c in m.get_ops() if c.get_friendly_name() == 'two']",
        "[c.data for c in m.get_ops() if c.get_friendly_name() == 'two']",
    ],
)
def test_nodes_and_ports(code: str) -> None:
    find = "n = next(n for n in m.get_ops() if n.get_friendly_name() == 'relu')"
    theirs, ours = both(f"{find}; {code}")
    assert ours == theirs


@pytest.mark.parametrize(
    "code",
    [
        "m.has_rt_info('x')",
        "m.get_rt_info('x')",
        "m.get_rt_info(['x', 'y'])",
        "m.set_rt_info('v', ['x', 'y']); m.get_rt_info(['x', 'y'])",
        "m.set_rt_info('v', 'x'); m.get_rt_info('x')",
        "m.set_rt_info('v', ['x', 'y']); [m.has_rt_info(['x', 'y']), m.has_rt_info('x'), m.has_rt_info(['x', 'z'])]",
        "m.set_rt_info(5, 'x'); m.get_rt_info('x').value",
        "m.set_rt_info(5, 'x'); m.get_rt_info('x').astype(int)",
        "m.set_rt_info('5', 'x'); m.get_rt_info('x').astype(int)",
        "m.set_rt_info('a', 'x'); m.get_rt_info('x').astype(int)",
        "m.set_rt_info('YES', 'x'); m.get_rt_info('x').astype(bool)",
        "m.set_rt_info('a', 'x'); m.get_rt_info('x').astype(bool)",
        "m.set_rt_info(True, 'x'); m.get_rt_info('x').astype(bool)",
        "m.set_rt_info(True, 'x'); m.get_rt_info('x').astype(str)",
        "m.set_rt_info(0.5, 'x'); m.get_rt_info('x').astype(str)",
        "m.set_rt_info([1, 2], 'x'); m.get_rt_info('x').astype(str)",
        "m.set_rt_info('0.5', 'x'); m.get_rt_info('x').astype(float)",
        "m.set_rt_info(5, 'x'); m.get_rt_info('x') == 5",
        "m.set_rt_info([1, 2], 'x'); m.get_rt_info('x').aslist(int)",
        "m.set_rt_info([1, 2], 'x'); m.get_rt_info('x')[1]",
        "m.set_rt_info('text', 'x'); [len(m.get_rt_info('x')), m.get_rt_info('x').get()]",
        "m.set_rt_info({'a': {'b': 1}}, 'd'); m.get_rt_info(['d', 'a', 'b'])",
        "m.set_rt_info({'a': 1}, 'd'); 'a' in m.rt_info['d']",
        "m.set_rt_info({'a': 1}, 'd'); m.rt_info['d']['a'].value",
        "m.set_rt_info(1, 'x'); m.set_rt_info(1, ['x', 'y'])",
        "m.set_rt_info('v', 'x'); 'x' in m.rt_info",
        "'none' in m.get_rt_info()",
        "m.set_rt_info('v', ['a', 'b', 'c']); [type(m.get_rt_info()['a']), type(m.get_rt_info()['a']['b'])]",
        "m.set_rt_info('v', ['a', 'b']); isinstance(m.rt_info['a'], dict) and m.get_rt_info()['a']['b'].value",
        "m.set_rt_info('v', ['a', 'b']); m.get_rt_info()['a'].update(c=1); m.has_rt_info(['a', 'c'])",
        "m.set_rt_info('v', 'x'); m.rt_info['x'].value",
        "m.set_rt_info('v', 'x'); m.get_rt_info()['x']",
        "m.rt_info['x'] = 'v'; m.get_rt_info('x')",
        "m.set_rt_info('v', 'x'); copy.deepcopy(m).get_rt_info('x')",
    ],
)
def test_runtime_information(code: str) -> None:
    theirs, ours = both(code)
    assert ours == theirs


@pytest.mark.parametrize(
    "code",
    [
        "m.remove_result(m.results[1]); m.outputs",
        "r = m.results[0]; m.remove_result(r); m.add_results([r]); m.outputs",
        "s = m.sinks[0]; m.remove_sink(s); len(m.get_ops())",
        "s = m.sinks[0]; m.remove_sink(s); m.add_sinks([s]); m.sinks",
        "m.remove_result(m.results[0]); m.output()",
        "m.remove_result(m.results[0]); m.get_result()",
    ],
)
def test_changing_the_graph(code: str) -> None:
    theirs, ours = both(code)
    assert ours == theirs


@pytest.mark.parametrize(
    "code",
    [
        "m.is_dynamic()",
        "m.inputs + m.outputs",
        "m.input(0).shape",
        "m.output(0).get_shape()",
        "m.input(0).partial_shape[0].is_dynamic",
        "m.output(0).partial_shape.rank",
    ],
)
def test_dynamic_models(code: str) -> None:
    theirs, ours = both(code, DYNAMIC)
    assert ours == theirs


# ---- more than openvino offers


def test_ports_are_found_by_ports() -> None:
    """`reshape` and requests find an input or output by the inner port that it stands for."""
    model = read_model(*sample())
    for number, port in enumerate(model.outputs):
        assert model.output(port) is port and model.output(port.tensor_port) is port
        assert model.outputs.index(model.output(number)) == number
    with pytest.raises(RuntimeError, match=r"^Input for port .* is not found. The model has: a, b$"):
        model.input(model.output(0))


def test_errors_list_known_names() -> None:
    model = read_model(*sample())
    with pytest.raises(RuntimeError, match=r"Output for tensor name 'none' is not found\. The model has: why, shape"):
        model.output("none")
    with pytest.raises(IndexError, match="there is no input 5: the model has 2"):
        model.input(5)
    with pytest.raises(RuntimeError, match=r"output\(\) needs a model with exactly one output; it has 2"):
        model.output()


def test_clones_share_nothing_that_changes() -> None:
    body = Net()
    inner = body.parameter("f32", (1,))
    out = body.result(body.layer("Relu", "opset1", [inner], name="inside"))
    net = Net()
    x = net.parameter("f32", (4,))
    net.result(net.tensor_iterator(body, [feed(x, inner, axis=0)], [take(out, axis=0)], name="ti"))
    model = read_model(*net.build())
    model.set_rt_info("v", ["a", "b"])
    twin = model.clone()
    twin.set_rt_info("other", ["a", "b"])
    twin.reshape([7])
    twin.ops[1].op.body.ops[1].set_friendly_name("changed")
    assert [str(p.shape) for p in model.outputs + twin.outputs] == ["[4]", "[7]"]
    assert model.get_rt_info(["a", "b"]) == "v" and model.ops[1].op.body.ops[1].friendly_name == "inside"


def test_model_is_a_context_manager() -> None:
    with read_model(*sample()) as model:
        assert isinstance(model, Model)


def test_values_of_runtime_information() -> None:
    info = RTMap({"a": {"b": [1, 2]}, "c": OVAny("text")})
    assert info["a"]["b"] == [1, 2] and info["c"] == "text" and info["c"][0] == "t"
    info["a"]["b"] = 3
    assert info.plain() == {"a": {"b": [1, 2]}, "c": "text"}
    assert info.nested("c") is None and info.nested("a") == {"b": [1, 2]}
    assert list(info) == ["a", "c"] and len(info) == 2 and info.get("none") is None
    assert copy.deepcopy(info) == info
    with pytest.raises(RuntimeError, match="could not convert 'text' to int"):
        info["c"].astype(int)
    with pytest.raises(KeyError):
        info["none"]
