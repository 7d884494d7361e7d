"""Routes of OpenAI's protocol, and of OpenVINO Model Server, which has it under ``/v3``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ovgpu.serve.calls import Call, recorded
from ovgpu.serve.disconnects import while_connected
from ovgpu.serve.errors import ServeError, Status, invalid
from ovgpu.serve.models import Version
from ovgpu.serve.openai import models as methods
from ovgpu.serve.openai.answers import embeddings, reranking
from ovgpu.serve.openai.errors import UnknownModelError, body_of, code_of
from ovgpu.serve.openai.files import EMBEDDINGS, GENERATION, RERANK, SPEECH
from ovgpu.serve.openai.forms import read_form
from ovgpu.serve.openai.requests import (
    RetrievalRequest,
    TextRequest,
    parse_chat,
    parse_completion,
    parse_embeddings,
    parse_rerank,
)
from ovgpu.serve.openai.running import (
    INTERFACE,
    EventStream,
    Running,
    RunningTexts,
    json_response,
    status_of,
)
from ovgpu.serve.openai.speech import RunningSpeech
from ovgpu.serve.openai.speech_requests import parse_speech
from ovgpu.serve.service import Service

if TYPE_CHECKING:  # they import ovgpu.genai, which servers of other models do not need
    from ovgpu.serve.openai.retrieval import RetrievalEngine

PREFIXES = ("/v1", "/v3")
UPLOADS = (methods.TRANSCRIPTIONS, methods.TRANSLATIONS)
"""Methods whose body is a form with a file."""

Parse = Callable[[dict[str, Any]], TextRequest]
Handler = Callable[[Request, Call], Awaitable[Response]]
ReadUpload = Callable[[Request], Awaitable[tuple[bytearray, Callable[[], None]]]]


class OpenAI:
    """Handlers of the protocol.

    ``check_access`` raises ServeError for a request that may not call a method, ``read_json`` returns a body's object,
    and ``read_upload`` the bytes of another body and the function that frees their memory for other requests.
    """

    def __init__(
        self,
        service: Service,
        check_access: Callable[[Request, str], None],
        read_json: Callable[[Request], Awaitable[dict[str, Any]]],
        read_upload: ReadUpload,
    ) -> None:
        self._service, self._check_access = service, check_access
        self._read_json, self._read_upload = read_json, read_upload
        self.endpoints: Mapping[tuple[str, str], tuple[str, Handler]] = dict(self._endpoints())

    def routes(self) -> Iterable[Route]:
        """Return the routes."""
        for (verb, path), (method, handler) in self.endpoints.items():
            yield self._route(verb, path, method, handler)

    def _endpoints(self) -> Iterator[tuple[tuple[str, str], tuple[str, Handler]]]:
        """Yield (verb, path) of each endpoint, and its method and handler."""
        posted: dict[str, tuple[str, Handler]] = {
            "chat/completions": (methods.CHATS, self._texts(methods.CHATS, parse_chat)),
            "completions": (methods.COMPLETIONS, self._texts(methods.COMPLETIONS, parse_completion)),
            "embeddings": (methods.EMBEDDINGS, self._retrieval(methods.EMBEDDINGS, EMBEDDINGS)),
            "rerank": (methods.RERANK, self._retrieval(methods.RERANK, RERANK)),
            "audio/transcriptions": (methods.TRANSCRIPTIONS, self._speech(methods.TRANSCRIPTIONS)),
            "audio/translations": (methods.TRANSLATIONS, self._speech(methods.TRANSLATIONS)),
        }
        for prefix in PREFIXES:
            for path, endpoint in posted.items():
                yield ("POST", f"{prefix}/{path}"), endpoint
            yield ("GET", f"{prefix}/models"), ("RepositoryIndex", self._models)
        yield ("GET", "/v3/models/{model}"), ("ModelReady", self._model)

    def model(self, name: str) -> dict[str, Any] | None:
        """Return the description of a model of this protocol, None for another one."""
        version = self._service.models.current.get(name)
        if version is None or not version.engine.task:
            return None
        return methods.model_of(name, self._service.started)

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
        return json_response(body_of(failure), code_of(failure), headers)

    # ---- models

    async def _models(self, request: Request, call: Call) -> Response:
        names = sorted(self._service.models.current)
        return json_response({"object": "list", "data": [found for name in names if (found := self.model(name))]})

    async def _model(self, request: Request, call: Call) -> Response:
        call.model = request.path_params["model"]
        found = self.model(call.model)
        if found is None:
            raise UnknownModelError(f"there is no model '{call.model}' of OpenAI's protocol")
        return json_response(found)

    # ---- texts

    def _texts(self, method: str, parse: Parse) -> Handler:
        async def handler(request: Request, call: Call) -> Response:
            wanted = parse(await self._document(request))
            call.model = wanted.model
            version = self._version(wanted.model, GENERATION)
            call.version = version.number
            return await self._answer(request, RunningTexts(version, wanted, method, call))

        return handler

    @staticmethod
    async def _answer(request: Request, running: Running) -> Response:
        """Return the answer to a request that runs, which is closed at its end. A stream must be called for that."""
        try:
            await while_connected(request, running.start())
            if running.stream:
                return EventStream(running)
            return await while_connected(request, running.whole())
        except BaseException as error:
            running.close(status_of(error))
            raise
        finally:
            if not running.stream:
                running.close(Status.OK)

    def _speech(self, method: str) -> Handler:
        async def handler(request: Request, call: Call) -> Response:
            body, free = await self._read_upload(request)
            try:
                kind = request.headers.get("content-type", "")
                wanted = parse_speech(await asyncio.to_thread(read_form, kind, body), method == methods.TRANSLATIONS)
                del body
                call.model = wanted.model
                version = self._version(wanted.model, SPEECH)
                call.version = version.number
                running = RunningSpeech(version, wanted, method, call, free)
            except BaseException:
                free()
                raise
            return await self._answer(request, running)

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
                status = status_of(error)
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
