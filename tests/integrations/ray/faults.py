"""Datasets on a local cluster, of which actors and nodes are killed: every row must be returned once, and be right.

    python -m tests.integrations.ray.faults --minutes 20

Every round maps new rows. Meanwhile actors are killed with SIGKILL, and nodes are removed and replaced. Prints a
summary as JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

import ovgpu as ov
from tests.batching import nets
from tests.harness.ir import Net

ROOT = Path(__file__).parents[3]
STORE_BYTES = 100 << 20
NODES = 2  # besides the head, which runs no actors
ROWS, BLOCKS, BATCH = 400, 20, 10
TOLERANCE = 1e-5
# Removed nodes are noticed within seconds, unless a busy machine answers late.
SYSTEM = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
os.environ.setdefault("RAY_DATA_LOG_LEVEL", "ERROR")

Array = np.ndarray[Any, Any]


@contextmanager
def local_cluster(nodes: int = NODES) -> Iterator[Cluster]:
    """Start a cluster of a head and ``nodes`` nodes of 1 CPU each, connect to it, and stop it at the end."""
    handler, path = signal.getsignal(signal.SIGTERM), os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{path}"  # of all workers, which import the tests
    started: list[Cluster] = []
    try:
        with_retry(lambda: _start_cluster(started, nodes))
        ray.init(started[-1].address, log_to_driver=False, logging_level=logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield started[-1]
    finally:
        ray.shutdown()
        for cluster in started:
            cluster.shutdown()
        signal.signal(signal.SIGTERM, handler)  # nodes replace it
        os.environ["PYTHONPATH"] = path


def _start_cluster(started: list[Cluster], nodes: int) -> None:
    """Append a new cluster to a list, and start its nodes."""
    started.append(Cluster())
    started[-1].add_node(num_cpus=0, include_dashboard=False, object_store_memory=STORE_BYTES, _system_config=SYSTEM)
    for _ in range(nodes):
        add_node(started[-1])


def add_node(cluster: Cluster) -> None:
    """Add a node of 1 CPU with a small object store."""
    with_retry(lambda: cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES))


def with_retry(start: Callable[[], object]) -> None:
    """Call a function, once more if a process of Ray did not start in the half minute that Ray gives it.

    That happens where many other tests run on few cores.
    """
    try:
        start()
    except Exception as error:
        if "timed out" not in str(error).lower():
            raise
        start()


# ---- rows


def perceptron() -> ov.Model:
    """Two small layers, from x to y."""
    net = Net("perceptron")
    x: Any = net.parameter("f32", (1, nets.SIZE), "x")
    for layer, (rows, columns) in enumerate(((nets.SIZE, 64), (64, 4))):
        x = net.layer(
            "MatMul",
            "opset1",
            [x, nets.weights(net, rows, columns, seed=layer)],
            {"transpose_a": False, "transpose_b": False},
        )
        x = net.layer("Tanh", "opset1", [x], names=["y"] if layer else [])
    net.result(x)
    return nets.model(net)


def values(ids: Array) -> Array:
    """Return the inputs of rows, which differ for all rows."""
    return np.sin(np.outer(ids + 1, np.arange(1, nets.SIZE + 1)) * 0.37).astype(np.float32)


def make_rows(batch: Mapping[str, Array]) -> dict[str, Array]:
    """Return rows of a batch of numbers, for `Dataset.map_batches`."""
    return {"id": batch["data"], "x": values(batch["data"])}


def numbered(rows: int, first: int = 0, blocks: int = BLOCKS) -> ray.data.Dataset:
    """Return a dataset of the numbers of rows, in the store of the head, which is not removed.

    Reading would need tasks of 1 CPU, for which actors leave no room.
    """
    return ray.data.from_numpy(np.array_split(np.arange(first, first + rows), blocks))


class Recorded(ov.ray.Predictor):
    """Predictor that leaves its process id in a folder, and takes ``seconds`` longer for a batch."""

    def __init__(self, model: Any, folder: str, seconds: float = 0.0, **options: Any) -> None:
        super().__init__(model, "CPU", **options)
        Path(folder, str(os.getpid())).write_text(ray.get_runtime_context().get_node_id())
        self._seconds = seconds

    def __call__(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        time.sleep(self._seconds)
        return super().__call__(batch)


def actors(folder: Path) -> list[int]:
    """Return the process ids of the actors that are alive, of those in a folder."""
    alive = []
    for file in folder.iterdir():
        with suppress(OSError):
            if b"ray::" in Path(f"/proc/{file.name}/cmdline").read_bytes():
                alive.append(int(file.name))
    return alive


# ---- faults


@dataclass
class Run:
    """Figures of a run."""

    rounds: int = 0
    rows: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    mistakes: list[str] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)  # of the driver, after each round
    seconds: list[float] = field(default_factory=list)  # of each round

    def summary(self) -> dict[str, Any]:
        """Return the figures for people."""
        quarter = max(len(self.megabytes) // 4, 1)
        return {
            "rounds": self.rounds,
            "rows": self.rows,
            "faults": dict(self.faults),
            "mistakes": self.mistakes[:5],
            "seconds_of_a_round": round(statistics.median(self.seconds), 1) if self.seconds else None,
            "megabytes": [
                round(statistics.median(part), 1)
                for part in (self.megabytes[:quarter], self.megabytes[-quarter:])
                if part
            ],
        }


class Faults:
    """Faults every ``period`` seconds: an actor is killed, or, with every ``node_every``-th fault, a node is replaced.

    With ``node_every`` of 0, no node is replaced.
    """

    def __init__(self, cluster: Cluster, folder: Path, period: float, node_every: int) -> None:
        self._cluster, self._folder = cluster, folder
        self._period, self._node_every = period, node_every
        self._random = random.Random(0)
        self.counts = Counter[str]()

    def during(self, work: Future[None], most: float) -> None:
        """Cause at most so many faults until ``work`` ends. Nodes can be added by the main thread only."""
        for number in count(1):
            if self.counts.total() >= most or wait([work], self._period).done:
                return
            if self._node_every and number % self._node_every == 0:
                self._replace_node(work)
            else:
                self._kill_actor()

    def _kill_actor(self) -> None:
        if alive := actors(self._folder):
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(alive), signal.SIGKILL)
                self.counts["killed actors"] += 1

    def _replace_node(self, work: Future[None]) -> None:
        """Kill all processes of a node, and add another node."""
        self._cluster.remove_node(self._random.choice([*self._cluster.worker_nodes]), allow_graceful=False)
        self.counts["removed nodes"] += 1
        wait([work], self._period)
        add_node(self._cluster)


def run(
    cluster: Cluster,
    seconds: float = math.inf,
    *,
    number: float = math.inf,
    period: float = 2.0,
    node_every: int = 4,
    batch_seconds: float = 0.1,
) -> Run:
    """Map datasets for so many seconds under `Faults`, or until there have been ``number`` faults."""
    result, ends = Run(), time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        faults = Faults(cluster, Path(folder), period, node_every)
        result.faults = faults.counts
        work = pool.submit(
            map_datasets,
            result,
            folder,
            batch_seconds,
            lambda: time.monotonic() >= ends or faults.counts.total() >= number,
        )
        faults.during(work, number)
        work.result()
    return result


def map_datasets(result: Run, folder: str, batch_seconds: float, is_enough: Callable[[], bool]) -> None:
    """Map datasets of new rows until there are enough, or a mistake. Add the figures to a result."""
    model = perceptron()
    shared, alone = ov.ray.share(model), ov.ray.Predictor(model, "CPU")
    while not result.mistakes and not is_enough():
        began, first = time.monotonic(), result.rounds * ROWS
        dataset = (
            numbered(ROWS, first)
            .map_batches(make_rows, num_cpus=0.1)
            .map_batches(
                Recorded,
                fn_constructor_args=[shared, folder, batch_seconds],
                batch_size=BATCH,
                num_cpus=0.4,
                compute=ray.data.ActorPoolStrategy(size=NODES),
            )
        )
        found = list(dataset.iter_batches(batch_size=None))
        wanted = alone({"x": values(np.arange(first, first + ROWS))})["y"]
        result.mistakes += compared(found, wanted, first)
        result.rounds += 1
        result.rows += sum(len(batch["id"]) for batch in found)
        result.seconds.append(time.monotonic() - began)
        result.megabytes.append(resident_bytes() / 1e6)


def compared(batches: list[dict[str, Array]], wanted: Array, first: int = 0) -> list[str]:
    """Return the mistakes in batches of the columns id and y: rows that are lost, doubled, or wrong."""
    ids, y = (np.concatenate([batch[name] for batch in batches]) for name in ("id", "y"))
    counts = Counter((ids - first).tolist())
    mistakes = [f"row {row + first} was returned {counts[row]} times" for row in range(len(wanted)) if counts[row] != 1]
    mistakes += [f"row {row + first} was not in the dataset" for row in sorted(set(counts) - set(range(len(wanted))))]
    if not mistakes:
        errors = np.abs(y - wanted[ids - first]).reshape(len(ids), -1).max(axis=1)
        mistakes += [f"row {row} differs by {error}" for row, error in zip(ids, errors) if not error <= TOLERANCE]
    return mistakes


def resident_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--period", type=float, default=2.0, help="seconds between faults (2)")
    parser.add_argument("--node-every", type=int, default=4, metavar="N", help="every N-th fault is of a node (4)")
    options = parser.parse_args()
    with local_cluster() as cluster:
        found = run(cluster, 60 * options.minutes, period=options.period, node_every=options.node_every)
    print(json.dumps(found.summary(), indent=1))
    sys.exit(bool(found.mistakes))


if __name__ == "__main__":
    main()
