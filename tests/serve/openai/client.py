"""A client of OpenAI's protocol, and a server of a tiny decoder."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any, Self

from tests.harness.servers.serving import SECONDS, Serving

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> dict[str, Any]:
    """Return the request of a chat, by default greedy and of 6 tokens."""
    return {"model": "llama", "messages": MESSAGES, "temperature": 0, "max_tokens": 6, "ignore_eos": True, **fields}


def completion(prompt: Any, **fields: Any) -> dict[str, Any]:
    """Return the request of a completion, by default greedy and of 6 tokens."""
    return {"model": "llama", "prompt": prompt, "temperature": 0, "max_tokens": 6, "ignore_eos": True, **fields}


def call(server: Serving, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Return the status and the JSON of an answer."""
    status, data, _ = answer(server, path, body, **headers)
    return status, json.loads(data)


def answer(server: Serving, path: str, body: Any = None, **headers: str) -> tuple[int, bytes, Any]:
    """Return the status, the body and the headers of an answer."""
    connection = http.client.HTTPConnection(server.http, timeout=SECONDS)
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request("GET" if body is None else "POST", path, data, headers)
    response = connection.getresponse()
    found = response.read()
    connection.close()
    return response.status, found, response.headers


def form(file: bytes | None, **fields: str | list[str]) -> tuple[bytes, dict[str, str]]:
    """Return the body of a form with fields and a file, and its headers. Names in `fields` may end with ``[]``."""
    boundary = "a-boundary"
    begin = f"--{boundary}\r\nContent-Disposition: form-data; name="
    parts = [
        f'{begin}"{name}"\r\n\r\n{value}\r\n'.encode()
        for name, values in fields.items()
        for value in ([values] if isinstance(values, str) else values)
    ]
    if file is not None:
        parts.append(f'{begin}"file"; filename="speech"\r\n\r\n'.encode() + file + b"\r\n")
    body = b"".join(parts) + f"--{boundary}--\r\n".encode()
    return body, {"content-type": f"multipart/form-data; boundary={boundary}"}


def texts(server: Serving, path: str, body: Any) -> list[str]:
    """Return the texts of the choices of an answer."""
    status, found = call(server, path, body)
    assert status == 200, found
    return [choice["message"]["content"] if "message" in choice else choice["text"] for choice in found["choices"]]


class Stream:
    """An answer as server-sent events."""

    def __init__(self, server: Serving, path: str, body: dict[str, Any]) -> None:
        self._connection = http.client.HTTPConnection(server.http, timeout=SECONDS)
        self._connection.request("POST", path, json.dumps({**body, "stream": True}))
        self._response = self._connection.getresponse()
        assert self._response.status == 200, self._response.read()
        assert self._response.headers["content-type"].startswith("text/event-stream")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the connection, wherever the stream is."""
        self._response.close()
        self._connection.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the events up to the end."""
        while (event := self.next()) is not None:
            yield event
        assert self._response.read() == b""

    def next(self) -> dict[str, Any] | None:
        """Return the next event, None for the end."""
        line, blank = self._response.readline(), self._response.readline()
        assert line.startswith(b"data: ") and blank == b"\n", (line, blank)
        data = line.removeprefix(b"data: ").strip()
        found: dict[str, Any] | None = None if data == b"[DONE]" else json.loads(data)
        return found


def streamed(server: Serving, path: str, body: Any) -> tuple[list[str], list[str | None]]:
    """Return the texts of the choices of a stream, and why each ended."""
    with Stream(server, path, body) as stream:
        events = [event for event in stream]
    count = body.get("n", 1) * (len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1)
    found, reasons = [""] * count, list[str | None]([None] * count)
    for event in events:
        for choice in event["choices"]:
            found[choice["index"]] += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            assert reasons[choice["index"]] is None
            reasons[choice["index"]] = choice["finish_reason"]
    return found, reasons


class Gate:
    """Steps of engines, which wait until a test allows them."""

    def __init__(self, step: Any) -> None:
        self._step, self._allowed, self._open = step, threading.Semaphore(0), False
        self.steps = 0

    def __call__(self, engine: Any) -> Any:
        if not self._open:
            assert self._allowed.acquire(timeout=SECONDS)
        self.steps += 1
        return self._step(engine)

    def allow(self, count: int) -> None:
        """Allow so many steps."""
        for _ in range(count):
            self._allowed.release()

    def open(self) -> None:
        """Allow all steps."""
        self._open = True
        self._allowed.release()
