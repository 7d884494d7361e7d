"""Requests that run: they hold their version open, and tell the event loop when there is something new."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing, suppress
from typing import TYPE_CHECKING, Any, cast

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ovgpu.serve.calls import Call
from ovgpu.serve.disconnects import disconnected
from ovgpu.serve.errors import Status, public
from ovgpu.serve.models import Version
from ovgpu.serve.openai.answers import Answer, Piece, joined
from ovgpu.serve.openai.errors import body_of
from ovgpu.serve.openai.requests import TextRequest

if TYPE_CHECKING:  # they import ovgpu.genai, which servers of other models do not need
    from ovgpu.serve.openai.choices import Choice
    from ovgpu.serve.openai.text_engine import TextEngine

INTERFACE = "REST"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # a proxy passes events on as they come


class Running(ABC):
    """Request that runs. Its version stays open until `close`. With ``stream``, its answer is a stream of events."""

    def __init__(self, version: Version, method: str, call: Call, stream: bool) -> None:
        self.call, self.stream = call, stream
        self._version, self._method, self._started = version, method, time.perf_counter()
        self._held = ExitStack()  # until it is closed
        self._held.enter_context(version.admitted())
        self._closed = False
        self._changed, self._loop = asyncio.Event(), asyncio.get_running_loop()

    @abstractmethod
    async def start(self) -> None:
        """Begin, and wait for the first result. Raises: ServeError or Error if the request cannot begin."""

    @abstractmethod
    async def whole(self) -> Response:
        """Return the whole answer."""

    @abstractmethod
    def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a stream. What comes while one is sent goes into the next one."""

    def close(self, status: Status) -> None:
        """Cancel what still runs, and count the request. Later calls have no effect."""
        if self._closed:
            return
        self._closed = True
        seconds = time.perf_counter() - self._started
        self._cancel(seconds)
        self._version.statistics.add_request(INTERFACE, self._method, status, seconds)
        self._held.close()

    @abstractmethod
    def _cancel(self, seconds: float) -> None:
        """Cancel what still runs, ``seconds`` after the request came."""

    async def _wait(self) -> None:
        """Wait for something new since the last call."""
        await self._changed.wait()
        self._changed.clear()

    def _on_change(self) -> None:
        """Tell the event loop, from any thread, that there is something new."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._changed.set)


class RunningTexts(Running):
    """Texts of a request that are generated."""

    def __init__(self, version: Version, request: TextRequest, method: str, call: Call) -> None:
        super().__init__(version, method, call, request.stream)
        self._request, self._engine = request, cast("TextEngine", version.engine)
        self._begun = False
        self._choices: list[Choice] = []
        self._answer = Answer(request, self._engine.bytes_of)

    async def start(self) -> None:
        self._choices = await asyncio.to_thread(self._engine.choices, self._request)
        self._engine.start(self._choices, self._on_change)
        self._begun = True
        await self._wait()
        for choice in self._choices:
            if choice.generation.error is not None:
                raise choice.generation.error

    async def whole(self) -> Response:
        parts: list[list[Piece]] = [[] for _ in self._choices]
        async for choice, piece in self._pieces():
            parts[choice.index].append(piece)
        return json_response(self._answer.whole(self._choices, [joined(pieces) for pieces in parts]))

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        async for choice, piece in self._pieces():
            event = self._answer.part(choice, piece)
            if event is not None:
                yield event
        end = self._answer.end(self._choices)
        if end is not None:
            yield end

    def _cancel(self, seconds: float) -> None:
        for choice in self._choices:
            choice.cancel()
            if self._begun:
                self._engine.measured.add_choice(choice, self._started, seconds)

    async def _pieces(self) -> AsyncIterator[tuple[Choice, Piece]]:
        while True:
            for choice in self._choices:
                piece = choice.read()
                if piece is not None:
                    yield choice, piece
            if all(choice.reason for choice in self._choices):
                return
            await self._wait()


class EventStream(Response):
    """Response with the answer to a request as server-sent events. If the client disconnects, the request is closed."""

    media_type = "text/event-stream"

    def __init__(self, running: Running) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing, gone = asyncio.ensure_future(self._write(send)), asyncio.ensure_future(disconnected(receive))
        call = self._running.call
        try:
            await asyncio.wait((writing, gone), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
            else:
                call.status = Status.CANCELLED
        except BaseException as error:
            call.status = status_of(error)
            raise
        finally:
            self._running.close(call.status)
            for task in (writing, gone):
                task.cancel()
            await asyncio.wait((writing, gone))

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

        async def write(data: bytes) -> None:
            await send({"type": "http.response.body", "body": b"data: %b\n\n" % data, "more_body": True})

        try:
            async with aclosing(cast(Any, self._running.events())) as events:
                async for event in events:
                    await write(orjson.dumps(event))
        except Exception as error:
            await write(orjson.dumps(body_of(self._running.call.fail(error))))
        await write(b"[DONE]")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def status_of(error: BaseException) -> Status:
    """Return the status of a request that failed."""
    is_gone = isinstance(error, (asyncio.CancelledError, ClientDisconnect))
    return Status.CANCELLED if is_gone else public(error).status


def json_response(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response with a document as JSON."""
    return Response(orjson.dumps(document), status, headers, "application/json")
