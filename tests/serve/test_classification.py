"""Classification: the highest values of an output, as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ovgpu.serve import classification
from ovgpu.serve.classification import MAX_CLASSES, classified
from ovgpu.serve.protocol import NamedTensor
from ovgpu.types import Type
from tests.batching.nets import sums
from tests.harness.servers.serving import INTERFACES, Client, Serving, fails, serving, write
from tests.serve.test_inference import TYPES, affine, echo, post

REFUSED = ("boolean", "f16", "bf16")
ROWS = np.array([[1, 5, 3], [7, 2, 7]])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("repository")
    for kind in (*TYPES, "bf16"):
        write(folder, echo(kind), f"echo_{kind}")
    write(folder, affine(), "affine")
    write(folder, sums(), "sums")
    with serving(folder) as found:
        yield found


@pytest.fixture(params=INTERFACES)
def client(request: pytest.FixtureRequest, server: Serving) -> Iterator[Client]:
    with server.client(request.param) as found:
        yield found


def classes(client: Client, model: str, arrays: Any, output: str = "y", count: int = 2, **options: Any) -> Any:
    """Return the classes of an output, as text."""
    wanted = [client.triton.InferRequestedOutput(output, class_count=count)]
    return client.infer(model, arrays, outputs=wanted, **options)[output].astype(str).tolist()


@pytest.mark.parametrize("kind", sorted(set(TYPES) - set(REFUSED)))
def test_values_and_indices(client: Client, kind: str) -> None:
    """The model reverses rows. Of equal values, the first comes first."""
    found = classes(client, f"echo_{kind}", {"x": ROWS.astype(TYPES[kind])})
    if kind[0] == "f":
        assert found == [["5.000000:1", "3.000000:0"], ["7.000000:0", "7.000000:2"]]
    else:
        assert found == [["5:1", "3:0"], ["7:0", "7:2"]]


def test_the_whole_range_of_integers(client: Client) -> None:
    x = np.array([[0, 2**64 - 1, 2**63]], np.uint64)
    assert classes(client, "echo_u64", {"x": x}, count=3) == [[f"{2**64 - 1}:1", f"{2**63}:0", "0:2"]]
    x = np.array([[-(2**63), 2**63 - 1, -1]], np.int64)
    assert classes(client, "echo_i64", {"x": x}, count=3) == [[f"{2**63 - 1}:1", "-1:0", f"{-(2**63)}:2"]]


@pytest.mark.parametrize("count", [3, 4, 2**32 - 1])
def test_there_are_at_most_all_classes(client: Client, count: int) -> None:
    found = classes(client, "echo_i32", {"x": ROWS.astype(np.int32)}, count=count)
    assert found == [["5:1", "3:0", "1:2"], ["7:0", "7:2", "2:1"]]


@pytest.mark.parametrize("kind", REFUSED)
def test_other_types_have_no_classes(server: Serving, kind: str) -> None:
    datatype, data = {"boolean": ("BOOL", [True] * 3), "f16": ("FP16", [1] * 3), "bf16": ("BF16", [1] * 3)}[kind]
    status, _, body = post(
        server,
        f"/v2/models/echo_{kind}/infer",
        {
            "inputs": [{"name": "x", "datatype": datatype, "shape": [1, 3], "data": data}],
            "outputs": [{"name": "y", "parameters": {"classification": 1}}],
        },
    )
    assert (status, json.loads(body)) == (400, {"error": f"output 'y' of {datatype} has no classes"})


def test_other_outputs_are_as_always(client: Client) -> None:
    ones = np.ones((2, 4), np.float32)
    wanted = [client.triton.InferRequestedOutput("sum", class_count=1), client.triton.InferRequestedOutput("product")]
    found = client.infer("affine", {"a": ones, "b": ones}, outputs=wanted)
    assert found["sum"].tolist() == [[b"3.000000:0"]] * 2 and found["product"].shape == (2, 5)


def test_states_have_no_rows(client: Client) -> None:
    """A step is one row, whose configuration has a ``max_batch_size`` of 0. A step that is refused has not run."""
    x = np.arange(8, dtype=np.float32)[None]
    start = {"sequence_id": 1, "sequence_start": True}
    assert "has no output" in fails("INVALID_ARGUMENT", classes, client, "sums", {"x": x}, "nothing", **start)
    assert "up to" in fails("INVALID_ARGUMENT", classes, client, "sums", {"x": x}, count=MAX_CLASSES + 1, **start)
    found = classes(client, "sums", {"x": x}, **start, count=1)
    assert found[0].split(":")[1] == "7" and len(found) == 1
    assert classes(client, "sums", {"x": x}, "steps", sequence_id=1, sequence_end=True) == ["2:0"]


@pytest.mark.parametrize("count", [-1, 2**32, 1.5, "2", True, None], ids=str)
def test_wrong_counts(server: Serving, count: Any) -> None:
    status, _, body = post(
        server,
        "/v2/models/echo_f32/infer",
        {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}],
            "outputs": [{"name": "y", "parameters": {"classification": count}}],
        },
    )
    assert status == 400 and "is no number of classes" in json.loads(body)["error"]


def test_json_has_no_binary_data_by_default(server: Serving) -> None:
    status, _, body = post(
        server,
        "/v2/models/echo_f32/infer",
        {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.25, -2e10, 3]}],
            "outputs": [{"name": "y", "parameters": {"classification": 3}}],
        },
    )
    wanted = {"name": "y", "datatype": "BYTES", "shape": [1, 3]}
    texts = ["3.000000:0", "1.250000:2", "-20000000000.000000:1"]
    assert (status, json.loads(body)["outputs"]) == (200, [wanted | {"data": texts}])


def test_too_many_strings(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "MAX_CLASSES", 5)
    with server.client("gRPC") as client:
        x = ROWS.astype(np.float32)
        assert "6 classes of output 'y'" in fails("RESOURCE_EXHAUSTED", classes, client, "echo_f32", {"x": x}, count=9)
        assert len(classes(client, "echo_f32", {"x": x}, count=2)) == 2


def test_values_that_are_no_numbers() -> None:
    found = classified(NamedTensor("y", Type.f32, np.array([[-np.inf, 1, np.inf]], np.float32)), 3, True)
    assert found.array.tolist() == [[b"inf:2", b"1.000000:1", b"-inf:0"]]
    assert classified(NamedTensor("y", Type.f32, np.zeros((2, 0), np.float32)), 3, True).array.shape == (2, 0)


def test_the_server_says_so(server: Serving) -> None:
    with server.client("REST") as client:
        assert "classification" in client.client.get_server_metadata()["extensions"]
