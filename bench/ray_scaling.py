"""Rows per second of `ovgpu.ray.Predictor` with 1 to N workers, and the cost of Ray; N is the number of processors.

    python bench/ray_scaling.py [--rounds 5] [--batches 64] [--out bench/results]

The model has layers of 1024, and a batch of 64 rows takes some 30 ms with one thread of BLAS, which is what a worker
has. A block of the dataset, which is what Ray hands to a worker, is one batch or eight. Engines take turns: a process
without Ray that runs the same batches, and pools of actors. Workers note when each batch begins and ends. Throughput is
that of the time in which all of them run.

Costs are measured apart: of a batch in the driver, by actors that do nothing; of a hand-over, by arrays of some sizes
that go to an actor on the same node, and to one on another node of this machine; of a start, by new actors, and by the
weights that they get from the store of their node or of another one. A plan for more machines is computed from these.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import engines
import numpy as np
import ray
from ray.cluster_utils import Cluster
from ray.data.block import BlockAccessor
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import ovgpu
from tests.harness.ir import Net

WIDTH, LAYERS, OUTPUTS, BATCH = 1024, 20, 16, 64
CPUS = os.cpu_count() or 1
SIZES = {"64 KB": 1 << 16, "1 MB": 1 << 20, "16 MB": 1 << 24}
IDLE = 0.7  # of the time of all processors, before a measurement
REPEATS = 10  # of each hand-over in a round
WORKERS = (1, 2, 4, 8, 16, 32, 64)  # of the plan
BLOCKS = (1, 8)  # batches of a block
STORE_BYTES = 512 << 20

Array = np.ndarray[Any, Any]


def model() -> ovgpu.Model:
    """Return layers of `WIDTH` with tanh, from x to y."""
    random, net = np.random.default_rng(0), Net("layers")
    x: Any = net.parameter("f32", (1, WIDTH), "x")
    for layer in range(LAYERS):
        width = OUTPUTS if layer == LAYERS - 1 else WIDTH
        weights = net.const(random.uniform(-0.05, 0.05, (WIDTH, width)).astype(np.float32))
        x = net.layer("MatMul", "opset1", [x, weights], {"transpose_a": False, "transpose_b": False})
        x = net.layer("Tanh", "opset1", [x], names=["y"] if width == OUTPUTS else [])
    net.result(x)
    return ovgpu.Core().read_model(*net.build())


def batch_of(number: int) -> dict[str, Array]:
    """Return the rows of a batch."""
    ids = np.arange(number * BATCH, (number + 1) * BATCH)
    return {"id": ids, "x": np.random.default_rng(number).standard_normal((BATCH, WIDTH)).astype(np.float32)}


class Timed(ovgpu.ray.Predictor):
    """Predictor that adds a column of its measurements."""

    def __init__(self, source: Any) -> None:
        began = time.time()
        found = source.read() if isinstance(source, ovgpu.ray.SharedModel) else source
        read = time.time()
        super().__init__(found, "CPU", max_batch_size=BATCH)
        self._start = {"began": began, "read": read - began, "compile": time.time() - read}

    def __call__(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        begin, cpu = time.time(), time.process_time()
        found = super().__call__(batch)
        end = time.time()
        times = {"begin": begin, "end": end, "cpu": time.process_time() - cpu, "pid": os.getpid(), **self._start}
        return {**found, **{f"_{key}": np.full(len(found["y"]), value) for key, value in times.items()}}


class Idle:
    """Worker that does nothing with a batch but to note the time."""

    def __call__(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        return {"_end": np.full(len(batch["id"]), time.time())}


@ray.remote(num_cpus=0)
class Taker:
    """Actor that takes arrays, and reads weights."""

    def take(self, array: Array) -> int:
        """Return the number of bytes, one of each page of which is read."""
        return int(array.nbytes + 0 * array[::4096].sum())

    def read(self, shared: ovgpu.ray.SharedModel) -> float:
        """Return the seconds to get the weights from the object store."""
        began = time.perf_counter()
        ray.get(shared.weights)
        return time.perf_counter() - began


# ---- measurements


def quiet(seconds: float = 60.0) -> None:
    """Wait until other processes leave the processors idle, at most for so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before = _idle_ticks()
        time.sleep(1)
        if _idle_ticks() - before >= IDLE * CPUS * os.sysconf("SC_CLK_TCK"):
            return
    print("Other processes keep this machine busy: the times will not be comparable.", file=sys.stderr)


def _idle_ticks() -> int:
    return int(Path("/proc/stat").read_text().split()[4])


def alone(batches: int) -> dict[str, Any]:
    """Return the throughput of this process without Ray, and a sample of the outputs of the first batch."""
    predictor, given = Timed(model()), [batch_of(number) for number in range(batches)]
    first = predictor(given[0])
    found = [predictor(batch) for batch in given]
    return {
        **throughput([{key: column[0] for key, column in batch.items() if key[0] == "_"} for batch in found]),
        "sample": engines.sample(first["y"]),
    }


def in_process(batches: int, threads: int) -> dict[str, Any]:
    """Return the result of `alone` in a process of its own with so many threads of BLAS."""
    quiet()
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(batches)]
    process = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": str(threads)}
    )
    if process.returncode:
        raise RuntimeError(process.stderr[-3000:])
    found: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return found


def throughput(batches: list[dict[str, float]]) -> dict[str, float]:
    """Return rows per second, the median inference and the mean time between two, from measurements of batches.

    The time counts in which all processes run: from the last one's first batch on, until the first one has no more.
    """
    by_worker: dict[float, list[dict[str, float]]] = defaultdict(list)
    for batch in sorted(batches, key=lambda batch: batch["_begin"]):
        by_worker[batch["_pid"]].append(batch)
    first = max(found[0]["_end"] for found in by_worker.values())
    last = min(found[-1]["_end"] for found in by_worker.values())
    counted = [batch for batch in batches if first < batch["_end"] <= last]
    gaps = [after["_begin"] - before["_end"] for found in by_worker.values() for before, after in pairwise(found)]
    inference = [batch["_end"] - batch["_begin"] for batch in counted]
    return {
        "rows_per_second": BATCH * len(counted) / (last - first),
        "inference": statistics.median(inference),
        "between": statistics.mean(gaps),
        "workers": len(by_worker),
        "cores": statistics.median(batch["_cpu"] / (batch["_end"] - batch["_begin"]) for batch in counted),
    }


def pool(worker: Any, arguments: list[Any], rows: ray.data.Dataset, size: int) -> list[dict[str, Array]]:
    """Return the batches that ``size`` actors make of a dataset."""
    return list(
        rows.map_batches(
            worker,
            fn_constructor_args=arguments,
            batch_size=BATCH,
            num_cpus=1,
            compute=ray.data.ActorPoolStrategy(size=size),
        ).iter_batches(batch_size=BATCH)
    )


def with_ray(shared: Any, rows: ray.data.Dataset, size: int) -> dict[str, Any]:
    """Return the throughput of so many actors, medians of their starts, and a sample of the first batch's outputs."""
    quiet()
    began = time.time()
    found = pool(Timed, [shared], rows, size)
    stamps = [{key: column[0] for key, column in batch.items() if key[0] == "_"} for batch in found]
    (first,) = (batch for batch in found if batch["id"][0] == 0)
    return {
        **throughput(stamps),
        "sample": engines.sample(first["y"]),
        "start": statistics.median(batch["_began"] - began for batch in stamps),
        "read": statistics.median(batch["_read"] for batch in stamps),
        "compile": statistics.median(batch["_compile"] for batch in stamps),
    }


def idle(rows: ray.data.Dataset) -> float:
    """Return the seconds per batch of actors that do nothing, which is what the driver takes to hand it out."""
    quiet()
    ends = sorted(batch["_end"][0] for batch in pool(Idle, [], rows, CPUS))
    skipped = len(ends) // 4  # while actors start
    return (ends[-1] - ends[skipped]) / (len(ends) - 1 - skipped)


def hand_over(taker: Any, size: int) -> float:
    """Return the median seconds in which a new array is put into the store, and an actor reads it and answers."""
    quiet()
    times = []
    for _ in range(REPEATS + 3):
        array = np.ones(size, np.uint8)
        began = time.perf_counter()
        ray.get(taker.take.remote(ray.put(array)))
        times.append(time.perf_counter() - began)
    return statistics.median(times[3:])


@contextmanager
def cluster() -> Iterator[None]:
    """Start two nodes on this machine, the second of which runs no workers but the actors that ask for it."""
    found = Cluster()
    try:
        found.add_node(num_cpus=CPUS, object_store_memory=STORE_BYTES, include_dashboard=False)
        found.add_node(num_cpus=0, resources={"far": 1}, object_store_memory=STORE_BYTES)
        ray.init(
            found.address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": {"PYTHONPATH": str(engines.ROOT)}},
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield
    finally:
        ray.shutdown()
        found.shutdown()


def measure(rounds: int, batches: int) -> dict[str, Any]:
    """Return all measurements, in seconds and rows per second."""
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    driver, fetched, overs = [], [], []
    with cluster():
        source = model()
        rows = {size: dataset(batches, size) for size in BLOCKS}
        shared = ovgpu.ray.share(source)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        takers = {
            "same": Taker.options(scheduling_strategy=here).remote(),
            "another": Taker.options(resources={"far": 1}).remote(),
        }
        for _ in range(rounds):
            runs["alone"].append(in_process(batches, 1))
            runs["alone, threads"].append(in_process(batches, CPUS))
            for size in BLOCKS:
                for workers in range(1, CPUS + 1):
                    runs[f"{workers}/{size}"].append(with_ray(shared, rows[size], workers))
            driver.append({str(size): idle(rows[size]) for size in BLOCKS})
            fetched.append(
                {node: ray.get(taker.read.remote(ovgpu.ray.share(source))) for node, taker in takers.items()}
            )
            overs.append(
                {node: {name: hand_over(taker, size) for name, size in SIZES.items()} for node, taker in takers.items()}
            )
    engines.agree("a batch", {name: found[0]["sample"] for name, found in runs.items()})
    figures = engines.medians(
        {
            name: [{key: value for key, value in run.items() if key != "sample"} for run in found]
            for name, found in runs.items()
        }
    )
    return {
        "engines": figures,
        "hand_over": {
            node: {name: statistics.median(found[node][name] for found in overs) for name in SIZES} for node in takers
        },
        "driver": {size: statistics.median(run[size] for run in driver) for size in driver[0]},
        "fetch": {node: statistics.median(found[node] for found in fetched) for node in takers},
        "weights": sum(node.data.nbytes for node in source.get_ops() if node.get_type_name() == "Constant"),
    }


def dataset(batches: int, size: int) -> ray.data.Dataset:
    """Return batches as a dataset in the object store, with so many batches in a block."""
    found = [batch_of(number) for number in range(batches)]
    parts = [found[first : first + size] for first in range(0, batches, size)]
    return ray.data.from_arrow(
        [
            BlockAccessor.batch_to_arrow_block(
                {name: np.concatenate([batch[name] for batch in part]) for name in part[0]}
            )
            for part in parts
        ]
    )


# ---- results


def plan(found: dict[str, Any], workers: int, size: int) -> tuple[float, str]:
    """Return rows per second of so many workers, with so many batches in a block, and what limits them."""
    one = found["engines"][f"1/{size}"]
    costs = {
        "workers": (found["engines"]["alone"]["inference"] + one["between"]) / workers,
        "driver": found["driver"][str(size)],
        "hand-over": BATCH * WIDTH * 4 / bandwidth(found),
    }
    limit = max(costs, key=costs.__getitem__)
    return BATCH / costs[limit], limit


def bandwidth(found: dict[str, Any]) -> float:
    """Return the bytes per second of hand-overs to another node."""
    small, large = (found["hand_over"]["another"][name] for name in ("1 MB", "16 MB"))
    return (SIZES["16 MB"] - SIZES["1 MB"]) / (large - small)


def publish(out: Path, found: dict[str, Any], rounds: int, batches: int) -> None:
    """Print the tables, and write them to files."""
    base, one = found["engines"]["alone"], found["engines"]["1/1"]
    rows = [
        [
            head(key),
            f"{figures['rows_per_second']:,.0f}",
            f"{figures['rows_per_second'] / base['rows_per_second']:.2f}",
            f"{1e3 * figures['inference']:.1f}",
            f"{1e3 * figures['between']:.2f}",
            f"{figures['cores']:.2f}",
        ]
        for key, figures in found["engines"].items()
    ]
    overs = [[name, *(f"{1e3 * found['hand_over'][node][name]:.2f}" for node in ("same", "another"))] for name in SIZES]
    starts = [
        ["process of an actor, until its constructor is called", f"{one['start']:.2f}"],
        [f"{found['weights'] / 1e6:.0f} MB of weights, from the node's store", f"{found['fetch']['same']:.3f}"],
        ["weights, from another node's store", f"{found['fetch']['another']:.3f}"],
        ["model read by a worker, with weights that the node has", f"{one['read']:.3f}"],
        ["model compiled", f"{one['compile']:.3f}"],
    ]
    planned = [
        [
            str(workers),
            *(
                word
                for size in BLOCKS
                for rate, limit in [plan(found, workers, size)]
                for word in (f"{rate:,.0f}", limit)
            ),
        ]
        for workers in WORKERS
    ]
    costs = ["Cost", *(f"{size} in a block" for size in BLOCKS)]
    measured = [
        ["h: Ray in a worker", *(f"{1e3 * found['engines'][f'1/{size}']['between']:.2f}" for size in BLOCKS)],
        ["d: driver", *(f"{1e3 * found['driver'][str(size)]:.2f}" for size in BLOCKS)],
    ]
    notes = [
        "Milliseconds are medians of an inference, and means of the time between two inferences of a worker, which is "
        "the cost of Ray. Cores are processor time over time in inferences: workers have one thread, since Ray sets "
        "OMP_NUM_THREADS to num_cpus. The driver and the object stores use the same cores as the workers.",
        "Milliseconds to hand an array to an actor: put into the store, read by the actor, and its answer. The other "
        "node is on this machine, and gets a copy over the loopback interface.",
        markdown(["Size", "same node", "another node"], overs),
        "Seconds until a worker can run:",
        markdown(["Step", "seconds"], starts),
        f"Plan for more machines, computed: rows/s = {BATCH} / max((t + h) / workers, d, bytes / B). Measured are "
        f"t = {1e3 * base['inference']:.1f} ms of inference without Ray, B = {bandwidth(found) / 1e9:.2f} GB/s of a "
        f"hand-over to another node, and per batch, in milliseconds:",
        markdown(costs, measured),
        f"d is measured by {CPUS} workers that do nothing. bytes / B counts where all batches "
        f"({BATCH * WIDTH * 4 / 1e6:.2f} MB each) come from one node: put the bandwidth of your network in place of B "
        f"if it is lower. Workers are processors, on any number of nodes.",
        markdown(
            ["Workers", *(word for size in BLOCKS for word in (f"rows/s, {size} in a block", "limited by"))], planned
        ),
    ]
    engines.report(
        out,
        "ray",
        "Rows per second of ovgpu.ray.Predictor (CPU)",
        ["Engine", "rows/s", "of 1 thread", "inference ms", "between ms", "cores"],
        rows,
        {"rounds": rounds, "batches": batches, **found},
        f"engines in turns, {batches} batches of {BATCH} rows in each; ray {version('ray')}",
        "\n\n".join(notes),
    )


def head(key: str) -> str:
    """Return the name of an engine in tables."""
    if key.startswith("alone"):
        threads = CPUS if key.endswith("threads") else 1
        return f"no Ray, {threads} thread{'s' * (threads > 1)}"
    workers, size = key.split("/")
    return f"Ray, {workers} worker{'s' * (workers != '1')}, {size} in a block"


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Run the command line."""
    parser = engines.parser(__doc__)
    parser.add_argument("--batches", type=int, default=64)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(alone(int(options.worker[0]))))
        return
    os.environ.setdefault("RAY_DATA_LOG_LEVEL", "ERROR")
    publish(options.out, measure(options.rounds, options.batches), options.rounds, options.batches)


if __name__ == "__main__":
    main()
