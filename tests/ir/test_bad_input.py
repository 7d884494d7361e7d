"""Malformed files fail fast, with one clear error that names the fault and its location."""

from __future__ import annotations

import os
import random
import re
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ovgpu
from ovgpu._util import openvino_package
from ovgpu.errors import Error, ModelError, OpError
from ovgpu.ir import _files, read_model
from tests.fuzz import documents
from tests.harness.ir import Net, feed, take
from tests.harness.private import private, private_opsets

DATA = Path(__file__).parents[1] / "models" / "data"


def simple() -> tuple[str, bytes]:
    net = Net("simple")
    x = net.parameter("f32", (2, 3), "x")
    w = net.const(np.arange(6, dtype=np.float32).reshape(2, 3), name="w")
    net.result(net.layer("Add", "opset1", [x, w], name="sum"), name="out")
    xml, weights = net.build()
    return xml.decode(), weights


def iterator() -> tuple[str, bytes]:
    body = Net()
    part, state = body.parameter("f32", (1, 3)), body.parameter("f32", (1, 3))
    out = body.result(body.layer("Add", "opset1", [part, state], name="inside"))
    net = Net("iterating")
    x, start = net.parameter("f32", (4, 3)), net.parameter("f32", (1, 3))
    ends = net.tensor_iterator(
        body,
        [feed(x, part, axis=0), feed(start, state)],
        [take(out), take(out, axis=0)],
        back_edges=[(out, state)],
        name="ti",
    )
    for end in ends:
        net.result(end)
    xml, weights = net.build()
    return xml.decode(), weights


XML, WEIGHTS = simple()
LOOP, LOOP_WEIGHTS = iterator()


def fails(xml: str | bytes, message: str, weights: bytes | None = WEIGHTS) -> None:
    with pytest.raises(Error, match=message):
        read(xml, weights)


def read(xml: str | bytes, weights: bytes | None) -> None:
    """Read a file that must not reach OpenVINO, which does not survive all of them."""
    xml = private(xml if isinstance(xml, bytes) else xml.encode())
    with private_opsets(xml):
        read_model(xml, weights)


def changed(old: str, new: str, xml: str = XML) -> str:
    assert old in xml, xml
    return xml.replace(old, new, 1)


# ---- documents


@pytest.mark.parametrize(
    "xml, message",
    [
        ("<", "XML is malformed"),
        ("<net", "XML is malformed"),
        (XML[: len(XML) // 2], "XML is malformed"),
        (XML + "<net/>", "XML is malformed"),
        ("<net version='11'/>", "no <layers>"),
        ("<html/>", "<html>, not <net>"),
        (changed("<layers>", "<layers>\0"), "XML is malformed"),
        (changed("<?xml", "  <?xml"), "XML is malformed"),
        (changed("</edges>", ""), "XML is malformed"),
    ],
)
def test_documents(xml: str, message: str) -> None:
    fails(xml, message)


@pytest.mark.parametrize("version", ["9", "7", "12", "99", "", "x", "11.0"])
def test_ir_versions(version: str) -> None:
    fails(
        changed('version="11"', f'version="{version}"'),
        "IR version .* is not supported: only 10 and 11 are; export the original model again",
    )


def test_no_ir_version() -> None:
    fails(changed(' version="11"', ""), "IR version missing is not supported")


@pytest.mark.parametrize(
    "declaration",
    [
        '<!DOCTYPE net [<!ENTITY e SYSTEM "file:///etc/hostname">]>',
        '<!DOCTYPE net [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>',
        '<!DOCTYPE net SYSTEM "http://localhost:1/x.dtd">',
        "<!DOCTYPE net>",
    ],
)
def test_document_types_are_refused(declaration: str) -> None:
    fails(changed("<net", declaration + "<net"), "document type declaration, which is not allowed")


def test_a_billion_laughs() -> None:
    entities = '<!ENTITY a0 "ha">' + "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 12))
    start = time.perf_counter()
    fails(changed("<net", f"<!DOCTYPE net [{entities}]><net").replace('"simple"', '"&a11;"'), "not allowed")
    assert time.perf_counter() - start < 0.5


def test_other_encodings_hide_nothing() -> None:
    hidden = changed("<net", "<!DOCTYPE net [<!ENTITY e 'x'>]><net").encode("utf-16")
    fails(hidden, "document type declaration, which is not allowed")


def test_depth_is_bounded() -> None:
    fails("<net version='11'><layers>" + "<layer>" * 100_000, "malformed")
    deep = '<net version="11"><layers>'
    for _ in range(300):
        deep += '<layer id="0" name="t" type="TensorIterator" version="opset1"><body><layers>'
    fails(deep, "malformed")


# ---- layers, ports, edges


@pytest.mark.parametrize("attribute", ["id", "type", "version"])
def test_missing_attributes_of_layers(attribute: str) -> None:
    layer = re.search('<layer id="2"[^>]*>', XML)
    assert layer is not None
    broken = re.sub(f' {attribute}="[^"]*"', "", layer[0])
    fails(changed(layer[0], broken), f"attribute '{attribute}' of the layer is missing.*'sum'")


@pytest.mark.parametrize(
    "xml, message",
    [
        (changed('<layer id="1" name="w"', '<layer id="0" name="w"'), r"\[Const\] layer 'x' has the same id"),
        (changed('from-layer="0"', 'from-layer="7"'), "from layer 7 to layer 2, but there is no layer 7"),
        (changed('to-layer="3"', 'to-layer="9"'), "from layer 2 to layer 9, but there is no layer 9"),
        (changed('from-layer="0" from-port="0"', 'from-layer="0" from-port="5"'), r"\[Parameter\] .*output port 5"),
        (changed('to-layer="2" to-port="1"', 'to-layer="2" to-port="4"'), r"\[Add\] .*input port 4.*'sum', id 2"),
        (changed('to-layer="2" to-port="1"', 'to-layer="2" to-port="0"'), r"\[Add\] two edges lead to input port 0"),
        (changed('from-port="0"', ""), "an edge lacks"),
        (re.sub('<edge from-layer="0"[^>]*>', "", XML), r"\[Add\] input 0 is not connected"),
        (re.sub('<edge from-layer="2"[^>]*>', "", XML), r"\[Result\] input 0 is not connected"),
        (changed('<port id="1" precision="FP32"', '<port id="0" precision="FP32"'), "two ports have id 0"),
        (changed('<port id="0" precision="FP32"/>', '<port precision="FP32"/>'), "a port has no id"),
        (
            changed('to-layer="2" to-port="0"', 'to-layer="2" to-port="0"').replace(
                'from-layer="0" from-port="0"', 'from-layer="2" from-port="2"'
            ),
            "cycle through 'sum'",
        ),
        (
            changed(
                '<port id="2" precision="FP32"/>', '<port id="2" precision="FP32"/><port id="3" precision="FP32"/>'
            ),
            r"\[Add\] the layer declares 2 outputs, the operation has 1",
        ),
    ],
)
def test_structure(xml: str, message: str) -> None:
    fails(xml, message)


def test_a_long_cycle() -> None:
    net = Net()
    x = first = net.layer("Relu", "opset1", [net.parameter("f32", (2,))])
    for _ in range(5_000):
        x = net.layer("Relu", "opset1", [x])
    net.result(x)
    xml = net.build()[0].decode()
    start = time.perf_counter()
    fails(
        changed(
            f'from-layer="0" from-port="0" to-layer="{first.layer}"',
            f'from-layer="{x.layer}" from-port="1" to-layer="{first.layer}"',
            xml,
        ),
        "cycle",
    )
    assert time.perf_counter() - start < 5


# ---- attributes


@pytest.mark.parametrize(
    "old, new, message",
    [
        (
            'shape="2,3" element_type="f32"',
            'element_type="f32"',
            None,
        ),  # the port has no dims either, so it is a scalar
        ('shape="2,3" element_type="f32"', 'shape="2,x" element_type="f32"', r"\[Parameter\] attribute 'shape'"),
        ('shape="2,3" element_type="f32"', 'shape="2,-3" element_type="f32"', r"\[Parameter\] attribute 'shape'"),
        ('shape="2,3" element_type="f32"', f'shape="{10**30},3" element_type="f32"', r"\[Parameter\] .*64 bits"),
        ('shape="2,3" element_type="f32"', 'shape="2,,3" element_type="f32"', r"\[Parameter\] attribute 'shape'"),
        ('shape="2,3" element_type="f32"', 'shape="2,3" element_type="f31"', r"\[Parameter\] .*'f31'"),
        ('shape="2,3" element_type="f32"', 'shape="5..2,3" element_type="f32"', r"\[Parameter\] attribute 'shape'"),
    ],
)
def test_parameters(old: str, new: str, message: str | None) -> None:
    if message is None:
        assert read_model(changed(old, new), WEIGHTS).input().shape == []
    else:
        fails(changed(old, new), message)


@pytest.mark.parametrize(
    "attributes, message",
    [
        ({"offset": "-1"}, "offset -1 and size 24 must not be negative"),
        ({"offset": "1"}, "takes bytes 1 to 25 of the weights, which has 24 bytes"),
        ({"offset": str(2**64 - 8)}, "of the weights, which has 24 bytes"),
        ({"offset": str(10**30)}, "not an integer"),
        ({"offset": "x"}, "'x' is not an integer"),
        ({"size": ""}, "'' is not an integer"),
        ({"size": "20"}, "takes 24 bytes, not 20"),
        ({"size": "28"}, "takes bytes 0 to 28 of the weights, which has 24 bytes"),
        ({"size": "-24"}, "must not be negative"),
        ({"shape": "2,4"}, "takes 32 bytes, not 24"),
        ({"shape": "-2,3"}, "negative extent"),
        ({"shape": "4294967296,4294967296,4294967296"}, "takes .* bytes, not 24"),
        ({"shape": ",".join(["1"] * 70 + ["2", "3"])}, "at most 64 dimensions"),
        ({"shape": "?,3"}, r"'\?' is not an integer"),
        ({"element_type": "f64"}, "takes 48 bytes"),
        ({"element_type": "float"}, "'float' is not an element type"),
        ({"element_type": "dynamic"}, "dynamic element type"),
        ({"element_type": "string"}, "string"),
    ],
)
def test_constants(attributes: dict[str, str], message: str) -> None:
    data = re.search("<data [^>]*offset[^>]*>", XML)
    assert data is not None
    broken = data[0]
    for name, value in attributes.items():
        broken = re.sub(f'{name}="[^"]*"', f'{name}="{value}"', broken)
    fails(changed(data[0], broken), rf"^\[Const\] .*{message}.*\(layer 'w', id 1\)$")


@pytest.mark.parametrize("missing", ["offset", "size"])
def test_constants_without(missing: str) -> None:
    fails(re.sub(f' {missing}="[^"]*"', "", XML), rf"\[Const\] attribute '{missing}' is missing")


def test_zero_extents_do_not_hide_an_overflow() -> None:
    data = re.search("<data [^>]*offset[^>]*>", XML)
    assert data is not None
    absurd = f'<data shape="0,{2**62}" element_type="f32" offset="0" size="0"/>'
    fails(changed(data[0], absurd), r"^\[Const\] .*too big.*\(layer 'w', id 1\)$")


# ---- weights


def test_weights_are_missing(tmp_path: Path) -> None:
    fails(XML, r"\[Const\] the model has constants, but no weights were given", None)
    (tmp_path / "m.xml").write_text(XML)
    with pytest.raises(Error, match=r"\[Const\] the weights cannot be read: .*m\.bin: No such file.*m\.xml\)"):
        read_model(tmp_path / "m.xml")
    (tmp_path / "m.bin").mkdir()
    with pytest.raises(Error, match="cannot be read"):
        read_model(tmp_path / "m.xml")


@pytest.mark.parametrize("size", [0, 1, 23])
def test_weights_are_short(size: int, tmp_path: Path) -> None:
    (tmp_path / "m.xml").write_text(XML)
    (tmp_path / "m.bin").write_bytes(WEIGHTS[:size])
    with pytest.raises(Error, match=rf"\[Const\] it takes bytes 0 to 24 of m\.bin, which has {size} bytes .*m\.xml"):
        read_model(tmp_path / "m.xml")


def test_weights_of_the_wrong_kind() -> None:
    with pytest.raises(Error, match="weights must be bytes, an array or a tensor, not int"):
        read_model(XML, 3)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\2\0\0\0",
        b"\2\0\0\0" + b"\0" * 8,
        np.array([2, 0, 9, 1], "i4").tobytes(),
        np.array([2, 0, -1, 1], "i4").tobytes() + b"abc",
        np.array([3, 0, 1, 2, 3], "i4").tobytes() + b"abc",
        np.array([-1, 0, 1, 2], "i4").tobytes() + b"abc",
        np.array([2**31 - 1, 0, 1, 2], "i4").tobytes() + b"abc",
    ],
)
def test_strings(raw: bytes) -> None:
    net = Net()
    net.result(net.raw_const(raw, "string", (2,), name="s"))
    with pytest.raises(Error, match=r"^\[Const\] .*'s'"):
        read_model(*net.build())


# ---- files


def test_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot be read: .*none\.xml: No such file"):
        read_model(tmp_path / "none.xml")
    with pytest.raises(ModelError, match="cannot be read: its path is empty"):
        read_model("")
    with pytest.raises(ModelError, match="cannot be read"):
        read_model("no\0name.xml")


@pytest.mark.parametrize(
    "name, contents, message",
    [
        (
            "model.py",
            b"import os\nprint(1)\n",
            r"model\.py is no OpenVINO IR, .* begins with '<': .* b'import os\\nprint",
        ),
        ("m.xml", b"\x7fELF\0\0", r"m\.xml is no OpenVINO IR, .* it begins with b'\\x7fELF\\x00\\x00'$"),
        ("m.xml", b"", r"m\.xml is no OpenVINO IR, .*: it is empty$"),
        ("m.xml", b" \n", r"m\.xml is no OpenVINO IR, .*: it is empty$"),
        ("m.bin", b"\0" * 8, r"m\.bin is no OpenVINO IR, .*: it has the weights$"),
        ("m.xml", b"version https://git-lfs.github.com/spec/v1\nsize 3\n", "`git lfs pull` fetches the file itself$"),
        ("m.xml", b"<\0n\0e", r"m\.xml is malformed: it begins as UTF-16, but .* truncated data"),
    ],
)
def test_files_of_other_kinds(name: str, contents: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(contents)
    with pytest.raises(ModelError, match=message):
        read_model(tmp_path / name)


def test_weights_of_other_kinds(tmp_path: Path) -> None:
    (tmp_path / "m.xml").write_text(XML)
    (tmp_path / "m.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\nsize 24\n")
    with pytest.raises(ModelError, match=r"^m\.bin is a pointer of Git LFS: `git lfs pull` fetches the file itself$"):
        read_model(tmp_path / "m.xml")
    os.mkfifo(tmp_path / "pipe")  # opening a pipe would block
    with pytest.raises(OpError, match=r"cannot be read: .*pipe: it is not a regular file \(layer 'w'"):
        read_model(tmp_path / "m.xml", tmp_path / "pipe")


def test_files_above_the_size_limit_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_files, "MAX_BYTES", 100)
    with pytest.raises(ModelError, match=r"zero is no OpenVINO IR, .*: it begins with b'\\x00\\x00"):
        read_model("/dev/zero")


def test_folders_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"the folder .* has no \.xml file: read_model takes the path of the \.xml "):
        read_model(tmp_path)
    for name in "fbadgce":
        (tmp_path / f"{name}.xml").write_text(XML)
    with pytest.raises(ModelError, match=r"several \.xml files \(a\.xml, b\.xml, c\.xml, d\.xml, e\.xml, \.\.\.\): "):
        read_model(tmp_path)


@pytest.mark.parametrize("name", ["m.onnx", "m.pdmodel", "m.tflite", "m.pb"])
def test_other_formats(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=f"openvino cannot read {name}: "):
        ovgpu.read_model(name)
    monkeypatch.setattr(openvino_package, "package", lambda: None)
    with pytest.raises(ModelError, match=rf"{name} is no OpenVINO IR; .*: {re.escape(openvino_package.HINT)}"):
        ovgpu.read_model(name)


def test_objects_that_are_no_models() -> None:
    with pytest.raises(TypeError, match="a model is a path, or XML as str or bytes, not int"):
        read_model(3)  # type: ignore[arg-type]


# ---- bodies


@pytest.mark.parametrize(
    "old, new, message",
    [
        ('external_port_id="0"', 'external_port_id="9"', "external_port_id 9 in <port_map> is no input port"),
        ('external_port_id="3"', 'external_port_id="9"', "external_port_id 9 in <port_map> is no output port"),
        ('external_port_id="3"', 'external_port_id="2"', "must give each of the 2 outputs once"),
        ('external_port_id="3"', 'external_port_id="-2"', "external_port_id -2 in <port_map> is no output port"),
        ('external_port_id="0" ', "", "has no 'external_port_id'"),
        ('external_port_id="0"', 'external_port_id="x"', "external_port_id='x', which is not an integer"),
        ('internal_layer_id="0"', 'internal_layer_id="2"', "internal_layer_id 2 in <port_map> is no Parameter"),
        ('internal_layer_id="0"', 'internal_layer_id="77"', "internal_layer_id 77 in <port_map> is no Parameter"),
        ('internal_layer_id="0"', 'internal_layer_id="1"', "Parameter 1 of the body is fed by 2 entries|no value"),
        ('internal_layer_id="3"', 'internal_layer_id="0"', "internal_layer_id 0 in <port_map> is no Result"),
        (' internal_layer_id="0"', "", "has no 'internal_layer_id'"),
        ('axis="0"', 'axis="x"', "axis='x', which is not an integer"),
        ('axis="0"', 'axis="7"', "axis 7"),
        ('axis="0"', 'axis="0" stride="0"', "stride must not be 0"),
        ('axis="0"', 'axis="0" part_size="0"', "part_size must be positive"),
        ('from-layer="3" to-layer="1"', 'from-layer="8" to-layer="1"', "from-layer 8 in <back_edges> is no Result"),
        ('from-layer="3" to-layer="1"', 'from-layer="0" to-layer="1"', "from-layer 0 in <back_edges> is no Result"),
        ('from-layer="3" to-layer="1"', 'from-layer="3" to-layer="2"', "to-layer 2 in <back_edges> is no Parameter"),
        ('from-layer="3" to-layer="1"', 'from-layer="3"', "has no 'to-layer'"),
    ],
)
def test_port_maps(old: str, new: str, message: str) -> None:
    fails(changed(old, new, LOOP), message, LOOP_WEIGHTS)


def test_bodies_are_missing() -> None:
    fails(re.sub("<body>.*</body>", "", LOOP, flags=re.S), r"\[TensorIterator\] there is no <body> .*'ti'", b"")
    fails(re.sub("<port_map>.*</port_map>", "", LOOP, flags=re.S), r"\[TensorIterator\] <port_map> must give", b"")


def test_errors_in_bodies_name_the_layer_inside() -> None:
    fails(changed('name="inside" type="Add"', 'name="inside" type="Gather"', LOOP), "'inside'", LOOP_WEIGHTS)


# ---- state


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda n, x: n.assign("a", x), r"\[Assign\] there is no ReadValue of variable 'a'"),
        (lambda n, x: n.assign("b", n.read_value("a", "f32", (2,), x)), r"\[Assign\] there is no ReadValue of .*'b'"),
        (
            lambda n, x: n.read_value("a", "f32", (2,), n.read_value("a", "f32", (2,), x)),
            r"\[ReadValue\] .*same variable",
        ),
        (
            lambda n, x: n.assign("a", n.assign("a", n.read_value("a", "f32", (2,), x))),
            r"\[Assign\] .*same variable 'a'",
        ),
        (lambda n, x: n.layer("ReadValue", "opset6", [x]), r"\[ReadValue\] attribute 'variable_id' is missing"),
        (lambda n, x: n.read_value("", "f32", (2,), x), r"\[ReadValue\] .*'variable_id' is empty"),
        (lambda n, x: n.read_value("a", "f32", (3,), x), r"\[ReadValue\] .*shape"),
        (lambda n, x: n.read_value("a", "i32", (2,), x), r"\[ReadValue\] .*type"),
        (lambda n, x: n.layer("Assign", "opset2", [x], {"variable_id": "a"}), r"\[Assign\] there is no such operation"),
    ],
)
def test_variables(build: Callable[[Net, object], object], message: str) -> None:
    net = Net()
    net.result(build(net, net.parameter("f32", (2,))))  # type: ignore[arg-type]
    fails(net.build()[0], message, b"")


# ---- random changes

FILES = [
    ((path / "model.xml").read_bytes(), (path / "model.bin").read_bytes())
    for path in sorted(DATA.iterdir())
    if (path / "model.xml").is_file() and (path / "model.xml").stat().st_size < 40_000
]
FILES += [(XML.encode(), WEIGHTS), (LOOP.encode(), LOOP_WEIGHTS)]


def tolerates(xml: bytes, weights: bytes) -> None:
    """Assert that the file is read, or refused with an error of ours, in little time and memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    try:
        read(xml, weights)
    except Error as e:
        assert str(e)
    assert time.perf_counter() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(range(len(FILES))), st.integers(0, 2**32))
def test_changed_structure(number: int, seed: int) -> None:
    xml, weights = FILES[number]
    tolerates(documents.structure(xml, random.Random(seed)), weights)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(range(len(FILES))), st.integers(0, 2**32))
def test_changed_text(number: int, seed: int) -> None:
    xml, weights = FILES[number]
    tolerates(documents.text(xml, random.Random(seed)), weights)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(range(len(FILES))), st.floats(0, 1))
def test_cut_weights(number: int, share: float) -> None:
    xml, weights = FILES[number]
    tolerates(xml, weights[: int(share * len(weights))])


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=200), st.binary(max_size=200)))
def test_any_text(text: str | bytes) -> None:
    with pytest.raises(Error):
        read_model(text)


def test_shape_arithmetic_of_absurd_size() -> None:
    """Shape inference does not compute large values: a Range of ten billion elements is not built."""
    net = Net()
    ends = [net.const(v, "i64") for v in (0, 10**10, 1)]
    values = net.layer("Range", "opset4", ends, {"output_type": "i64"}, outputs=["i64"])
    net.result(net.layer("Reshape", "opset1", [net.parameter("f32", (2,)), values], {"special_zero": False}))
    tolerates(*net.build())


@pytest.mark.parametrize("count", [10**9, 2**62])
def test_outputs_of_absurd_number(count: int) -> None:
    net = Net()
    x = net.parameter("f32", (-1, 3))
    net.result(net.layer("Split", "opset1", [x, net.const(0)], {"num_splits": count}))
    fails(net.build()[0], r"\[Split\] num_splits \d+ is larger than", net.build()[1])
    net = Net()
    lengths = net.layer("Range", "opset4", [net.const(v, "i64") for v in (0, count, 1)], {"output_type": "i64"})
    net.result(net.layer("VariadicSplit", "opset1", [net.parameter("f32", (-1, 3)), net.const(0), lengths]))
    fails(net.build()[0], r"\[VariadicSplit\] \d+ split lengths are more than", net.build()[1])


def test_attributes_that_are_no_numbers() -> None:
    net = Net()
    net.result(net.layer("Softmax", "opset1", [net.parameter("f32", (2,))], {"axis": "1" * 5000}, name="s"))
    with pytest.raises(OpError, match=r"\[Softmax\] attribute 'axis'"):
        read_model(*net.build())


@pytest.mark.parametrize(
    ("op", "version", "name", "text", "message"),
    [
        ("Softmax", "opset1", "axis", "1,2", "'1,2' is not an integer"),
        ("Softmax", "opset1", "axis", "0.5", "'0.5' is not an integer"),
        ("Softmax", "opset1", "axis", "1e30", "'1e30' is not an integer"),
        ("Softmax", "opset1", "axis", "", "'' is not an integer"),
        ("Elu", "opset1", "alpha", "1,2", "'1,2' is not a number"),
    ],
)
def test_attributes_of_one_number(op: str, version: str, name: str, text: str, message: str) -> None:
    net = Net()
    net.result(net.layer(op, version, [net.parameter("f32", (2, 3))], {name: text}, name="s"))
    with pytest.raises(OpError, match=rf"^\[{op}\] attribute '{name}': {message} \(layer 's', id 1\)$"):
        read_model(*net.build())
