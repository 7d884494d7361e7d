"""Class Interfaces: the servers of REST and gRPC in one process, with what they share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import uvicorn
from grpc_health.v1 import health_pb2_grpc
from tritonclient.grpc import service_pb2_grpc

from ovgpu.errors import Error
from ovgpu.serve.access import AllowedHosts, check_exposure, resolve
from ovgpu.serve.grpc_guard import GuardInterceptor
from ovgpu.serve.grpc_health import HealthService
from ovgpu.serve.grpc_service import GrpcService
from ovgpu.serve.held_bytes import HeldBytes
from ovgpu.serve.http_app import HttpApp
from ovgpu.serve.http_protocol import LAST_SECONDS, HttpProtocol
from ovgpu.serve.service import Service
from ovgpu.serve.tls import certificate
from ovgpu.serve.tokens import Tokens

if TYPE_CHECKING:
    from ovgpu.serve.server import ServerOptions

log = logging.getLogger(__name__)

MIB = 1 << 20
MAX_MESSAGE = 2**31 - 1  # bytes: the largest limit that gRPC takes, an int of 32 bits
KEEP_ALIVE_SECONDS = 75  # after which an idle connection of HTTP is closed
BACKLOG = 4096  # connections that wait to be accepted

A = TypeVar("A", bound=HttpApp)


class Interfaces:
    """Servers of REST and gRPC, with tokens, certificate and the limit of held bytes.

    Raises: Error for options that do not fit each other, or would let anyone on a network call the server.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self.tokens = Tokens(options.token_file) if options.token_file else None
        self.address = resolve(options.host)
        check_exposure(self.address, self.tokens is not None, options.insecure)
        self._hosts = AllowedHosts(self.address, options.allowed_hosts, options.host)
        self._certificate = certificate(options.tls_cert, options.tls_key)
        self.held = HeldBytes(options.held_mib * MIB)
        self.port = self.grpc_port = 0  # until they are open; gRPC's stays 0 if it is switched off

    def http_app(self, kind: type[A], service: Service) -> A:
        """Return the application of REST, of the class ``kind``."""
        options = self._options
        return kind(service, self.tokens or self._hosts, options.body_mib * MIB, options.json_mib * MIB, self.held)

    async def start(self, service: Service) -> None:
        """Open the ports, and answer calls by a service. Raise Error if a port cannot be opened."""
        rest = listening(self.address, self._options.port)
        try:
            apps = (self.http_app(HttpApp, service), GrpcService(service, self.held), HealthService(service))
            await self.serve(rest, self._options.grpc_port, *apps)
        except BaseException:
            rest.close()
            raise

    async def serve(
        self, rest: socket.socket, grpc_port: int | None, app: HttpApp, grpc_service: GrpcService, health: HealthService
    ) -> None:
        """Serve REST on a listening socket, and gRPC on a port unless it is None.

        Raises: Error if the port cannot be opened.
        """
        http = self._http_server(app)
        self._grpc = None if grpc_port is None else await self._grpc_server(grpc_service, health, grpc_port)
        self._http, self._grpc_service, self.port = http, grpc_service, rest.getsockname()[1]
        self.serving = asyncio.create_task(http.serve([rest]))

    def drain(self) -> None:
        """Have answers of HTTP close their connections. In this process, the service tells that it drains."""

    async def stop(self, grace: float) -> None:
        """Wait up to ``grace`` seconds for calls to end."""
        self._grpc_service.end_streams()
        self._http.should_exit = True
        if self._grpc is not None:
            await self._grpc.stop(grace)
        await self.serving

    def reload(self) -> None:
        """Read the tokens and the certificate again. Errors are logged."""
        for what, reloaded in (("tokens", self.tokens), ("certificate and key", self._certificate)):
            try:
                if reloaded is not None:
                    reloaded.reload()
                    log.info("%s: read again", what)
            except Error as error:
                log.error("%s stay as they were: %s", what, error)

    def _http_server(self, app: HttpApp) -> uvicorn.Server:
        protocol: Any = partial(HttpProtocol, held=self.held)
        config = uvicorn.Config(
            app.asgi,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            http=protocol,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=round(self._options.grace_seconds) or 1,
            backlog=BACKLOG,
        )
        config.load()
        if self._certificate is not None:
            config.ssl = self._certificate.context()
        return _HttpServer(config)

    async def _grpc_server(self, grpc_service: GrpcService, health: HealthService, port: int) -> Any:
        options = self._options
        message_bytes = min(options.body_mib * MIB, MAX_MESSAGE)
        # A connection that is asked to move on, since it is old, still takes calls; one of a server that stops may not.
        age = round(1000 * options.drain_seconds / 3)
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", options.max_calls),  # of a connection; others wait in their client
                ("grpc.so_reuseport", int(options.processes > 1)),
                *([("grpc.max_connection_age_ms", age)] if age else []),
            ],
            interceptors=[
                GuardInterceptor(self.tokens, self.held, message_bytes, options.max_calls, options.idle_seconds)
            ],
        )
        handlers = _UnregisteredHandlers(server)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(grpc_service, handlers)
        health_pb2_grpc.add_HealthServicer_to_server(health, handlers)
        address = shown(self.address, port)
        try:
            if self._certificate is not None:
                self.grpc_port = server.add_secure_port(address, self._certificate.credentials())
            else:
                self.grpc_port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise Error(f"gRPC cannot listen on {address}: {error}") from None
        await server.start()
        return server


def bound(interface: str, address: str, port: int) -> socket.socket:
    """Return a socket that holds the port of an interface. Raise Error if another program has the port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # Without the socket's protocol, asyncio would not switch off Nagle's algorithm: 40 ms per response.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((address, port))
    except OSError as error:
        found.close()
        raise Error(f"{interface} cannot listen on {shown(address, port)}: {error}") from None
    return found


def listening(address: str, port: int) -> socket.socket:
    """Return the listening socket of REST. Raise Error if another program has the port."""
    found = bound("REST", address, port)
    found.listen(BACKLOG)
    return found


def shown(address: str, port: int) -> str:
    """Return an address and a port as clients write them."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class _UnregisteredHandlers:
    """Server of gRPC to which handlers are added, but whose methods are not registered: for each call, grpc.aio waits
    for all registered methods, which takes a tenth of the call's time."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Add handlers of a service."""
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Leave out the methods of a service."""


class _HttpServer(uvicorn.Server):
    """HTTP server that leaves signals to `Server`.

    When it stops to listen, it accepts the connections that the operating system already has: their clients may have
    sent requests, which are answered.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        with contextlib.ExitStack() as stack:
            copies = [stack.enter_context(listener.dup()) for listener in sockets or ()]
            for server in self.servers:
                server.close()
            waiting = [connection for listener in copies for connection in _accepted(listener)]
        loop, tls = asyncio.get_running_loop(), self.config.ssl
        if waiting:
            found = [asyncio.ensure_future(loop.connect_accepted_socket(self._protocol, x, ssl=tls)) for x in waiting]
            _, late = await asyncio.wait(found, timeout=LAST_SECONDS)
            for connecting in late:
                connecting.cancel()
            await asyncio.gather(*found, return_exceptions=True)  # some have disconnected meanwhile
        await super().shutdown(sockets)

    def _protocol(self) -> Any:
        kind: Any = self.config.http_protocol_class
        return kind(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _accepted(listener: socket.socket) -> Iterator[socket.socket]:
    """Yield the connections that wait at a listening socket."""
    listener.setblocking(False)
    with contextlib.suppress(OSError):  # BlockingIOError: there are no more
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)
            yield connection
