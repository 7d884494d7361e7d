"""Inferences through REST and gRPC: types, shapes, outputs, and descriptions of models."""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import InferenceServerException

import ovgpu as ov
from tests.harness.ir import Net
from tests.harness.servers.serving import INTERFACES, Client, Serving, expected, serving, write

TYPES = {
    "boolean": bool,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
}


def echo(kind: str) -> ov.Model:
    """Reverse the elements of rows [n, 3]."""
    net = Net("echo")
    x = net.parameter(kind, (-1, 3), "x")
    indices = net.const(np.array([2, 1, 0]))
    net.result(net.layer("Gather", "opset8", [x, indices, net.const(np.array(1))], {"batch_dims": 0}, names=["y"]))
    return ov.Core().read_model(*net.build())


def reshape() -> ov.Model:
    """Reshape to a shape that is an input. It may not fit, which shows when the layer runs."""
    net = Net("reshape")
    x, shape = net.parameter("f32", (-1,), "x"), net.parameter("i64", (-1,), "shape")
    net.result(net.layer("Reshape", "opset1", [x, shape], {"special_zero": False}, names=["y"]))
    return ov.Core().read_model(*net.build())


def affine() -> ov.Model:
    """Two inputs and two outputs: a + 2 b, and a product with a matrix."""
    net = Net("affine")
    a, b = net.parameter("f32", (-1, 4), "a"), net.parameter("f32", (-1, 4), "b")
    twice = net.layer("Multiply", "opset1", [b, net.const(np.full((1, 1), 2, np.float32))])
    net.result(net.layer("Add", "opset1", [a, twice], names=["sum"]))
    matrix = net.const(np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32))
    net.result(
        net.layer("MatMul", "opset1", [a, matrix], {"transpose_a": False, "transpose_b": False}, names=["product"])
    )
    return ov.Core().read_model(*net.build())


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for kind in (*TYPES, "bf16"):
        write(folder, echo(kind), f"echo_{kind}")
    write(folder, affine(), "affine", 3)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Serving]:
    with serving(repository) as found:
        yield found


@pytest.fixture(params=INTERFACES)
def client(request: pytest.FixtureRequest, server: Serving) -> Iterator[Client]:
    with server.client(request.param) as found:
        yield found


def post(server: Serving, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any, Any]:
    """Post a body, JSON unless it is bytes; return status, headers and body of the response."""
    connection = http.client.HTTPConnection(server.http, timeout=60)
    connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), headers or {})
    response = connection.getresponse()
    found = response.read()
    connection.close()
    return response.status, response.headers, found


@pytest.mark.parametrize("kind", TYPES)
def test_element_types(client: Client, kind: str) -> None:
    dtype = np.dtype(TYPES[kind])
    values = np.array([[0, 1, 7], [3, 2, 100]]).astype(dtype)
    if dtype.kind in "iu":
        values[0, 0], values[1, 1] = np.iinfo(dtype).min, np.iinfo(dtype).max
    found = client.infer(f"echo_{kind}", {"x": values})
    assert found["y"].dtype == dtype
    assert np.array_equal(found["y"], values[:, ::-1])


@pytest.mark.parametrize("kind", TYPES)
def test_json_values(server: Serving, kind: str) -> None:
    values = np.array([[0, 1, 7], [3, 2, 100]]).astype(TYPES[kind])
    datatype = {"boolean": "BOOL"}.get(
        kind,
        kind.upper().replace("F", "FP").replace("U", "UINT") if kind[0] in "fu" else kind.upper().replace("I", "INT"),
    )
    for data in (values.tolist(), values.ravel().tolist()):
        status, _, body = post(
            server,
            f"/v2/models/echo_{kind}/infer",
            {"id": "7", "inputs": [{"name": "x", "datatype": datatype, "shape": [2, 3], "data": data}]},
        )
        assert status == 200, body
        assert json.loads(body) == {
            "model_name": f"echo_{kind}",
            "model_version": "1",
            "id": "7",
            "outputs": [{"name": "y", "datatype": datatype, "shape": [2, 3], "data": values[:, ::-1].ravel().tolist()}],
        }


def test_bf16(server: Serving) -> None:
    with server.client("gRPC") as client:
        raw = b"\x80\x3f\x00\x40\x40\x40"
        message = service_pb2.ModelInferRequest(model_name="echo_bf16", raw_input_contents=[raw])
        message.inputs.add(name="x", datatype="BF16", shape=[1, 3])
        found = client.client._client_stub.ModelInfer(message)
    assert found.raw_output_contents[0] == b"\x40\x40\x00\x40\x80\x3f"
    status, _, body = post(
        server,
        "/v2/models/echo_bf16/infer",
        {"inputs": [{"name": "x", "datatype": "BF16", "shape": [1, 3], "data": [1, 2.5, 3]}]},
    )
    assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [3, 2.5, 1])


@pytest.mark.parametrize(
    "data",
    [
        [0.5, 1, 2],
        ["a", "b", "c"],
        [True, False, True],
        [1, 2],
        [1, 2, 3, 4],
        [128, 0, 0],
        [-129, 0, 0],
        [2**70, 0, 0],
        {"a": 1},
        [None, 1, 2],
        [[1, 2], [3]],
    ],
    ids=str,
)
def test_json_values_that_do_not_fit(server: Serving, data: Any) -> None:
    status, _, body = post(
        server,
        "/v2/models/echo_i8/infer",
        {"inputs": [{"name": "x", "datatype": "INT8", "shape": [1, 3], "data": data}]},
    )
    assert status == 400, body
    assert "'x'" in json.loads(body)["error"]


def test_contents_of_messages(server: Serving) -> None:
    """Inputs of gRPC that are not raw."""
    fields = {
        "bool_contents": ("BOOL", "boolean", [True, False, True]),
        "int_contents": ("INT16", "i16", [-1, 2, 300]),
        "int64_contents": ("INT64", "i64", [-(2**63), 0, 2**63 - 1]),
        "uint_contents": ("UINT8", "u8", [0, 1, 255]),
        "uint64_contents": ("UINT64", "u64", [0, 1, 2**64 - 1]),
        "fp32_contents": ("FP32", "f32", [0.5, 1, 2]),
        "fp64_contents": ("FP64", "f64", [0.1, 1, 2]),
    }
    with server.client("gRPC") as client:
        for field, (datatype, kind, values) in fields.items():
            message = service_pb2.ModelInferRequest(model_name=f"echo_{kind}")
            tensor = message.inputs.add(name="x", datatype=datatype, shape=[1, 3])
            getattr(tensor.contents, field).extend(values)
            found = client.client._client_stub.ModelInfer(message).raw_output_contents[0]
            assert np.frombuffer(found, TYPES[kind]).tolist() == values[::-1]


def test_several_inputs_and_outputs(client: Client) -> None:
    rng = np.random.default_rng(1)
    for rows in (1, 3, 32):
        inputs = {name: rng.normal(size=(rows, 4)).astype(np.float32) for name in "ab"}
        wanted = expected(affine(), inputs)
        found = client.infer("affine", inputs)
        assert list(found) == ["sum", "product"]
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, 1e-6, 1e-6)
        outputs = [client.triton.InferRequestedOutput("product")]
        chosen = client.infer("affine", inputs, "3", outputs=outputs, request_id="abc")
        assert list(chosen) == ["product"]


def test_outputs_in_json_and_in_bytes(server: Serving) -> None:
    inputs = [{"name": name, "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]} for name in "ab"]
    outputs = [{"name": "sum", "parameters": {"binary_data": True}}, {"name": "product"}]
    status, headers, body = post(server, "/v2/models/affine/infer", {"inputs": inputs, "outputs": outputs})
    length = int(headers["Inference-Header-Content-Length"])
    found = json.loads(body[:length])
    assert status == 200
    assert found["outputs"][0] == {
        "name": "sum",
        "datatype": "FP32",
        "shape": [1, 4],
        "parameters": {"binary_data_size": 16},
    }
    assert np.frombuffer(body[length:], np.float32).tolist() == [3, 6, 9, 12]
    assert len(found["outputs"][1]["data"]) == 5


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_requests(server: Serving, encoding: str) -> None:
    with server.client("REST") as client:
        values = np.ones((2, 3), np.float32)
        found = client.infer("echo_f32", {"x": values}, request_compression_algorithm=encoding)
        assert np.array_equal(found["y"], values)
    status, _, body = post(server, "/v2/models/echo_f32/infer", gzip.compress(b"{}")[:-9], {"Content-Encoding": "gzip"})
    assert (status, "ends" in json.loads(body)["error"]) == (400, True)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"a": np.zeros((1, 4), np.float32)}, "input 'b' of model 'affine' is missing"),
        ({"a": np.zeros((1, 4), np.float32), "c": np.zeros((1, 4), np.float32)}, "has no input 'c'; it has a, b"),
        ({"a": np.zeros((1, 4), np.float64), "b": np.zeros((1, 4), np.float32)}, "has the datatype FP32"),
        ({"a": np.zeros((1, 5), np.float32), "b": np.zeros((1, 4), np.float32)}, "has the shape [-1, 4], not [1, 5]"),
        ({"a": np.zeros((2, 4), np.float32), "b": np.zeros((1, 4), np.float32)}, "batch axis 0 is 1"),
        ({"a": np.zeros((33, 4), np.float32), "b": np.zeros((2, 4), np.float32)}, "different numbers of rows: 2, 33"),
        ({"a": np.zeros((0, 4), np.float32), "b": np.zeros((0, 4), np.float32)}, "incompatible"),
        ({"a": np.zeros((4,), np.float32), "b": np.zeros((1, 4), np.float32)}, "not [4]"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_wrong_inputs(client: Client, arrays: dict[str, Any], text: str) -> None:
    with pytest.raises(InferenceServerException) as error:
        client.infer("affine", arrays)
    assert text in error.value.message()
    assert error.value.status() == ("400" if client.interface == "REST" else "StatusCode.INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("model", "version", "options", "status"),
    [
        ("nothing", "", {}, "NOT_FOUND"),
        ("affine", "2", {}, "NOT_FOUND"),
        ("affine", "", {"outputs": ["nothing"]}, "INVALID_ARGUMENT"),
    ],
)
def test_wrong_names(client: Client, model: str, version: str, options: dict[str, Any], status: str) -> None:
    if options:
        options = {"outputs": [client.triton.InferRequestedOutput(name) for name in options["outputs"]]}
    zeros = np.zeros((1, 4), np.float32)
    with pytest.raises(InferenceServerException) as error:
        client.infer(model, {"a": zeros, "b": zeros}, version, **options)
    number = {"NOT_FOUND": "404", "INVALID_ARGUMENT": "400"}[status]
    assert error.value.status() == (number if client.interface == "REST" else f"StatusCode.{status}")


def test_descriptions(client: Client) -> None:
    api = client.client
    assert api.is_server_live()
    assert api.is_server_ready()
    assert api.is_model_ready("affine")
    assert api.is_model_ready("affine", "3")
    assert not api.is_model_ready("affine", "4")
    assert not api.is_model_ready("nothing")
    rest = client.interface == "REST"
    options = {} if rest else {"as_json": True}
    assert api.get_server_metadata(**options)["name"] == "ovgpu"
    metadata = api.get_model_metadata("affine", **options)
    shape = [-1, 4] if rest else ["-1", "4"]
    assert metadata["versions"] == ["3"]
    assert metadata["inputs"] == [{"name": name, "datatype": "FP32", "shape": shape} for name in "ab"]
    assert [output["name"] for output in metadata["outputs"]] == ["sum", "product"]
    config = api.get_model_config("affine", **options)
    config = config if rest else config["config"]
    assert [(x["name"], x["data_type"]) for x in config["input"]] == [("a", "TYPE_FP32"), ("b", "TYPE_FP32")]
    assert "dynamic_batching" in config
    index = api.get_model_repository_index(**options)
    index = index if rest else index["models"]
    assert {"name": "affine", "version": "3", "state": "READY"}.items() <= next(
        x for x in index if x["name"] == "affine"
    ).items()


def test_the_configuration_is_one_of_triton(server: Serving) -> None:
    from google.protobuf import json_format

    with server.client("REST") as client:
        config = client.client.get_model_config("affine")
    found = json_format.ParseDict(config, model_config_pb2.ModelConfig())
    assert [x.data_type for x in found.input] == [model_config_pb2.TYPE_FP32] * 2
    assert found.max_batch_size == 32 and [list(x.dims) for x in (*found.input, *found.output)] == [[4], [4], [4], [5]]


def test_statistics(repository: Path) -> None:
    with serving(repository, engine={"max_wait_ms": 0}) as server:
        for interface in INTERFACES:
            with server.client(interface) as client:
                zeros = np.zeros((3, 4), np.float32)
                client.infer("affine", {"a": zeros, "b": zeros})
                with pytest.raises(InferenceServerException):
                    client.infer("affine", {"a": zeros})
        with server.client("REST") as client:
            (found,) = client.client.get_inference_statistics("affine")["model_stats"]
            assert len(client.client.get_inference_statistics()["model_stats"]) == 14
    assert (found["inference_count"], found["execution_count"]) == (6, 2)  # rows, and batches
    assert found["inference_stats"]["success"]["count"] == found["inference_stats"]["fail"]["count"] == 2
    assert [(x["batch_size"], x["compute_infer"]["count"]) for x in found["batch_stats"]] == [(3, 2)]
    assert found["inference_stats"]["compute_infer"]["ns"] > 0
    assert (
        found["inference_stats"]["compute_input"]
        == found["inference_stats"]["compute_output"]
        == ({"count": 2, "ns": 0})
    )
    assert found["inference_stats"]["cache_hit"] == found["inference_stats"]["cache_miss"] == {"count": 0, "ns": 0}


def test_a_stream_answers_in_order(server: Serving) -> None:
    import queue

    answers = queue.Queue[Any]()
    with server.client("gRPC") as client:
        client.client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(300):
            x = np.full((1, 3), number, np.float32)
            client.client.async_stream_infer(
                "echo_f32" if number % 7 else "nothing", client.inputs({"x": x}), request_id=str(number)
            )
        for number in range(300):
            result, error = answers.get(timeout=60)
            if number % 7:
                response = result.get_response()
                assert response.id == str(number) and response.parameters["triton_final_response"].bool_param
                assert result.as_numpy("y").tolist() == [[number] * 3]
            else:
                assert "no model 'nothing'" in error.message()
        client.client.stop_stream()
