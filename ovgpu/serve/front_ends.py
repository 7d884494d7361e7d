"""Class FrontEnds: processes that share the ports of a server whose models are in this process."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from ovgpu.errors import Error
from ovgpu.serve import log_queue
from ovgpu.serve.arena import Arena, memory_file
from ovgpu.serve.calls import Call, access, answered
from ovgpu.serve.errors import ServeError
from ovgpu.serve.grpc_guard import INTERFACE as GRPC
from ovgpu.serve.grpc_health import HealthService
from ovgpu.serve.grpc_messages import METHODS, messages
from ovgpu.serve.grpc_service import GrpcService
from ovgpu.serve.http_app import INTERFACE as REST
from ovgpu.serve.http_app import Handler, HttpApp
from ovgpu.serve.interfaces import MIB, Interfaces, bound, listening
from ovgpu.serve.link import Link
from ovgpu.serve.log_settings import settings
from ovgpu.serve.openai.forwarding import answer
from ovgpu.serve.openai.routes import OpenAI
from ovgpu.serve.service import Service
from ovgpu.serve.tokens import caller

SHARED_BYTES = 128 * MIB  # of shared memory for arrays, in each direction of a front end
QUICK_SECONDS = 10.0  # a process that ends within this time after its start
MAX_QUICK = 3  # so many of them, one after the other, end the server
RETRY_SECONDS = 1.0  # after which a process is tried again that could not open the ports while the server runs
EXIT_SECONDS = 5.0  # for a process to end after its connection

log = logging.getLogger(__name__)


class FrontEnds(Interfaces):
    """Servers of REST and gRPC in processes of their own.

    A front end reads requests and writes answers. It sends inferences over a `Link` to this process; all other calls
    are answered here. One that ends is replaced. If it is killed, its inferences are cancelled; sequences stay open.
    """

    async def start(self, service: Service) -> None:
        """Open the ports, and answer calls by a service. Raise Error if a port cannot be opened."""
        options = self._options
        self._service, self._health = service, HealthService(service)
        self._handlers, self._methods = self.http_app(_Handlers, service), _Methods(service, self.held)
        self._links, self._started = set[Link](), set[Link]()
        self._all_started, self._stopping = asyncio.Event(), asyncio.Event()
        self._sockets = [listening(self.address, options.port)]
        self.port = self._sockets[0].getsockname()[1]
        try:
            if options.grpc_port is not None:
                # This socket holds the port, and does not listen. When it is bound, no other program may have the port.
                self._sockets.append(bound("gRPC", self.address, options.grpc_port))
                self._sockets[1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                self.grpc_port = self._sockets[1].getsockname()[1]
            self.serving = asyncio.create_task(self._keep_all())
            starting = asyncio.create_task(self._all_started.wait())
            try:
                await asyncio.wait((starting, self.serving), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                self.serving.cancel()
                await asyncio.wait((self.serving,))
                raise
            finally:
                starting.cancel()
            if self.serving.done():
                self.serving.result()
        except BaseException:
            self._close_sockets()
            raise

    async def stop(self, grace: float) -> None:
        """Wait up to ``grace`` seconds for calls to end, and end the processes."""
        self._stopping.set()
        self._close_sockets()
        for link in self._links:
            link.tell("stop", grace)
        await asyncio.wait((self.serving,), timeout=grace + EXIT_SECONDS)
        self.serving.cancel()
        await asyncio.wait((self.serving,))
        if not self.serving.cancelled():
            self.serving.result()

    def reload(self) -> None:
        """Read the tokens and the certificate again, in all processes. Errors are logged."""
        super().reload()
        for link in self._links:
            link.tell("reload")

    def drain(self) -> None:
        """Have answers of HTTP close their connections."""
        for link in self._links:
            link.tell("drain")

    def _close_sockets(self) -> None:
        for opened in self._sockets:
            opened.close()

    # ---- processes

    async def _keep_all(self) -> None:
        """Run the processes until the server stops. Raise Error if they end as soon as they have started."""
        keeping = [asyncio.create_task(self._keep()) for _ in range(self._options.processes)]
        try:
            await asyncio.gather(*keeping)
        finally:
            for task in keeping:
                if not task.cancelling():  # else it waits for its process to end
                    task.cancel()
            await asyncio.wait(keeping)

    async def _keep(self) -> None:
        """Run a process, and another one after it, until the server stops."""
        loop, quick = asyncio.get_running_loop(), 0
        while not self._stopping.is_set():
            began, refused = loop.time(), False
            try:
                code = await self._run_process()
                message = f"a front-end process has ended with exit code {code}: another one starts"
            except (ServeError, OSError) as error:
                message, refused = f"a front-end process cannot start: {error}", self._all_started.is_set()
            if self._stopping.is_set():
                return
            log.error(message)
            if refused:  # the others go on: a malformed file of tokens may be mended, or resources be free again
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), RETRY_SECONDS)
                continue
            quick = quick + 1 if loop.time() - began < QUICK_SECONDS else 0
            if quick == MAX_QUICK:
                raise Error("front-end processes end as soon as they have started: the log has the reasons")

    async def _run_process(self) -> int:
        """Run a process until it ends, and return its exit code.

        Raises: ServeError if it cannot open the ports, OSError if the system cannot start it.
        """
        here, there = socket.socketpair()
        files = list[int]()
        try:
            with there:
                for _ in range(2):
                    files.append(memory_file(SHARED_BYTES))
                passed = (there.fileno(), *files, self._sockets[0].fileno())
                arguments = map(str, (*passed, int(_has_access_log())))
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "ovgpu.serve.front_end", *arguments],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                    pass_fds=passed,
                    process_group=0,  # Ctrl-C does not reach it
                )
        except BaseException:
            here.close()
            for file in files:
                os.close(file)
            raise

        async def texts(number: int, *arguments: Any) -> Any:
            return await answer(self._handlers.openai, partial(link.call, "send", number), *arguments)

        functions: dict[str, Callable[..., Awaitable[Any]]] = {
            "infer": self._service.infer,
            "texts": texts,
            "rest": self._rest,
            "grpc": self._grpc_call,
            "health": self._health.status,
        }
        link = Link(
            {"count": _count, **{name: self._for_caller(function) for name, function in functions.items()}},
            Arena(files[1]),
            Arena(files[0]),
        )
        try:
            await asyncio.get_running_loop().create_connection(lambda: link, sock=here)
            self._links.add(link)
            if not self._stopping.is_set():
                await self._start_process(link)
                await link.lost.wait()
        finally:
            self._links.discard(link)
            self._started.discard(link)
            link.close()
            await asyncio.to_thread(_wait, process)
        return process.returncode

    async def _start_process(self, link: Link) -> None:
        """Have a process open the ports. Raise ServeError if that fails."""
        options = self._options
        share = replace(options, held_mib=options.held_mib // options.processes, grpc_port=self.grpc_port or None)
        link.tell("log", settings.values())
        await link.call("start", share, self._service.draining)
        self._started.add(link)
        if len(self._started) == options.processes:
            self._all_started.set()

    # ---- calls of front ends

    def _for_caller(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return a function with one more argument, the digest of the caller's token, or None without tokens."""

        async def call(digest: bytes | None, *arguments: Any) -> Any:
            if digest is not None and self.tokens is not None:
                caller.set(self.tokens.known(digest))
            return await function(*arguments)

        return call

    async def _rest(
        self, route: tuple[str, str], method: str, parameters: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes, tuple[Any, ...]]:
        """Return the status, headers and body of an answer of REST, and what the front end logs of the call."""
        call = Call(REST, method, "")
        received = iter([{"type": "http.request", "body": body}])

        async def receive() -> Any:
            for message in received:
                return message
            await asyncio.Event().wait()  # the front end cancels the call if its client disconnects

        scope = {"type": "http", "method": route[0], "path": route[1], "headers": [], "path_params": parameters}
        response = await self._handlers.by_route[route](Request(scope, receive), call)
        if method == "LogSettings":
            self._tell_log_settings()
        return (
            response.status_code,
            dict(response.headers),
            bytes(response.body),
            (call.version, call.id, call.sequence),
        )

    async def _grpc_call(self, method: str, data: bytes) -> bytes:
        """Return the response to a message of gRPC."""
        request = getattr(messages, METHODS[method].input_type.name).FromString(data)
        response: bytes = (await getattr(self._methods, method)(request, None)).SerializeToString()
        if method == "LogSettings":
            self._tell_log_settings()
        return response

    def _tell_log_settings(self) -> None:
        for link in self._links:
            link.tell("log", settings.values())


class _Handlers(HttpApp):
    """Handlers of REST by verb and path, for calls that front ends have received and record."""

    openai: OpenAI

    def __init__(self, *arguments: Any) -> None:
        self.by_route: dict[tuple[str, str], Handler] = {}
        super().__init__(*arguments)

    def _text_routes(self) -> Iterable[Route]:
        self.openai = OpenAI(self._service, lambda request, method: None, self._document, self._upload)
        return ()

    def _route(self, verb: str, path: str, method: str, handler: Handler, guarded: bool = True) -> Route:
        self.by_route[verb, path] = handler
        return super()._route(verb, path, method, handler, guarded)


class _Methods(GrpcService):
    """Methods of gRPC, for calls that front ends have received and record."""

    async def _answer(self, method: str, request: Any, context: Any, answer: Any) -> Any:
        return await answer(Call(GRPC, method, ""))


def _count(calls: dict[tuple[str, str, str], int], dropped: dict[str, int]) -> None:
    """Count calls that a front end has answered, and lines that its logs have dropped."""
    answered.update(calls)
    log_queue.dropped_elsewhere.update(dropped)


def _has_access_log() -> bool:
    return any(isinstance(handler, log_queue.QueuedHandler) for handler in access.handlers)


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process has ended, and kill it if that takes too long."""
    try:
        process.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
