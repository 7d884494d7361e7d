"""Clients that disconnect, read slowly or are too many, and servers that stop while texts are generated."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from ovgpu.genai.engine import Engine
from ovgpu.serve.openai.answers import Answer
from ovgpu.serve.openai.text_engine import TextEngine
from tests.harness.servers.serving import SECONDS, Serving, serving
from tests.serve.openai.client import (
    CHATS,
    COMPLETIONS,
    EXACT,
    Gate,
    Stream,
    answer,
    call,
    chat,
    completion,
    texts,
)


def engine_of(server: Serving) -> TextEngine:
    service = server.server.service
    assert service is not None
    return cast(TextEngine, service.models.current["llama"].engine)


def wait(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


def in_flight(server: Serving) -> int:
    service = server.server.service
    assert service is not None
    return service.models.current["llama"].in_flight


def test_a_stream_that_is_closed(server: Serving, gate: Gate) -> None:
    """Its texts end at the next step."""
    engine = engine_of(server)
    gate.allow(3)
    with Stream(server, CHATS, chat(max_tokens=200, n=3)) as stream:
        assert stream.next()
        assert len(engine._thread) == 3
    wait(lambda: in_flight(server) == 0)
    gate.allow(2)  # the thread may wait in front of one
    wait(lambda: len(engine._thread) == 0)
    assert not engine._engine.is_busy and engine._engine.used_blocks == 0


def test_a_request_that_is_closed(server: Serving, gate: Gate) -> None:
    """Also without a stream, before the first token and after it."""
    engine = engine_of(server)
    for steps in (0, 2):
        connection = http.client.HTTPConnection(server.http, timeout=SECONDS)
        connection.request("POST", COMPLETIONS, json.dumps(completion("To be", max_tokens=200)))
        wait(lambda: len(engine._thread) == 1)
        gate.allow(steps)
        connection.close()
        wait(lambda: in_flight(server) == 0)
        gate.allow(3)
        wait(lambda: len(engine._thread) == 0)


def test_a_connection_that_ends_between_events(
    server: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its texts end. What is written before the protocol knows is dropped, and is no failure: uvloop raises for it."""
    engine, part, aborted = engine_of(server), Answer.part, list[Any]()

    def aborting(self: Answer, choice: Any, piece: Any) -> Any:
        for connection in server.server._interfaces._http.server_state.connections if choice.index == 1 else ():
            connection.transport.abort()
            connection.cycle.transport = Mock(write=Mock(side_effect=RuntimeError("the handler is closed")))
            aborted.append(connection)
        return part(self, choice, piece)

    monkeypatch.setattr(Answer, "part", aborting)
    with Stream(server, COMPLETIONS, completion("a", max_tokens=200, n=4)):
        wait(lambda: bool(aborted) and in_flight(server) == 0 and len(engine._thread) == 0)
    assert engine._engine.used_blocks == 0
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_slow_reader(server: Serving) -> None:
    """It does not hold the engine up, and gets the whole text afterwards."""
    engine = engine_of(server)
    expected = texts(server, COMPLETIONS, completion("a", max_tokens=250))
    body = json.dumps(completion("a", max_tokens=250, stream=True)).encode()
    host, port = server.http.split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        client.settimeout(SECONDS)
        client.connect((host, int(port)))
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: {server.http}\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        wait(lambda: in_flight(server) == 1)
        wait(lambda: len(engine._thread) == 0)  # the text ends, although nobody has read it
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += client.recv(1 << 16)
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\r\n") if line.startswith(b"data: ")]
    assert lines[-1].strip() == b"[DONE]"
    assert "".join([json.loads(line)["choices"][0]["text"] for line in lines[:-1]]) == expected[0]


def test_too_many(server: Serving, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(server)
    monkeypatch.setattr(engine._thread, "_capacity", 3)
    gate.allow(1)
    with Stream(server, CHATS, chat(n=2)):
        status, body, headers = answer(server, CHATS, chat(n=2))
        assert status == 429 and headers["retry-after"] == "1"
        error = json.loads(body)["error"]
        assert error["type"] == "rate_limit_error" and "2 texts run or wait, of at most 3" in error["message"]
    gate.open()
    wait(lambda: len(engine._thread) == 0)
    service = server.server.service
    assert service is not None
    with monkeypatch.context() as patch:
        patch.setattr(service.models.current["llama"], "_max_queue", 0)
        status, body, headers = answer(server, CHATS, chat())
        assert status == 503 and headers["retry-after"] == "1" and json.loads(body)["error"]["type"] == "server_error"
    assert call(server, CHATS, chat())[0] == 200


def test_a_step_that_fails(server: Serving, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream tells it, and ends. Other requests fail as well, without details, and later ones run."""
    engine = engine_of(server)

    def broken(plan: Any) -> None:
        raise ValueError("a secret")

    found: list[Any] = []
    other = threading.Thread(target=lambda: found.append(call(server, CHATS, chat(max_tokens=200))))
    gate.allow(1)
    with Stream(server, CHATS, chat(max_tokens=200)) as stream:
        assert stream.next()
        other.start()
        wait(lambda: len(engine._thread) == 2)
        with monkeypatch.context() as patch:
            patch.setattr(engine._engine, "_infer", broken)
            gate.open()
            events = [event for event in stream]
            other.join(SECONDS)
    assert events[-1]["error"] == {
        "message": "internal error of the server",
        "type": "server_error",
        "param": None,
        "code": None,
    }
    assert found[0] == (500, events[-1])
    assert call(server, CHATS, chat())[0] == 200


def test_a_server_that_stops(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams end as they would have. Later requests are refused."""
    gate = Gate(Engine.step)
    with serving(folder, engine={"properties": EXACT}, drain_seconds=0.0) as server:
        expected = texts(server, COMPLETIONS, completion("a", max_tokens=30))
        monkeypatch.setattr(Engine, "step", lambda engine: gate(engine))
        gate.allow(2)
        with Stream(server, COMPLETIONS, completion("a", max_tokens=30)) as stream:
            first = stream.next()
            server.server.stop()
            service = server.server.service
            assert service is not None
            wait(service.stopping.is_set)
            status, found = call(server, COMPLETIONS, completion("a"))
            assert status == 503 and found["error"]["message"] == "the server is stopping"
            gate.open()
            parts = [choice["text"] for event in (first, *stream) if event for choice in event["choices"]]
        assert "".join(parts) == expected[0]
        server.thread.join(SECONDS)
        assert not server.thread.is_alive()
