"""Malformed requests: they are refused with the status of a wrong argument, whatever is wrong with them."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tritonclient.grpc import service_pb2

from ovgpu.errors import Error
from ovgpu.serve.errors import MAX_BYTES, public
from ovgpu.serve.protocol import InferenceRequest
from tests.harness.servers.serving import INTERFACES, serving, write
from tests.serve.test_inference import echo, reshape
from tests.serve.wire import JSON_INPUT, MIB, Answer, Input, Wire, body, little_memory, message

MOST = 2**31 - 1


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
    "long sequence_id": ((Input(),), {"sequence_id": "x" * 1025}, "sequence_id has 1,025 characters"),
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


def test_the_longest_id_of_a_sequence() -> None:
    request = InferenceRequest("m", "", [], parameters={"sequence_id": "\U0001f600" * 1024})
    step = request.sequence(())
    assert step is not None and step.id == "\U0001f600" * 1024


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


@pytest.mark.parametrize(
    "changed",
    [
        {"shape": [True, 3]},
        {"shape": [1.0, 3]},
        {"shape": ["1", 3]},
        {"shape": [None, 3]},
        {"shape": [[1], 3]},
        {"shape": 3},
        {"shape": "13"},
        {"shape": None},
        {"shape": {"0": 1}},
        {"shape": [2**70, 3]},
        {"shape": [10**400]},
        {"datatype": None},
        {"datatype": 3},
        {"datatype": ["FP32"]},
        {"datatype": {}},
        {"name": None},
        {"name": 1},
        {"name": ["x"]},
        {"name": "\ud800"},
        {"parameters": []},
        {"parameters": None},
        {"parameters": {"binary_data_size": 12}},
        {"data": None},
        {"data": 1},
        {"data": {}},
        {"data": "123"},
        {"data": []},
        {"data": [1, 2, None]},
        {"data": [1, 2, {}]},
        {"data": [1, 2, "3"]},
        {"data": [1, 2, [3]]},
        {"data": [1, 2, 10**400]},
        {"data": ["x" * 20_000, *repeat(0, 20_000)]},
        {"data": [True, False, True]},
        {"data": [[[[1, 2, 3]]]] * 2},
        {"data": json.loads("[" * 70 + "]" * 70)},
        {"datatype": "BYTES", "data": ["\ud800", "", ""]},
        {"datatype": "INT8", "data": [1, 2, 128]},
        {"datatype": "BOOL", "data": [0, 1, 1]},
    ],
    ids=lambda x: str(x)[:40],
)
def test_wrong_json_of_inputs(wire: Wire, changed: dict[str, Any]) -> None:
    sent = json.dumps({"inputs": [JSON_INPUT | changed]}).encode()
    with little_memory():
        answer = wire.post(sent)
    assert answer.status == "INVALID_ARGUMENT", answer
    assert "input" in answer.text or "name" in answer.text or "parameters" in answer.text


@pytest.mark.parametrize(
    "changed",
    [
        {"inputs": None},
        {"inputs": {}},
        {"inputs": []},
        {"inputs": [None]},
        {"inputs": "x"},
        {"outputs": "y"},
        {"outputs": [1]},
        {"outputs": [{}]},
        {"outputs": [{"name": 1}]},
        {"outputs": [{"name": "y"}] * 1025},
        {"outputs": [{"name": "\ud800"}]},
        {"outputs": [{"name": "y", "parameters": 1}]},
        {"parameters": []},
        {"id": 1},
        {"parameters": {"timeout": []}},
        {"parameters": {"timeout": {}}},
        {"parameters": {"sequence_id": []}},
        {"parameters": {"sequence_id": 1, "sequence_end": "true"}},
    ],
    ids=lambda x: str(x)[:40],
)
def test_wrong_json(wire: Wire, changed: dict[str, Any]) -> None:
    assert wire.post({"inputs": [JSON_INPUT]}).status == "OK"
    assert wire.post({"inputs": [JSON_INPUT]} | changed).status == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "\ud800"},
        {"id": "x" * 10_000},
        {"parameters": {"timeout": 10**400}},
        {"parameters": {"timeout": None}},
        {"outputs": [{"name": "y", "parameters": {"binary_data": True}}] * 1000},
        {"nothing": 10**400},
    ],
    ids=lambda x: str(x)[:40],
)
def test_unusual_json(wire: Wire, changed: dict[str, Any]) -> None:
    assert wire.post({"inputs": [JSON_INPUT]} | changed).status == "OK"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"[]",
        b"1",
        b"null",
        b'"x"',
        b"{",
        b"{}",
        b"\xff\xfe",
        b'{"inputs": "\xff"}',
        b"\xef\xbb\xbf{}",
        b"{}{}",
        b'{"inputs": ' + b"[" * 100_000,
        b"[" * MIB,
        b'{"a":' * 100_000,
        b"1" * 100_000,
        b"\0" * 1000,
        b"-",
    ],
    ids=lambda x: repr(x[:20]),
)
def test_bodies_that_are_no_requests(wire: Wire, sent: bytes) -> None:
    with little_memory(20 * MIB):  # the parser's, for as many lists as there are bytes
        assert wire.post(sent).status == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "length", ["-1", "+10", "abc", "", "1e2", "0x10", "1.0", "1 0", "\xb2", "9" * 18, "9" * 19, "0", "-0"], ids=str
)
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
        ("/v1/models/echo:predict", b'{"instances": %s}'),
        ("/v1/models/echo:predict", b'{"inputs": %s}'),
        ("/v1/models/strings:predict", b'{"instances": %s}'),
    ):
        assert wire.post(sent % nested, path=path).status == "INVALID_ARGUMENT"


def test_lengths_of_json_that_do_not_fit(wire: Wire) -> None:
    head, raw = body(Input())
    for length in (len(head) - 1, len(head) + 1, len(head) + len(raw), len(head) + len(raw) + 1):
        answer = wire.post(head + raw, {"Inference-Header-Content-Length": str(length)})
        assert answer.status == "INVALID_ARGUMENT"
    assert wire.post(head + raw).status == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("sizes", "raw", "text"),
    [
        ((16, 16), 31, "does not fit the 15 bytes"),
        ((16, 16), 33, "1 bytes that belong to no input"),
        ((32, 0), 32, "needs 16 bytes, but has 32"),
        ((17, 15), 32, "needs 16 bytes, but has 17"),
        ((16, -1), 32, "binary_data_size -1"),
        ((16, True), 32, "binary_data_size True"),
        ((16, "16"), 32, "'16'"),
        ((16, 16.0), 32, "16.0"),
        ((16, 10**400), 32, "does not fit"),
        ((16, [16]), 32, "does not fit"),
    ],
    ids=str,
)
def test_wrong_sizes_of_binary_data(wire: Wire, sizes: Any, raw: int, text: str) -> None:
    inputs = [Input(b"", (1, 4), name=name, parameters={"binary_data_size": size}) for name, size in zip("ab", sizes)]
    head, _ = body(*inputs)
    answer = wire.post(head + bytes(raw), {"Inference-Header-Content-Length": str(len(head))}, "affine")
    assert answer.status == "INVALID_ARGUMENT"
    assert text in answer.text


def test_malformed_messages(wire: Wire) -> None:
    malformed = Answer("INVALID_ARGUMENT", "the message is malformed")
    for method in ("ModelInfer", "ModelReady", "ServerMetadata", "RepositoryIndex"):
        assert wire.call(b"\xff\xff\xff", method) == malformed
    assert wire.call(b"\x0a\x01\xff") == malformed  # a name that is no UTF-8
    assert wire.call(b"", "Nothing").status == "UNIMPLEMENTED"
    first, status = wire.stream(message(Input()), b"\xff", message(Input()))
    assert (first.error_message, status) == ("", "INVALID_ARGUMENT")
    wire.check_served()


@pytest.mark.parametrize(
    ("datatype", "contents", "text"),
    [
        ("FP32", {"fp32_contents": [1, 2]}, "has 2 elements, not 3"),
        ("FP32", {}, "has 0 elements"),
        ("FP32", {"fp64_contents": [1, 2, 3]}, "has 0 elements"),
        ("INT8", {"int_contents": [1, 2, 128]}, "range of INT8"),
        ("INT8", {"int_contents": [1, 2, -129]}, "out of the range"),
        ("UINT16", {"uint_contents": [1, 2, 65536]}, "range"),
        ("BYTES", {"bytes_contents": [b"a"]}, "has 1 elements"),
        ("BF16", {"fp32_contents": [1, 2, 3]}, "raw contents"),
        ("FP16", {"fp32_contents": [1, 2, 3]}, "raw contents"),
    ],
    ids=str,
)
def test_wrong_contents(wire: Wire, datatype: str, contents: dict[str, Any], text: str) -> None:
    sent = service_pb2.ModelInferRequest(model_name="echo")
    sent.inputs.add(name="x", datatype=datatype, shape=[1, 3], contents=service_pb2.InferTensorContents(**contents))
    answer = wire.call(sent)
    assert answer.status == "INVALID_ARGUMENT"
    assert text in answer.text


def test_strings_in_contents(wire: Wire) -> None:
    sent = service_pb2.ModelInferRequest(model_name="strings")
    sent.inputs.add(name="x", datatype="BYTES", shape=[3]).contents.bytes_contents.extend([b"a\0b\0", b"", b"\xff\xfe"])
    assert wire.call(sent).content.raw_output_contents == [b"\4\0\0\0a\0b\0" + bytes(4) + b"\2\0\0\0\xff\xfe"]


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
    controls = [
        Input(struct.pack("<Q", 2**64 - 1), (1,), "UINT64", "sequence_id"),
        Input(b"\x01\0\0\0", (1,), "UINT32", "sequence_control_input"),
    ]
    steps = [
        wire.send(interface, Input(bytes(32), (1, 8)), controls[0], *more, model="sums")
        for more in ((controls[1],), (Input(b"\x02\0\0\0", (1,), "UINT32", "sequence_control_input"),))
    ]
    assert [step.status for step in steps] == ["OK", "OK"], steps
    if interface == "gRPC":
        assert steps[0].content.parameters["sequence_id"].uint64_param == 2**64 - 1


# ---- texts of errors


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no file /srv/a/b.xml", "no file b.xml"),
        ("/srv/b.xml: malformed", "b.xml: malformed"),
        ("file '/srv/my models/it/b c.xml' (/x/y/z.bin)", "file 'b c.xml' (z.bin)"),
        ("error:/a/b/c.bin", "error:c.bin"),
        ("/a/b.xml and /c d/e.bin", "b.xml and e.bin"),
        ('"/a/b/"', '""'),
        ("\n/a/b\n", "\nb\n"),
        ("1 / 2 and 3/4/5 of a/b/c", "1 / 2 and 3/4/5 of a/b/c"),
        ("see https://host/a/b", "see https://host/a/b"),
        (
            "[Add] bad (layer '/model/layers.0/Add', id 3, /m/x.xml)",
            "[Add] bad (layer '/model/layers.0/Add', id 3, x.xml)",
        ),
    ],
)
def test_paths_are_cut(text: str, shown: str) -> None:
    assert str(public(Error(text))) == shown


def test_errors_show_no_paths(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "one secret" / "two secret"
    broken: dict[str, Callable[[Path], Any]] = {
        "weights": lambda at: (at / "model.bin").unlink(),
        "folder": lambda at: [(at / "model.xml").unlink(), (at / "model.xml").mkdir()],
        "link": lambda at: [
            (at / "model.xml").unlink(),
            (at / "model.bin").unlink(),
            (at / "model.xml").symlink_to(at / "nothing" / "there.xml"),
        ],
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
