"""Malformed requests: they are refused with the status of a wrong argument, whatever is wrong with them."""
from __future__ import annotations

import gzip
import http.client
import json
import re
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

import ovgpu as ov
from ovgpu.errors import Error
from ovgpu.serve.errors import MAX_BYTES, Status, public
from tests.batching.nets import sums
from tests.harness.ir import Net
from tests.harness.sweep import LIMITS
from tests.serve.serving import INTERFACES, SECONDS, Serving, serving, write
from tests.serve.test_inference import affine, echo
from tests.serve.test_predict import strings
from tests.serve.wire import JSON_INPUT, MIB, Answer, Input, Output, Wire, body, little_memory, message, set_parameters

MOST = 2**31 - 1


def reshape() -> ov.Model:
    """Reshape to a shape that is an input. It may not fit, which shows when the layer runs."""
    net = Net("reshape")
    x, shape = net.parameter("f32", (-1,), "x"), net.parameter("i64", (-1,), "shape")
    net.result(net.layer("Reshape", "opset1", [x, shape], {"special_zero": False}, names=["y"]))
    return ov.Core().read_model(*net.build())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("repository")
    for name, model in {"echo": echo("f32"), "affine": affine(), "strings": strings(), "sums": sums(),
                        "reshape": reshape()}.items():
        write(folder, model, name)
    with serving(folder, body_mib=1) as found:
        yield found


@pytest.fixture(scope="module")
def wire(server: Serving) -> Iterator[Wire]:
    with Wire(server) as found:
        yield found


# ---- shapes, sizes and types

WRONG: dict[str, tuple[tuple[Input, ...], dict[str, Any], str]] = {
    "huge product": ((Input(bytes(4), (MOST, MOST, MOST)),), {}, "bytes, but has 4"),
    "product of 2**64": ((Input(b"", (1 << 16,) * 4),), {}, "bytes, but has 0"),
    "huge, without elements": ((Input(b"", (0, MOST, MOST, MOST)),), {}, "extents"),
    "large, without elements": ((Input(b"", (MOST, 0)),), {}, "extents"),
    "2**31": ((Input(b"", (0, 2**31)),), {}, "extent"),
    "2**63 - 1": ((Input(bytes(12), (2**63 - 1, 3)),), {}, "extent"),
    "negative": ((Input(bytes(12), (-1, 3)),), {}, "extent"),
    "negative twice": ((Input(bytes(12), (-1, -3)),), {}, "extent"),
    "rank 33": ((Input(bytes(4), (1,) * 33),), {}, "at most 32 extents"),
    "rank 32": ((Input(bytes(4), (1,) * 32),), {}, "has the shape [-1, 3], not [1, 1, "),
    "scalar": ((Input(bytes(4), ()),), {}, "not []"),
    "few bytes": ((Input(bytes(11)),), {}, "needs 12 bytes, but has 11"),
    "many bytes": ((Input(bytes(13)),), {}, "needs 12 bytes, but has 13"),
    "no bytes": ((Input(b""),), {}, "needs 12 bytes, but has 0"),
    "datatype": ((Input(datatype="FP8"),), {}, "unknown datatype 'FP8'"),
    "no datatype": ((Input(datatype=""),), {}, "unknown datatype ''"),
    "lower case": ((Input(datatype="fp32"),), {}, "unknown datatype"),
    "twice": ((Input(), Input()), {}, "given twice"),
    "control twice": ((Input(), *[Input(bytes(8), (1,), "UINT64", "sequence_id")] * 2), {}, "given twice"),
    "negative id": ((Input(), Input(b"\xff" * 8, (1,), "INT64", "sequence_id")), {}, "negative"),
    "control of strings": ((Input(), Input(bytes(4), (1,), "BYTES", "sequence_id")), {}, "not one integer"),
    "no inputs": ((), {}, "inputs"),
    "many inputs": ((Input(),) * 1025, {}, "1024"),
    "a string is too long": ((Input(b"\x05\0\0\0abc", (1,), "BYTES"),), {}, "more bytes than the input"),
    "a string of 4 GiB": ((Input(b"\xff\xff\xff\xff", (1,), "BYTES"),), {}, "more bytes than the input"),
    "half a length": ((Input(b"\x01\0", (1,), "BYTES"),), {}, "fewer than 1 strings"),
    "few strings": ((Input(b"\x01\0\0\0a", (2,), "BYTES"),), {}, "fewer than 2 strings"),
    "huge count of strings": ((Input(bytes(4), (MOST, MOST), "BYTES"),), {}, "fewer than"),
    "many strings": ((Input(bytes(8), (1,), "BYTES"),), {}, "more than 1 strings"),
    "no strings": ((Input(bytes(4), (0,), "BYTES"),), {}, "more than 0 strings"),
    "timeout of text": ((Input(),), {"timeout": "soon"}, "timeout 'soon'"),
    "timeout of a boolean": ((Input(),), {"timeout": True}, "timeout True"),
    "negative timeout": ((Input(),), {"timeout": -1}, "timeout -1"),
    "timeout of NaN": ((Input(),), {"timeout": float("nan")}, "timeout nan"),
    "sequence of a boolean": ((Input(),), {"sequence_id": True}, "sequence_id True"),
    "sequence of a fraction": ((Input(),), {"sequence_id": 1.5}, "sequence_id 1.5"),
    "start of a number": ((Input(),), {"sequence_id": 1, "sequence_start": 1}, "true or false"),
}


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_requests(wire: Wire, interface: str, wrong: str) -> None:
    inputs, parameters, text = WRONG[wrong]
    with little_memory():
        answer = wire.send(interface, *inputs, parameters=parameters)
    assert answer.status == "INVALID_ARGUMENT", answer
    assert text in answer.text


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("where", ["input", "output"])
@pytest.mark.parametrize("parameters", [{"shared_memory_region": "region", "shared_memory_byte_size": 12},
                                        {"classification": 3}], ids=str)
def test_unsupported_parameters(wire: Wire, interface: str, where: str, parameters: dict[str, Any]) -> None:
    answer = wire.send(interface, Input(parameters=parameters if where == "input" else {}),
                       outputs=(Output(parameters=parameters),) if where == "output" else ())
    assert answer.status == "UNIMPLEMENTED"
    assert f"parameter {next(iter(parameters))} is not supported" in answer.text


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("timeout", [0, 10**9, 2**63 - 1, 1e300, float("inf")], ids=str)
def test_long_timeouts(wire: Wire, interface: str, timeout: float) -> None:
    assert wire.send(interface, Input(), parameters={"timeout": timeout}).status == "OK"


@pytest.mark.parametrize("interface", INTERFACES)
def test_names_that_clients_made_up_are_cut(wire: Wire, interface: str) -> None:
    for long in ("x" * 200_000, "\U0001f600%\r\n\0" * 20_000):
        answer = wire.send(interface, Input(name=long))
        assert (answer.status, answer.text[:11]) == ("INVALID_ARGUMENT", "model 'echo")
        assert 500 < len(answer.text.encode()) <= MAX_BYTES + 3
        assert wire.send(interface, Input(datatype=long)).status == "INVALID_ARGUMENT"
    if interface == "gRPC":
        assert wire.send(interface, Input(), model="x" * 200_000).status == "NOT_FOUND"


@pytest.mark.parametrize("changed", [
    {"shape": [True, 3]}, {"shape": [1.0, 3]}, {"shape": ["1", 3]}, {"shape": [None, 3]}, {"shape": [[1], 3]},
    {"shape": 3}, {"shape": "13"}, {"shape": None}, {"shape": {"0": 1}}, {"shape": [2**70, 3]}, {"shape": [10**400]},
    {"datatype": None}, {"datatype": 3}, {"datatype": ["FP32"]}, {"datatype": {}},
    {"name": None}, {"name": 1}, {"name": ["x"]}, {"name": "\ud800"}, {"parameters": []}, {"parameters": None},
    {"parameters": {"binary_data_size": 12}}, {"data": None}, {"data": 1}, {"data": {}}, {"data": "123"}, {"data": []},
    {"data": [1, 2, None]}, {"data": [1, 2, {}]}, {"data": [1, 2, "3"]}, {"data": [1, 2, [3]]},
    {"data": [1, 2, 10**400]}, {"data": ["x" * 20_000, *repeat(0, 20_000)]}, {"data": [True, False, True]},
    {"data": [[[[1, 2, 3]]]] * 2}, {"data": json.loads("[" * 70 + "]" * 70)},
    {"datatype": "BYTES", "data": ["\ud800", "", ""]},
    {"datatype": "INT8", "data": [1, 2, 128]}, {"datatype": "BOOL", "data": [0, 1, 1]},
], ids=lambda x: str(x)[:40])
def test_wrong_json_of_inputs(wire: Wire, changed: dict[str, Any]) -> None:
    sent = json.dumps({"inputs": [JSON_INPUT | changed]}).encode()
    with little_memory():
        answer = wire.post(sent)
    assert answer.status == "INVALID_ARGUMENT", answer
    assert "input" in answer.text or "name" in answer.text or "parameters" in answer.text


@pytest.mark.parametrize("changed", [
    {"inputs": None}, {"inputs": {}}, {"inputs": []}, {"inputs": [None]}, {"inputs": "x"}, {"outputs": "y"},
    {"outputs": [1]}, {"outputs": [{}]}, {"outputs": [{"name": 1}]}, {"outputs": [{"name": "y"}] * 1025},
    {"outputs": [{"name": "\ud800"}]}, {"outputs": [{"name": "y", "parameters": 1}]}, {"parameters": []}, {"id": 1},
    {"parameters": {"timeout": []}}, {"parameters": {"timeout": {}}}, {"parameters": {"sequence_id": []}},
    {"parameters": {"sequence_id": 1, "sequence_end": "true"}},
], ids=lambda x: str(x)[:40])
def test_wrong_json(wire: Wire, changed: dict[str, Any]) -> None:
    assert wire.post({"inputs": [JSON_INPUT]}).status == "OK"
    assert wire.post({"inputs": [JSON_INPUT]} | changed).status == "INVALID_ARGUMENT"


@pytest.mark.parametrize("changed", [
    {"id": "\ud800"}, {"id": "x" * 10_000}, {"parameters": {"timeout": 10**400}}, {"parameters": {"timeout": None}},
    {"outputs": [{"name": "y", "parameters": {"binary_data": True}}] * 1000}, {"nothing": 10**400},
], ids=lambda x: str(x)[:40])
def test_unusual_json(wire: Wire, changed: dict[str, Any]) -> None:
    assert wire.post({"inputs": [JSON_INPUT]} | changed).status == "OK"


@pytest.mark.parametrize("sent", [
    b"", b"[]", b"1", b"null", b'"x"', b"{", b"{}", b"\xff\xfe", b'{"inputs": "\xff"}', b"\xef\xbb\xbf{}", b"{}{}",
    b'{"inputs": ' + b"[" * 100_000, b"[" * MIB, b'{"a":' * 100_000, b"1" * 100_000, b"\0" * 1000, b"-",
], ids=lambda x: repr(x[:20]))
def test_bodies_that_are_no_requests(wire: Wire, sent: bytes) -> None:
    with little_memory():
        assert wire.post(sent).status == "INVALID_ARGUMENT"


@pytest.mark.parametrize("length", ["-1", "+10", "abc", "", "1e2", "0x10", "1.0", "1 0", "\xb2", "9" * 18, "9" * 19,
                                    "0", "-0"], ids=str)
def test_wrong_lengths_of_json(wire: Wire, length: str) -> None:
    head, raw = body(Input())
    assert wire.post(head + raw, {"Inference-Header-Content-Length": length}).status == "INVALID_ARGUMENT"


@pytest.mark.parametrize("depth", [33, 70, 300, 600, 900, 2000])
def test_nested_json(wire: Wire, depth: int) -> None:
    """JSON of any depth, also where it is not refused for its depth alone."""
    nested = b"[" * depth + b"]" * depth
    for path, sent in (
            ("/v2/models/echo/infer", b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": %s}]}'),
            ("/v2/models/echo/infer", b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": %s}]}'),
            ("/v2/models/echo/infer", b'{"inputs": [{"name": "x", "datatype": %s}]}'),
            ("/v2/models/echo/infer", b'{"parameters": {"timeout": %s}}'),
            ("/v1/models/echo:predict", b'{"instances": %s}'), ("/v1/models/echo:predict", b'{"inputs": %s}'),
            ("/v1/models/strings:predict", b'{"instances": %s}')):
        assert wire.post(sent % nested, path=path).status == "INVALID_ARGUMENT"


def test_lengths_of_json_that_do_not_fit(wire: Wire) -> None:
    head, raw = body(Input())
    for length in (len(head) - 1, len(head) + 1, len(head) + len(raw), len(head) + len(raw) + 1):
        answer = wire.post(head + raw, {"Inference-Header-Content-Length": str(length)})
        assert answer.status == "INVALID_ARGUMENT"
    assert wire.post(head + raw).status == "INVALID_ARGUMENT"


@pytest.mark.parametrize(("sizes", "raw", "text"), [
    ((16, 16), 31, "does not fit the 15 bytes"), ((16, 16), 33, "1 bytes that belong to no input"),
    ((32, 0), 32, "needs 16 bytes, but has 32"), ((17, 15), 32, "needs 16 bytes, but has 17"),
    ((16, -1), 32, "binary_data_size -1"), ((16, True), 32, "binary_data_size True"), ((16, "16"), 32, "'16'"),
    ((16, 16.0), 32, "16.0"), ((16, 10**400), 32, "does not fit"), ((16, [16]), 32, "does not fit"),
], ids=str)
def test_wrong_sizes_of_binary_data(wire: Wire, sizes: Any, raw: int, text: str) -> None:
    inputs = [Input(b"", (1, 4), name=name, parameters={"binary_data_size": size}) for name, size in zip("ab", sizes)]
    head, _ = body(*inputs)
    answer = wire.post(head + bytes(raw), {"Inference-Header-Content-Length": str(len(head))}, "affine")
    assert answer.status == "INVALID_ARGUMENT"
    assert text in answer.text


def test_malformed_messages(wire: Wire) -> None:
    malformed = Answer("INVALID_ARGUMENT", "the message is malformed")
    for method in ("ModelInfer", "ModelReady", "ServerLive", "RepositoryIndex"):
        assert wire.call(b"\xff\xff\xff", method) == malformed
    assert wire.call(b"\x0a\x01\xff") == malformed  # a name that is no UTF-8
    assert wire.call(b"", "Nothing").status == "UNIMPLEMENTED"
    first, status = wire.stream(message(Input()), b"\xff", message(Input()))
    assert (first.error_message, status) == ("", "INVALID_ARGUMENT")
    wire.check_served()


@pytest.mark.parametrize(("datatype", "contents", "text"), [
    ("FP32", {"fp32_contents": [1, 2]}, "has 2 elements, not 3"), ("FP32", {}, "has 0 elements"),
    ("FP32", {"fp64_contents": [1, 2, 3]}, "has 0 elements"), ("INT8", {"int_contents": [1, 2, 128]}, "range of INT8"),
    ("INT8", {"int_contents": [1, 2, -129]}, "out of the range"), ("UINT16", {"uint_contents": [1, 2, 65536]}, "range"),
    ("BYTES", {"bytes_contents": [b"a"]}, "has 1 elements"), ("BF16", {"fp32_contents": [1, 2, 3]}, "raw contents"),
    ("FP16", {"fp32_contents": [1, 2, 3]}, "raw contents"),
], ids=str)
def test_wrong_contents(wire: Wire, datatype: str, contents: dict[str, Any], text: str) -> None:
    sent = service_pb2.ModelInferRequest(model_name="echo")
    sent.inputs.add(name="x", datatype=datatype, shape=[1, 3], contents=service_pb2.InferTensorContents(**contents))
    answer = wire.call(sent)
    assert answer.status == "INVALID_ARGUMENT"
    assert text in answer.text


def test_strings_in_contents(wire: Wire) -> None:
    sent = service_pb2.ModelInferRequest(model_name="strings")
    sent.inputs.add(name="x", datatype="BYTES", shape=[3]).contents.bytes_contents.extend([b"a\0b", b"", b"\xc3\xbc"])
    assert wire.call(sent).content.raw_output_contents == [b"\3\0\0\0a\0b" + bytes(4) + b"\2\0\0\0\xc3\xbc"]


def test_raw_contents_of_other_inputs(wire: Wire) -> None:
    sent = message(Input())
    sent.raw_input_contents.append(bytes(12))
    assert "1 inputs, but raw contents of 2" in wire.call(sent).text
    del sent.raw_input_contents[:]
    sent.outputs.extend(service_pb2.ModelInferRequest.InferRequestedOutputTensor(name="y") for _ in range(1025))
    assert "1025 outputs" in wire.call(sent).text


@pytest.mark.parametrize("interface", INTERFACES)
def test_ids_of_64_bits(wire: Wire, interface: str) -> None:
    """An id that no signed number holds is returned like any other."""
    controls = [Input(struct.pack("<Q", 2**64 - 1), (1,), "UINT64", "sequence_id"),
                Input(b"\x01\0\0\0", (1,), "UINT32", "sequence_control_input")]
    steps = [wire.send(interface, Input(bytes(32), (1, 8)), controls[0], *more, model="sums")
             for more in ((controls[1],), (Input(b"\x02\0\0\0", (1,), "UINT32", "sequence_control_input"),))]
    assert [step.status for step in steps] == ["OK", "OK"], steps
    if interface == "gRPC":
        assert steps[0].content.parameters["sequence_id"].uint64_param == 2**64 - 1


# ---- random requests

EXAMPLES = 250
STATUSES = {status.value for status in Status} - {Status.INTERNAL.value} | {405, 413}
Post = tuple[str, Any, bytes]  # path, JSON and the bytes behind it
FP32, INT64 = {"datatype": "FP32", "shape": [1, 3]}, {"datatype": "INT64", "shape": [2]}
SEQUENCE = {"sequence_id": 7, "sequence_start": True, "sequence_end": False}
POSTS: list[Post] = [
    ("/v2/models/echo/infer", {"id": "1", "inputs": [JSON_INPUT], "outputs": [{"name": "y"}]}, b""),
    ("/v2/models/echo/versions/1/infer", {"inputs": [{"name": "x", **FP32, "parameters": {"binary_data_size": 12}}],
                                          "parameters": {"binary_data_output": True, "timeout": 10**9}}, bytes(12)),
    ("/v2/models/affine/infer", {"inputs": [{"name": name, "datatype": "FP32", "shape": [1, 4], "parameters": {
        "binary_data_size": 16}} for name in "ab"]}, bytes(32)),
    ("/v2/models/strings/infer", {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [2], "data": ["", "b"]}]},
     b""),
    ("/v2/models/sums/infer", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [0.5] * 8}],
                               "parameters": SEQUENCE}, b""),
    ("/v2/models/reshape/infer", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [6], "data": [1] * 6},
                                             {"name": "shape", **INT64, "data": [2, 3]}]}, b""),
    ("/v1/models/echo:predict", {"instances": [[1, 2, 3]]}, b""),
    ("/v1/models/affine:predict", {"inputs": {"a": [[1, 2, 3, 4]], "b": [[1, 2, 3, 4]]}}, b""),
    ("/v1/models/strings:predict", {"instances": ["a", {"b64": "YQ=="}]}, b""),
    ("/v2/repository/index", {"ready": True}, b""),
    ("/v2/repository/models/nothing/load", {"parameters": {}}, b""),
]
RAWS = (bytes(12), bytes(16), bytes(32), b"\1\0\0\0a")
MESSAGES: list[tuple[str, list[Input], dict[str, Any]]] = [
    ("echo", [Input()], {}), ("affine", [Input(bytes(16), (1, 4), name=name) for name in "ab"], {"timeout": 10**9}),
    ("strings", [Input(RAWS[3], (1,), "BYTES")], {}), ("sums", [Input(bytes(32), (1, 8))], SEQUENCE),
    ("sums", [Input(bytes(32), (1, 8)), Input(b"\1", (1,), "UINT8", "sequence_control_input")], {}),
    ("reshape", [Input(bytes(24), (6,)), Input(struct.pack("<2q", 2, 3), (2,), "INT64", "shape")], {}),
]
KEYS = st.sampled_from(("name", "datatype", "shape", "data", "parameters", "binary_data_size", "timeout", "b64", "id",
                        "sequence_id", "sequence_control_input", "inputs", "outputs", "instances"))
TOKENS = st.sampled_from((b"[", b"]", b"{", b'"', b",", b"\\ud800", b"1e999", b"-", b"\xff", b"NaN", b"9" * 30,
                          b"[" * 999))
SCALARS = st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=5) | KEYS | st.sampled_from(
    (2**31 - 1, 2**31, 2**63, 2**64, 10**400, -(2**63), "\ud800", "INT64", "BYTES", "BOOL", "BF16", "FP16", "UINT64"))
VALUES = st.recursive(SCALARS, lambda more: st.lists(more, max_size=4) | st.dictionaries(KEYS, more, max_size=3))
TEXTS = st.text(max_size=5) | st.sampled_from(("x", "y", "a", "shape", "1", "sequence_id", "sequence_control_input"))
DATATYPES = st.sampled_from(("FP32", "FP64", "FP16", "BF16", "INT8", "INT32", "INT64", "UINT64", "BOOL", "BYTES", ""))
EXTENTS = st.integers(-1, 4) | st.sampled_from((2**31 - 1, 2**31, 2**62, 2**63 - 1))
PARAMETERS = st.dictionaries(
    st.sampled_from(("timeout", "sequence_id", "sequence_start", "sequence_end", "priority", "classification")),
    st.booleans() | st.integers(-2, 2**63 - 1) | st.floats() | st.text(max_size=3), max_size=2)


@st.composite
def changed_json(draw: st.DrawFn, value: Any) -> Any:
    """Draw a value of JSON in which one part is changed, removed or repeated."""
    if not isinstance(value, (dict, list)) or not value or not draw(st.integers(0, 4)):
        return draw(VALUES)
    found: Any = value.copy()
    key = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
    change = draw(st.sampled_from(("change", "change", "change", "remove", "repeat")))
    if change == "change":
        found[key] = draw(changed_json(value[key]))
    elif change == "remove":
        del found[key]
    elif isinstance(value, list):
        found += [value[key]] * draw(st.integers(1, 3))
    else:
        found[draw(KEYS)] = value[key]
    return found


@st.composite
def spliced(draw: st.DrawFn, data: bytes) -> bytes:
    """Draw bytes of which some are replaced."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        data = data[:start] + draw(st.binary(max_size=4) | TOKENS) + data[start + draw(st.integers(0, 6)):]
    return data


@st.composite
def posts(draw: st.DrawFn) -> tuple[str, bytes, dict[str, str]]:
    """Draw path, body and headers of a request in which something is wrong, or nothing."""
    path, found, raw = draw(st.sampled_from(POSTS))
    change = draw(st.sampled_from(("json", "json", "json", "text", "raw", "length", "encoding", "all", "path")))
    head = json.dumps(draw(changed_json(found)) if change == "json" else found).encode()
    if change == "text":
        head = draw(spliced(head))
    length, headers = str(len(head)), {}
    if change == "raw":
        raw = draw(spliced(raw))
    elif change == "length":
        length = draw(st.integers(-2, len(head) + 40).map(str) | st.sampled_from(("", "x", "1_0", "\xb2", "9" * 20)))
    elif change == "encoding":
        headers["Content-Encoding"] = draw(st.sampled_from(("gzip", "deflate", "identity", "br", "")))
        packed = draw(st.sampled_from((gzip.compress, zlib.compress)))(head + raw)
        head, raw = draw(st.just(packed) | spliced(packed)), b""
    elif change == "all":
        head, raw = draw(st.binary(max_size=40)), b""
    elif change == "path":
        path = path.replace("echo", quote(draw(TEXTS), safe=""))
    if raw or draw(st.booleans()):
        headers["Inference-Header-Content-Length"] = length
    return path, head + raw, headers


@st.composite
def messages(draw: st.DrawFn) -> Any:
    """Draw a ModelInferRequest in which some fields have any value."""
    model, inputs, parameters = draw(st.sampled_from(MESSAGES))
    found = message(*inputs, model=model, parameters=parameters)
    for _ in range(draw(st.integers(0, 3))):
        tensor = draw(st.sampled_from(found.inputs)) if found.inputs else found.inputs.add()
        field = draw(st.sampled_from(("name", "datatype", "shape", "contents", "raw", "raw", "parameters", "outputs",
                                      "id", "model_name", "inputs", "tensor")))
        if field == "name":
            tensor.name = draw(TEXTS)
        elif field == "datatype":
            tensor.datatype = draw(DATATYPES)
        elif field == "shape":
            tensor.shape[:] = draw(st.lists(EXTENTS, max_size=4))
        elif field == "contents":
            name, values = draw(st.sampled_from((("fp32_contents", [0.5] * 3), ("int_contents", [-1, 2**31 - 1, 0]),
                                                 ("bytes_contents", [b"", b"\xff"]), ("bool_contents", [True]))))
            getattr(tensor.contents, name).extend(values)
            del found.raw_input_contents[:]
        elif field == "raw":
            found.raw_input_contents[:] = draw(st.lists(st.binary(max_size=16) | st.sampled_from(RAWS), max_size=3))
        elif field == "parameters":
            set_parameters(draw(st.sampled_from((found, tensor))), draw(PARAMETERS))
        elif field == "outputs":
            set_parameters(found.outputs.add(name=draw(TEXTS)), draw(PARAMETERS))
        elif field == "inputs":
            found.inputs.add().CopyFrom(tensor)
        elif field == "tensor":
            del found.inputs[draw(st.integers(0, len(found.inputs) - 1))]
        else:
            setattr(found, field, draw(TEXTS))
    return found


def examples(config: pytest.Config) -> settings:
    long = config.getoption("--long")
    return settings(LIMITS, max_examples=EXAMPLES * 40 if long else EXAMPLES, derandomize=not long)


@pytest.mark.timeout(3600)
def test_random_posts(wire: Wire, pytestconfig: pytest.Config) -> None:
    counts: Counter[int] = Counter()

    @examples(pytestconfig)
    @given(posts())
    def check(drawn: tuple[str, bytes, dict[str, str]]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", wire.port, timeout=SECONDS)
        connection.request("POST", *drawn)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        counts[response.status] += 1
        assert response.status in STATUSES, content

    check()
    assert counts[200] > 1, "some of the requests are correct"
    assert counts[400] > EXAMPLES // 4
    wire.check_served()


@pytest.mark.timeout(3600)
def test_random_messages(wire: Wire, pytestconfig: pytest.Config) -> None:
    counts: Counter[str] = Counter()
    encoded = messages().map(lambda x: x.SerializeToString())
    sent = encoded | encoded | encoded.flatmap(spliced)

    @examples(pytestconfig)
    @given(st.lists(sent, min_size=1, max_size=3))
    def check(drawn: list[bytes]) -> None:
        answers = [wire.call(data) for data in drawn]
        *responses, status = wire.stream(*drawn)
        counts.update([status, *(answer.status for answer in answers)])
        for found in [status, *(answer.status for answer in answers)]:
            assert found not in ("INTERNAL", "UNKNOWN"), answers
        assert all("internal" not in response.error_message for response in responses)
        if status == "OK":
            assert len(responses) == len(drawn)

    check()
    assert counts["OK"] > EXAMPLES // 2, "streams have the errors of inferences in their responses"
    assert counts["INVALID_ARGUMENT"] > EXAMPLES // 4
    wire.check_served()


# ---- texts of errors

@pytest.mark.parametrize(("text", "shown"), [
    ("no file /srv/a/b.xml", "no file b.xml"), ("/srv/b.xml: malformed", "b.xml: malformed"),
    ("file '/srv/my models/it/b c.xml' (/x/y/z.bin)", "file 'b c.xml' (z.bin)"), ("error:/a/b/c.bin", "error:c.bin"),
    ("/a/b.xml and /c d/e.bin", "b.xml and e.bin"), ('"/a/b/"', '""'), ("\n/a/b\n", "\nb\n"),
    ("1 / 2 and 3/4/5 of a/b/c", "1 / 2 and 3/4/5 of a/b/c"), ("see https://host/a/b", "see https://host/a/b"),
    ("[Add] bad (layer '/model/layers.0/Add', id 3, /m/x.xml)", "[Add] bad (layer '/model/layers.0/Add', id 3, x.xml)"),
])
def test_paths_are_cut(text: str, shown: str) -> None:
    assert str(public(Error(text))) == shown


def test_errors_show_no_paths(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "one secret" / "two secret"
    broken: dict[str, Callable[[Path], Any]] = {
        "weights": lambda at: (at / "model.bin").unlink(),
        "folder": lambda at: [(at / "model.xml").unlink(), (at / "model.xml").mkdir()],
        "link": lambda at: [(at / "model.xml").unlink(), (at / "model.bin").unlink(),
                            (at / "model.xml").symlink_to(at / "nothing" / "there.xml")],
        "malformed": lambda at: (at / "model.xml").write_text("<net>"),
        "op": lambda at: (at / "model.xml").write_text((at / "model.xml").read_text().replace("Gather", "Gath")),
        "onnx": lambda at: [*map(Path.unlink, at.iterdir()), (at / "model.onnx").write_bytes(b"onnx")],
        "table": lambda at: (at / "model.bin").chmod(0),
    }
    for name, change in broken.items():
        change(write(folder, echo("f32"), name))
    write(folder, reshape(), "reshape")
    with serving(folder) as server, Wire(server) as wire:
        texts = [wire.post({}, path="/v2/repository/index").content.decode()]
        for name in (*broken, "nothing", str(folder), "../weights"):
            path = f"/v2/repository/models/{quote(name, safe='')}/load"
            if "/" not in name:
                texts.append(wire.post({}, path=path).text)
                texts.append(wire.send("REST", Input(), model=name).text)
            texts.append(wire.call(service_pb2.RepositoryModelLoadRequest(model_name=name), "RepositoryModelLoad").text)
            texts.append(wire.send("gRPC", Input(), model=name).text)
        for interface in INTERFACES:
            shape = Input(struct.pack("<2q", 4, 5), (2,), "INT64", "shape")
            answer = wire.send(interface, Input(bytes(24), (6,)), shape, model="reshape")
            assert "[Reshape]" in answer.text
            texts.append(answer.text)
    assert str(folder) in caplog.text
    assert len(set(texts)) > 15
    for text in texts:
        assert "secret" not in text.replace(f"'{folder}'", "the name that the client sent")
        assert not re.search(r"(?<!\w)/\w", text.replace(f"'{folder}'", "").replace("'../weights'", "")), text
