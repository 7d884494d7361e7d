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
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException

import ovgpu as ov
from tests.harness.ir import Net
from tests.harness.servers.faults import Fault, Run, ServerFaults
from tests.harness.servers.load import Client
from tests.harness.servers.redis import RedisServer, redis_server
from tests.harness.servers.serving import SECONDS, write
from tests.serve.http2 import Http2, prefixed

INTERFACES = ("REST", "gRPC")
INFER = "/v2/models/ledger/infer"
FACTOR, MODULUS = 31, 1_000_003
REFUSED = {"503", "429", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"}  # the step was not computed
IDLE_SECONDS = {"": 5, "folder": 20, "store": 60}  # by kind of checkpoints: longer than a server is away


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
class SequenceRun(Run):
    """Figures of a run, with the number of sequences."""

    sequences: int = 0

    def summary(self) -> dict[str, Any]:
        return {**super().summary(), "sequences": self.sequences}


class Faults(ServerFaults):
    """A server of sequences, their steps and its faults."""

    run: SequenceRun

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
        self._states = folder / "states"
        self._sequences, self._rate = sequences, rate
        self._ids = count(1)
        self.keeps_resources = not kind
        write(folder / "models", ledger(), "ledger", 1)
        super().__init__(folder, connections, SequenceRun())

    def _options(self) -> dict[str, Any]:
        return {
            "--max-sequences": 4 * self._sequences,
            "--idle-seconds": IDLE_SECONDS[self._kind],
            "--max-body-mib": 8,
            "--checkpoint-steps": 1 if self._kind else 0,
            "--processes": self._processes,
            **({"--state-dir": self._states} if self._store is None else {"--state-store": self._store.url}),
        }

    def _address(self, interface: str) -> str:
        return f"127.0.0.1:{self._ports[INTERFACES.index(interface)]}"

    def _write_version(self, number: int) -> Path:
        return write(self._models.parent / "new", ledger(), "ledger", number)

    # ---- load

    @asynccontextmanager
    async def _clients(self) -> AsyncIterator[Sequence[Awaitable[None]]]:
        async with (
            Client("REST", self._address("REST"), 1000) as rest,
            Client("gRPC", self._address("gRPC"), 1000) as grpc,
        ):
            yield [
                self._sequence_after_sequence(client, interface, number)
                for interface, client in (("REST", rest), ("gRPC", grpc))
                for number in range(self._sequences // 2)
            ]

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

    def _faults(self) -> list[Fault]:
        return [
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

    async def _kill_client(self) -> None:
        """Kill a client in the middle of a step."""
        interface = self._random.choice(INTERFACES)
        await self._kill_after_a_while(
            *(sys.executable, "-m", "tests.harness.servers.load"),
            *("--url", self._address(interface), "--interface", interface),
            *("--model", "ledger", "--sequences", "4", "--steps", "100000"),
            *("--first-id", str(10**9 + 10 * next(self._ids))),
        )

    async def _read_slowly(self) -> None:
        """Send inferences through connections, and do not read the answers."""
        body = {
            "inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [1]}],
            "parameters": {"sequence_id": "slow", "sequence_start": True},
        }
        await self._send_unread(INFER, json.dumps(body).encode(), 200)

    async def _send_nonsense(self) -> None:
        await self._send_broken(INFER)

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
            found = await asyncio.gather(
                *[asyncio.to_thread(self._call, "POST", INFER, text.encode()) for _ in range(4)]
            )
            if wrong := {code for code, _ in found} - {expected, 503}:
                self.run.mistakes.append(f"JSON of {values} values: {wrong}")

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
