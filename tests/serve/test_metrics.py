"""Metrics: names and labels of other servers, values, and the board of Grafana."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ovgpu.serve.engines import EngineOptions, open_engine
from ovgpu.serve.statistics import TIMES
from tests.harness.servers.serving import SECONDS, Serving, fails, serving, write
from tests.serve.test_access import call
from tests.serve.test_models import X, adding, counting, until
from tests.serve.test_observation import get
from tests.serve.wire import SERVICE

ROOT = Path(__file__).parents[2]
SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
SELECTOR = re.compile(r"\b((?:ovgpu|nv|process)_\w+)(?:\{([^}]*)\})?")

Samples = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("repository")
    write(folder, adding(1), "add")
    write(folder, counting(0), "count")
    write(folder, adding(1), 'quote"')
    with serving(folder, engine={"max_wait_ms": 0}) as found:
        yield found


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the labels and values of all samples by name, as Prometheus reads them."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            assert match, line
            found.setdefault(match[1], []).append((dict(LABEL.findall(match[2] or "")), float(match[3])))
    return found


def metrics(server: Serving) -> Samples:
    """Return the values of all samples by name and values of the labels."""
    return {
        (name, tuple(labels.values())): value
        for name, rows in samples(get(server, "/metrics")).items()
        for labels, value in rows
    }


def test_the_text_is_that_of_prometheus(server: Serving) -> None:
    text = get(server, "/metrics")
    families = list(text_string_to_metric_families(text))
    assert {family.type for family in families} == {"counter", "gauge", "histogram"}
    names = {sample.labels["name"] for family in families for sample in family.samples if "name" in sample.labels}
    assert names == {"add", "count", 'quote"'}
    lines = [line.rpartition(" ")[0] for line in text.splitlines()]
    assert len(lines) == len(set(lines))


def test_metrics_count_what_clients_did(server: Serving) -> None:
    before = metrics(server)
    with server.client("REST") as rest, server.client("gRPC") as grpc:
        for client in (rest, grpc, grpc):
            client.infer("add", {"x": np.ones((3, 4), np.float32)})
        fails("INVALID_ARGUMENT", grpc.infer, "add", {"y": X})
        grpc.infer("count", {"x": X}, sequence_id=1, sequence_start=True)
        rest.infer("count", {"x": X}, sequence_id=2, sequence_start=True)
        body = json.dumps({"inputs": X.tolist()})
        assert call(server, "POST", "/v1/models/add:predict", {}, body)[0] == 200
        after = metrics(server)

        def gained(name: str, *labels: str) -> float:
            return after[name, labels] - before.get((name, labels), 0)

        assert gained("ovgpu_requests_success", "KServe", "REST", "ModelInfer", "add", "1") == 1
        assert gained("ovgpu_requests_success", "KServe", "gRPC", "ModelInfer", "add", "1") == 2
        assert gained("ovgpu_requests_success", "TensorFlowServing", "REST", "Predict", "add", "1") == 1
        assert gained("ovgpu_requests_fail", "KServe", "gRPC", "ModelInfer", "add", "1") == 1
        assert gained("ovgpu_request_time_us_count", "gRPC", "add", "1") == 3
        assert gained("ovgpu_request_time_us_count", "REST", "add", "1") == 2
        assert gained("ovgpu_batch_size_sum", "add", "1") == 10
        assert gained("ovgpu_batch_size_bucket", "add", "1", "4") == 4
        assert gained("ovgpu_batch_size_bucket", "add", "1", "2") == 1
        assert gained("ovgpu_inference_time_us_count", "add", "1") == 4
        assert gained("ovgpu_wait_for_infer_req_time_us_count", "add", "1") == 4
        assert after["ovgpu_sequences", ("count", "1")] == 2
        assert after["ovgpu_max_sequences", ("count", "1")] == 64
        assert after["ovgpu_batch_slots", ("count", "1")] >= 2
        for name in ("ovgpu_current_requests", "ovgpu_infer_req_active", "nv_inference_pending_request_count"):
            assert after[name, ("add", "1")] == 0
        assert [after["ovgpu_streams", (name, "1")] for name in ("add", "count")] == [1, 1]
        assert [after["ovgpu_infer_req_queue_size", (name, "1")] for name in ("add", "count")] == [32, 64]
        assert gained("nv_inference_request_success", "add", "1") == 4
        assert gained("nv_inference_request_failure", "add", "1", "OTHER") == 1
        assert gained("nv_inference_request_failure", "add", "1", "REJECTED") == 0
        assert gained("nv_inference_count", "add", "1") == 10
        assert gained("nv_inference_exec_count", "add", "1") == 4
        for kind in ("request", "queue", "compute_infer"):
            assert gained(f"nv_inference_{kind}_duration_us", "add", "1") >= 0
        request, computing = [
            gained(f"nv_inference_{kind}_duration_us", "add", "1") for kind in ("request", "compute_infer")
        ]
        assert 0 < computing < request
        for kind in ("compute_input", "compute_output"):  # boards add them to the others
            assert gained(f"nv_inference_{kind}_duration_us", "add", "1") == 0
        grpc.infer("count", {"x": X}, sequence_id=1, sequence_end=True)
        grpc.infer("count", {"x": X}, sequence_id=2, sequence_end=True)
    assert metrics(server)["ovgpu_sequences", ("count", "1")] == 0


@pytest.mark.parametrize("kind", ["batches", "sequences", "requests"])
def test_inferences_that_wait_are_counted(tmp_path: Path, kind: str) -> None:
    """While one inference runs and is held up, three more wait; the next one is refused."""
    write(tmp_path, counting(0) if kind == "sequences" else adding(1), "m")
    running, going = threading.Event(), threading.Event()

    def opener(path: Path, observer: Any) -> Any:
        def hold(run: Any) -> None:
            observer(run)
            if warmed.is_set():
                running.set()
                assert going.wait(SECONDS)

        options = EngineOptions("CPU", batching=kind != "requests", max_batch_size=1, max_sequences=8, max_wait_ms=0)
        return open_engine(path, options, hold)

    warmed = threading.Event()
    with serving(tmp_path, opener=opener, max_queue=4) as server, server.client("gRPC") as client:
        warmed.set()
        inputs = client.inputs({"x": X})

        def send(id: int) -> Any:
            sequence = {"sequence_id": id, "sequence_start": True} if kind == "sequences" else {}
            return client.client.async_infer("m", inputs, lambda result, error: None, **sequence)

        def counted(name: str, *labels: str) -> float:
            return metrics(server)[name, ("m", "1", *labels)]

        send(1)
        assert running.wait(SECONDS)
        for id in (2, 3, 4):
            send(id)
        until(lambda: counted("ovgpu_current_requests") == 4)
        until(lambda: counted("nv_inference_pending_request_count") == 3)
        assert counted("ovgpu_infer_req_active") == 1
        options = {"sequence_id": 5, "sequence_start": True} if kind == "sequences" else {}
        fails("UNAVAILABLE", client.infer, "m", {"x": X}, **options)
        assert counted("nv_inference_request_failure", "REJECTED") == 1
        going.set()
        until(lambda: counted("nv_inference_request_success") == 4)
        assert counted("nv_inference_pending_request_count") == 0


def test_calls_without_a_token_are_counted(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add")
    (tmp_path / "token").write_text("a-token-with-16-characters")
    right = {"authorization": "Bearer a-token-with-16-characters"}
    with serving(tmp_path, token_file=tmp_path / "token") as server, server.client("gRPC") as client:

        def counts() -> dict[tuple[str, ...], float]:
            found = samples(call(server, "GET", "/metrics", right)[2].decode())["ovgpu_calls"]
            return {tuple(labels.values()): value for labels, value in found}

        counts()
        before = counts()
        assert call(server, "GET", "/v2", {})[0] == 401
        assert call(server, "GET", "/v2/models/nothing", right)[0] == 404
        for _ in range(2):
            fails("UNAUTHENTICATED", client.infer, "add", {"x": X})
        with grpc.insecure_channel(server.grpc) as channel, pytest.raises(grpc.RpcError):
            list(channel.stream_stream(SERVICE + "ModelStreamInfer")(iter([b""]), timeout=SECONDS))
        gained = {key: value - before.get(key, 0) for key, value in counts().items() if value != before.get(key)}
    assert gained == {
        ("REST", "ServerMetadata", "UNAUTHENTICATED"): 1,
        ("REST", "ModelMetadata", "NOT_FOUND"): 1,
        ("gRPC", "ModelInfer", "UNAUTHENTICATED"): 2,
        ("gRPC", "ModelStreamInfer", "UNAUTHENTICATED"): 1,
        ("REST", "Metrics", "OK"): 1,
    }


def test_clients_cannot_make_up_labels(server: Serving) -> None:
    """The number of samples depends on the models, and not on what clients send."""
    before = metrics(server).keys()
    connection = http.client.HTTPConnection(server.http, timeout=SECONDS)
    for number in range(20):
        for verb, path in (("POST", f"/v2/models/{number}/infer"), ("GET", f"/{number}"), (f"M{number}", "/v2")):
            connection.request(verb, path, b"{}")
            connection.getresponse().read()
    connection.close()
    with server.client("gRPC") as client:
        for number in range(20):
            fails("NOT_FOUND", client.infer, f"{number}", {"x": X})
    statuses = ("NOT_FOUND", "INVALID_ARGUMENT")
    new = metrics(server).keys() - before
    assert new <= {("ovgpu_calls", (interface, "ModelInfer", s)) for interface in ("REST", "gRPC") for s in statuses}


def test_metrics_of_the_process(server: Serving) -> None:
    found = metrics(server)
    for name in ("resident_memory_bytes", "cpu_seconds_total", "open_fds", "max_fds", "start_time_seconds"):
        assert found[f"process_{name}", ()] > 0


def test_metrics_of_a_card(tmp_path: Path, emulated: str) -> None:
    write(tmp_path, adding(1), "add")
    with serving(tmp_path, emulated) as server:
        (used,) = [value for (name, _), value in metrics(server).items() if name == "ovgpu_device_memory_bytes"]
    assert used > 0


def test_a_version_that_was_replaced_in_place_is_not_counted_twice(tmp_path: Path) -> None:
    write(tmp_path, counting(0), "count")
    with serving(tmp_path) as server, server.client("gRPC") as client:
        client.infer("count", {"x": X}, sequence_id=1, sequence_start=True)
        client.client.load_model("count")
        client.infer("count", {"x": X}, sequence_id=2, sequence_start=True)
        assert len(server.server.service.models.versions()) == 2
        lines = [line.split(" ")[0] for line in get(server, "/metrics").splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
    assert 'ovgpu_sequences{name="count",version="1"}' in lines


# ---- boards

MODEL = {"name", "version"}
CALL = {"interface", *MODEL}

# Metrics that the board of OpenVINO Model Server asks for, without their prefix, and the labels that it selects by.
OF_MODEL_SERVER: dict[str, set[str]] = {
    "requests_success": CALL | {"method"},
    "request_time_us_sum": CALL,
    "request_time_us_count": CALL,
    "request_time_us_bucket": CALL | {"le"},
    "streams": MODEL,
    "inference_time_us_sum": MODEL,
    "inference_time_us_count": MODEL,
    "wait_for_infer_req_time_us_sum": MODEL,
    "wait_for_infer_req_time_us_count": MODEL,
    "current_requests": MODEL,
}


@pytest.fixture(scope="module")
def used(server: Serving) -> dict[str, list[tuple[dict[str, str], float]]]:
    """All samples after inferences of both interfaces."""
    with server.client("REST") as rest, server.client("gRPC") as grpc:
        for client in (rest, grpc):
            client.infer("add", {"x": X})
        grpc.infer("count", {"x": X}, sequence_id=9, sequence_start=True, sequence_end=True)
    return samples(get(server, "/metrics"))


def test_the_board_of_model_server_finds_its_metrics(used: dict[str, Any]) -> None:
    for name, labels in OF_MODEL_SERVER.items():
        for found, _ in used[f"ovgpu_{name}"]:
            assert labels <= found.keys(), name
    # Panels select buckets by their bounds: the apdex score by two, the distribution by all.
    bounds = {labels["le"] for labels, _ in used["ovgpu_request_time_us_bucket"]}
    assert {"10", "58", "104", "188", "67466", "218591", "1474755971", "+Inf"} <= bounds
    assert len(bounds) == len(TIMES) + 1 == 34


def expressions(node: Any) -> Iterator[str]:
    """Yield the queries of a board, and of its variables."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("expr", "query") and isinstance(value, str):
                yield value
            else:
                yield from expressions(value)
    elif isinstance(node, list):
        for value in node:
            yield from expressions(value)


def test_the_board_asks_for_metrics_that_exist(server: Serving, used: dict[str, Any]) -> None:
    used = used | {"ovgpu_device_memory_bytes": [({"device": "a card"}, 1.0)]}  # which is not here
    assert "# TYPE ovgpu_device_memory_bytes gauge" in get(server, "/metrics")
    board = json.loads((ROOT / ".github" / "deploy" / "grafana.json").read_text())
    asked = set()
    for expression in expressions(board):
        for name, selector in SELECTOR.findall(expression):
            asked.add(name)
            labels = set(re.findall(r"(\w+)\s*[=!]", selector))
            assert name in used, name
            assert any(labels <= found.keys() for found, _ in used[name]), (name, labels)
    shown = {"ovgpu_calls", "nv_inference_pending_request_count", "ovgpu_sequences", "process_resident_memory_bytes"}
    assert shown <= asked
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
