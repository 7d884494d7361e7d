"""Process of a front end: it reads calls and writes answers. The process of the models computes them: `FrontEnds`."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ovgpu.serve import heap
from ovgpu.serve.arena import Arena
from ovgpu.serve.calls import Call, answered
from ovgpu.serve.disconnects import while_connected
from ovgpu.serve.grpc_health import HealthService
from ovgpu.serve.grpc_messages import METHODS, messages
from ovgpu.serve.grpc_service import GrpcService
from ovgpu.serve.http_app import Handler, HttpApp
from ovgpu.serve.interfaces import Interfaces
from ovgpu.serve.link import Link
from ovgpu.serve.log_queue import dropped_lines, logging_to_queues
from ovgpu.serve.log_settings import settings
from ovgpu.serve.openai.forwarding import Forwarding, Senders
from ovgpu.serve.protocol import InferenceRequest, InferenceResponse
from ovgpu.serve.server import new_event_loop
from ovgpu.serve.service import Service
from ovgpu.serve.tokens import caller

if TYPE_CHECKING:
    from ovgpu.serve.server import ServerOptions

WITH_JSON = {"Predict", "RepositoryIndex", "RepositoryModelLoad", "SystemSharedMemoryRegister", "LogSettings"}
"""Methods of REST that read a body if they are called by POST."""
COUNT_SECONDS = 1.0  # between messages with the calls that were counted here
LOST_SECONDS = 1.0  # for calls to end after the process of the models has ended


class RemoteService:
    """The part of `Service` that the interfaces need, in the process of the models."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.models = self.memory = None  # which are only in the other process
        self.senders = Senders()  # of texts
        self.draining = False
        self.stopping = asyncio.Event()

    async def infer(self, request: InferenceRequest, interface: str, method: str) -> InferenceResponse:
        """Run an inference: see `Service.infer`. All processes of a machine share the clock of its deadline."""
        response: InferenceResponse = await self.call("infer", request, interface, method)
        return response

    async def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of `FrontEnds` for the current caller."""
        token = caller.get()
        return await self._link.call(function, None if token is None else token.digest, *arguments)


class RemoteHttpApp(HttpApp):
    """ASGI application that parses inferences, and passes all other calls on to the process of the models."""

    def _route(self, verb: str, path: str, method: str, handler: Handler, guarded: bool = True) -> Route:
        if handler not in (self._infer, self._live):
            handler = partial(self._forward, (verb, path))
        return super()._route(verb, path, method, handler, guarded)

    def _text_routes(self) -> Iterable[Route]:
        service = _remote(self._service)
        forward = partial(service.call, "texts")
        return Forwarding(service, self._check_access, self._read, self._upload, forward, service.senders).routes()

    async def _read(self, request: Request) -> bytes:
        with self._body() as body:
            await body.read(request)
            self._check_values(body.data)
            return bytes(body.data)

    async def _forward(self, route: tuple[str, str], request: Request, call: Call) -> Response:
        with self._body() as body:
            if request.method == "POST" and call.method in WITH_JSON:
                await body.read(request)
            predicts = call.method == "Predict"
            if predicts:
                self._check_values(body.data)
            calling = _remote(self._service).call("rest", route, call.method, request.path_params, bytes(body.data))
            if predicts:  # an inference is cancelled if the client disconnects
                calling = while_connected(request, calling)
            code, headers, content, (call.version, call.id, call.sequence) = await calling
        return Response(content, code, headers)


class RemoteGrpcService(GrpcService):
    """Service that parses inferences, and passes all other calls on to the process of the models."""

    async def ServerReady(self, request: Any, context: Any) -> Any:
        """Tell whether inferences are accepted for all models."""
        return await self._forward("ServerReady", messages.ServerReadyRequest())

    async def _answer(self, method: str, request: Any, context: Any, answer: Any) -> Any:
        def forward(call: Call) -> Awaitable[Any]:
            return self._forward(method, request)

        return await super()._answer(method, request, context, answer if method == "ModelInfer" else forward)

    async def _forward(self, method: str, request: Any) -> Any:
        data = await _remote(self._service).call("grpc", method, request.SerializeToString())
        return getattr(messages, METHODS[method].output_type.name).FromString(data)


class RemoteHealthService(HealthService):
    """Health service that asks the process of the models."""

    async def status(self, name: str) -> int | None:
        """Return the status of a service, or None if it is no model of the repository."""
        found: int | None = await _remote(self._service).call("health", name)
        return found


def _remote(service: Service) -> RemoteService:
    return cast(RemoteService, service)


class FrontEnd:
    """This process, from start to stop. The process of the models calls its methods."""

    def __init__(self, rest: socket.socket, sending: Arena, receiving: Arena) -> None:
        self._rest = rest
        functions: dict[str, Callable[..., Any]] = {
            "send": self._send,
            "start": self.start,
            "reload": self.reload,
            "drain": self.drain,
            "stop": self.stop,
            "log": settings.update,
        }
        self._link = Link(functions, sending, receiving)
        self._service = RemoteService(self._link)
        self._interfaces: Interfaces | None = None
        self._stop: asyncio.Task[None] | None = None
        self._dropped: dict[str, int] = {}  # lines of logs, so far as the other process knows

    async def run(self, connection: socket.socket) -> int:
        """Answer calls until the other process ends, or tells this one to stop. Return the exit code."""
        await asyncio.get_running_loop().create_connection(lambda: self._link, sock=connection)
        while not self._link.lost.is_set():
            self._count()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._link.lost.wait(), COUNT_SECONDS)
        if self._stop is not None:
            await self._stop
            return 0
        if self._interfaces is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._interfaces.stop(0), LOST_SECONDS)
        return 1

    async def start(self, options: ServerOptions, draining: bool) -> None:
        """Open the ports."""
        self._service.draining |= draining  # `drain` may have been called in the meantime
        interfaces = Interfaces(options)
        service = cast(Service, self._service)
        await interfaces.serve(
            self._rest,
            options.grpc_port,
            interfaces.http_app(RemoteHttpApp, service),
            RemoteGrpcService(service, interfaces.held),
            RemoteHealthService(service),
        )
        self._interfaces = interfaces

    async def _send(self, number: int, message: Any) -> None:
        await self._service.senders.send(number, message)

    def reload(self) -> None:
        """Read the tokens and the certificate again."""
        if self._interfaces is not None:
            self._interfaces.reload()

    def drain(self) -> None:
        """Have answers of HTTP close their connections."""
        self._service.draining = True

    def stop(self, grace: float) -> None:
        """Wait up to ``grace`` seconds for calls to end, and end."""
        self._stop = asyncio.create_task(self._end(grace))

    async def _end(self, grace: float) -> None:
        self._service.stopping.set()
        if self._interfaces is not None:
            await self._interfaces.stop(grace)
        self._count()
        self._link.close()

    def _count(self) -> None:
        """Send the numbers of calls, and of lines that logs have dropped, since the last time."""
        dropped = dict(dropped_lines())
        more = {log: number - self._dropped.get(log, 0) for log, number in dropped.items()}
        if answered or any(more.values()):
            self._link.tell("count", dict(answered), more)
            answered.clear()
            self._dropped = dropped


def main() -> None:
    """Run the process. Its arguments are descriptors of files, and whether it has an access log."""
    connection, sending, receiving, rest, has_log = map(int, sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the other process handles them
        signal.signal(number, signal.SIG_IGN)
    heap.set_up()
    with logging_to_queues(bool(has_log)):
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            sys.exit(runner.run(_run(connection, sending, receiving, rest)))


async def _run(connection: int, sending: int, receiving: int, rest: int) -> int:
    front_end = FrontEnd(socket.socket(fileno=rest), Arena(sending), Arena(receiving))
    return await front_end.run(socket.socket(fileno=connection))


if __name__ == "__main__":
    main()
