"""A server under load and faults: nothing is lost, nothing is doubled, no sequence sees another's state.

    python -m tests.serve.faults --minutes 20

Sequences send their steps at a fixed rate through REST and gRPC, and check every answer: the state of the model is a
number that depends on all inputs of the sequence in their order. Nobody reads the access log. Meanwhile clients are
killed, read slowly, send malformed requests, large JSON and messages of gRPC that never end, and open thousands of
connections; new versions of the model replace the old ones; and, in the last third of the time, the server is stopped
by SIGTERM and started again. Steps that were refused are sent again. Memory, threads and open files of the server must
stay the same until the first restart. Prints a summary as JSON.

With ``--checkpoints folder`` or ``store``, each step is saved before its answer, in files or in Redis, and steps have
numbers. All the time, the server is killed by SIGKILL, the disk is full, or the store dies or hangs and comes back.
With ``--processes N``, too, so are its front ends.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import random
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException

import ovgpu as ov
from tests.harness.ir import Net
from tests.harness.servers.load import Client
from tests.harness.servers.redis import RedisServer, redis_server
from tests.harness.servers.serving import SECONDS, write
from tests.serve.http2 import Http2, prefixed

ROOT = Path(__file__).parents[2]
INTERFACES = ("REST", "gRPC")
FACTOR, MODULUS = 31, 1_000_003
REFUSED = {"503", "429", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"}  # the step was not computed
IDLE_SECONDS = {"": 5, "folder": 20, "store": 60}  # by kind of checkpoints: longer than a server is away
KEPT_VERSIONS = 8  # longer than sequences last
RESOURCES = ("megabytes", "threads", "files")


def ledger() -> ov.Model:
    """A state that becomes (31 state + x) mod 1,000,003 in each step."""
    net = Net("ledger")
    x = net.parameter("i64", (1, 1), "x")
    state = net.read_value("s", "i64", (1, 1), net.const(np.zeros((1, 1), np.int64)))
    times = net.layer("Multiply", "opset1", [state, net.const(np.full((1, 1), FACTOR))])
    total = net.layer("Add", "opset1", [times, x])
    new = net.layer("FloorMod", "opset1", [total, net.const(np.full((1, 1), MODULUS))])
    net.assign("s", new)
    net.result(net.layer("Add", "opset1", [new, net.const(np.zeros((1, 1), np.int64))], names=["y"]))
    return ov.Core().read_model(*net.build())


@dataclass
class Run:
    """Figures of a run."""

    answers: Counter[str] = field(default_factory=Counter)  # by interface
    refusals: Counter[str] = field(default_factory=Counter)  # by status
    sequences: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    mistakes: list[str] = field(default_factory=list)
    resources: list[tuple[float, ...]] = field(default_factory=list)  # of the server, until the first restart
    latencies: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return the figures for people."""
        quarter = max(len(self.resources) // 4, 1)
        parts = [part for part in (self.resources[:quarter], self.resources[-quarter:]) if part]
        return {
            "answers": dict(self.answers),
            "refusals": dict(self.refusals),
            "sequences": self.sequences,
            "faults": dict(self.faults),
            "mistakes": self.mistakes[:5],
            "p50_ms": round(1e3 * statistics.median(self.latencies), 1) if self.latencies else None,
            **{
                name: [round(statistics.median(row[i] for row in part), 1) for part in parts]
                for i, name in enumerate(RESOURCES)
            },
        }


class Faults:
    """A server in a process of its own, its load and its faults."""

    def __init__(
        self,
        folder: Path,
        sequences: int,
        rate: float,
        connections: int,
        store: RedisServer | None = None,
        kind: str = "",
        processes: int = 1,
    ) -> None:
        """``kind`` is that of the checkpoints: none, "folder" or "store"."""
        self._store, self._kind, self._processes = store, kind, processes
        self._models, self._states = folder / "models", folder / "states"
        self._sequences, self._rate, self._connections = sequences, rate, connections
        self._ports = _free_ports(2)
        self._ids = count(1)
        self._version = 1
        self._stopping = False
        self.run = Run()
        self._random = random.Random(0)
        write(self._models, ledger(), "ledger", 1)
        self._access_log = os.pipe()  # nobody reads it
        self._server = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        options = {
            "--port": self._ports[0],
            "--grpc-port": self._ports[1],
            "--max-sequences": 4 * self._sequences,
            "--idle-seconds": IDLE_SECONDS[self._kind],
            "--poll-seconds": 0.2,
            "-d": "CPU",
            "--max-body-mib": 8,
            "--checkpoint-steps": 1 if self._kind else 0,
            "--processes": self._processes,
        }
        if self._store is not None:
            options["--state-store"] = self._store.url
        else:
            options["--state-dir"] = self._states
        command = [sys.executable, "-m", "ovgpu", "serve", str(self._models)]
        command += [str(word) for option in options.items() for word in option]
        log = (self._models.parent / "server.log").open("ab")
        with log:
            return subprocess.Popen(command, cwd=ROOT, stderr=log, stdout=self._access_log[1])

    def _address(self, interface: str) -> str:
        return f"127.0.0.1:{self._ports[INTERFACES.index(interface)]}"

    # ---- load

    async def serve(self, seconds: float) -> Run:
        """Run load and faults for so many seconds. The result's mistakes are what went wrong."""
        try:
            await self._until_ready()
            async with (
                Client("REST", self._address("REST"), 1000) as rest,
                Client("gRPC", self._address("gRPC"), 1000) as grpc,
            ):
                clients = [
                    asyncio.create_task(self._watched(self._sequence_after_sequence(client, interface, number)))
                    for interface, client in (("REST", rest), ("gRPC", grpc))
                    for number in range(self._sequences // 2)
                ]
                await self._faults(seconds)
                self._stopping = True
                await asyncio.gather(*clients)
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
            with suppress(Exception):
                async with Client("gRPC", self._address("gRPC")) as client:
                    if await client.client.is_server_ready():
                        return
            if self._server.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the server did not start")
            await asyncio.sleep(0.1)

    async def _watched(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:
            self.run.mistakes.append(f"{time.strftime('%H:%M:%S')} {error!r}")

    async def _sequence_after_sequence(self, client: Client, interface: str, number: int) -> None:
        rng = random.Random(number)
        period = self._sequences / self._rate
        due = time.monotonic() + period * rng.random()
        while not self._stopping:
            id, state, steps = next(self._ids), 0, rng.randint(1, 60)
            self.run.sequences += 1
            for step in range(steps):
                due = max(due + period, time.monotonic() - period)
                await asyncio.sleep(due - time.monotonic())
                x = rng.randrange(MODULUS)
                state = (FACTOR * state + x) % MODULUS
                found = await self._answer(client, interface, x, id, step + 1, step == steps - 1)
                if found != state:
                    self.run.mistakes.append(f"{interface}, sequence {id}, step {step}: {found}, not {state}")
                    return

    async def _answer(self, client: Client, interface: str, x: int, id: int, number: int, end: bool) -> int:
        """Return the answer to a step, which is sent again as often as it is refused."""
        options: dict[str, Any] = {"parameters": {"sequence_step": number}} if self._kind else {}
        options |= {"sequence_id": id, "sequence_start": number == 1, "sequence_end": end}
        inputs = client.inputs({"x": np.array([[x]])})
        given_up = time.monotonic() + SECONDS
        while True:
            began = time.monotonic()
            try:
                result = await client.infer("ledger", inputs, **options)
                self.run.answers[interface] += 1
                self.run.latencies.append(time.monotonic() - began)
                return int(result.as_numpy("y")[0, 0])
            except InferenceServerException as error:
                status = str(error.status()).removeprefix("StatusCode.")
                if status not in REFUSED:
                    raise RuntimeError(f"{interface}, sequence {id}: {status}: {error.message()}") from error
            except Exception as error:  # of the connection: the server is starting
                status = type(error).__name__
            self.run.refusals[status] += 1
            if time.monotonic() > given_up:
                raise RuntimeError(f"{interface}, sequence {id}: refused for too long ({status})")
            await asyncio.sleep(0.05)

    # ---- faults

    async def _faults(self, seconds: float) -> None:
        began = time.monotonic()
        faults: list[Callable[[], Awaitable[None]]] = [
            self._kill_client,
            self._read_slowly,
            self._send_nonsense,
            self._send_half_messages,
            self._send_large_json,
            self._open_connections,
            self._replace_model,
            *([self._kill_server] if self._kind else []),
            *([self._kill_front_end] if self._kind and self._processes > 1 else []),
            *([self._fill_disk] if self._kind == "folder" else []),
            *([self._kill_store, self._hang_store] if self._kind == "store" else []),
        ]
        restarts = False
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
            if not restarts and not self._kind:
                self.run.resources.append(_resources(self._server.pid))
            await asyncio.sleep(0.1)

    async def _kill_client(self) -> None:
        """Kill a client in the middle of a step, with kill -9."""
        interface = self._random.choice(INTERFACES)
        victim = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.harness.servers.load",
            "--url",
            self._address(interface),
            "--interface",
            interface,
            "--model",
            "ledger",
            "--sequences",
            "4",
            "--steps",
            "100000",
            "--first-id",
            str(10**9 + 10 * next(self._ids)),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        await asyncio.sleep(1.5 + self._random.random())
        with suppress(ProcessLookupError):
            victim.kill()
        await victim.wait()

    async def _read_slowly(self) -> None:
        """Send inferences through connections, and do not read the answers."""
        body = json.dumps(
            {
                "inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [1]}],
                "parameters": {"sequence_id": "slow", "sequence_start": True},
            }
        ).encode()
        head = (
            f"POST /v2/models/ledger/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        )
        with ExitStack() as stack:
            for _ in range(20):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", self._ports[0]), SECONDS))
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
                connection.setblocking(False)
                with suppress(BlockingIOError):
                    connection.send((head + body) * 200)
            await asyncio.sleep(0.5)

    async def _send_nonsense(self) -> None:
        """Send bytes that are no requests, or only the beginning of one."""
        post = b"POST /v2/models/ledger/infer HTTP/1.1\r\nHost: localhost\r\n"
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

    async def _send_half_messages(self) -> None:
        """Send most of a message of gRPC through many connections at a time."""
        half = prefixed(bytes(900_000), 1_000_000)
        for method in ("ModelInfer", "ModelStreamInfer", "ServerLive"):
            with ExitStack() as stack:
                for _ in range(10):
                    connection = stack.enter_context(closing(Http2(self._ports[1])))
                    await asyncio.to_thread(connection.send, connection.call(method), half)
                await asyncio.sleep(0.5)

    async def _send_large_json(self) -> None:
        """Send JSON with about as many values as it may have, and with more. No model takes these."""
        for values, expected in ((1_000_000, 400), (1_100_000, 413)):
            data = ",".join("0" * values)
            text = f'{{"inputs": [{{"name": "x", "datatype": "INT64", "shape": [1, {values}], "data": [{data}]}}]}}'
            codes = await asyncio.gather(*[asyncio.to_thread(self._posted, text.encode()) for _ in range(4)])
            if wrong := set(codes) - {expected, 503}:
                self.run.mistakes.append(f"JSON of {values} values: {wrong}")

    def _posted(self, body: bytes) -> int:
        """Return the status of a request of REST."""
        with closing(http.client.HTTPConnection(self._address("REST"), timeout=SECONDS)) as connection:
            connection.request("POST", "/v2/models/ledger/infer", body)
            return connection.getresponse().status

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
        hidden = write(self._models.parent / "new", ledger(), "ledger", self._version)
        shutil.move(hidden, self._models / "ledger" / str(self._version))
        old = self._models / "ledger" / str(self._version - KEPT_VERSIONS)
        if old.exists():
            shutil.rmtree(old)
        await asyncio.sleep(1)

    async def _kill_server(self) -> None:
        """Kill the server in full load, with kill -9, and start it again."""
        self._server.kill()
        await asyncio.to_thread(self._server.wait, SECONDS)
        self._server = self._started()
        await self._until_ready()
        await asyncio.sleep(1)

    async def _kill_front_end(self) -> None:
        """Kill one of the front ends in full load, with kill -9."""
        children = Path(f"/proc/{self._server.pid}/task/{self._server.pid}/children").read_text().split()
        os.kill(int(self._random.choice(children)), signal.SIGKILL)
        await asyncio.sleep(2)

    async def _fill_disk(self) -> None:
        """Let the server write no files for a while, as if the disk were full."""
        _, hard = resource.prlimit(self._server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._server.pid, resource.RLIMIT_FSIZE, (0, hard))
        await asyncio.sleep(2)
        resource.prlimit(self._server.pid, resource.RLIMIT_FSIZE, (hard, hard))

    async def _kill_store(self) -> None:
        """Kill the store in full load, and start it again."""
        assert self._store is not None
        self._store.kill()
        await asyncio.sleep(4 * self._random.random())
        await asyncio.to_thread(self._store.start)

    async def _hang_store(self) -> None:
        """Let the store answer nothing for a while, at times for longer than the lease of the server."""
        assert self._store is not None
        self._store.hang()
        await asyncio.sleep(8 * self._random.random())
        self._store.resume()

    async def _restart(self) -> None:
        """Stop the server in full load, and start it again."""
        self._server.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(self._server.wait, SECONDS)
        if status:
            self.run.mistakes.append(f"the server ended with status {status}")
        self._server = self._started()
        await self._until_ready()
        self.run.faults["restart"] += 1


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for found in sockets:
            found.bind(("127.0.0.1", 0))
        return [found.getsockname()[1] for found in sockets]


def _resources(process: int) -> tuple[float, ...]:
    """Return what a process holds of each of `RESOURCES`."""
    folder = Path(f"/proc/{process}")
    pages = int((folder / "statm").read_text().split()[1])
    threads, files = (len(os.listdir(folder / name)) for name in ("task", "fd"))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, threads, files


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--rate", type=float, default=400.0, help="steps per second, of all sequences together (400)")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--checkpoints", choices=["", "folder", "store"], default="", help="kind of checkpoints (none)")
    parser.add_argument("--processes", type=int, default=1, help="front ends of the server (1: none)")
    parser.add_argument("--log", type=Path, metavar="FILE", help="where to keep the server's log")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, kind = Path(name), options.checkpoints
        store = stack.enter_context(redis_server(folder)) if kind == "store" else None
        faults = Faults(folder, options.sequences, options.rate, options.connections, store, kind, options.processes)
        run = asyncio.run(faults.serve(60 * options.minutes))
        if options.log:
            shutil.copy(folder / "server.log", options.log)
    print(json.dumps(run.summary(), indent=1))
    sys.exit(bool(run.mistakes))


if __name__ == "__main__":
    main()
