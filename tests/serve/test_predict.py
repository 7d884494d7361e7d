"""TensorFlow Serving's REST API; `tests.serve.other_clients` runs a client of it."""

from __future__ import annotations

import base64
import http.client
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as http_client

import ovgpu as ov
from ovgpu.serve import tensors
from tests.batching.nets import SIZE, sums
from tests.harness.ir import Net
from tests.harness.servers.serving import Serving, expected, serving, write
from tests.serve.test_inference import affine, echo


def strings() -> ov.Model:
    """Strings as they are."""
    net = Net("strings")
    x = net.parameter("string", (-1,), "x")
    shape = net.const(np.array([-1]))
    net.result(net.layer("Reshape", "opset1", [x, shape], {"special_zero": False}, names=["y"]))
    return ov.Core().read_model(*net.build())


def mixed() -> ov.Model:
    """Outputs with two rows, one row, and none."""
    net = Net("mixed")
    x = net.parameter("f32", (2, 2), "x")
    net.result(net.layer("Relu", "opset1", [x], names=["y"]))
    axes = [net.const(np.array([value])) for value in (0, 1, 1, 0)]
    net.result(net.layer("Slice", "opset8", [x, *axes], names=["first"]))
    net.result(net.layer("ReduceSum", "opset1", [x, net.const(np.array([0, 1]))], {"keep_dims": False}, names=["sum"]))
    return ov.Core().read_model(*net.build())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("repository")
    for name, model in {
        "affine": affine(),
        "echo": echo("i64"),
        "strings": strings(),
        "sums": sums(),
        "mixed": mixed(),
    }.items():
        write(folder, model, name, 2)
    with serving(folder) as found:
        yield found


def call(server: Serving, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(server.http, timeout=60)
    connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
    response = connection.getresponse()
    found = json.loads(response.read())
    connection.close()
    return response.status, found


def test_columns_and_rows(server: Serving) -> None:
    a, b = [[1.0, 2, 3, 4], [0.5, 0, 0, 1]], [[4, 3, 2, 1], [1, 1, 1, 1]]
    wanted = expected(affine(), {"a": np.array(a, np.float32), "b": np.array(b, np.float32)})
    for path in (
        "/v1/models/affine:predict",
        "/v1/models/affine/versions/2:predict",
        "/v1/models/affine/versions/0:predict",
    ):
        status, found = call(server, path, {"inputs": {"a": a, "b": b}})
        assert status == 200, found
        for name, value in wanted.items():
            np.testing.assert_allclose(found["outputs"][name], value, 1e-6)
    status, found = call(server, path, {"instances": [{"a": x, "b": y} for x, y in zip(a, b)]})
    assert status == 200, found
    for row in range(2):
        for name, value in wanted.items():
            np.testing.assert_allclose(found["predictions"][row][name], value[row], 1e-6)


def test_a_model_with_one_input_and_one_output_needs_no_names(server: Serving) -> None:
    path = "/v1/models/echo:predict"
    assert call(server, path, {"inputs": [[1, 2, 3]]}) == (200, {"outputs": [[3, 2, 1]]})
    assert call(server, path, {"instances": [[1, 2, 3], [4, 5, 2**40]]}) == (
        200,
        {"predictions": [[3, 2, 1], [2**40, 5, 4]]},
    )
    assert call(server, path, {"instances": [{"x": [1, 2, 3]}], "signature_name": ""}) == (
        200,
        {"predictions": [[3, 2, 1]]},
    )


def test_strings_and_base64(server: Serving) -> None:
    encoded = {"b64": base64.b64encode("\u00fcber".encode()).decode()}
    for inputs in (["a", encoded], {"x": ["a", encoded]}):
        status, found = call(server, "/v1/models/strings:predict", {"inputs": inputs})
        assert (status, found) == (200, {"outputs": ["a", "\u00fcber"]})
    assert call(server, "/v1/models/strings:predict", {"instances": [encoded]}) == (200, {"predictions": ["\u00fcber"]})


def test_bytes_stay_bytes(server: Serving) -> None:
    """NULs at the end stay, and bytes that are no UTF-8 leave as they came: in base64, or as binary data."""
    strange = {"b64": base64.b64encode(b"\xff\xfe").decode()}
    sent = ["a\0", "\0", "", strange, "\u00fc"]
    assert call(server, "/v1/models/strings:predict", {"inputs": sent}) == (200, {"outputs": sent})
    data = [{"name": "x", "datatype": "BYTES", "shape": [2], "data": ["a\0", "\u00fc"]}]
    status, found = call(server, "/v2/models/strings/infer", {"inputs": data})
    assert (status, found["outputs"][0]["data"]) == (200, ["a\0", "\u00fc"])


def test_bytes_that_json_cannot_hold(server: Serving) -> None:
    client = http_client.InferenceServerClient(server.http)
    given = http_client.InferInput("x", [2], "BYTES")
    given.set_data_from_numpy(np.array([b"a\0", b"\xff\xfe"], object), binary_data=True)
    binary, text = (http_client.InferRequestedOutput("y", binary_data=binary) for binary in (True, False))
    assert client.infer("strings", [given], outputs=[binary]).as_numpy("y").tolist() == [b"a\0", b"\xff\xfe"]
    found = client.infer("strings", [given], outputs=[text]).get_response()["outputs"][0]["data"]
    assert found == ["a\0", {"b64": base64.b64encode(b"\xff\xfe").decode()}]
    data = [{"name": "x", "datatype": "BYTES", "shape": [2], "data": found}]
    status, again = call(server, "/v2/models/strings/infer", {"inputs": data})
    assert (status, again["outputs"][0]["data"]) == (200, found)
    data[0]["data"] = ["a", {"b64": "?"}]
    assert "malformed base64" in call(server, "/v2/models/strings/infer", {"inputs": data})[1]["error"]


def test_numbers_that_json_lacks(server: Serving) -> None:
    """NaN and infinities go both ways in both protocols, and a step that has run is no error."""
    rows = [[math.inf, math.nan], [-math.inf, 2.0]]
    status, found = call(server, "/v1/models/mixed:predict", {"inputs": rows})
    assert status == 200 and math.isnan(found["outputs"]["sum"])
    np.testing.assert_array_equal(found["outputs"]["y"], [[math.inf, math.nan], [0, 2]])
    data = [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": rows}]
    status, found = call(server, "/v2/models/mixed/infer", {"inputs": data})
    assert status == 200
    np.testing.assert_array_equal(found["outputs"][0]["data"], [math.inf, math.nan, 0, 2])
    for step in range(3):
        control = {"sequence_id": [71], "sequence_control_input": [int(step == 0)]}
        status, found = call(server, "/v1/models/sums:predict", {"inputs": {"x": [[math.nan] * SIZE]} | control})
        assert (status, found["outputs"]["steps"]) == (200, [step + 1]) and np.isnan(found["outputs"]["y"]).all()


@pytest.mark.parametrize("shape", [(), (3,), (9,), (2, 5), (3, 2, 3), (2, 9), (0, 2), (2, 0), (1, 1, 1, 5)], ids=str)
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "i64", "boolean", "string"])
def test_large_outputs_become_json_in_parts(kind: str, shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No part has more elements than allowed: one call of the encoder would hold up all other threads."""
    dtype, size, parts = getattr(ov.Type, kind), math.prod(shape), list[int]()
    values: Any = np.arange(size) % 3 - 1
    if kind == "string":
        values = np.array([["\u00fc", "a\0", {"b64": "//4="}][i % 3] for i in range(size)] + [None], object)[:-1]
    array = values.reshape(shape) if kind == "string" else values.reshape(shape).astype(dtype.storage)
    sent = array
    if kind == "string":
        raw = [b"\xff\xfe" if isinstance(x, dict) else x.encode() for x in values] + [None]
        sent = np.array(raw, object)[:-1].reshape(shape)
    plain = tensors.dump

    def dump(document: Any) -> bytes:
        parts.append(np.array(document, object).size)
        return plain(document)

    monkeypatch.setattr(tensors, "PART", 4)
    monkeypatch.setattr(tensors, "dump", dump)
    found = json.loads(tensors.dump_tensor(sent, dtype))
    assert found == (array.astype(np.float32) if kind == "bf16" else array).tolist() and max(parts) <= 4


def test_outputs_without_rows_are_columns(server: Serving) -> None:
    """Only an inference that has run shows whether its outputs have rows."""
    assert call(server, "/v1/models/mixed:predict", {"instances": [[1, 2], [3, 4]]}) == (
        200,
        {"outputs": {"first": [[1, 2]], "sum": 10, "y": [[1, 2], [3, 4]]}},
    )


def test_sequences(server: Serving) -> None:
    x = np.ones((1, SIZE)).tolist()
    for step, control in enumerate((1, 0, 2)):
        status, found = call(
            server,
            "/v1/models/sums:predict",
            {"inputs": {"x": x, "sequence_id": [6], "sequence_control_input": [control]}},
        )
        assert status == 200, found
        assert (found["outputs"]["steps"], found["outputs"]["sequence_id"]) == ([step + 1], [6])


@pytest.mark.parametrize("path", ["/nothing", "/v2/models/echo/nothing", "/v1/nothing"])
def test_unknown_routes_answer_json(path: str, server: Serving) -> None:
    assert call(server, path) == (404, {"error": f"there is no GET {path}"})
    assert call(server, path, {}) == (404, {"error": f"there is no POST {path}"})
    assert call(server, "/v2", {}) == (405, {"error": "there is no POST /v2"})


def test_the_configuration_of_model_server(tmp_path: Path) -> None:
    """A reload answers 201 if models are new or have changed."""
    write(tmp_path, echo("i64"), "echo")
    with serving(tmp_path, poll_seconds=0) as server:
        ok = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": "OK"}}
        assert call(server, "/v1/config") == (200, {"echo": {"model_version_status": [ok]}})
        assert call(server, "/v1/config/reload", {})[0] == 200
        write(tmp_path, strings(), "strings")
        (tmp_path / "broken" / "1").mkdir(parents=True)
        (tmp_path / "broken" / "1" / "model.xml").write_text("no model")
        status, found = call(server, "/v1/config/reload", {})
        assert status == 201 and found["strings"] == {"model_version_status": [ok]}
        (broken,) = found["broken"]["model_version_status"]
        assert (broken["state"], broken["status"]["error_code"]) == ("LOADING", "UNKNOWN")
        assert call(server, "/v1/config/reload", {}) == (200, found) == call(server, "/v1/config")


def test_status_and_metadata(server: Serving) -> None:
    for path in ("/v1/models/echo", "/v1/models/echo/versions/2"):
        assert call(server, path) == (
            200,
            {
                "model_version_status": [
                    {"version": "2", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": "OK"}}
                ]
            },
        )
    status, found = call(server, "/v1/models/echo/metadata")
    assert status == 200
    signature = found["metadata"]["signature_def"]["signatureDef"]["serving_default"]
    assert signature["inputs"]["x"]["dtype"] == "DT_INT64"
    assert [dim["size"] for dim in signature["inputs"]["x"]["tensorShape"]["dim"]] == ["-1", "3"]


@pytest.mark.parametrize(
    ("model", "body", "status", "text"),
    [
        ("nothing", {"inputs": [[1, 2, 3]]}, 404, "no model 'nothing'"),
        ("echo", {}, 400, "'inputs' and 'instances'"),
        ("echo", {"inputs": [[1, 2, 3]], "instances": []}, 400, "'inputs' and 'instances'"),
        ("echo", {"instances": []}, 400, "no list of rows"),
        ("echo", {"instances": 3}, 400, "no list of rows"),
        ("affine", {"instances": [{"a": 1, "b": 2}, {"a": 1}]}, 400, "different names"),
        ("echo", {"inputs": [[1, 2], [3]]}, 400, "different lengths"),
        ("echo", {"inputs": [[1, 2], 3]}, 400, "different lengths"),
        ("echo", {"inputs": [[1.5, 2, 3]]}, 400, "INT64"),
        ("echo", {"inputs": [["1", "2", "3"]]}, 400, "INT64"),
        ("echo", {"inputs": {"z": 1}}, 400, "has no input 'z'; it has x"),
        ("strings", {"inputs": [{"b64": "?"}]}, 400, "base64"),
        ("strings", {"inputs": [1]}, 400, "BYTES"),
        ("affine", {"inputs": {"a": [[1, 2, 3, 4]]}}, 400, "'b' of model 'affine' is missing"),
    ],
    ids=str,
)
def test_wrong_requests(server: Serving, model: str, body: Any, status: int, text: str) -> None:
    found = call(server, f"/v1/models/{model}:predict", body)
    assert found[0] == status
    assert text in found[1]["error"]
