"""Reading IR: every part of the format, from documents written here and from files that openvino wrote."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

import ovgpu
from ovgpu.errors import OpError, UnsupportedOpError
from ovgpu.ir import read_model
from ovgpu.model import Model
from ovgpu.ops.base.unsupported import require_supported
from ovgpu.ops.infrastructure.control_flow import BackEdge, InputMap, OutputMap
from ovgpu.types import Layout, Type
from tests.harness.elements import ELEMENTS
from tests.harness.ir import Net, feed, take
from tests.harness.private import read_private


def op(model: Model, name: str) -> Any:
    return next(node.op for node in model.ops if node.friendly_name == name)


def document(layers: str, edges: str = "", head: str = 'name="m" version="11"', rest: str = "") -> str:
    return f'<?xml version="1.0"?><net {head}><layers>{layers}</layers><edges>{edges}</edges>{rest}</net>'


def parameter(number: int, data: str, port: str = 'precision="FP32"', inner: str = "") -> str:
    return (
        f'<layer id="{number}" name="p{number}" type="Parameter" version="opset1">{data}'
        f'<output><port id="0" {port}>{inner}</port></output></layer>'
    )


def result(number: int, extra: str = "") -> str:
    return (
        f'<layer id="{number}" name="r{number}" type="Result" version="opset1"{extra}>'
        f'<input><port id="0"/></input></layer>'
    )


def edge(a: int, b: int, c: int, d: int) -> str:
    return f'<edge from-layer="{a}" from-port="{b}" to-layer="{c}" to-port="{d}"/>'


# ---- shapes, types, names


@pytest.mark.parametrize(
    "text, shape",
    [
        ("2,3", "[2,3]"),
        ("2, 3", "[2,3]"),
        ("", "[]"),
        ("...", "[...]"),
        ("?,3", "[?,3]"),
        ("-1,3", "[?,3]"),
        ("1..10,..4,2..", "[1..10,..4,2..]"),
        ("0,3", "[0,3]"),
    ],
)
def test_shapes(text: str, shape: str) -> None:
    xml = document(parameter(0, f'<data shape="{text}" element_type="f32"/>') + result(1), edge(0, 0, 1, 0))
    assert str(read_model(xml).input().partial_shape) == shape
    assert str(ov.Core().read_model(xml.encode()).input().partial_shape) == shape


@pytest.mark.parametrize(("kind", "shape"), [("f32", "2"), ("f32", ""), ("i64", "1,0"), ("u4", "3"), ("boolean", "3")])
def test_constants_may_have_more_bytes_than_they_need(kind: str, shape: str) -> None:
    """The first bytes are the elements, as in openvino."""
    net = Net()
    net.result(net.layer("Convert", "opset1", [net.const(np.arange(7, dtype=np.float32))], {"destination_type": "f32"}))
    xml, weights = net.build()
    text = xml.decode().replace('element_type="f32" shape="7"', f'element_type="{kind}" shape="{shape}"')
    assert text != xml.decode() and 'size="28"' in text
    found = np.asarray(ovgpu.Core().compile_model(read_model(text.encode(), weights), "CPU")([])[0])
    core = ov.Core()
    expected = core.compile_model(core.read_model(text.encode(), weights), "CPU")([])[0]
    assert found.dtype == expected.dtype and np.array_equal(found, expected)


@pytest.mark.parametrize("name", sorted(ELEMENTS))
def test_constants_of_every_type_match_openvino(name: str, tmp_path: Path) -> None:
    if name == "string":
        constant = ov.op.Constant(ov.Tensor(["ab", "", "x" * 40]))
    else:
        values = [1, 0, 1, 1, 0, 1, 1] if name in ("boolean", "u1") else [1, 0, 3, 2, 1, 0, 3]
        constant = ov.op.Constant(getattr(ov.Type, name), ov.Shape([7]), values)
    path = tmp_path / "m.xml"
    ov.serialize(ov.Model([ops.result(constant)], [], "m"), path)
    node = read_model(path).ops[0]
    assert node.op.name == "Constant" and node.op.element_type is getattr(Type, name)
    value = node.op.value
    assert value.dtype == node.op.element_type.storage
    if name == "string":
        assert value.tolist() == [b"ab", b"", b"x" * 40]
    else:
        expected = [float(v) for v in constant.get_value_strings()]  # codes for nf4
        assert value.astype(np.float64).tolist() == pytest.approx(expected)


def test_unsigned_shape_only_at_the_port() -> None:
    """In old files, Parameter and Const state shape and type only at their output ports."""
    layers = (
        parameter(0, "", 'precision="FP32"', "<dim>2</dim><dim>3</dim>")
        + '<layer id="1" name="c" type="Const" version="opset1"><data offset="0" size="12"/>'
        '<output><port id="1" precision="FP32"><dim>3</dim></port></output></layer>'
        + '<layer id="2" name="a" type="Add" version="opset1">'
        '<input><port id="0"><dim>2</dim><dim>3</dim></port><port id="1"><dim>3</dim></port></input>'
        '<output><port id="2" precision="FP32"/></output></layer>' + result(3)
    )
    model = read_model(
        document(layers, edge(0, 0, 2, 0) + edge(1, 1, 2, 1) + edge(2, 2, 3, 0)), np.arange(3, dtype=np.float32)
    )
    assert model.input().shape == [2, 3]
    assert op(model, "c").value.tolist() == [0, 1, 2]
    assert model.output().shape == [2, 3]


def test_layers_and_edges_in_any_order() -> None:
    layers = [
        parameter(7, '<data shape="2" element_type="f32"/>'),
        result(3),
        '<layer id="x" name="n" type="Relu" version="opset1"><input><port id="in"/></input>'
        '<output><port id="out" precision="FP32"/></output></layer>',
    ]
    edges = [
        '<edge from-layer="x" from-port="out" to-layer="3" to-port="0"/>',
        '<edge from-layer="7" from-port="0" to-layer="x" to-port="in"/>',
    ]
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        ordered = edges if order[0] == 0 else edges[::-1]
        model = read_model(document("".join(layers[i] for i in order), "".join(ordered)))
        assert [n.op.name for n in model.ops] == ["Parameter", "Relu", "Result"]


def test_names_with_commas_and_entities() -> None:
    names = 'precision="FP32" names="a\\,b,c\\d, e ,q&quot;&lt;&amp;"'
    given = parameter(0, '<data shape="2" element_type="f32"/>', names)
    text = document(given + result(1, ' output_names="o\\,1,o2"'), edge(0, 0, 1, 0))
    ours, theirs = read_model(text), ov.Core().read_model(text.encode())
    assert ours.output().get_names() == theirs.output().get_names() == {"o,1", "o2"}
    assert ours.input().get_names() == {"a,b", "c\\d", " e ", 'q"<&', "o,1", "o2"}
    assert ours.input().get_names() == theirs.input().get_names()


@pytest.mark.parametrize("version", ["10", "11"])
def test_names_without_any(version: str) -> None:
    """Only in version 10 do inputs and outputs have the names of layers."""
    split = (
        '<layer id="2" name="s" type="Split" version="opset1"><data num_splits="2"/>'
        '<input><port id="0"/><port id="1"/></input>'
        '<output><port id="2" precision="FP32"/><port id="3" precision="FP32"/></output></layer>'
    )
    axis = (
        '<layer id="1" name="axis" type="Const" version="opset1">'
        '<data element_type="i64" shape="" offset="0" size="8"/>'
        '<output><port id="0" precision="I64"/></output></layer>'
    )
    relu = (
        '<layer id="5" name="n" type="ReLU" version="opset1"><input><port id="0"/></input>'
        '<output><port id="1" precision="FP32"/></output></layer>'
    )
    given = parameter(0, '<data shape="2,4" element_type="f32"/>')
    layers = given + axis + split + relu + result(3) + result(4)
    edges = edge(0, 0, 2, 0) + edge(1, 0, 2, 1) + edge(2, 2, 3, 0) + edge(2, 3, 5, 0) + edge(5, 1, 4, 0)
    text = document(layers, edges, f'name="m" version="{version}"')
    weights = np.zeros(8, np.uint8)
    ours, theirs = read_model(text, weights), ov.Core().read_model(text.encode(), weights.tobytes())
    for ports, expected in ((ours.inputs, theirs.inputs), (ours.outputs, theirs.outputs)):
        assert [p.get_names() for p in ports] == [p.get_names() for p in expected]


def test_results_share_or_have_names(tmp_path: Path) -> None:
    x = ops.parameter([2], np.float32, name="x")
    y = ops.relu(x)
    y.output(0).set_names({"y"})
    results = [ops.result(y), ops.result(y), ops.result(x)]
    results[1].output(0).set_names({"second"})
    theirs = ov.Model(results, [x], "m")
    ov.serialize(theirs, tmp_path / "m.xml")
    ours = read_model(tmp_path / "m.xml")
    again = ov.Core().read_model(tmp_path / "m.xml")
    assert [p.get_names() for p in ours.outputs] == [p.get_names() for p in again.outputs]
    for name in ("y", "second", "x"):
        assert ours.outputs.index(ours.output(name)) == again.outputs.index(again.output(name))


# ---- attributes and op types


@pytest.mark.parametrize("text", ["true", "True", "1", "false", "False", "0", "on", "yes", "off", "", " true", "2"])
def test_booleans(text: str) -> None:
    """Booleans are read as openvino reads them; any other text means the default."""
    net = Net()
    boxes, scores = net.parameter("f32", (1, 4, 4)), net.parameter("f32", (1, 2, 4))
    net.result(net.layer("MatMul", "opset1", [boxes, boxes], {"transpose_a": text}, name="no"))
    net.result(net.layer("NonMaxSuppression", "opset4", [boxes, scores], {"sort_result_descending": text}, name="yes"))
    found, (xml, weights) = read_model(*net.build()), net.build()
    theirs = {n.get_friendly_name(): n.get_attributes() for n in ov.Core().read_model(xml, weights).get_ops()}
    assert op(found, "no").transpose_a is theirs["no"]["transpose_a"]
    assert op(found, "yes").sort_result_descending is theirs["yes"]["sort_result_descending"]


@pytest.mark.parametrize(
    "name, found",
    [("ReLU", "Relu"), ("SoftMax", "Softmax"), ("Relu", "Relu"), ("softmax", "Softmax"), ("PReLU", "PRelu")],
)
def test_alternative_op_names(name: str, found: str) -> None:
    net = Net()
    x = net.parameter("f32", (2, 3))
    inputs = [x, net.const(np.ones(3, np.float32))] if found == "PRelu" else [x]
    net.result(net.layer(name, "opset1", inputs, name="n"))
    assert op(read_model(*net.build()), "n").name == found


def test_unknown_attributes_are_stored_separately() -> None:
    net = Net()
    net.result(net.layer("Relu", "opset1", [net.parameter("f32", (2,))], {"later": "7"}, name="n"))
    model = read_model(*net.build())
    assert op(model, "n").attributes() == {}
    assert next(n for n in model.ops if n.friendly_name == "n").extra == {"later": "7"}


def test_newest_version_that_is_not_newer() -> None:
    net = Net()
    x = net.parameter("f32", (2, 3))
    for version in ("opset1", "opset7", "opset8", "opset13"):
        net.result(net.layer("Softmax", version, [x], {"axis": "1"}, name=version))
    model = read_model(*net.build())
    found = {v: op(model, v).version for v in ("opset1", "opset7", "opset8", "opset13")}
    assert found == {"opset1": "opset1", "opset7": "opset1", "opset8": "opset8", "opset13": "opset8"}


def test_unsupported_ops_are_read_and_all_reported() -> None:
    net = Net()
    x = net.parameter("f32", (2, -1))
    a = net.layer("Quux", "opset1", [x], {"depth": 3}, outputs=["i32", "f16"], name="first")
    b = net.layer("Quux", "opset1", [a[1]], name="second")
    c = net.layer("Frob", "mine", [b, a[0]], name="third")
    net.result(c)
    model = read_model(*net.build())
    assert [n.get_type_name() for n in model.get_ops()] == ["Parameter", "Quux", "Quux", "Frob", "Result"]
    first = next(n for n in model.ops if n.friendly_name == "first")
    assert [p.element_type for p in first.ports] == [Type.i32, Type.f16]
    assert first.get_attributes() == {"depth": "3"}
    with pytest.raises(UnsupportedOpError) as error:
        require_supported(model)
    for word in ("Quux of opset1", "'first'", "'second'", "Frob of mine", "'third'"):
        assert word in str(error.value)


def test_unsupported_op_in_a_body_is_reported() -> None:
    body = Net()
    inner = body.parameter("f32", (1,))
    out = body.result(body.layer("Quux", "opset1", [inner], name="inside"))
    net = Net()
    net.result(net.tensor_iterator(body, [feed(net.parameter("f32", (4,)), inner, axis=0)], [take(out)]))
    with pytest.raises(UnsupportedOpError, match="inside"):
        require_supported(read_model(*net.build()))


def test_attribute_errors_name_op_layer_and_file(tmp_path: Path) -> None:
    net = Net()
    net.result(net.layer("Softmax", "opset1", [net.parameter("f32", (2,))], {"axis": "many"}, name="sm"))
    (tmp_path / "m.xml").write_bytes(net.build()[0])
    with pytest.raises(OpError, match=r"^\[Softmax\] attribute 'axis': .*\(layer 'sm', id 1, m\.xml\)$"):
        read_model(tmp_path / "m.xml")


def test_inference_errors_name_op_layer_and_file() -> None:
    net = Net()
    inputs = [net.parameter("f32", (2,)), net.parameter("f32", (3,))]
    net.result(net.layer("Add", "opset1", inputs, name="sum"))
    with pytest.raises(OpError, match=r"^\[Add\] .*\(layer 'sum', id 2\)$"):
        read_model(*net.build())


# ---- runtime information


def test_runtime_information(tmp_path: Path) -> None:
    x = ops.parameter([2, 3], np.float32, name="x")
    y = ops.relu(x)
    y.rt_info["user_data_mine"] = "7"
    y.output(0).rt_info["user_dataport"] = "8"
    y.input(0).rt_info["user_datain"] = "9"
    x.set_layout(ov.Layout("NC"))
    last = ops.result(y)
    last.set_layout(ov.Layout("N..."))
    theirs = ov.Model([last], [x], "m")
    theirs.set_rt_info("v", ["a", "b"])
    theirs.set_rt_info(True, "flag")
    theirs.set_rt_info([1, 2], "bad name")
    ov.serialize(theirs, tmp_path / "m.xml")
    ours = read_model(tmp_path / "m.xml")
    node = ours.ops[1]
    assert node.rt_info["user_data_mine"] == "7"
    assert node.output(0).rt_info["user_dataport"] == ours.output().rt_info["user_dataport"] == "8"
    assert node.input(0).rt_info["user_datain"] == "9"
    assert ours.parameters[0].layout == Layout("NC") and ours.results[0].layout == Layout("N...")
    again = ov.Core().read_model(tmp_path / "m.xml")
    for path in (["a", "b"], "flag", "bad name"):
        assert ours.get_rt_info(path).value == again.get_rt_info(path).value
    assert ours.get_rt_info("flag").astype(bool) is True


def test_meta_data_of_old_files() -> None:
    rest = (
        '<meta_data><MO_version value="2021.4"/>'
        '<cli_parameters><input value="x"/><unset unset_cli_parameters="a, b"/></cli_parameters>'
        "</meta_data>"
        '<quantization_parameters><accuracy value="0.5"/></quantization_parameters>'
    )
    text = document(
        parameter(0, '<data shape="2" element_type="f32"/>') + result(1),
        edge(0, 0, 1, 0),
        'name="m" version="10"',
        rest,
    )
    ours, theirs = read_model(text), ov.Core().read_model(text.encode())
    for path in (
        "MO_version",
        ["conversion_parameters", "input"],
        ["conversion_parameters", "unset"],
        ["optimization", "accuracy"],
    ):
        assert ours.get_rt_info(path).value == theirs.get_rt_info(path).value


@pytest.mark.parametrize(
    "config",
    [
        "abc",
        '{\n    "compression": {\n        "algorithms": []\n    }\n}',
        "{'a':\t1,  'b': \"x &lt; y\"}",
        "  padded  ",
    ],
)
def test_settings_of_pot(config: str, tmp_path: Path) -> None:
    """The settings of POT are runtime information of the model, and stay there when it is saved."""
    rest = f'<quantization_parameters><config>{config}</config><version value="1"/></quantization_parameters>'
    layers = parameter(0, '<data shape="2" element_type="f32"/>') + result(1)
    text = document(layers, edge(0, 0, 1, 0), 'name="m" version="11"', rest)
    ours, theirs = read_model(text), ov.Core().read_model(text.encode())
    expected = theirs.get_rt_info(["optimization"]).value
    assert ours.get_rt_info(["optimization"]).value == expected
    ovgpu.save_model(ours, tmp_path / "m.xml")
    assert ovgpu.Core().read_model(tmp_path / "m.xml").get_rt_info(["optimization"]).value == expected
    assert ov.Core().read_model(tmp_path / "m.xml").get_rt_info(["optimization", "config"]).value == expected["config"]


@pytest.mark.parametrize("version", ["opset18", "opset99", "opset01", "opset", "extension", "Opset8"])
@pytest.mark.parametrize("op", ["Relu", "Softmax"])
def test_unknown_opsets(op: str, version: str) -> None:
    """Nobody guesses the meaning of a known type in an unknown opset."""
    net = Net()
    net.result(net.layer(op, version, [net.parameter("f32", (2, 3))], {"axis": 1} if op == "Softmax" else {}))
    with pytest.raises(RuntimeError, match="unsupported opset"):
        ov.Core().read_model(*net.build())
    model = ovgpu.Core().read_model(*net.build())
    with pytest.raises(ovgpu.UnsupportedOpError, match=rf"{op} of {version} \(.*ovgpu knows opset1 to opset17"):
        ovgpu.Core().compile_model(model, "CPU")


# ---- weights


def constant_net(values: np.ndarray[Any, Any], type: str | None = None) -> tuple[bytes, bytes]:
    net = Net()
    net.const(np.zeros(1, np.uint8), name="pad")
    net.result(net.const(values, type, name="w"))
    net.result(net.layer("Relu", "opset1", [net.parameter("f32", (1,))]))
    return net.build()


def test_constants_are_views_of_the_file(tmp_path: Path) -> None:
    values = np.arange(1000, dtype=np.float32)
    xml, weights = constant_net(values)
    (tmp_path / "m.xml").write_bytes(xml)
    (tmp_path / "m.bin").write_bytes(weights)
    value = op(read_model(tmp_path / "m.xml"), "w").value
    np.testing.assert_array_equal(value, values)
    assert not value.flags.owndata and not value.flags.writeable and not value.flags.aligned


@pytest.mark.parametrize(
    "wrap",
    [
        bytes,
        bytearray,
        memoryview,
        lambda b: np.frombuffer(b, np.uint8),
        lambda b: ov.Tensor(np.frombuffer(b, np.uint8)),
    ],
    ids=["bytes", "bytearray", "memoryview", "array", "tensor"],
)
@pytest.mark.parametrize("text", [bytes, bytes.decode, bytearray], ids=["bytes", "str", "bytearray"])
def test_model_and_weights_in_memory(wrap: Callable[[bytes], Any], text: Callable[[bytes], Any]) -> None:
    values = np.arange(6, dtype=np.int32).reshape(2, 3)
    xml, weights = constant_net(values)
    np.testing.assert_array_equal(op(read_model(text(xml), wrap(weights)), "w").value, values)


@pytest.mark.parametrize("kind", [str, Path, lambda p: str(p).encode()], ids=["str", "Path", "bytes"])
def test_paths(kind: Callable[[Path], Any], tmp_path: Path) -> None:
    xml, weights = constant_net(np.arange(3))
    (tmp_path / "a.xml").write_bytes(xml)
    (tmp_path / "a.bin").write_bytes(weights)
    (tmp_path / "other.bin").write_bytes(weights.replace(b"\2", b"\5"))
    assert op(read_model(kind(tmp_path / "a.xml")), "w").value.tolist() == [0, 1, 2]
    other = read_model(kind(tmp_path / "a.xml"), str(tmp_path / "other.bin"))
    assert op(other, "w").value.tolist() == [0, 1, 5]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings_are_those_that_openvino_reads(encoding: str, tmp_path: Path) -> None:
    net = Net("größe")
    net.result(net.layer("Relu", "opset1", [net.parameter("f32", (2,), "größe")]))
    text = net.build()[0].decode()
    (tmp_path / "m.xml").write_bytes(text.encode(encoding))
    (tmp_path / "m.bin").touch()
    theirs = ov.Core().read_model(tmp_path / "m.xml")
    for model in (read_model(tmp_path / "m.xml"), read_model(text.encode(encoding))):
        assert model.friendly_name == theirs.friendly_name == "größe"
        assert [node.friendly_name for node in model.ops] == [n.friendly_name for n in theirs.get_ordered_ops()]


@pytest.mark.parametrize("start", ["\n" * 100, " \t\r\n", "\ufeff\n"], ids=["long", "kinds", "bom"])
def test_space_before_the_root_element(start: str, tmp_path: Path) -> None:
    net = Net("m")
    net.result(net.parameter("f32", (2,)))
    xml = net.build()[0].decode()
    text = start + xml[xml.index("<net") :]
    (tmp_path / "m.xml").write_text(text)
    (tmp_path / "m.bin").touch()
    assert ov.Core().read_model(tmp_path / "m.xml").friendly_name == "m"
    for given in (tmp_path / "m.xml", text, text.encode()):
        assert read_model(given).friendly_name == "m"


def test_folders(tmp_path: Path) -> None:
    """The model of a folder is its openvino_model.xml, or its only .xml file."""
    for name in ("one", "openvino_model", "two"):
        net = Net(name)
        net.result(net.layer("Add", "opset1", [net.parameter("f32", (1,)), net.const(np.ones(1, np.float32))]))
        xml, weights = net.build()
        (tmp_path / f"{name}.xml").write_bytes(xml)
        (tmp_path / f"{name}.bin").write_bytes(weights)
        model = read_model(str(tmp_path))
        assert model.friendly_name == ("one" if name == "one" else "openvino_model")


def test_a_model_without_constants_needs_no_weights(tmp_path: Path) -> None:
    net = Net()
    net.result(net.layer("Relu", "opset1", [net.parameter("f32", (2,))]))
    (tmp_path / "m.xml").write_bytes(net.build()[0])
    assert len(read_model(tmp_path / "m.xml").ops) == 3


@pytest.mark.parametrize("type, size", [("f32", 4), ("i4", 0.5), ("u1", 0.125)])
def test_reading_is_fast_whatever_the_size(type: str, size: float, tmp_path: Path) -> None:
    count = int(500_000_000 / size)
    constant = (
        '<layer id="0" name="w" type="Const" version="opset1">'
        f'<data element_type="{type}" shape="{count}" offset="0" size="500000000"/>'
        f'<output><port id="0" precision="{type}"/></output></layer>'
    )
    (tmp_path / "m.xml").write_text(document(constant + result(1), edge(0, 0, 1, 0)))
    with (tmp_path / "m.bin").open("wb") as file:
        file.truncate(500_000_000)
    start = time.perf_counter()
    model = read_model(tmp_path / "m.xml")
    assert time.perf_counter() - start < 0.1
    assert model.output().shape == [count]


def test_a_long_chain() -> None:
    net = Net()
    x = net.parameter("f32", (2,))
    for _ in range(10_000):
        x = net.layer("Relu", "opset1", [x])
    net.result(x)
    assert len(read_private(net).ops) == 10_002


# ---- bodies


def test_tensor_iterator(tmp_path: Path) -> None:
    """A TensorIterator that openvino wrote is read with its port maps, back edges and body."""
    x, h, w = (ops.parameter(s, np.float32) for s in ([1, 4, 3], [1, 3], [1, 3]))
    bx, bh, bw = (ops.parameter(s, np.float32) for s in ([1, 1, 3], [1, 3], [1, 3]))
    step = ops.multiply(ops.add(ops.squeeze(bx, ops.constant([1])), bh), bw)
    last, every = ops.result(step), ops.result(ops.unsqueeze(step, ops.constant([1])))
    loop = ops.tensor_iterator()
    loop.set_body(ov.Model([last, every], [bw, bx, bh], "body"))
    loop.set_sliced_input(bx, x.output(0), -1, -1, 1, 0, 1)
    loop.set_merged_input(bh, h.output(0), last.output(0))
    loop.set_invariant_input(bw, w.output(0))
    ends = [loop.get_iter_value(last.output(0), -1), loop.get_concatenated_slices(every.output(0), 0, 1, 1, -1, 1)]
    ov.serialize(ov.Model([ops.result(e) for e in ends], [x, h, w], "m"), tmp_path / "m.xml")
    model = read_model(tmp_path / "m.xml")
    node = next(n for n in model.ops if n.op.name == "TensorIterator")
    assert node.op.inputs == (InputMap(0, 1, 1, -1, 0, -1, 1), InputMap(1, 2), InputMap(2, 0))
    assert node.op.outputs == (OutputMap(0, 0), OutputMap(1, 1, 1, 0, -1, 1, 1))
    assert node.op.back_edges == (BackEdge(0, 2),)
    assert [p.shape for p in model.outputs] == [[1, 3], [1, 4, 3]]
    assert node.op.body.source == "m.xml"


def test_an_input_sliced_and_invariant() -> None:
    body = Net()
    part, whole = body.parameter("f32", (1, 3)), body.parameter("f32", (4, 3))
    out = body.result(body.layer("Add", "opset1", [part, whole]))
    net = Net()
    net.result(net.tensor_iterator(body, [feed(net.parameter("f32", (4, 3)), part, axis=0)], [take(out)]))
    xml, weights = net.build()
    entry = b'<input external_port_id="0" internal_layer_id="1" />'
    xml = xml.replace(b"</port_map>", entry + b"</port_map>")
    loop = next(n for n in read_model(xml, weights).ops if n.op.name == "TensorIterator").op
    assert loop.inputs == (InputMap(0, 0, 0), InputMap(0, 1))


def test_loop(tmp_path: Path) -> None:
    x, h = ops.parameter([1, 4, 3], np.float32, name="x"), ops.parameter([1, 3], np.float32, name="h")
    count, bx, bh = (
        ops.parameter([], np.int64),
        ops.parameter([1, 1, 3], np.float32),
        ops.parameter([1, 3], np.float32),
    )
    step = ops.add(ops.add(ops.squeeze(bx, ops.constant([1])), bh), ops.convert(count, np.float32))
    going, last = ops.result(ops.constant(True)), ops.result(step)
    loop = ops.loop(ops.constant(4), ops.constant(True))
    loop.set_function(ov.Model([last, going], [bx, count, bh], "body"))
    loop.set_special_body_ports([1, 1])
    loop.set_sliced_input(bx, x.output(0), 0, 1, 1, -1, 1)
    loop.set_merged_input(bh, h.output(0), last.output(0))
    end = ops.result(loop.get_iter_value(last.output(0), -1))
    ov.serialize(ov.Model([end], [x, h], "m"), tmp_path / "m.xml")
    found = next(n for n in read_model(tmp_path / "m.xml").ops if n.op.name == "Loop").op
    assert found.inputs == (InputMap(2, 0, 1), InputMap(3, 2))
    assert (found.current_iteration, found.condition) == (1, 1)
    assert found.outputs == (OutputMap(0, 0),) and found.back_edges == (BackEdge(0, 2),)


def test_if(tmp_path: Path) -> None:
    c = ops.parameter([], bool)
    x, y, tx, ty, ex = (ops.parameter([2, 3], np.float32) for _ in range(5))
    then = ov.Model([ops.result(ops.add(tx, ty)), ops.result(tx)], [ty, tx], "then")
    other = ov.Model([ops.result(ex), ops.result(ops.relu(ex))], [ex], "else")
    node = ops.if_op(c)
    node.set_then_body(then)
    node.set_else_body(other)
    node.set_input(x.output(0), tx, ex)
    node.set_input(y.output(0), ty, None)
    ends = [node.set_output(then.results[0], other.results[1]), node.set_output(then.results[1], other.results[0])]
    ov.serialize(ov.Model([ops.result(e) for e in ends], [c, x, y], "m"), tmp_path / "m.xml")
    found = next(n for n in read_model(tmp_path / "m.xml").ops if n.op.name == "If").op
    assert found.then_inputs == (InputMap(1, 1), InputMap(2, 0)) and found.else_inputs == (InputMap(1, 0),)
    assert found.then_outputs == (OutputMap(0, 0), OutputMap(1, 1))
    assert found.else_outputs == (OutputMap(0, 1), OutputMap(1, 0))


# ---- state


def state_net(variables: list[tuple[str, str]]) -> Net:
    """Build a chain of (kind, variable) with kind "read" or "assign"."""
    net = Net()
    x = net.parameter("f32", (2,))
    for kind, variable in variables:
        x = net.read_value(variable, "f32", (2,), x) if kind == "read" else net.assign(variable, x)
    net.result(x)
    return net


@pytest.mark.parametrize(
    "variables",
    [
        [("read", "a"), ("assign", "a")],
        [("read", "a")],
        [("read", "a"), ("read", "b"), ("assign", "a"), ("assign", "b")],
    ],
)
def test_variables(variables: list[tuple[str, str]]) -> None:
    model = read_model(*state_net(variables).build())
    assert [v.variable_id for v in model.get_variables()] == sorted({name for _, name in variables})
    assert len(model.get_sinks()) == sum(kind == "assign" for kind, _ in variables)


def test_read_value_of_version_3() -> None:
    net = Net()
    read = net.read_value("a", "f32", init=net.parameter("f32", (2, -1)), version="opset3")
    net.assign("a", net.layer("Relu", "opset1", [read]), version="opset3")
    net.result(read)
    model = read_model(*net.build())
    assert str(model.output().partial_shape) == "[2,?]"
    assert [n.op.version for n in model.ops if n.op.name in ("ReadValue", "Assign")] == ["opset3", "opset3"]
