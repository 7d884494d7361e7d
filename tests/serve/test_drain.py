"""A server that is about to stop, and a rolling update of two servers behind a proxy."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ovgpu.errors import Error
from ovgpu.serve.interfaces import _HttpServer
from ovgpu.serve.server import Server, ServerOptions
from tests.harness.servers.proxy import Proxy
from tests.harness.servers.serving import INTERFACES, SECONDS, Client, serving, write
from tests.serve.test_models import X, adding, until
from tests.serve.test_stop import Process, process

CLIENTS = 3  # of each interface
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
DRAIN_SECONDS = 3  # a client that is held up for so long loses a request
PAUSE_SECONDS = 0.005  # between the requests of a client
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}]}).encode()


def ready(address: str) -> tuple[int, str | None]:
    """Return the status of the health, and the header Connection."""
    connection = http.client.HTTPConnection(address, timeout=SECONDS)
    connection.request("GET", "/v2/health/ready")
    response = connection.getresponse()
    connection.close()
    return response.status, response.headers["Connection"]


def test_a_server_that_drains_answers_but_is_not_ready(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add")
    with process(tmp_path, "--drain-seconds", 600) as server:
        address = server.address("REST")
        assert ready(address) == (200, None)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: ready(address) == (503, "close"))
        for interface in INTERFACES:
            with server.client(interface) as client:
                assert client.client.is_server_live()
                assert not client.client.is_server_ready()
                assert client.client.is_model_ready("add")
                assert client.infer("add", {"x": X})["y"][0, 0] == 2
        assert server.stop() == 0  # a second signal: it waits no longer


def test_without_the_option_a_server_stops_at_once(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add")
    with process(tmp_path) as server:
        assert server.stop() == 0
        assert not any("not ready any more" in line for line in server.lines)


def test_requests_that_wait_when_a_server_stops_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are on an idle connection, or on new ones that the server has not accepted yet."""
    write(tmp_path, adding(1), "add")
    clients: list[socket.socket] = []
    shutdown = _HttpServer.shutdown

    async def arriving(self: _HttpServer, sockets: list[socket.socket] | None = None) -> None:
        assert sockets and len(self.server_state.connections) == 1
        clients.extend([socket.create_connection(sockets[0].getsockname(), SECONDS) for _ in range(5)])
        for client in clients:
            client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await shutdown(self, sockets)

    monkeypatch.setattr(_HttpServer, "shutdown", arriving)
    with serving(tmp_path) as server:
        clients.append(socket.create_connection(("127.0.0.1", server.server.port), SECONDS))
        until(lambda: len(server.server._interfaces._http.server_state.connections) == 1)
    for client in clients:
        with client, client.makefile("rb") as answer:
            text = answer.read()
            assert text.startswith(b"HTTP/1.1 200") and b"connection: close" in text and b'"live":true' in text
    assert len(clients) == 6


def test_a_server_in_a_thread_drains(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add")
    with serving(tmp_path, drain_seconds=0.2) as server:
        server.server.stop()
        server.thread.join(SECONDS)
        assert not server.thread.is_alive()


@pytest.mark.parametrize("option", ["drain", "grace"])
@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_times_that_make_no_sense(tmp_path: Path, option: str, seconds: float) -> None:
    write(tmp_path, adding(1), "add")
    options: dict[str, Any] = {f"{option}_seconds": seconds}
    with pytest.raises(Error, match=f"--{option}-seconds"):
        Server(ServerOptions(tmp_path, **options))


@pytest.mark.long
def test_a_rolling_update_loses_no_request(tmp_path: Path) -> None:
    """New servers take the places of two old ones behind a proxy, one after the other, as in a Deployment."""
    for number in (1, 2):
        write(tmp_path / str(number), adding(number), "add")
    stop, answers, errors = threading.Event(), Counter[float](), list[str]()

    def ask_rest(address: str) -> float:
        response = None
        connection = connections.setdefault(threading.get_ident(), http.client.HTTPConnection(address, timeout=SECONDS))
        connection.request("POST", "/v2/models/add/infer", BODY)
        response = connection.getresponse()
        text = response.read()
        assert response.status == 200, text
        return float(json.loads(text)["outputs"][0]["data"][0])

    def run(ask: Any) -> None:
        try:
            while not stop.is_set():
                answers[ask()] += 1
                time.sleep(PAUSE_SECONDS)
        except Exception as error:
            errors.append(repr(error))

    connections: dict[int, http.client.HTTPConnection] = {}
    with Proxy() as proxy, ExitStack() as running:

        def start(number: int) -> Process:
            found = running.enter_context(process(tmp_path / str(number), "--drain-seconds", DRAIN_SECONDS))
            proxy.servers.append((found.address("REST"), found.address("gRPC")))
            until(lambda: proxy.servers[-1] in proxy.ready)
            return found

        old = [start(1) for _ in range(2)]
        rest, grpc = proxy.addresses
        threads = [threading.Thread(target=run, args=(lambda: ask_rest(rest),)) for _ in range(CLIENTS)]
        for _ in range(CLIENTS):
            client = running.enter_context(Client("gRPC", grpc, channel_args=OWN_CONNECTION))
            ask = lambda client=client: float(client.infer("add", {"x": X}, client_timeout=SECONDS)["y"][0, 0])
            threads.append(threading.Thread(target=run, args=(ask,)))
        for thread in threads:
            thread.start()
        until(lambda: answers[2] > 100)
        for server in old:
            start(2)
            assert server.stop() == 0
            del proxy.servers[0]
        seen = answers[3]
        until(lambda: answers[3] > seen + 100 or errors)
        stop.set()
        for thread in threads:
            thread.join(SECONDS)
        for connection in connections.values():
            connection.close()
    assert errors == []
    assert answers[2] > 100 and answers[3] > 100
