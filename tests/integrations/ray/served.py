"""Sequences on a deployment of which replicas, nodes and the store are killed: every step runs once, and is right.

    python -m tests.integrations.ray.served --minutes 20

Clients drive sequences of random lengths through a model that counts its steps. Meanwhile replicas are killed with
SIGKILL, nodes are removed and replaced, the number of replicas changes, and the store of sequences dies or hangs and
comes back, one after the other. Prints a summary as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from ray import serve
from ray.cluster_utils import Cluster
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

import ovgpu as ov
from tests.batching import nets
from tests.harness.servers.redis import RedisServer, redis_server
from tests.integrations.ray.faults import add_node, local_cluster

CLIENTS, CHECKPOINT_STEPS = 12, 5
SETTLE_SECONDS = 1.5  # after a fault, in which no other happens
QUIET = {"log_level": "ERROR", "enable_access_log": False}

Array = np.ndarray[Any, Any]


@dataclass
class Served:
    """An application that runs: its name, its handle, and the port of HTTP on loopback."""

    app: str
    handle: Any
    port: int

    def scale(self, model: Any, replicas: int, **options: Any) -> None:
        """Deploy again with another number of replicas."""
        serve.run(application(model, num_replicas=replicas, **options), name=self.app)

    def replicas(self) -> list[int]:
        """Return the process ids of the replicas that are alive."""
        alive = []
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                if (
                    folder.name.isdecimal()
                    and f"ServeReplica:{self.app}:".encode() in (folder / "cmdline").read_bytes()
                ):
                    alive.append(int(folder.name))
        return alive

    def sequences(self) -> list[int]:
        """Return the numbers of sequences on the replicas."""
        return self.handle.broadcast("open_sequences").results()  # type: ignore[no-any-return]


def application(model: Any, **options: Any) -> Any:
    """Return the application of a model, with small replicas on the CPU."""
    return ov.ray.deployment(
        model,
        **{"device": "CPU", "ray_actor_options": {"num_cpus": 0.2}, "graceful_shutdown_wait_loop_s": 0.2, **options},
    )


@contextmanager
def started() -> Iterator[int]:
    """Start Ray Serve with HTTP on loopback. Give the port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start("HeadOnly", {"host": "127.0.0.1", "port": port}, logging_config=QUIET)
    try:
        yield port
    finally:
        serve.shutdown()


@contextmanager
def served(port: int, model: Any, **options: Any) -> Iterator[Served]:
    """Run an application while the block runs."""
    app = f"app-{uuid4().hex[:8]}"
    handle = serve.run(application(model, **options), name=app, route_prefix=f"/{app}")
    try:
        yield Served(app, handle, port)
    finally:
        serve.delete(app)


class Client:
    """A sequence of the model `nets.sums`, and the answers that it must get."""

    def __init__(self, handle: Any, seed: int = 0, id: int | str | None = None) -> None:
        self.sequence, self._rng = ov.ray.Sequence(handle, id), np.random.default_rng(seed)
        self._begin()

    def _begin(self) -> None:
        self._sum, self.steps = np.full((1, nets.SIZE), 0.5, np.float32), 0

    async def step(self) -> None:
        """Run a step. Raise AssertionError for an answer that is not that of this step."""
        x = self._rng.standard_normal((1, nets.SIZE)).astype(np.float32)
        found = await self.sequence.infer_async({"x": x})
        self.steps += 1
        self._sum = self._sum + x
        assert found["steps"].tolist() == [self.steps], f"{found['steps']} instead of {self.steps}"
        np.testing.assert_allclose(found["y"], np.tanh(self._sum), atol=1e-5)

    async def close(self) -> None:
        """End the sequence. The next step starts it anew."""
        await self.sequence.close_async()
        self._begin()


@dataclass
class Run:
    """Figures of a run."""

    steps: int = 0
    sequences: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    last: str = "the start"  # fault, and its time
    began: float = field(default_factory=time.monotonic)
    mistakes: list[str] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)  # of the driver
    seconds: list[float] = field(default_factory=list)  # of steps

    def summary(self) -> dict[str, Any]:
        """Return the figures for people."""
        quarter = max(1, len(self.megabytes) // 4)
        times = sorted(self.seconds)
        return {
            "steps": self.steps,
            "sequences": self.sequences,
            "faults": dict(self.faults),
            "mistakes": len(self.mistakes),
            "p50 ms": round(1000 * times[len(times) // 2], 1),
            "p99 ms": round(1000 * times[len(times) * 99 // 100], 1),
            "longest s": round(times[-1], 1),
            "driver MB": [
                round(statistics.median(part), 1) for part in (self.megabytes[:quarter], self.megabytes[-quarter:])
            ],
        }


def drive(handle: Any, over: threading.Event, figures: Run, seed: int) -> None:
    """Drive sequences until the run is over, on an event loop of this thread."""

    async def client(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        while not over.is_set():
            current = Client(handle, rng.randrange(1 << 30))
            figures.sequences += 1
            try:
                for _ in range(rng.randint(3, 60)):
                    if over.is_set():
                        break
                    began = time.perf_counter()
                    await current.step()
                    figures.steps += 1
                    figures.seconds.append(time.perf_counter() - began)
                    await asyncio.sleep(rng.random() * 0.05)
                await current.sequence.close_async()
            except Exception as error:
                lines = str(error).strip().splitlines() or [""]
                figures.mistakes.append(
                    f"{time.monotonic() - figures.began:.1f} s, after {figures.last}: step "
                    f"{current.steps + 1} of {current.sequence.id}: {type(error).__name__}: "
                    f"{lines[-1]}"
                )

    async def clients() -> None:
        await asyncio.gather(*map(client, range(CLIENTS)))

    asyncio.run(clients())


def run(seconds: float, cluster: Cluster, port: int, store: RedisServer, seed: int = 0, least: int = 0) -> Run:
    """Drive sequences for some seconds, and for ``least`` faults, while replicas, nodes and the store are killed."""
    rng, figures, over = random.Random(seed), Run(), threading.Event()
    model = ov.ray.share(nets.sums())
    options = {"checkpoint_steps": CHECKPOINT_STEPS, "max_sequences": 32, "store": store.url}
    with served(port, model, num_replicas=2, **options) as app:
        replicas = 2

        def kill_replica() -> None:
            os.kill(rng.choice(app.replicas()), signal.SIGKILL)

        def scale() -> None:
            nonlocal replicas
            replicas = rng.choice([n for n in (1, 2, 3, 4) if n != replicas])
            app.scale(model, replicas, **options)

        def remove_node() -> None:
            cluster.remove_node(rng.choice(sorted(cluster.worker_nodes, key=str)), allow_graceful=False)
            add_node(cluster)

        def restart_store() -> None:
            store.kill()
            time.sleep(rng.random())
            store.start()

        def hang_store() -> None:
            store.hang()
            time.sleep(8 * rng.random())  # for a part of these times, leases end
            store.resume()

        def kill_replica_and_restart_store() -> None:
            kill_replica()
            restart_store()

        faults: list[Callable[[], None]] = [
            kill_replica,
            restart_store,
            hang_store,
            remove_node,
            scale,
            kill_replica_and_restart_store,
        ]
        thread = threading.Thread(target=drive, args=(app.handle, over, figures, seed))
        thread.start()
        end, number = time.monotonic() + seconds, 0
        try:
            _settle(app, replicas)
            while time.monotonic() < end or number < least:
                fault = faults[number % len(faults)] if number < len(faults) else rng.choice(faults)
                figures.faults[fault.__name__] += 1
                figures.last = f"{fault.__name__} at {time.monotonic() - figures.began:.1f} s"
                fault()
                number += 1
                _settle(app, replicas)
                figures.megabytes.append(_megabytes())
        finally:
            over.set()
            thread.join()
    return figures


def _settle(app: Served, replicas: int) -> None:
    """Wait until so many replicas answer, and have done so for a while."""
    settled = time.monotonic()
    while time.monotonic() < settled + SETTLE_SECONDS:
        time.sleep(0.1)
        try:
            answers = len(app.sequences())
        except (RayError, RayServeException):
            answers = 0
        if not len(app.replicas()) == answers == replicas:
            settled = time.monotonic()


def _megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        redis_server(Path(folder)) as store,
        local_cluster() as cluster,
        started() as port,
    ):
        figures = run(60 * options.minutes, cluster, port, store, options.seed)
    print(json.dumps(figures.summary()))
    print(*figures.mistakes[:20], sep="\n")
    return 1 if figures.mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
