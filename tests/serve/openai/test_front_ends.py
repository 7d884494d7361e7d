"""Texts through front-end processes, which pass them on as they come."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.servers.serving import Serving, serving
from tests.serve.openai.client import CHATS, COMPLETIONS, EXACT, Gate, Stream, call, chat, completion, streamed, texts
from tests.serve.openai.test_connections import engine_of, in_flight, wait


@pytest.fixture(scope="module")
def fronts(folder: Path) -> Iterator[Serving]:
    with serving(folder, engine={"properties": EXACT}, processes=2) as found:
        yield found


def test_answers(fronts: Serving, server: Serving) -> None:
    for path, body in ((CHATS, chat(n=2)), (COMPLETIONS, completion(["a", "To be"]))):
        wanted = texts(server, path, body)
        assert texts(fronts, path, body) == wanted == streamed(fronts, path, body)[0]
    assert call(fronts, "/v1/models")[1]["data"][0]["id"] == "llama"
    assert call(fronts, "/v1/models/llama")[1]["id"] == call(fronts, "/v3/models/llama")[1]["id"] == "llama"
    status, found = call(fronts, CHATS, chat(model="none"))
    assert status == 404 and found["error"]["code"] == "model_not_found"
    status, found = call(fronts, CHATS, b"{")
    assert status == 400 and found["error"]["type"] == "invalid_request_error"


def test_a_stream_that_is_closed(fronts: Serving, gate: Gate) -> None:
    engine = engine_of(fronts)
    gate.allow(3)
    with Stream(fronts, CHATS, chat(max_tokens=200, n=3)) as stream:
        assert stream.next()
    wait(lambda: in_flight(fronts) == 0)
    gate.open()
    wait(lambda: len(engine._thread) == 0)
    assert engine._engine.used_blocks == 0


def test_a_front_end_that_is_killed(fronts: Serving, gate: Gate) -> None:
    """Its texts end. Another process takes its place."""
    engine = engine_of(fronts)
    gate.allow(1)
    with Stream(fronts, COMPLETIONS, completion("a", max_tokens=200)) as stream:
        assert stream.next()
        for child in Path("/proc/self/task").glob("*/children"):
            for process in child.read_text().split():
                if b"ovgpu.serve.front_end" in Path(f"/proc/{process}/cmdline").read_bytes():
                    os.kill(int(process), signal.SIGKILL)
        wait(lambda: in_flight(fronts) == 0)
    gate.open()
    wait(lambda: len(engine._thread) == 0)
    assert call(fronts, CHATS, chat())[0] == 200
