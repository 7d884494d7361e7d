"""A server in a process of its own, under load, with one fault after the other."""

from __future__ import annotations

import asyncio
import http.client
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, closing, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from tests.harness.servers.serving import SECONDS

ROOT = Path(__file__).parents[3]
KEPT_VERSIONS = 8  # longer than sequences and texts last

Fault = Callable[[], Awaitable[None]]


@dataclass
class Run:
    """Figures of a run."""

    answers: Counter[str] = field(default_factory=Counter)  # by kind
    refusals: Counter[str] = field(default_factory=Counter)  # by status
    faults: Counter[str] = field(default_factory=Counter)
    mistakes: list[str] = field(default_factory=list)
    resources: list[dict[str, float]] = field(default_factory=list)  # of the server, until the first restart
    latencies: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return the figures for people. Resources have their medians in the first and the last quarter of the time."""
        quarter = max(len(self.resources) // 4, 1)
        parts = [part for part in (self.resources[:quarter], self.resources[-quarter:]) if part]
        return {
            "answers": dict(self.answers),
            "refusals": dict(self.refusals),
            "faults": dict(self.faults),
            "mistakes": self.mistakes[:5],
            "p50_ms": round(1e3 * statistics.median(self.latencies), 1) if self.latencies else None,
            **{
                name: [round(statistics.median(row[name] for row in part), 1) for part in parts]
                for name in (self.resources[0] if self.resources else ())
            },
        }


class ServerFaults(ABC):
    """A server in a process of its own, its load and its faults. Nobody reads the access log."""

    keeps_resources = True  # whether they are compared until the first restart

    def __init__(self, folder: Path, connections: int, run: Run) -> None:
        """``folder`` has the repository, ``models``. ``connections`` are opened at a time by `_open_connections`."""
        self._models, self._connections, self.run = folder / "models", connections, run
        self._ports = free_ports(2)  # of REST and gRPC
        self._version = 1
        self._stopping = False
        self._random = random.Random(0)
        self._access_log = os.pipe()
        self._server = self._started()

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """Return options of `ovgpu serve`."""

    @abstractmethod
    def _clients(self) -> AbstractAsyncContextManager[Sequence[Awaitable[None]]]:
        """Return a context with the work of the clients, which ends when the run is `_stopping`."""

    @abstractmethod
    def _faults(self) -> list[Fault]:
        """Return the faults, which take turns."""

    @abstractmethod
    def _write_version(self, number: int) -> Path:
        """Write a version of the model outside of the repository. Return its folder."""

    def _started(self) -> subprocess.Popen[bytes]:
        options = {
            "--port": self._ports[0],
            "--grpc-port": self._ports[1],
            "--poll-seconds": 0.2,
            "-d": "CPU",
            **self._options(),
        }
        command = [sys.executable, "-m", "ovgpu", "serve", str(self._models)]
        command += [str(word) for option in options.items() for word in option]
        with (self._models.parent / "server.log").open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, stderr=log, stdout=self._access_log[1])

    @property
    def _rest(self) -> str:
        return f"127.0.0.1:{self._ports[0]}"

    async def serve(self, seconds: float) -> Run:
        """Run load and faults for so many seconds. The result's mistakes are what went wrong."""
        try:
            await self._until_ready()
            async with self._clients() as clients:
                tasks = [asyncio.create_task(self._watched(client)) for client in clients]
                await self._fault_after_fault(seconds)
                self._stopping = True
                await asyncio.gather(*tasks)
        finally:
            self._server.send_signal(signal.SIGTERM)
            if await asyncio.to_thread(self._server.wait, SECONDS):
                self.run.mistakes.append(f"the server ended with status {self._server.returncode}")
            for end in self._access_log:
                os.close(end)
        return self.run

    async def _until_ready(self) -> None:
        end = time.monotonic() + SECONDS
        while True:
            with suppress(OSError, http.client.HTTPException):
                if (await asyncio.to_thread(self._call, "GET", "/v2/health/ready"))[0] == 200:
                    return
            if self._server.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the server did not start")
            await asyncio.sleep(0.1)

    def _call(self, verb: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Return the status and the body of an answer of REST."""
        with closing(http.client.HTTPConnection(self._rest, timeout=SECONDS)) as connection:
            connection.request(verb, path, body)
            response = connection.getresponse()
            return response.status, response.read()

    async def _watched(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:
            self.run.mistakes.append(f"{time.strftime('%H:%M:%S')} {error!r}")

    # ---- faults

    async def _fault_after_fault(self, seconds: float) -> None:
        """Run faults, in the last third of the time with restarts, until that has passed or a mistake was found."""
        began, faults, restarts = time.monotonic(), self._faults(), False
        for number in count():
            passed = time.monotonic() - began
            if passed > seconds or self.run.mistakes:
                return
            if passed > seconds * 2 / 3:
                restarts = True
            if restarts and number % len(faults) == 0:
                await self._restart()
            fault = faults[number % len(faults)]
            await fault()
            self.run.faults[fault.__name__.strip("_")] += 1
            if not restarts and self.keeps_resources:
                self.run.resources.append(await asyncio.to_thread(self._resources))
            await asyncio.sleep(0.1)

    def _resources(self) -> dict[str, float]:
        """Return what the server holds."""
        folder = Path(f"/proc/{self._server.pid}")
        pages = int((folder / "statm").read_text().split()[1])
        threads, files = (len(os.listdir(folder / name)) for name in ("task", "fd"))
        return {"megabytes": pages * os.sysconf("SC_PAGE_SIZE") / 1e6, "threads": threads, "files": files}

    async def _kill_after_a_while(self, *command: str) -> None:
        """Run a client as a process of its own, and kill it with kill -9."""
        nothing = subprocess.DEVNULL
        victim = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=nothing, stderr=nothing)
        await asyncio.sleep(1.5 + self._random.random())
        with suppress(ProcessLookupError):
            victim.kill()
        await victim.wait()

    async def _send_unread(self, path: str, body: bytes, number: int) -> None:
        """Send many requests through each of 20 connections, and do not read the answers."""
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with ExitStack() as stack:
            for _ in range(20):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", self._ports[0]), SECONDS))
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
                connection.setblocking(False)
                with suppress(BlockingIOError):
                    connection.send((head + body) * number)
            await asyncio.sleep(0.5)

    async def _send_broken(self, path: str) -> None:
        """Send bytes that are no requests, or only the beginning of one."""
        post = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n".encode()
        heads = [
            post + b'Content-Length: 1000\r\n\r\n{"inputs": [',
            post + b"Content-Length: 99999999999\r\n\r\n",
            b"GET / HTT",
            post + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x04\x08",
        ]
        for port in self._ports:
            for head in heads:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), SECONDS) as connection:
                    connection.sendall(head + self._random.randbytes(2000))
            await asyncio.sleep(0)

    async def _open_connections(self) -> None:
        """Open many connections at a time, which send nothing."""
        with ExitStack() as stack:
            for number in range(self._connections):
                connection = stack.enter_context(socket.socket())
                connection.setblocking(False)
                with suppress(BlockingIOError):
                    connection.connect(("127.0.0.1", self._ports[0]))
                if number % 100 == 99:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)

    async def _replace_model(self) -> None:
        """Put a new version of the model beside the old one, and remove older ones."""
        self._version += 1
        hidden = self._write_version(self._version)
        folder = self._models / hidden.parent.name
        shutil.move(hidden, folder / hidden.name)
        old = folder / str(self._version - KEPT_VERSIONS)
        if old.exists():
            shutil.rmtree(old)
        await asyncio.sleep(1)

    async def _restart(self) -> None:
        """Stop the server in full load, and start it again."""
        self._server.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(self._server.wait, SECONDS)
        if status:
            self.run.mistakes.append(f"the server ended with status {status}")
        self._server = self._started()
        await self._until_ready()
        self.run.faults["restart"] += 1


def free_ports(number: int) -> list[int]:
    """Return ports of loopback that nobody uses."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for found in sockets:
            found.bind(("127.0.0.1", 0))
        return [found.getsockname()[1] for found in sockets]
