"""KServe v2 over REST, with Triton's repository, configuration and statistics, metrics and a status page."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from ovgpu.serve import descriptions, predict, rest
from ovgpu.serve.access import AllowedHosts
from ovgpu.serve.calls import Call, recorded
from ovgpu.serve.disconnects import while_connected
from ovgpu.serve.errors import ServeError, Status
from ovgpu.serve.held_bytes import HeldBytes
from ovgpu.serve.http_extensions import extension_routes
from ovgpu.serve.load_options import load_options
from ovgpu.serve.metrics import CONTENT_TYPE, Metrics
from ovgpu.serve.models import Version
from ovgpu.serve.openai.models import model_of
from ovgpu.serve.openai.routes import OpenAI
from ovgpu.serve.protocol import InferenceRequest, InferenceResponse
from ovgpu.serve.service import Service
from ovgpu.serve.status_page import status_page
from ovgpu.serve.tokens import Tokens

INTERFACE = "REST"
JSON_LENGTH = "inference-header-content-length"
LARGE = 1 << 18  # bytes: more than these are converted on another thread than the event loop's
JSON_FACTOR = 20  # bytes that the parser and Python's objects take per byte of JSON, at most
BYTES_PER_VALUE = 8
"""Bytes of the limit of JSON per value that it may have. No other thread runs while a million is parsed for 40 ms."""
BODY_SECONDS = 60.0  # within which a body must arrive
PIECE = 1 << 20  # bytes that are decompressed at a time
WBITS = 47  # of zlib: gzip or zlib, whichever the data are

Handler = Callable[[Request, Call], Awaitable[Response]]
T = TypeVar("T")


class TooLargeError(ServeError):
    """Error of a body that is larger than allowed, with a code of HTTP of its own."""

    code = 413


class UnknownEncodingError(ServeError):
    """Error of a body in an encoding that the server does not know, with a code of HTTP of its own."""

    code = 415


class HttpApp:
    """ASGI application.

    ``body_bytes`` limits the body of one request, ``json_bytes`` the JSON in it, and ``held`` the bodies of all
    requests together. JSON has a limit of its own, since parsing it holds up all other requests. ``access`` has
    the tokens of which requests must have one, or the hosts by which they may call without one.
    """

    def __init__(
        self, service: Service, access: Tokens | AllowedHosts, body_bytes: int, json_bytes: int, held: HeldBytes
    ) -> None:
        self._service, self._models, self._access = service, service.models, access
        self._body_bytes, self._json_bytes, self._held = body_bytes, min(json_bytes, body_bytes), held
        self._metrics = Metrics(service.models)
        model = "/v2/models/{model}"
        self.asgi = Starlette(
            routes=[  # Starlette tries them in this order: the most used routes come first
                *[
                    self._route("POST", path + "/infer", "ModelInfer", self._infer)
                    for path in (model, model + "/versions/{version}")
                ],
                self._route("GET", "/", "StatusPage", self._page),
                self._route("GET", "/metrics", "Metrics", self._scrape),
                self._route("GET", "/v2", "ServerMetadata", self._server_metadata),
                self._route("GET", "/v2/health/live", "ServerLive", self._live, False),
                self._route("GET", "/v2/health/ready", "ServerReady", self._ready, False),
                self._route("GET", "/v2/models/stats", "ModelStatistics", self._statistics),
                *[
                    route
                    for path in (model, model + "/versions/{version}")
                    for route in (
                        self._route("GET", path, "ModelMetadata", self._metadata),
                        self._route("GET", path + "/ready", "ModelReady", self._model_ready),
                        self._route("GET", path + "/config", "ModelConfig", self._config),
                        self._route("GET", path + "/stats", "ModelStatistics", self._statistics),
                    )
                ],
                *[
                    route
                    for path in ("/v1/models/{model}", "/v1/models/{model}/versions/{version}")
                    for route in (
                        self._route("GET", path, "ModelReady", self._predict_status),
                        self._route("GET", path + "/metadata", "ModelMetadata", self._predict_metadata),
                        self._route("POST", path + ":predict", "Predict", self._predict),
                    )
                ],
                self._route("GET", "/v1/config", "RepositoryIndex", self._predict_config),
                self._route("POST", "/v1/config/reload", "RepositoryReload", self._predict_reload),
                self._route("POST", "/v2/repository/index", "RepositoryIndex", self._index),
                self._route("POST", "/v2/repository/models/{model}/load", "RepositoryModelLoad", self._load),
                self._route("POST", "/v2/repository/models/{model}/unload", "RepositoryModelUnload", self._unload),
                *extension_routes(self._route, self._json, service.memory),
                *self._text_routes(),
            ],
            exception_handlers={HTTPException: _unknown_route},
        )

    def _text_routes(self) -> Iterable[Route]:
        """Return the routes of models that generate texts."""
        return OpenAI(self._service, self._check_access, self._document, self._upload).routes()

    def _route(self, verb: str, path: str, method: str, handler: Handler, guarded: bool = True) -> Route:
        async def endpoint(request: Request) -> Response:
            response = await self._answer(request, method, handler, guarded)
            if self._service.draining:
                response.headers["connection"] = "close"  # the next request may be another server's
            return response

        return Route(path, endpoint, methods=[verb])

    async def _answer(self, request: Request, method: str, handler: Handler, guarded: bool) -> Response:
        """Return the response to a request, or to its error. Record the call."""
        peer = "" if request.client is None else f"{request.client.host}:{request.client.port}"
        with recorded(INTERFACE, method, peer, lambda: request.headers) as call:
            call.model = request.path_params.get("model", "")
            try:
                if guarded:
                    self._check_access(request, method)
                return await handler(request, call)
            except ClientDisconnect:
                call.status = Status.CANCELLED
                return Response(status_code=Status.CANCELLED.value)
            except Exception as error:
                failure = call.fail(error)
        headers = {} if failure.retry_after is None else {"Retry-After": str(failure.retry_after)}
        if failure.status is Status.UNAUTHENTICATED:
            headers["WWW-Authenticate"] = "Bearer"
        code = getattr(failure, "code", failure.status.value)
        return JSONResponse({"error": str(failure)}, code, headers)

    def _check_access(self, request: Request, method: str) -> None:
        """Raise ServeError if a request has no token that allows it, or may be one of a page of another site."""
        headers = request.headers
        if isinstance(self._access, AllowedHosts):
            self._access.check(", ".join(headers.getlist("host")), headers.get("origin"))
        else:
            self._access.authorise(headers.get("authorization", ""), method)

    # ---- inference

    async def _infer(self, request: Request, call: Call) -> Response:
        json_length = _number(request, JSON_LENGTH)
        with self._body(json_length is None) as body:
            await body.read(request)
            size = len(body.data)
            if json_length is not None and self._json_bytes < json_length <= size:
                raise _too_large("JSON", self._json_bytes)
            self._check_values(body.data, json_length)
            with self._held.holding(JSON_FACTOR * (size if json_length is None else min(json_length, size))):
                inference, wanted = await _call(
                    len(body.data), rest.parse, body.data, json_length, *self._names(request)
                )
            response = await self._run(request, inference, call)
        content, length = await _call(_bytes(response), rest.format, response, wanted)
        if length is None:
            return Response(content, media_type="application/json")
        return Response(content, media_type="application/octet-stream", headers={JSON_LENGTH: str(length)})

    async def _run(self, request: Request, inference: InferenceRequest, call: Call) -> InferenceResponse:
        """Run an inference. Cancel it if the client disconnects."""
        call.id = inference.id
        response = await while_connected(request, self._service.infer(inference, INTERFACE, call.method))
        call.version, call.sequence = response.version, response.parameters.get("sequence_id", "")
        return response

    @contextmanager
    def _body(self, is_json: bool = True) -> Iterator[_Body]:
        limit, what = (self._json_bytes, "JSON") if is_json else (self._body_bytes, "body")
        body = _Body(self._held, limit, what)
        try:
            yield body
        finally:
            body.release()

    def _check_values(self, data: bytearray, json_length: int | None = None) -> None:
        """Raise ServeError if the JSON at the begin of a body has so many values that others would wait long for it."""
        most = self._json_bytes // BYTES_PER_VALUE
        if data.count(b",", 0, len(data) if json_length is None else json_length) >= most:
            raise _too_large("JSON", most, "values")

    async def _predict(self, request: Request, call: Call) -> Response:
        with self._body() as body:
            await body.read(request)
            self._check_values(body.data)
            version = self._version(request)
            version.check_tensors()
            engine = version.engine
            with self._held.holding(JSON_FACTOR * len(body.data)):
                document = await _call(len(body.data), rest.load, body.data)
                inference, rows = await _call(len(body.data), predict.parse, document, engine, *self._names(request))
            response = await self._run(request, inference, call)
        content = await _call(_bytes(response), predict.format, response, rows)
        return Response(content, media_type="application/json")

    async def _predict_status(self, request: Request, call: Call) -> Response:
        name, number = self._names(request)
        version = self._models.find(name, number)
        if version.engine.task and not number:
            return JSONResponse(model_of(name, self._service.started))
        return JSONResponse(predict.status([version] if number else self._models.serving(name)))

    async def _predict_metadata(self, request: Request, call: Call) -> Response:
        return JSONResponse(predict.metadata(self._version(request)))

    async def _predict_config(self, request: Request, call: Call) -> Response:
        return JSONResponse(predict.statuses(self._models))

    async def _predict_reload(self, request: Request, call: Call) -> Response:
        """Look for new and changed models. The code is 201 if there are any, else 200, as of OpenVINO Model Server."""
        before = self._models.serving()
        await self._models.refresh(settled=False)
        changed = before != self._models.serving()
        return JSONResponse(predict.statuses(self._models), 201 if changed else 200)

    # ---- server and models

    async def _page(self, request: Request, call: Call) -> Response:
        return HTMLResponse(status_page(self._service))

    async def _scrape(self, request: Request, call: Call) -> Response:
        return Response(await asyncio.to_thread(self._metrics.text), media_type=CONTENT_TYPE)

    async def _live(self, request: Request, call: Call) -> Response:
        return JSONResponse({"live": True})

    async def _ready(self, request: Request, call: Call) -> Response:
        ready = self._service.ready
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def _model_ready(self, request: Request, call: Call) -> Response:
        ready = self._service.accepting
        return JSONResponse({"name": self._version(request).name, "ready": ready}, 200 if ready else 503)

    async def _server_metadata(self, request: Request, call: Call) -> Response:
        return JSONResponse(descriptions.server(self._service.memory.enabled))

    async def _metadata(self, request: Request, call: Call) -> Response:
        return JSONResponse(descriptions.model(self._models, *self._names(request)))

    async def _config(self, request: Request, call: Call) -> Response:
        return JSONResponse(descriptions.config(self._version(request)))

    async def _statistics(self, request: Request, call: Call) -> Response:
        statistics = (
            (descriptions.statistics(self._version(request)),)
            if request.path_params
            else (descriptions.all_statistics(self._models))
        )
        return JSONResponse({"model_stats": statistics})

    async def _index(self, request: Request, call: Call) -> Response:
        return JSONResponse(descriptions.index(self._models, bool((await self._json(request)).get("ready"))))

    async def _load(self, request: Request, call: Call) -> Response:
        parameters = rest.parameters_of(await self._json(request))
        options = await asyncio.to_thread(load_options, parameters)
        await self._models.load(request.path_params["model"], options)
        return JSONResponse({})

    async def _unload(self, request: Request, call: Call) -> Response:
        await self._models.unload(request.path_params["model"])
        return JSONResponse({})

    def _version(self, request: Request) -> Version:
        return self._models.find(*self._names(request))

    @staticmethod
    def _names(request: Request) -> tuple[str, str]:
        """Return the names of the model and the version in a path. Version 0 is the current one."""
        version = request.path_params.get("version", "")
        return request.path_params["model"], "" if version == "0" else version

    async def _document(self, request: Request) -> dict[str, Any]:
        """Return the JSON object of a body that may be large."""
        with self._body() as body:
            await body.read(request)
            self._check_values(body.data)
            with self._held.holding(JSON_FACTOR * len(body.data)):
                document: dict[str, Any] = await _call(len(body.data), rest.load, body.data)
                return document

    async def _upload(self, request: Request) -> tuple[bytearray, Callable[[], None]]:
        """Return a body that is no JSON, and the function that frees its memory for other requests."""
        body = _Body(self._held, self._body_bytes, "body")
        try:
            await body.read(request)
        except BaseException:
            body.release()
            raise
        return body.data, body.release

    async def _json(self, request: Request) -> dict[str, Any]:
        with self._body() as body:
            await body.read(request)
            return rest.load(body.data)


class _Body:
    """Body of a request, of at most ``limit`` bytes. They are reserved in ``held`` before they are stored.

    ``what`` names the body in the error of one that is too large.
    """

    def __init__(self, held: HeldBytes, limit: int, what: str) -> None:
        self._held, self._limit, self._what = held, limit, what
        self.data = bytearray()
        self._reserved = 0
        self._received = 0  # compressed bytes

    async def read(self, request: Request) -> None:
        """Read and decompress the body. Raise ServeError if it is too large, malformed, or takes too long."""
        expected = _number(request, "content-length")
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip", "deflate"):
            raise UnknownEncodingError(Status.INVALID_ARGUMENT, f"the content encoding {encoding[:40]!r} is unknown")
        if expected is not None:
            self._reserve(expected)
        decoder = None if encoding == "identity" else _Decoder(encoding)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    if decoder is None:
                        self._add(chunk)
                    else:
                        await self._decompress(decoder, chunk)
        except TimeoutError:
            raise ServeError(Status.DEADLINE_EXCEEDED, "the body has not arrived in time") from None
        except zlib.error as error:
            raise ServeError(Status.INVALID_ARGUMENT, f"the body is not {encoding}: {error}") from None
        if decoder is not None and not decoder.is_complete:
            raise ServeError(Status.INVALID_ARGUMENT, f"the body ends before its {encoding} does")

    async def _decompress(self, decoder: _Decoder, chunk: bytes) -> None:
        self._received += len(chunk)
        if self._received > self._limit:  # even if they decompress to fewer bytes
            raise _too_large(self._what, self._limit)
        for piece in decoder.pieces(chunk):
            self._add(piece)
            if len(piece) == PIECE:
                await asyncio.sleep(0)  # others have their turn: a few bytes may become many pieces

    def _add(self, chunk: bytes) -> None:
        if len(self.data) + len(chunk) > self._reserved:
            self._reserve(len(self.data) + len(chunk))
        self.data += chunk

    def _reserve(self, size: int) -> None:
        if size > self._limit:
            raise _too_large(self._what, self._limit)
        self._held.reserve(size - self._reserved)
        self._reserved = size

    def release(self) -> None:
        """Count the bytes as no longer held."""
        self._held.release(self._reserved)
        self._reserved = 0


class _Decoder:
    """Decompression of a body, which is one stream of zlib, or members of gzip one after the other."""

    def __init__(self, encoding: str) -> None:
        self._has_members, self._stream = encoding == "gzip", zlib.decompressobj(WBITS)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Decompress data. Yield pieces of at most `PIECE` bytes. Raise zlib.error or ServeError for malformed data."""
        while data:
            if self._stream.eof:
                if not self._has_members:
                    raise ServeError(Status.INVALID_ARGUMENT, "the body has bytes behind the compressed ones")
                self._stream = zlib.decompressobj(WBITS)
            yield self._stream.decompress(data, PIECE)
            data = self._stream.unconsumed_tail or self._stream.unused_data

    @property
    def is_complete(self) -> bool:
        """True if the data so far end where a stream does."""
        return self._stream.eof


def _too_large(what: str, limit: int, unit: str = "bytes") -> ServeError:
    hint = ": send tensors as binary data" if what == "JSON" else ""
    return TooLargeError(Status.RESOURCE_EXHAUSTED, f"the {what} has more than {limit} {unit}{hint}")


def _unknown_route(request: Request, error: Exception) -> Response:
    """Return the response to a request for a path, or by a method, that the server does not know."""
    code = error.status_code if isinstance(error, HTTPException) else 404
    return JSONResponse({"error": f"there is no {request.method} {request.url.path[:200]}"}, code)


async def _call(size: int, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function. If it has many bytes (``size``) to convert, call it on another thread than the event loop's."""
    return function(*args) if size < LARGE else await asyncio.to_thread(function, *args)


def _bytes(response: InferenceResponse) -> int:
    """Return the size of a response's outputs in memory."""
    return sum(tensor.array.nbytes for tensor in response.outputs)


def _number(request: Request, header: str) -> int | None:
    """Return the number in a header, None without it. Raise ServeError for anything else."""
    text = request.headers.get(header)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise ServeError(Status.INVALID_ARGUMENT, f"{header} is no number")
    return int(text)
