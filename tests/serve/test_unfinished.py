"""Calls that are never finished: messages of gRPC that do not end, and answers that no client reads."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

import ovgpu as ov
from ovgpu.serve import grpc_guard, http_protocol
from ovgpu.serve.engines import EngineOptions, open_engine
from ovgpu.serve.held_bytes import HeldAnswers, HeldBytes
from ovgpu.serve.inference import outputs_of
from tests.harness.ir import Net
from tests.harness.servers.serving import INTERFACES, SECONDS, Serving, serving, write
from tests.serve.http2 import Http2, connections, prefixed
from tests.serve.test_inference import echo
from tests.serve.wire import MIB, SERVICE, Input, Wire, body, message, until

TOKEN = "a-token-of-27-characters~+/"
METHODS = {
    method.name: method.client_streaming
    for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
}
WIDTH = 4 * MIB  # numbers of an answer: more than the buffers of sockets take
HALF = prefixed(bytes(MIB - 100), MIB)
INFERENCES = ("ModelInfer", "ModelStreamInfer")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write(folder, echo("f32"), "echo")
    write(folder, wide(), "wide")
    return folder


def wide() -> ov.Model:
    """Repeat the elements of rows, so that answers are long."""
    net = Net("wide")
    x = net.parameter("f32", (-1, 1), "x")
    net.result(net.layer("Tile", "opset1", [x, net.const(np.array([1, WIDTH]))], names=["y"]))
    return ov.Core().read_model(*net.build())


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Serving]:
    """A server of messages of 1 MiB, which holds 2 MiB of them."""
    with limited(repository) as found:
        yield found


def limited(repository: Path) -> AbstractContextManager[Serving]:
    """Start such a server."""
    return serving(repository, body_mib=1, held_mib=2, max_calls=8, engine={"max_batch_size": 1})


@pytest.fixture
def held(server: Serving) -> Iterator[HeldBytes]:
    """The bytes that the server holds: none before the test and after it."""
    held = server.server.held
    until(lambda: held.free == 2 * MIB)
    yield held
    until(lambda: held.free == 2 * MIB)


@pytest.fixture
def wire(server: Serving, held: HeldBytes) -> Iterator[Wire]:
    with Wire(server) as found:
        yield found


# ---- messages


@pytest.fixture(scope="module")
def guarded(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server that asks for a token."""
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(TOKEN)
    with serving(repository, token_file=file, engine={"max_batch_size": 1}) as found:
        yield found


@pytest.mark.parametrize("method", METHODS)
def test_messages_without_a_token_are_not_received(guarded: Serving, method: str) -> None:
    """No more of them is taken than a window of HTTP/2 has, and the call ends. Health is answered without a token."""
    half = prefixed(bytes(8 * MIB), 9 * MIB)
    with connections(guarded, 1) as (connection,):
        call = connection.call(method)
        assert connection.send(call, half) < len(half)
        until(lambda: connection.receive(0.01) or connection.ended == {call})
    with connections(guarded, 1) as (connection,):
        call = connection.call(method, TOKEN)
        assert (connection.send(call, half) == len(half)) == (method not in grpc_guard.LIVE)


def test_messages_that_are_late_are_held(wire: Wire, server: Serving, held: HeldBytes) -> None:
    """A message counts as if it had the largest size, because nothing is known of its size before it is there."""
    with connections(server, 3) as clients:
        calls = [client.call("ModelInfer") for client in clients]
        for client, call in zip(clients, calls):
            client.send(call, HALF[: 1 << 16])
        until(lambda: held.free == 0)
        answer = wire.send("REST", Input())
        assert (answer.status, answer.retry) == ("UNAVAILABLE", 1)
        assert "as many bytes" in answer.text

        def ended() -> list[bool]:
            for client in clients:
                client.receive(0.01)
            return [client.ended == {call} for client, call in zip(clients, calls)]

        until(lambda: sum(ended()) == 1)
        assert held.free == 0
    until(lambda: held.free == 2 * MIB)
    wire.check_served()


def test_a_message_that_is_not_late_is_not_held(wire: Wire, server: Serving, held: HeldBytes) -> None:
    """Many clients at a time are served, even if their messages could be larger than what may be held."""
    with connections(server, 8) as clients:
        calls = [client.call("ModelInfer") for client in clients]
        sent = prefixed(message(Input()).SerializeToString())
        for client, call in zip(clients, calls):
            client.send(call, sent, end=True)
        for client, call in zip(clients, calls):
            until(lambda client=client, call=call: client.receive(0.01) or client.ended == {call})


@pytest.mark.parametrize("sent", [b"", HALF[:3], HALF[:1000]], ids=len)
def test_messages_that_never_end(repository: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_guard, "LATE_SECONDS", 0.02)
    monkeypatch.setattr(grpc_guard, "MESSAGE_SECONDS", 0.1)
    with limited(repository) as server, connections(server, 1) as (client,):
        call = client.call("ModelInfer")
        client.send(call, sent)
        until(lambda: client.receive(0.01) or client.ended == {call})
        assert not client.closed
        again = client.call("ModelInfer")  # the connection can be used
        client.send(again, prefixed(message(Input()).SerializeToString()), end=True)
        until(lambda: client.receive(0.01) or client.ended == {call, again})


def test_calls_without_a_message(wire: Wire) -> None:
    call = wire.channel.stream_unary(SERVICE + "ModelInfer")
    with pytest.raises(grpc.RpcError) as error:
        call(iter(()), timeout=SECONDS)
    assert (error.value.code().name, error.value.details()) == ("INVALID_ARGUMENT", "the call has no message")


@pytest.mark.parametrize("sent", [b"", HALF[:1000]], ids=len)
def test_streams_without_inferences_end(repository: Path, sent: bytes) -> None:
    """It is not known whether a stream waits or a part of a message is there."""
    with serving(repository, idle_seconds=0.3, engine={"max_batch_size": 1}) as server:
        with connections(server, 1) as (client,):
            call = client.call("ModelStreamInfer")
            client.send(call, prefixed(message(Input()).SerializeToString()) + sent)
            until(lambda: client.receive(0.01) or client.ended == {call})
        with Wire(server) as wire:
            found = wire.stub.ModelStreamInfer(_slowly(8, 0.1), timeout=SECONDS)
            for number in range(8):  # for longer than the limit
                assert next(found).infer_response.raw_output_contents[0] == bytes(12), number
            with pytest.raises(grpc.RpcError) as error:
                next(found)
            assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert error.value.details() == "the stream had no inference for 0.3 seconds"


def _slowly(count: int, seconds: float) -> Iterator[Any]:
    for _ in range(count):
        yield message(Input())
        time.sleep(seconds)
    time.sleep(2)


# ---- calls


def test_calls_that_are_too_many(wire: Wire, server: Serving) -> None:
    """Others are refused before their messages are received. The server is healthy nevertheless."""
    with connections(server, 9) as clients:
        for client in clients[:8]:
            call = client.call("ModelStreamInfer")
            client.send(call, prefixed(message(Input()).SerializeToString()))
            until(lambda client=client, call=call: client.receive(0.01) or client.answered == {call})
        answer = wire.send("gRPC", Input())
        assert (answer.text, answer.retry) == ("8 calls are open already", 1)
        assert wire.stream(message(Input())) == ["UNAVAILABLE"]
        call = clients[8].call("ModelInfer")
        clients[8].send(call, HALF)
        until(lambda: clients[8].receive(0.01) or clients[8].ended == {call})
        for method in grpc_guard.LIVE:
            assert wire.call(b"", method).status == "OK"
        assert wire.send("REST", Input()).status == "OK"
        clients[0].close()
        until(lambda: wire.send("gRPC", Input()).status == "OK")
    until(lambda: wire.stream(message(Input()))[-1] == "OK")


# ---- answers that are not read

ONE = Input(b"\0\0\0\x3f", (1, 1))


def ask(client: Http2, method: str) -> None:
    """Ask for a long answer."""
    client.send(client.call(method), prefixed(message(ONE, model="wide").SerializeToString()), end=True)


def connect(server: Serving, count: int = 1) -> socket.socket:
    """Ask for long answers of REST."""
    head, raw = body(ONE, parameters={"binary_data_output": True})
    request = (
        b"POST /v2/models/wide/infer HTTP/1.1\r\nHost: localhost\r\n"
        b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(head), len(head + raw))
    )
    connection = socket.create_connection(("127.0.0.1", server.server.port), SECONDS)
    connection.sendall((request + head + raw) * count)
    return connection


def check_refused(wire: Wire) -> None:
    """Check that inferences are refused because the server holds too many bytes."""
    for interface in INTERFACES:
        answer = wire.send(interface, Input())
        assert (answer.status, answer.retry) == ("UNAVAILABLE", 1)
        assert answer.text.startswith("the server holds as many bytes")
    assert wire.stream(message(Input()))[0].error_message.startswith("the server holds as many bytes")


@pytest.mark.parametrize("method", INFERENCES)
def test_answers_of_grpc_that_are_not_read(
    wire: Wire, server: Serving, held: HeldBytes, repository: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are held, and then their connections are closed: grpc cannot take an answer back."""
    with connections(server, 1, window=100) as (client,):
        ask(client, method)
        until(lambda: held.free < 0)
        assert 2 * MIB - held.free >= 4 * WIDTH
        check_refused(wire)
    until(lambda: held.free == 2 * MIB)
    monkeypatch.setattr(grpc_guard, "ANSWER_SECONDS", 0.2)
    with limited(repository) as impatient, connections(impatient, 2, window=100) as clients:
        held = impatient.server.held
        ask(clients[0], method)
        until(lambda: clients[0].receive(0.01) or clients[0].closed)
        until(lambda: held.free == 2 * MIB)
        with Wire(impatient) as other:
            other.check_served()
        ask(clients[1], method)  # the connection of another client is not closed with it
        until(lambda: held.free < 0)


def test_errors_of_grpc_that_are_not_read(
    repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The timer of a status that is sent does not close anything."""
    monkeypatch.setattr(grpc_guard, "ANSWER_SECONDS", 0.05)
    with limited(repository) as server, Wire(server) as wire:
        assert wire.call(b"\xff").status == "INVALID_ARGUMENT"
        assert wire.stream(b"\xff") == ["INVALID_ARGUMENT"]
        time.sleep(0.2)
        wire.check_served()
    assert "is closed" not in caplog.text


def test_answers_of_rest_that_are_not_read(
    wire: Wire, server: Serving, held: HeldBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are held, and then their connections are closed."""
    with closing(connect(server)) as connection:
        until(lambda: held.free < 0)
        check_refused(wire)
        count = 0
        while count < 4 * WIDTH:  # a reader that was slow gets all of it
            count += len(connection.recv(1 << 16))
        until(lambda: held.free == 2 * MIB)
    monkeypatch.setattr(http_protocol, "ANSWER_SECONDS", 0.2)
    with closing(connect(server)) as connection:
        until(lambda: held.free < 0)
        until(lambda: held.free == 2 * MIB)
        wire.check_served()
        count = 0
        with suppress(ConnectionResetError):
            while part := connection.recv(1 << 16):
                count += len(part)
        assert count < 4 * WIDTH


def test_requests_wait_for_answers_that_are_not_read(wire: Wire, server: Serving, held: HeldBytes) -> None:
    """The next inference of a connection is not computed before its client has taken the last answer."""
    service = server.server.service
    assert service is not None
    statistics = service.models.current["wide"].statistics
    before = statistics.succeeded
    with closing(connect(server, 3)) as connection:
        until(lambda: held.free < 0)
        time.sleep(0.2)
        assert statistics.succeeded == before + 1
        count = 0
        while count < 3 * 4 * WIDTH:
            count += len(connection.recv(1 << 20))
        assert statistics.succeeded == before + 3


def test_small_answers_of_rest_that_are_not_read(wire: Wire, held: HeldBytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is closed also if its answers are smaller than all buffers."""
    monkeypatch.setattr(http_protocol, "ANSWER_SECONDS", 0.2)
    with closing(wire.open()) as connection:

        def closed() -> bool:
            try:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
            except ConnectionError:
                return True
            return False

        until(closed)


def test_the_connection_of_a_peer(caplog: pytest.LogCaptureFixture) -> None:
    """It is found by its address, as grpc writes it. Others, and files that are no sockets, are left alone."""
    for address, family, written in (
        ("127.0.0.1", socket.AF_INET, "ipv4:127.0.0.1:{port}"),
        ("::1", socket.AF_INET6, "ipv6:%5B::1%5D:{port}"),
        ("::ffff:127.0.0.1", socket.AF_INET6, "ipv4:127.0.0.1:{port}"),  # as servers on all addresses have it
    ):
        with socket.socket(family) as listening, socket.socket(family) as client, socket.socket(family) as other:
            if family is socket.AF_INET6:
                for each in (listening, client, other):
                    each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listening.bind((address, 0))
            listening.listen()
            for connection in (client, other):
                connection.connect(listening.getsockname()[:2])
            (served, _), (also, _) = listening.accept(), listening.accept()
            with served, also:
                grpc_guard._close_connection(written.format(port=client.getsockname()[1]))
                assert client.recv(1) == b""
                also.sendall(b"x")
                assert other.recv(1) == b"x"
    assert sum(record.name == grpc_guard.__name__ for record in caplog.records) == 3


def test_answers_of_a_stream_that_ends_are_not_held() -> None:
    held = HeldBytes(100)
    answers = HeldAnswers(held)
    answers.add(70)
    answers.add(50)
    assert held.free == -20
    answers.remove(70)
    answers.close()
    answers.add(10)  # by an inference that was running
    assert held.free == 100


def test_outputs_are_freed_at_once(repository: Path) -> None:
    """They do not wait until garbage is collected."""
    engine = open_engine(repository / "echo" / "1" / "model.xml", EngineOptions("CPU"), lambda run: None)

    async def infer() -> weakref.ref[Any]:
        outputs = await outputs_of(engine.submit({0: np.zeros((1, 3), np.float32)}))
        return weakref.ref(outputs[0])

    gc.disable()
    try:
        kept = asyncio.run(infer())
        asyncio.run(infer())  # the engine has outputs until the next ones
        assert kept() is None
    finally:
        gc.enable()
        engine.close()


def test_long_answers_are_complete(wire: Wire) -> None:
    for interface in INTERFACES:
        answer = wire.send(interface, ONE, model="wide", parameters={"binary_data_output": True})
        found = answer.content.raw_output_contents[0] if interface == "gRPC" else answer.content[-4 * WIDTH :]
        assert found == ONE.raw * WIDTH
