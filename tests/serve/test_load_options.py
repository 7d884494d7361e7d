"""Options of one load: a ModelConfig of Triton that a client sends with it."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.batching.nets import SIZE, sums, time_major
from tests.harness.servers.serving import INTERFACES, SECONDS, Client, Serving, fails, serving, write
from tests.serve.test_inference import affine, post
from tests.serve.test_models import adding, until, version

A = np.ones((5, 4), np.float32)
X = np.ones((1, SIZE), np.float32)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write(folder, affine(), "affine")
    write(folder, sums(), "sums")
    return folder


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[Serving]:
    with serving(repository, engine={"max_batch_size": 4}) as found:
        yield found


@pytest.fixture(params=INTERFACES)
def client(request: pytest.FixtureRequest, served: Serving) -> Iterator[Client]:
    with served.client(request.param) as found:
        yield found


def config(server: Serving, model: str) -> dict[str, Any]:
    with server.client("REST") as client:
        found: dict[str, Any] = client.client.get_model_config(model)
    return found


def load(client: Client, model: str, config: Any) -> None:
    """Load a model with a configuration: an object, or the text of one."""
    client.client.load_model(model, config=config if isinstance(config, str) else json.dumps(config))


@pytest.mark.parametrize(
    ("rows", "sizes"), [(1, {1: 5}), (2, {2: 2, 1: 1}), (4, {4: 1, 1: 1}), (8, {5: 1}), (0, {1: 1})]
)
def test_the_size_of_batches(served: Serving, client: Client, rows: int, sizes: dict[int, int]) -> None:
    load(client, "affine", {"max_batch_size": rows})
    client.infer("affine", {"a": A, "b": A})
    found = served.server.service.models.current["affine"].statistics.sizes
    assert {size: batches.count for size, batches in found.items()} == sizes
    assert config(served, "affine")["max_batch_size"] == rows
    client.client.load_model("affine")
    assert config(served, "affine")["max_batch_size"] == 4  # the server's again


def test_the_delay_of_batches(repository: Path) -> None:
    """A batch waits for a second row, which the server's batches do not."""
    with serving(repository, engine={"max_batch_size": 2, "max_wait_ms": 0}) as server:
        with server.client("gRPC") as client:
            load(client, "affine", {"dynamic_batching": {"max_queue_delay_microseconds": "1000000"}})
            given = client.inputs({"a": A[:1], "b": A[:1]})
            ended = queue.Queue[Any]()
            for _ in range(2):
                client.client.async_infer("affine", given, lambda result, error: ended.put(error))
            assert [ended.get(timeout=SECONDS) for _ in range(2)] == [None, None]
        sizes = server.server.service.models.current["affine"].statistics.sizes
        assert {rows: batches.count for rows, batches in sizes.items()} == {2: 1}
        with server.client("REST") as client:
            assert config(server, "affine")["dynamic_batching"] == {"max_queue_delay_microseconds": 1000000}
            load(client, "affine", {"dynamicBatching": {"maxQueueDelayMicroseconds": 0}})
        assert config(server, "affine")["dynamic_batching"] == {"max_queue_delay_microseconds": 0}


def test_sequences(served: Serving, client: Client) -> None:
    """Their number, and the time after which idle ones end."""
    load(client, "sums", {"sequence_batching": {"oldest": {"max_candidate_sequences": 2}}})
    for id in (1, 2):
        client.infer("sums", {"x": X}, sequence_id=id, sequence_start=True)
    assert "all 2 sequences are open" in fails(
        "RESOURCE_EXHAUSTED", client.infer, "sums", {"x": X}, sequence_id=3, sequence_start=True
    )
    for id in (1, 2):
        client.infer("sums", {"x": X}, sequence_id=id, sequence_end=True)
    load(client, "sums", {"sequence_batching": {"max_sequence_idle_microseconds": 1000}})
    client.infer("sums", {"x": X}, sequence_id=1, sequence_start=True)
    until(lambda: len(served.server.service.sequences) == 0)
    load(client, "sums", {"max_batch_size": 0})
    found = config(served, "sums")
    assert found["sequence_batching"]["oldest"]["max_candidate_sequences"] == 64
    assert found["parameters"]["engine"]["string_value"].startswith("a request for each")


@pytest.mark.parametrize("model", ["affine", "sums"])
def test_the_own_configuration(served: Serving, client: Client, model: str) -> None:
    """It can be sent back, and changed."""
    client.client.load_model(model)
    found = config(served, model)
    load(client, model, found)
    assert config(served, model) == found
    load(client, model, dict.fromkeys(found) | {"max_batch_size": None, "dynamic_batching": None})  # all is left out
    assert config(served, model) == found
    changed = found | {"input": found["input"][::-1], "max_batch_size": 3 if model == "affine" else 0}
    load(client, model, changed)
    assert config(served, model)["max_batch_size"] == changed["max_batch_size"]


@pytest.mark.parametrize(
    ("model", "wanted", "status", "text"),
    [
        ("affine", "{", "INVALID_ARGUMENT", "no ModelConfig"),
        ("affine", "[]", "INVALID_ARGUMENT", "no object"),
        ("affine", "[" * 10_000, "INVALID_ARGUMENT", "no ModelConfig"),
        ("affine", {"sizes": 3}, "INVALID_ARGUMENT", 'no field named "sizes"'),
        ("affine", {"max_batch_size": "many"}, "INVALID_ARGUMENT", "no ModelConfig"),
        ("affine", {"max_batch_size": -1}, "INVALID_ARGUMENT", "max_batch_size is -1, not 0 to 4096"),
        ("affine", {"max_batch_size": 4097}, "INVALID_ARGUMENT", "max_batch_size is 4097"),
        ("affine", {"dynamic_batching": {"max_queue_delay_microseconds": 10**9}}, "INVALID_ARGUMENT", "not 0 to"),
        ("affine", {"name": "other"}, "INVALID_ARGUMENT", "name is other, but the model has affine"),
        ("affine", {"backend": "onnxruntime"}, "INVALID_ARGUMENT", "the model has ovgpu"),
        ("affine", {"input": [{"name": "a", "dims": [5]}]}, "INVALID_ARGUMENT", "input 'a'.dims is ['5']"),
        ("affine", {"output": [{"name": "y"}]}, "INVALID_ARGUMENT", "output 'y' is"),
        ("affine", {"sequence_batching": {"oldest": {}}}, "INVALID_ARGUMENT", "sequence_batching is"),
        ("affine", {"parameters": {"THREADS": {"string_value": "1"}}}, "INVALID_ARGUMENT", "parameters.THREADS is"),
        ("sums", {"max_batch_size": 8}, "INVALID_ARGUMENT", "max_batch_size is 8, but the model has none"),
        ("sums", {"sequence_batching": {"oldest": {"max_candidate_sequences": 9999}}}, "INVALID_ARGUMENT", "9999"),
        ("affine", {"instance_group": [{"count": 2}]}, "UNIMPLEMENTED", "instance_group of a ModelConfig"),
        ("affine", {"dynamic_batching": {"priority_levels": 2}}, "UNIMPLEMENTED", "dynamic_batching.priority_levels"),
        ("sums", {"sequence_batching": {"direct": {}}}, "UNIMPLEMENTED", "sequence_batching.direct"),
        ("nothing", {}, "NOT_FOUND", "no model 'nothing'"),
    ],
    ids=str,
)
def test_configurations_that_are_refused(
    served: Serving, client: Client, model: str, wanted: Any, status: str, text: str
) -> None:
    """The model stays as it is."""
    before = served.server.service.models.current.get(model)
    assert text in fails(status, load, client, model, wanted)
    assert served.server.service.models.current.get(model) is before


def test_files_and_other_parameters(client: Client, served: Serving) -> None:
    text = fails("UNIMPLEMENTED", client.client.load_model, "affine", config="{}", files={"file:1/model.xml": b"x"})
    assert "file:1/model.xml is not supported" in text
    for parameters, expected in (({"device": "CPU"}, b"no parameter 'device'"), ({"config": 3}, b"no string")):
        status, _, body = post(served, "/v2/repository/models/affine/load", {"parameters": parameters})
        assert status == 400 and expected in body


def test_a_model_that_was_unloaded_stays_so_if_a_load_fails(tmp_path: Path) -> None:
    """The client's options were wrong, and the server is ready."""
    write(tmp_path, adding(1), "add")
    with serving(tmp_path) as server, server.client("gRPC") as client:
        client.client.unload_model("add")
        fails("INVALID_ARGUMENT", load, client, "add", {"backend": "other"})
        assert version(server, "add") == "" and client.client.is_server_ready()
        client.client.load_model("add")
        assert version(server, "add") == "1"


def test_a_server_that_runs_without_batches(repository: Path) -> None:
    with serving(repository, engine={"batching": False}) as server, server.client("gRPC") as client:
        own = {model: config(server, model) for model in ("affine", "sums")}
        for model, found in own.items():
            load(client, model, found)
            assert config(server, model) == found
        load(client, "affine", {"max_batch_size": 2})
        assert config(server, "affine")["max_batch_size"] == 2


def test_batches_that_are_not_possible(tmp_path: Path) -> None:
    """The batch axis of an input is the second one, which a configuration cannot say."""
    write(tmp_path, time_major(), "gru")
    with serving(tmp_path) as server, server.client("gRPC") as client:
        assert "max_batch_size is 8" in fails("INVALID_ARGUMENT", load, client, "gru", {"max_batch_size": 8})
        load(client, "gru", config(server, "gru"))


def test_new_versions_have_the_options_of_the_server(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add")
    with serving(tmp_path, poll_seconds=0.02) as server, server.client("gRPC") as client:
        load(client, "add", {"max_batch_size": 2})
        assert config(server, "add")["max_batch_size"] == 2
        write(tmp_path, adding(2), "add", 2)
        until(lambda: version(server, "add") == "2")
        assert config(server, "add")["max_batch_size"] == 32
