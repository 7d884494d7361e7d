"""Limits of the server: what is too large, too late or too much is refused, and costs nothing."""

from __future__ import annotations

import gc
import gzip
import http.client
import json
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovgpu.batching.gathering import BatchRun, Observer
from ovgpu.serve import http_app, http_protocol, rest
from ovgpu.serve.engines import Engine, EngineOptions, RequestEngine, open_engine
from ovgpu.serve.held_bytes import HeldBytes
from ovgpu.serve.http_app import BYTES_PER_VALUE
from tests.harness.servers.serving import INTERFACES, SECONDS, Serving, fails, serving, write
from tests.serve.test_inference import echo
from tests.serve.wire import JSON_INPUT, MIB, Answer, Input, Output, Wire, body, little_memory, message, until

HEAD = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write(folder, echo("f32"), "echo")
    return folder


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[Serving]:
    """A server of bodies of 1 MiB, which holds 2 MiB of them."""
    with serving(repository, body_mib=1, held_mib=2) as found:
        yield found


@pytest.fixture(scope="module")
def wire(served: Serving) -> Iterator[Wire]:
    with Wire(served) as found:
        yield found


@pytest.fixture
def held(served: Serving) -> Iterator[HeldBytes]:
    """The bytes that the server holds: none before the test and after it."""
    held = served.server.held
    assert held.free == 2 * MIB
    yield held
    until(lambda: held.free == 2 * MIB)


# ---- sizes

TOO_LARGE_JSON = f"the JSON has more than {MIB} bytes: send tensors as binary data"
ZIPPED = gzip.compress(json.dumps({"inputs": [JSON_INPUT]}).encode(), mtime=0)
TOO_LARGE: dict[str, tuple[dict[str, str], Callable[[], Any]]] = {
    "content-length": ({"Content-Length": str(1 << 40)}, lambda: b""),
    "one byte": ({}, lambda: bytes(MIB + 1)),
    "chunks": ({}, lambda: repeat(bytes(1 << 16), 64)),
    "gzip": ({"Content-Encoding": "gzip"}, lambda: gzip.compress(bytes(64 * MIB))),
    "deflate": ({"Content-Encoding": "deflate"}, lambda: zlib.compress(bytes(64 * MIB))),
    "chunks of gzip": ({"Content-Encoding": "gzip"}, lambda: iter([gzip.compress(bytes(64 * MIB))])),
    # Blocks of deflate that have no bytes.
    "nothing in deflate": (
        {"Content-Encoding": "deflate"},
        lambda: iter([b"\x78\x9c", *repeat(b"\0\0\0\xff\xff" * 10_000, 64)]),
    ),
}


@pytest.mark.parametrize("attack", TOO_LARGE)
def test_bodies_that_are_too_large(wire: Wire, held: HeldBytes, attack: str) -> None:
    headers, make = TOO_LARGE[attack]
    sent = make()
    with little_memory():
        answer = wire.post(sent, headers)
    assert (answer.status, answer.text) == ("RESOURCE_EXHAUSTED", TOO_LARGE_JSON)
    wire.check_served()


def test_messages_that_are_too_large(wire: Wire) -> None:
    large = message(Input(bytes(MIB)))
    assert wire.call(large).status == "RESOURCE_EXHAUSTED"
    assert wire.stream(message(Input()), large)[-1] == "RESOURCE_EXHAUSTED"
    wire.check_served()


def test_the_status_of_a_large_body_is_413(wire: Wire) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", wire.port, timeout=SECONDS)
    connection.request("POST", "/v2/models/echo/infer", bytes(MIB + 1))
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())) == (413, {"error": TOO_LARGE_JSON})
    connection.request("POST", "/v2/models/echo/infer", json.dumps({"inputs": [JSON_INPUT]}))
    assert connection.getresponse().status == 200  # of the same connection: the large body was read to its end
    connection.close()


@pytest.mark.parametrize(
    ("encoding", "sent", "text"),
    [
        ("gzip", ZIPPED[:-9], "ends before"),
        ("gzip", b"", "ends before"),
        ("gzip", b"{}", "is not gzip"),
        ("deflate", b"{}", "is not deflate"),
        ("br", b"", "unknown"),
        ("gzip, gzip", ZIPPED, "unknown"),
        ("gzip", ZIPPED + b"{", "ends before"),  # as another member would begin
        ("gzip", ZIPPED + b"{}", "is not gzip"),
        ("gzip", [ZIPPED, *repeat(bytes(1 << 16), 64)], "is not gzip"),
        ("deflate", zlib.compress(b"{}") + b"{", "behind"),
        ("deflate", [zlib.compress(b"{}"), *repeat(bytes(1 << 16), 64)], "behind"),
    ],
)
def test_malformed_compression(wire: Wire, held: HeldBytes, encoding: str, sent: Any, text: str) -> None:
    with little_memory():
        answer = wire.post(iter(sent) if isinstance(sent, list) else sent, {"Content-Encoding": encoding})
    assert answer.status == "INVALID_ARGUMENT"
    assert text in answer.text


@pytest.mark.parametrize("encoding", ["GZIP", "gzip", " gzip"])
def test_gzip_may_have_members(wire: Wire, held: HeldBytes, encoding: str) -> None:
    text = json.dumps({"inputs": [JSON_INPUT]}).encode()
    for cut in (0, 1, 20, len(text)):
        members = gzip.compress(text[:cut]) + gzip.compress(text[cut:])
        assert wire.post(members, {"Content-Encoding": encoding}).status == "OK"


def test_the_status_of_an_unknown_encoding_is_415(wire: Wire) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", wire.port, timeout=SECONDS)
    connection.request("POST", "/v2/models/echo/infer", b"{}", {"Content-Encoding": "br"})
    assert connection.getresponse().status == 415
    connection.close()


def test_json_has_a_limit_of_its_own(repository: Path) -> None:
    """Tensors in binary may be as large as the body; JSON beside them, or alone, may not."""
    with (
        serving(repository, body_mib=8, json_mib=1, engine={"batching": False}) as server,
        server.client("REST") as client,
    ):
        large = np.zeros((1 << 19, 3), np.float32)
        assert client.infer("echo", {"x": large})["y"].shape == large.shape
        with Wire(server) as wire:
            assert wire.post(bytes(MIB + 1)).text == TOO_LARGE_JSON
            length = {"Inference-Header-Content-Length": str(MIB + 1)}
            assert wire.post(bytes(MIB + 1), length).text == TOO_LARGE_JSON
            assert wire.post(iter([bytes(9 * MIB)]), {"Inference-Header-Content-Length": "2"}).text == (
                f"the body has more than {8 * MIB} bytes"
            )


TOO_MANY_VALUES = f"the JSON has more than {MIB // BYTES_PER_VALUE} values: send tensors as binary data"


@pytest.mark.parametrize("path", ["/v2/models/echo/infer", "/v1/models/echo:predict"])
def test_values_in_json_have_a_limit(repository: Path, path: str) -> None:
    """Nobody else is answered while JSON is parsed, which takes as long as it has values."""
    with serving(repository, json_mib=1, engine={"batching": False}) as server, Wire(server) as wire:
        for more in (0, 1):
            values = b"[" + b",".join([b"0"] * (MIB // BYTES_PER_VALUE + more)) + b"]"
            assert (wire.post(values, path=path).text == TOO_MANY_VALUES) == bool(more)
            headers = {"Inference-Header-Content-Length": str(len(values))}
            assert (wire.post(values + bytes(12), headers).text == TOO_MANY_VALUES) == bool(more)
        assert wire.post(b"{}" + values, {"Inference-Header-Content-Length": "2"}).text == "the request has no inputs"


def test_values_beside_nan_have_a_limit(wire: Wire, held: HeldBytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "MAX_OTHER_VALUES", 10)
    request = {"inputs": [JSON_INPUT | {"data": [float("nan")] * 3}]}
    assert wire.post(request).status == "OK"
    answer = wire.post(request | {"parameters": {str(i): i for i in range(10)}})
    assert answer.status == "INVALID_ARGUMENT"
    assert answer.text.endswith("NaN and infinities are known up to 10 values")


def test_compressed_bytes_may_arrive_one_by_one(wire: Wire, held: HeldBytes) -> None:
    assert wire.post((ZIPPED[i : i + 1] for i in range(len(ZIPPED))), {"Content-Encoding": "gzip"}).status == "OK"


@pytest.mark.parametrize("length", [True, False], ids=["content-length", "chunks"])
def test_bodies_that_never_end(wire: Wire, held: HeldBytes, length: bool) -> None:
    """Together they hold no more than allowed. Their bytes are free when their clients leave."""
    half = b"x" * (MIB - 100)
    head = b"Content-Length: %d\r\n\r\n" % MIB if length else b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % MIB
    sent = b"x" if length else half
    slow = [wire.open(HEAD, head, sent) for _ in range(2)]
    until(lambda: held.free < 1000)
    answer = wire.post({"inputs": [JSON_INPUT], "id": 1000 * "x"})
    assert (answer.status, answer.retry) == ("UNAVAILABLE", 1)
    assert "as many bytes" in answer.text
    for connection in slow:
        connection.close()
    until(lambda: held.free == 2 * MIB)
    wire.check_served()


def test_bodies_that_are_late(wire: Wire, held: HeldBytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_app, "BODY_SECONDS", 0.05)
    connection = wire.open(HEAD, b"Content-Length: 1000\r\n\r\n{")
    assert connection.recv(1000).startswith(b"HTTP/1.1 504 ")
    connection.close()
    until(lambda: held.free == 2 * MIB)


@pytest.mark.parametrize(
    "head",
    [
        b"POST /" + b"x" * 4 * MIB,
        HEAD + b"X: " + b"x" * 4 * MIB,
        HEAD + b"X: x\r\n" * MIB,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: x\r\n" * MIB,
    ],
    ids=["address", "header", "headers", "trailers"],
)
def test_heads_that_never_end(wire: Wire, held: HeldBytes, head: bytes) -> None:
    """The connection is closed before the head has taken much memory."""
    connection = wire.open()
    with little_memory(), suppress(ConnectionError):
        for at in range(0, len(head), 1 << 16):
            connection.sendall(head[at : at + (1 << 16)])
        assert connection.recv(1) == b""
    connection.close()
    wire.check_served()


@pytest.mark.parametrize("sent", [b"", b"POST ", HEAD + b"X"], ids=str)
def test_heads_that_are_late(wire: Wire, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.05)
    connection = wire.open(sent)
    assert connection.recv(1000) == b""
    connection.close()


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("name", ["x", "y"])
def test_requests_that_failed_are_not_kept(wire: Wire, held: HeldBytes, interface: str, name: str) -> None:
    """Neither those that are malformed, nor those that the model refuses."""
    large = Input(bytes(900_000), (3, 75_000) if name == "y" else (1, 3), name=name)
    assert wire.send(interface, large).status == "INVALID_ARGUMENT"
    with little_memory(16 * MIB, 4 * MIB):
        for _ in range(10):
            wire.send(interface, large)


def test_an_output_that_is_named_often_is_sent_once(wire: Wire) -> None:
    answer = wire.send("gRPC", Input(), outputs=(Output(),) * 1000)
    assert len(answer.content.raw_output_contents) == 1
    answer = wire.send("REST", Input(), outputs=(Output(),) * 1000)
    assert len(json.loads(answer.content)["outputs"]) == 1


# ---- back-pressure, deadlines and clients that leave


class Gate:
    """Opener of engines whose inferences end when the gate is open. ``rows`` are those of each batch that was run."""

    def __init__(self, batching: bool) -> None:
        self._options = EngineOptions("CPU", batching=batching, max_wait_ms=0)
        self.watches = False  # not while the engine warms up
        self.opened = threading.Event()
        self.rows: list[int] = []

    def __call__(self, path: Path, observer: Observer) -> Engine:
        def observe(run: BatchRun) -> None:  # on the engine's thread, before the inferences are complete
            observer(run)
            if self.watches:
                self.rows.append(run.rows)
                self.opened.wait(SECONDS)

        return open_engine(path, self._options, observe)


class Gated:
    """Server with a gate, its clients, and calls that wait."""

    def __init__(self, server: Serving, gate: Gate, wire: Wire, pool: ThreadPoolExecutor) -> None:
        self.server, self.gate, self.wire, self._pool = server, gate, wire, pool

    @property
    def in_flight(self) -> int:
        service = self.server.server.service
        assert service is not None
        return service.models.current["echo"].in_flight

    def begin(self, interface: str, count: int = 1) -> list[Future[Answer]]:
        """Ask for inferences of one row. The first one begins, and none ends."""
        found = [self._pool.submit(self.wire.send, interface, rows(1))]
        until(lambda: self.gate.rows == [1])
        found += [self._pool.submit(self.wire.send, interface, rows(1)) for _ in range(count - 1)]
        until(lambda: self.in_flight == count)
        return found

    def check_not_computed(self, begun: list[Future[Answer]]) -> None:
        """Check that only the inferences that had begun, and one more, have been computed."""
        self.gate.opened.set()
        assert [future.result().status for future in begun] == ["OK"] * len(begun)
        assert self.wire.send("REST", rows(3)).status == "OK"
        assert self.gate.rows == ([1, 3] if self.batching else [1, 1])

    @property
    def batching(self) -> bool:
        return self.gate._options.batching


@pytest.fixture(scope="module", params=[True, False], ids=["batches", "requests"])
def gated_server(request: pytest.FixtureRequest, repository: Path) -> Iterator[Gated]:
    gate = Gate(request.param)
    with serving(repository, opener=gate, max_queue=2) as server:
        gate.watches = True
        with Wire(server) as wire, ThreadPoolExecutor() as pool:
            yield Gated(server, gate, wire, pool)


@pytest.fixture
def gated(gated_server: Gated) -> Iterator[Gated]:
    """The server with a closed gate, and nothing in flight."""
    gated_server.gate.opened.clear()
    gated_server.gate.rows.clear()
    yield gated_server
    gated_server.gate.opened.set()
    until(lambda: gated_server.in_flight == 0)


def rows(count: int) -> Input:
    return Input(bytes(12 * count), (count, 3))


@pytest.mark.parametrize("interface", INTERFACES)
def test_back_pressure(gated: Gated, interface: str) -> None:
    begun = gated.begin(interface, 2)
    for other in INTERFACES:
        answer = gated.wire.send(other, rows(1))
        assert (answer.status, answer.text, answer.retry) == (
            "UNAVAILABLE",
            "2 inferences of model 'echo' wait already",
            1,
        )
        with gated.server.client(other) as client:
            assert client.client.is_model_ready("echo")
    (response,) = gated.wire.stream(message(rows(1)))[:-1]
    assert response.error_message == "2 inferences of model 'echo' wait already"
    gated.gate.opened.set()
    assert [future.result().status for future in begun] == ["OK", "OK"]
    gated.wire.check_served()


@pytest.mark.parametrize("interface", INTERFACES)
def test_timeouts(gated: Gated, interface: str) -> None:
    begun = gated.begin(interface)
    with gated.server.client(interface) as client:
        text = fails("DEADLINE_EXCEEDED", client.infer, "echo", {"x": np.zeros((2, 3), np.float32)}, timeout=20_000)
    assert "deadline" in text
    assert gated.in_flight == 1
    gated.check_not_computed(begun)


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_timeout_that_has_passed(gated: Gated, interface: str) -> None:
    gated.gate.opened.set()
    assert gated.wire.send(interface, rows(2), parameters={"timeout": 1e-3}).status == "DEADLINE_EXCEEDED"
    assert gated.wire.send(interface, rows(2), parameters={"timeout": 10**9}).status == "OK"
    assert len(gated.gate.rows) == 1


def test_timeouts_of_clients(gated: Gated) -> None:
    begun = gated.begin("gRPC")
    with gated.server.client("gRPC") as client:
        fails("DEADLINE_EXCEEDED", client.infer, "echo", {"x": np.zeros((2, 3), np.float32)}, client_timeout=0.3)
    until(lambda: gated.in_flight == 1)
    gated.check_not_computed(begun)


@contextmanager
def leaving(gated: Gated, how: str) -> Iterator[None]:
    """Ask for an inference of two rows, and leave at the end of the block."""
    if how == "REST":
        head, raw = body(rows(2))
        connection = gated.wire.open(
            HEAD,
            b"Inference-Header-Content-Length: %d\r\n" % len(head),
            b"Content-Length: %d\r\n\r\n" % len(head + raw),
            head,
            raw,
        )
        yield
        connection.close()
    elif how == "gRPC":
        call = gated.wire.stub.ModelInfer.future(message(rows(2)))
        yield
        call.cancel()
    else:
        with gated.server.client("gRPC") as client:
            client.client.start_stream(lambda result, error: None)
            client.client.async_stream_infer("echo", client.inputs({"x": np.zeros((2, 3), np.float32)}))
            yield
            client.client.stop_stream(cancel_requests=True)


@pytest.mark.parametrize("how", [*INTERFACES, "stream"])
def test_clients_that_leave(gated: Gated, how: str) -> None:
    begun = gated.begin("gRPC")
    with leaving(gated, how):
        until(lambda: gated.in_flight == 2)
    until(lambda: gated.in_flight == 1)
    gated.check_not_computed(begun)


@pytest.mark.parametrize("how", [*INTERFACES, "stream"])
def test_clients_that_leave_while_they_are_served(gated: Gated, how: str) -> None:
    with leaving(gated, how):
        until(lambda: gated.gate.rows != [])
    until(lambda: gated.in_flight == 0)
    gated.gate.opened.set()
    gated.wire.check_served()


@pytest.mark.parametrize("batching", [False, True], ids=["requests", "batches"])
def test_inputs_of_cancelled_inferences_are_not_kept(repository: Path, batching: bool) -> None:
    """Inferences that clients gave up wait until the engine leaves them out, without their inputs."""
    options = EngineOptions("CPU", batching=batching, max_wait_ms=60_000)
    engine = open_engine(repository / "echo" / "1" / "model.xml", options, lambda run: None)
    inputs = {0: np.zeros((1, 3), np.float32)}
    blocking = threading.Event()
    if isinstance(engine, RequestEngine):
        engine.run(lambda inputs, submitted: blocking.wait(SECONDS), {})
    kept = weakref.ref(inputs[0])
    future = engine.submit(inputs)
    if batching:
        (work,) = next(iter(engine._batcher._batches.gatherer._groups.values()))
        kept = weakref.ref(work.arrays[0])
        del work
    del inputs
    gc.collect()
    assert kept() is not None
    assert future.cancel()
    del future
    gc.collect()
    assert kept() is None
    blocking.set()
    engine.close()
