"""Outputs, parameters, sinks and variables of a model that are added, replaced and removed; models cut out of others;
`Model.evaluate`. The same steps with openvino and with ovgpu must agree."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13 as ops

import ovgpu


def shapes(ports: Any) -> list[tuple[str, list[str]]]:
    """Return the shapes and names of ports, without the numbers of nodes."""
    return [
        (str(port.get_partial_shape()), [re.sub(r"_\d+$", "", name) for name in sorted(port.get_names())])
        for port in ports
    ]


def stateful(folder: Path) -> Path:
    """Write a model: y = relu(x + v), where variable v, of shape [1, 3], becomes y; and z = x * 2."""
    x = ops.parameter([1, 3], openvino.Type.f32, name="x")
    read = ops.read_value(np.zeros((1, 3), np.float32), "v", openvino.Type.f32, [1, 3])
    total = ops.add(x, read, name="total")
    y = ops.relu(total, name="y")
    z = ops.split(ops.multiply(x, np.float32(2), name="double"), 1, 3, name="parts")
    for node, name in ((x, "x"), (total, "sum"), (y, "y")):
        node.output(0).get_tensor().set_names({name})
    model = openvino.Model(
        [ops.result(y, name="first"), ops.result(z.output(1), name="second")], [ops.assign(y, "v")], [x], "stateful"
    )
    openvino.serialize(model, folder / "model.xml")
    return folder / "model.xml"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stateful(tmp_path_factory.mktemp("model"))


def agree(path: Path, steps: Callable[[Any, Any], Any]) -> Any:
    """Return the result of ``steps(library, model)``, or the class of its error, which must be the same for both."""
    results = []
    for library in (openvino, ovgpu):
        try:
            results.append(steps(library, library.Core().read_model(path)))
        except (RuntimeError, TypeError, IndexError) as e:
            results.append(next(kind for kind in type(e).__mro__ if kind.__module__ == "builtins"))
    assert results[1] == results[0]
    return results[0]


@pytest.mark.parametrize(
    "key",
    [
        "sum",
        "x",
        "y",
        "nope",
        ("total", 0),
        ("parts", 2),
        ("total", 1),
        ("nope", 0),
        ["sum", ("double", 0)],
        [],
        3,
        [3],
        ["sum", "sum"],
        ("total",),
        None,
    ],
    ids=repr,
)
def test_added_outputs(path: Path, key: Any) -> None:
    def steps(library: Any, model: Any) -> Any:
        added = model.add_outputs(key)
        return shapes(added), shapes(model.outputs), [model.get_result_index(port) for port in added]

    agree(path, steps)


def test_added_outputs_are_computed(path: Path) -> None:
    def steps(library: Any, model: Any) -> Any:
        node = next(node for node in model.get_ops() if node.get_friendly_name() == "double")
        ports = model.add_outputs([node.output(0), model.output(0)])
        compiled = library.compile_model(model, "CPU")
        results = compiled([np.array([[1, -2, 3]], np.float32)])
        return [results[model.get_result_index(port)].tolist() for port in ports], len(compiled.outputs)

    assert agree(path, steps) == ([[[2, -4, 6]], [[1, 0, 3]]], 3)


@pytest.mark.parametrize("index", [0, 1, -1])
def test_replaced_parameter(path: Path, index: int) -> None:
    def steps(library: Any, model: Any) -> Any:
        other = library.Core().read_model(path).get_parameters()[0]
        other.set_friendly_name("other")
        model.replace_parameter(index, other)
        model.validate_nodes_and_infer_types()
        result = library.compile_model(model, "CPU")([np.ones((1, 3), np.float32)])
        return [node.get_friendly_name() for node in model.get_parameters()], result[0].tolist()

    if index >= 0:  # openvino takes any unsigned number
        agree(path, steps)
    else:
        with pytest.raises(RuntimeError, match="no parameter -1"):
            steps(ovgpu, ovgpu.Core().read_model(path))


def test_models_cut_out_of_others(path: Path) -> None:
    def steps(library: Any, model: Any) -> Any:
        nodes = {node.get_friendly_name(): node for node in model.get_ops()}
        found = []
        for arguments in (
            ([nodes["double"]], model.get_parameters(), "cut"),
            ([nodes["parts"].output(2)], model.get_parameters()),
            (model.get_results(), model.get_sinks(), model.get_parameters(), "all"),
            (nodes["double"], model.get_parameters(), "single"),
            ([nodes["parts"].output(0)], [], "undeclared"),
        ):
            try:
                cut = library.Model(*arguments)
                result = library.compile_model(cut, "CPU")([np.ones((1, 3), np.float32)])[0]
                found.append((cut.get_friendly_name()[:4], shapes(cut.inputs), result.tolist(), len(cut.get_sinks())))
            except RuntimeError:
                found.append(None)
        return found

    assert [bool(result) for result in agree(path, steps)] == [True, True, True, True, False]


def test_sinks_and_variables(path: Path) -> None:
    def steps(library: Any, model: Any) -> Any:
        sink, variable = model.get_sinks()[0], model.get_variables()[0]
        found = [
            model.get_sink_index(sink),
            model.get_sink_index(sink.output(0)),
            model.get_sink_index(model.get_results()[0]),
            variable.get_info().variable_id,
        ]
        for step in (lambda: model.remove_variable(variable), lambda: model.add_variables([variable])):
            step()
            found += [len(model.get_variables()), model.get_variable_by_id("v") is None]
        return found

    assert agree(path, steps) == [0, 0, -1, "v", 0, True, 1, False]
    model = ovgpu.Core().read_model(path)
    model.remove_variable(model.get_variables()[0])
    assert model.clone().get_variables() == []


@pytest.mark.parametrize(
    ("shape", "kind", "inputs", "outputs"),
    [
        ([1, 3], np.float32, 1, 2),
        ([1, 3], np.float32, 0, 2),
        ([1, 3], np.float32, 2, 2),
        ([1, 4], np.float32, 1, 2),
        ([1, 3], np.int32, 1, 2),
        ([1, 3], np.float32, 1, 1),
    ],
)
def test_evaluation(tmp_path: Path, shape: list[int], kind: Any, inputs: int, outputs: int) -> None:
    x = ops.parameter([1, 3], openvino.Type.f32)
    openvino.serialize(openvino.Model([ops.relu(x), ops.negative(x)], [x]), tmp_path / "m.xml")

    def steps(library: Any, model: Any) -> Any:
        values = np.arange(np.prod(shape)).reshape(shape).astype(kind) - 1
        found = [library.Tensor(library.Type.f32, library.Shape([0])) for _ in range(outputs)]
        done = model.evaluate(found, [library.Tensor(values)] * inputs)
        return done, [tensor.data.tolist() for tensor in found]

    agree(tmp_path / "m.xml", steps)


def test_tensors_of_ports(path: Path) -> None:
    def steps(library: Any, model: Any) -> Any:
        tensor, source = model.input(0).get_tensor(), model.get_results()[0].input(0)
        tensor.add_names({"also"})
        found = [
            sorted(tensor.get_names()),
            sorted(model.input(0).names),
            tensor.any_name,
            str(tensor.partial_shape),
            list(tensor.shape),
            tensor.element_type.get_type_name(),
            tensor.size,
            source.get_tensor().any_name,
        ]
        tensor.set_names({"only"})
        source.set_rt_info("value", "key")
        node = source.get_source_output().get_node()
        return [
            *found,
            sorted(model.input("only").tensor.names),
            source.get_rt_info()["key"].value,
            node.get_output_tensor(0).get_any_name(),
            list(node.get_input_tensor(0).get_shape()),
        ]

    assert agree(path, steps)[0] == ["also", "x"]


def test_arguments_of_nodes(path: Path) -> None:
    def steps(library: Any, model: Any) -> Any:
        total = next(node for node in model.get_ops() if node.get_friendly_name() == "total")
        read, double = total.input_value(1), next(n for n in model.get_ops() if n.get_friendly_name() == "double")
        total.set_arguments([double.output(0), double.output(0)])
        total.set_argument(1, read)
        model.validate_nodes_and_infer_types()
        return library.compile_model(model, "CPU")([np.ones((1, 3), np.float32)])[0].tolist()

    assert agree(path, steps) == [[2, 2, 2]]


def test_names_of_new_nodes_and_models(path: Path) -> None:
    def steps(library: Any, model: Any) -> Any:
        added = model.add_outputs("sum")[0].get_node()
        other = library.Model(model.get_results(), model.get_sinks(), model.get_parameters())
        return [
            added.get_friendly_name() == added.get_name(),
            added.get_name().split("_")[0],
            int(added.get_name().split("_")[1]) == added.get_instance_id(),
            other.get_name()[:5],
            other.get_name() == other.get_friendly_name(),
            other.get_name() != model.get_name(),
            model.get_friendly_name(),
        ]

    assert agree(path, steps) == [True, "Result", True, "Model", True, True, "stateful"]
