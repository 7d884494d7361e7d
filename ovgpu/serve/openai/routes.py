"""Routes of OpenAI's protocol, and of OpenVINO Model Server, which has it under ``/v3``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, cast

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ovgpu.serve.calls import Call, recorded
from ovgpu.serve.disconnects import disconnected, while_connected
from ovgpu.serve.errors import ServeError, Status, invalid, public
from ovgpu.serve.models import Version
from ovgpu.serve.openai.answers import Answer, Piece, embeddings, joined, reranking
from ovgpu.serve.openai.errors import UnknownModelError, body_of, code_of
from ovgpu.serve.openai.files import EMBEDDINGS, GENERATION, RERANK
from ovgpu.serve.openai.models import model_of
from ovgpu.serve.openai.requests import (
    RetrievalRequest,
    TextRequest,
    parse_chat,
    parse_completion,
    parse_embeddings,
    parse_rerank,
)
from ovgpu.serve.service import Service

if TYPE_CHECKING:  # they import ovgpu.genai, which servers of other models do not need
    from ovgpu.serve.openai.choices import Choice
    from ovgpu.serve.openai.retrieval import RetrievalEngine
    from ovgpu.serve.openai.text_engine import TextEngine

INTERFACE = "REST"
PREFIXES = ("/v1", "/v3")
CHATS, COMPLETIONS = "ChatCompletions", "Completions"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # a proxy passes events on as they come

Parse = Callable[[dict[str, Any]], TextRequest]
Handler = Callable[[Request, Call], Awaitable[Response]]


class OpenAI:
    """Handlers of the protocol.

    ``check_access`` raises ServeError for a request that may not call a method, ``read_json`` returns a body's object.
    """

    def __init__(
        self,
        service: Service,
        check_access: Callable[[Request, str], None],
        read_json: Callable[[Request], Awaitable[dict[str, Any]]],
    ) -> None:
        self._service, self._check_access, self._read_json = service, check_access, read_json
        self.endpoints: Mapping[tuple[str, str], tuple[str, Handler]] = dict(self._endpoints())

    def routes(self) -> Iterable[Route]:
        """Return the routes."""
        for (verb, path), (method, handler) in self.endpoints.items():
            yield self._route(verb, path, method, handler)

    def _endpoints(self) -> Iterator[tuple[tuple[str, str], tuple[str, Handler]]]:
        """Yield (verb, path) of each endpoint, and its method and handler."""
        for prefix in PREFIXES:
            yield ("POST", f"{prefix}/chat/completions"), (CHATS, self._texts(CHATS, parse_chat))
            yield ("POST", f"{prefix}/completions"), (COMPLETIONS, self._texts(COMPLETIONS, parse_completion))
            yield ("POST", f"{prefix}/embeddings"), ("Embeddings", self._retrieval("Embeddings", EMBEDDINGS))
            yield ("POST", f"{prefix}/rerank"), ("Rerank", self._retrieval("Rerank", RERANK))
            yield ("GET", f"{prefix}/models"), ("RepositoryIndex", self._models)
        yield ("GET", "/v3/models/{model}"), ("ModelReady", self._model)

    def model(self, name: str) -> dict[str, Any] | None:
        """Return the description of a model that takes texts, None for another one."""
        version = self._service.models.current.get(name)
        if version is None or not version.engine.task:
            return None
        return model_of(name, self._service.started)

    def _route(self, verb: str, path: str, method: str, handler: Handler) -> Route:
        async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            peer = "" if request.client is None else f"{request.client.host}:{request.client.port}"
            with recorded(INTERFACE, method, peer, lambda: request.headers) as call:
                response = await self.response(request, call, method, handler)
                if self._service.draining:
                    response.headers["connection"] = "close"  # the next request may be another server's
                await response(scope, receive, send)

        return Route(path, cast(Any, _Asgi(endpoint)), methods=[verb])

    async def response(self, request: Request, call: Call, method: str, handler: Handler) -> Response:
        """Return the response to a request, or to its error. It must be called: the texts of a stream run already."""
        try:
            self._check_access(request, method)
            return await handler(request, call)
        except Exception as error:
            return self.failure(call, error)

    @staticmethod
    def failure(call: Call, error: Exception) -> Response:
        """Return the response to a call that failed."""
        if isinstance(error, ClientDisconnect):
            call.status = Status.CANCELLED
            return Response(status_code=Status.CANCELLED.value)
        failure = call.fail(error)
        headers = {} if failure.retry_after is None else {"Retry-After": str(failure.retry_after)}
        if failure.status is Status.UNAUTHENTICATED:
            headers["WWW-Authenticate"] = "Bearer"
        return _json(body_of(failure), code_of(failure), headers)

    # ---- models

    async def _models(self, request: Request, call: Call) -> Response:
        names = sorted(self._service.models.current)
        return _json({"object": "list", "data": [found for name in names if (found := self.model(name))]})

    async def _model(self, request: Request, call: Call) -> Response:
        call.model = request.path_params["model"]
        found = self.model(call.model)
        if found is None:
            raise UnknownModelError(f"there is no model '{call.model}' that takes texts")
        return _json(found)

    # ---- texts

    def _texts(self, method: str, parse: Parse) -> Handler:
        async def handler(request: Request, call: Call) -> Response:
            wanted = parse(await self._document(request))
            call.model = wanted.model
            version = self._version(wanted.model, GENERATION)
            call.version = version.number
            running = Running(version, wanted, method, call)
            try:
                await while_connected(request, running.start())
                if wanted.stream:
                    return EventStream(running)
                return _json(await while_connected(request, running.whole()))
            except BaseException as error:
                running.close(_status(error))
                raise
            finally:
                if not wanted.stream:
                    running.close(Status.OK)

        return handler

    def _retrieval(self, method: str, task: str) -> Handler:
        async def handler(request: Request, call: Call) -> Response:
            parse = parse_embeddings if task == EMBEDDINGS else parse_rerank
            wanted = parse(await self._document(request))
            call.model = wanted.model
            version = self._version(wanted.model, task)
            call.version, started, status = version.number, time.perf_counter(), Status.OK
            try:
                with version.admitted():
                    work = _rows(cast("RetrievalEngine", version.engine), wanted)
                    rows, tokens = await while_connected(request, work)
            except BaseException as error:
                status = _status(error)
                raise
            finally:
                version.statistics.add_request(INTERFACE, method, status, time.perf_counter() - started)
            form = embeddings if task == EMBEDDINGS else reranking
            return Response(form(wanted, rows, tokens), media_type="application/json")

        return handler

    async def _document(self, request: Request) -> dict[str, Any]:
        """Return the object in a body. Raise ServeError for halves of surrogate pairs, which no tokenizer and no answer
        can have, and for values that are nested too deeply."""
        document = await self._read_json(request)
        try:
            orjson.dumps(document)
        except TypeError as error:
            raise invalid(f"the body has a value that is not supported: {error}") from None
        return document

    def _version(self, name: str, task: str) -> Version:
        """Return the version of a model with a task. Raise ServeError if it is not there, or has another one."""
        if not self._service.accepting:
            doing = "stopping" if self._service.stopping.is_set() else "loading its models"
            raise ServeError(Status.UNAVAILABLE, f"the server is {doing}", 1)
        try:
            version = self._service.models.find(name)
        except ServeError as error:
            if error.status is Status.NOT_FOUND:
                raise UnknownModelError(str(error)) from None
            raise
        if version.engine.task != task:
            raise UnknownModelError(
                f"model '{name}' is for {version.engine.task or 'inferences of KServe'}, not {task}"
            )
        return version


class Running:
    """Texts of a request that are generated. Its version stays open until `close`."""

    def __init__(self, version: Version, request: TextRequest, method: str, call: Call) -> None:
        self.request, self.call = request, call
        self._version, self._engine = version, cast("TextEngine", version.engine)
        self._method, self._started = method, time.perf_counter()
        self._admitted = version.admitted()
        self._admitted.__enter__()
        self._begun = self._closed = False
        self._choices: list[Choice] = []
        self._changed, self._loop = asyncio.Event(), asyncio.get_running_loop()
        self._answer = Answer(request, self._engine.bytes_of)

    async def start(self) -> None:
        """Begin the texts, and wait for their first tokens. Raises: ServeError or Error if they cannot begin."""
        self._choices = await asyncio.to_thread(self._engine.choices, self.request)
        self._engine.start(self._choices, self._on_change)
        self._begun = True
        await self._wait()
        for choice in self._choices:
            if choice.generation.error is not None:
                raise choice.generation.error

    async def whole(self) -> dict[str, Any]:
        """Return the answer with the whole texts."""
        parts: list[list[Piece]] = [[] for _ in self._choices]
        async for choice, piece in self._pieces():
            parts[choice.index].append(piece)
        return self._answer.whole(self._choices, [joined(pieces) for pieces in parts])

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a stream. What is generated while one is sent goes into the next one of its text."""
        async for choice, piece in self._pieces():
            event = self._answer.part(choice, piece)
            if event is not None:
                yield event
        end = self._answer.end(self._choices)
        if end is not None:
            yield end

    def close(self, status: Status) -> None:
        """Cancel what still runs, and count the request. Later calls have no effect."""
        if self._closed:
            return
        self._closed = True
        seconds = time.perf_counter() - self._started
        for choice in self._choices:
            choice.cancel()
            if self._begun:
                self._engine.measured.add_choice(choice, self._started, seconds)
        self._version.statistics.add_request(INTERFACE, self._method, status, seconds)
        self._admitted.__exit__(None, None, None)

    async def _pieces(self) -> AsyncIterator[tuple[Choice, Piece]]:
        while True:
            for choice in self._choices:
                piece = choice.read()
                if piece is not None:
                    yield choice, piece
            if all(choice.reason for choice in self._choices):
                return
            await self._wait()

    async def _wait(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    def _on_change(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._changed.set)


class EventStream(Response):
    """Response with the texts of a request as server-sent events. If the client disconnects, the texts end."""

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
            call.status = _status(error)
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


class _Asgi:
    """ASGI application, which is no function: Starlette would take one for a handler of requests."""

    def __init__(self, call: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._call(scope, receive, send)


async def _rows(engine: RetrievalEngine, wanted: RetrievalRequest) -> tuple[list[Any], int]:
    """Return a vector or score of each text, and the number of tokens. Other requests have their turn in between."""
    found, tokens, most = list[Any](), 0, engine.max_batch_size
    for begin in range(0, len(wanted.texts), most):
        rows, count = await asyncio.wrap_future(engine.rows(wanted.texts[begin : begin + most], wanted.query))
        found, tokens = found + rows, tokens + count
    return found, tokens


def _status(error: BaseException) -> Status:
    is_gone = isinstance(error, (asyncio.CancelledError, ClientDisconnect))
    return Status.CANCELLED if is_gone else public(error).status


def _json(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(document), status, headers, "application/json")
