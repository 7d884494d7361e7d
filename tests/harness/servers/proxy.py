"""Proxy of connections, as a load balancer has it: it asks servers whether they are ready."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Self

POLL_SECONDS = 0.05
SECONDS = 60.0
PIECE = 1 << 16


class Proxy:
    """Listens on two ports of loopback, and forwards each connection to a server that is ready.

    A server is a pair of addresses, of REST and of gRPC. Connections that are open stay with their server.
    """

    def __init__(self) -> None:
        self.servers: list[tuple[str, str]] = []
        self.ready: list[tuple[str, str]] = []
        self._closed = threading.Event()
        self._listening = [socket.create_server(("127.0.0.1", 0), backlog=128) for _ in range(2)]
        self._turns = count()
        self._start(self._poll)
        for interface in range(2):
            self._start(self._accept, interface)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        for listening in self._listening:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()

    @property
    def addresses(self) -> tuple[str, str]:
        """The addresses of REST and gRPC."""
        rest, grpc = [f"127.0.0.1:{listening.getsockname()[1]}" for listening in self._listening]
        return rest, grpc

    @staticmethod
    def _start(work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _poll(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            self.ready = [server for server in self.servers if is_ready(server[0])]

    def _accept(self, interface: int) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listening[interface].accept()
            except OSError:
                return
            servers = self.ready
            if not servers:
                client.close()
                continue
            host, port = servers[next(self._turns) % len(servers)][interface].split(":")
            try:
                server = socket.create_connection((host, int(port)), SECONDS)
            except OSError:
                client.close()
                continue
            for source, target in ((client, server), (server, client)):
                source.settimeout(None)
                self._start(forward, source, target)


def forward(source: socket.socket, target: socket.socket) -> None:
    """Send all that a socket receives to another one."""
    with suppress(OSError):
        while data := source.recv(PIECE):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def is_ready(address: str) -> bool:
    """Return whether a server answers that it is ready."""
    connection = http.client.HTTPConnection(address, timeout=SECONDS)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
