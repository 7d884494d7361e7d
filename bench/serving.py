"""Serving 64 sequences over REST and gRPC: slots of one batch, a request for each, and OpenVINO in the same server.

Where OVGPU_TRITON names a folder with Triton Inference Server (`tests/harness/servers/triton.py`), it is another
peer: its Python backend runs the same slots (`ovgpu triton`).

    python bench/serving.py [lstm decoder] [--rounds 3] [--device CPU] [--out bench/results]
    python bench/serving.py --emulated       also serve on the emulated card, and count launches

The models are those of `bench/sequences.py`. The server has a process of its own, and so has the load, which is
tritonclient (`tests/harness/servers/load.py`). First the 64 sequences start all at once; then they have one frame or
token in each step. Throughput is measured in a closed loop: each sequence sends its next step when it has the last
answer. Latency is measured in an open loop, from the time at which a step was due, at half the throughput of the
slowest engine and at half that of the slots. An engine that does less than 95 % of a rate is overloaded: its queue
grows as long as the load lasts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import engines
import numpy as np
import sequences

from tests.harness.models.recurrent import lstm_state
from tests.harness.models.transformer import Sizes, llama
from tests.harness.servers import load, triton

KINDS, INTERFACES = ("lstm", "decoder"), ("REST", "gRPC")
HEADS = {
    "slots": "batch slots",
    "requests": "a request each",
    "openvino": "OpenVINO",
    **({} if triton.missing() else {"triton": "slots in Triton"}),
}
PEERS = {"requests": "slots / requests", "openvino": "slots / OpenVINO", "triton": "slots / Triton"}
SAMPLES = 4  # sequences whose results are compared
WARM_UP = 4  # steps before those that are measured; on a card, the last ones run captured graphs
OVERLOADED = 0.95  # of the rate
DIFFERENT = 1.2  # times a rate
MIN_STEPS = 5  # in an open loop
START_SECONDS = 120.0


@dataclass(frozen=True)
class Size:
    """Size of the models and of the load: sequences, steps of each in a closed loop, and seconds of an open loop."""

    sequences: int
    steps: int
    seconds: float
    features: int
    hidden: int
    outputs: int
    decoder: Sizes

    def ir(self, kind: str) -> tuple[bytes, bytes]:
        """Return a model as IR."""
        return (
            lstm_state(1, features=self.features, hidden=self.hidden, outputs=self.outputs)
            if kind == "lstm"
            else llama(1, self.decoder).ir
        )

    def feeds(self, kind: str) -> load.Feeds:
        """Return the inputs of a model, which are those of ``python -m tests.harness.servers.load``."""
        return (
            load.frames({"frame": ((1, self.features), np.float32)})
            if kind == "lstm"
            else load.tokens(self.decoder.vocabulary)
        )


SIZES = {
    "full": Size(64, 40, 2.5, sequences.FEATURES, sequences.HIDDEN, sequences.OUTPUTS, sequences.DECODER),
    "tiny": Size(4, 3, 0.3, 8, 32, 8, Sizes(1, 32, 4, 32, 64, 128, shared=2)),
}

Rates = dict[str, dict[str, list[float]]]
"""Inferences per second of open loops, by model and interface. Without any, the loop is closed."""


def write(folder: Path, size: Size, kinds: list[str]) -> None:
    """Write models into a repository."""
    for kind in kinds:
        target = folder / kind / "1"
        target.mkdir(parents=True)
        for name, data in zip(("model.xml", "model.bin"), size.ir(kind)):
            (target / name).write_bytes(data)


# ---- servers


@contextmanager
def server(folder: Path, engine: str, device: str) -> Iterator[dict[str, str]]:
    """Serve the models of a repository by a process of its own. Yield the addresses by interface."""
    if engine == "triton":
        subprocess.run(
            [sys.executable, "-m", "ovgpu", "triton", folder.parent / "triton", folder, "--device", device],
            cwd=engines.ROOT,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        with triton.triton_server(folder.parent / "triton", folder.parent) as addresses:
            yield dict(zip(INTERFACES, addresses))
        return
    command = [
        sys.executable,
        "-m",
        "ovgpu",
        "serve",
        str(folder),
        "--device",
        device,
        "--port",
        "0",
        "--grpc-port",
        "0",
        "--no-access-log",
        *(["--no-batching"] if engine == "requests" else []),
    ]
    if engine == "openvino":
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", "serve", str(folder)]
    with (
        (folder.parent / "log").open("w+") as log,
        subprocess.Popen(command, cwd=engines.ROOT, stdout=subprocess.DEVNULL, stderr=log) as process,
    ):
        try:
            yield _addresses(process, folder.parent / "log")
        finally:
            process.send_signal(signal.SIGTERM)


def _addresses(process: subprocess.Popen[bytes], log: Path) -> dict[str, str]:
    """Wait until a server is ready, and return its addresses, which are in its log."""
    ends = time.monotonic() + START_SECONDS
    while time.monotonic() < ends and process.poll() is None:
        found = dict(re.findall(r"(REST|gRPC) on ([\d.:]+)", log.read_text()))
        with suppress(OSError):  # also of a response with the status 503
            if found and urlopen(f"http://{found['REST']}/v2/health/ready"):
                return found
        time.sleep(0.05)
    process.kill()
    raise RuntimeError(f"the server did not start:\n{log.read_text()[-3000:]}")


def serve_openvino(folder: Path) -> None:
    """Serve the models of a repository by OpenVINO's CPU plugin, behind the server of ovgpu, until SIGTERM."""
    from ovgpu.serve.engines import EngineOptions, RequestEngine
    from ovgpu.serve.server import Server, ServerOptions

    logging.basicConfig(level=logging.INFO)  # which `server` reads
    options = EngineOptions("CPU")
    asyncio.run(
        Server(
            ServerOptions(folder, port=0, grpc_port=0),
            lambda path, observer: RequestEngine(engines.compile_model("openvino", path), options, observer),
        ).run()
    )


# ---- measurements


def worker(engine: str, name: str, device: str, kinds: list[str], rates: Rates) -> dict[str, Any]:
    """Return the summaries of the loads of an engine, by model, interface, and rate or "closed"."""
    size, found = SIZES[name], dict[str, Any]()
    with TemporaryDirectory() as folder:
        write(Path(folder) / "models", size, kinds)
        with server(Path(folder) / "models", engine, device) as addresses:
            for kind in kinds:
                found[kind] = {
                    interface: {
                        str(rate or "closed"): loaded(size, kind, interface, addresses, rate)
                        for rate in rates.get(kind, {}).get(interface, [None])
                    }
                    for interface in INTERFACES
                }
    return found


def loaded(size: Size, kind: str, interface: str, addresses: dict[str, str], rate: float | None) -> dict[str, Any]:
    """Return the summary of one load, which a process of its own puts on a server."""
    steps = size.steps if rate is None else max(round(rate * size.seconds / size.sequences), MIN_STEPS)
    command = [
        sys.executable,
        "-m",
        "tests.harness.servers.load",
        "--url",
        addresses[interface],
        "--interface",
        interface,
        "--model",
        kind,
        "--sequences",
        str(size.sequences),
        "--steps",
        str(steps),
        "--warm-up",
        str(WARM_UP),
        "--vocabulary",
        str(size.decoder.vocabulary),
    ]
    command += ["--sample", str(SAMPLES)] if rate is None else ["--rate", str(rate)]
    process = subprocess.run(command, cwd=engines.ROOT, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"the load failed:\n{process.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(process.stdout)
    if found["errors"] or found["messages"]:
        raise RuntimeError(f"inferences failed: {found['errors']} {found['messages']}")
    if rate is None:
        found["sample"] = [value for output in found["sample"] for value in engines.sample(output)]
    return found


def alone(kind: str, size: Size, steps: int, device: str = "CPU", last: int = 1) -> list[list[float]]:
    """Return samples of the outputs of the ``last`` of ``steps`` steps of some sequences, which are single requests."""
    compiled, inputs = engines.compile_model("ovgpu", *size.ir(kind), device=device), size.feeds(kind)
    found: list[list[float]] = [[] for _ in range(steps)]
    for sequence in range(SAMPLES):
        request = compiled.create_infer_request()
        for step in range(steps):
            found[step] += engines.sample(request.infer(inputs(sequence, step))[0])
    return found[-last:]


def rates_of(closed: dict[str, dict[str, float]]) -> dict[str, list[float]]:
    """Return the rates of a model's open loops by interface, from its throughputs by interface and engine: half of the
    slowest engine's, and, unless they are about the same, half of that of the slots."""
    found = {}
    for interface, throughputs in closed.items():
        low, high = (float(f"{whole / 2:.2g}") for whole in (min(throughputs.values()), throughputs["slots"]))
        found[interface] = [low, high] if high > DIFFERENT * low else [low]
    return found


def emulated(kind: str, name: str) -> dict[str, int]:
    """Serve sequences on the emulated card, and return what a step of all of them makes the card do.

    The steps before it go through REST, one is counted through REST, and the next one, of the same sequences, through
    gRPC. Raises SystemExit if the results are not those of single requests.
    """
    from tests.emulator import state
    from tests.harness import cuda
    from tests.harness.servers.serving import serving

    size, counts, results = SIZES[name], [], []
    with TemporaryDirectory() as folder, cuda.registered("emulator") as device:
        write(Path(folder), size, [kind])
        # Sequences wait for each other, so that a step of all of them is one batch however slow the emulator is.
        with serving(Path(folder), device, {"max_wait_ms": 1000, "max_sequences": size.sequences}) as found:
            steps = load.Load(
                kind,
                size.feeds(kind),
                size.sequences,
                WARM_UP,
                ends=False,
                timeout=600,
                keep=lambda sequence, step: sequence < SAMPLES,
            )
            check(load.run("REST", found.http, steps))
            for first, interface, address in ((WARM_UP, "REST", found.http), (WARM_UP + 1, "gRPC", found.grpc)):
                state.counters.reset()
                records = load.run(interface, address, replace(steps, first=first, steps=1, ends=interface == "gRPC"))
                c = state.counters
                counts.append(
                    {
                        "launches": c.launches,
                        "graph_launches": c.graph_launches,
                        "kernels": c.launches + c.graph_kernels,
                        "allocations": c.allocs,
                        "h2d_bytes": c.h2d_bytes,
                        "d2h_bytes": c.d2h_bytes,
                    }
                )
                check(records)
                kept = {record.sequence: record.outputs for record in records if record.outputs}
                results.append([value for i in sorted(kept) for value in engines.sample(next(iter(kept[i].values())))])
        for ours, wanted in zip(results, alone(kind, size, WARM_UP + 2, device, last=2)):
            engines.agree(f"{kind} on the emulated card", {"a single request": wanted, "the server": ours})
    if counts[0] != counts[1]:
        raise SystemExit(f"[{kind}] steps through REST and gRPC differ: {counts}")
    return counts[0]


def check(records: list[load.Record]) -> None:
    """Raise RuntimeError unless all inferences succeeded."""
    errors = {f"{record.status} {record.error}" for record in records if record.status != load.OK}
    if errors:
        raise RuntimeError(f"inferences failed: {sorted(errors)[:10]}")


# ---- results


def main() -> None:
    """Run the command line."""
    parser = engines.parser(__doc__, rounds=3)
    parser.add_argument("kinds", nargs="*", default=[*KINDS], metavar="MODEL")
    parser.add_argument("--emulated", action="store_true", help="also count launches on the emulated card")
    parser.add_argument("--tiny", action="store_true", help="small models, for a trial")
    options = parser.parse_args()
    if options.worker:
        what, *words = options.worker
        if what == "serve":
            serve_openvino(Path(words[0]))
        elif what == "emulated":
            print(json.dumps(emulated(*words)))
        else:
            engine, name, device, kinds, rates = words
            print(json.dumps(worker(engine, name, device, kinds.split(","), json.loads(rates))))
        return
    name = "tiny" if options.tiny else "full"

    def measure(rates: Rates) -> dict[str, list[dict[str, Any]]]:
        return engines.alternate(
            "serving.py",
            tuple(HEADS),
            options.rounds,
            lambda engine: ("times", engine, name, options.device, ",".join(options.kinds), json.dumps(rates)),
        )

    closed = measure({})
    result = {kind: closed_loops(kind, SIZES[name], closed) for kind in options.kinds}
    rates = {kind: rates_of(found["throughput"]) for kind, found in result.items()}
    open_loops(result, measure(rates))
    counts = (
        {kind: engines.work("serving.py", "emulated", kind, name) for kind in options.kinds} if options.emulated else {}
    )
    publish(options, SIZES[name], result, counts)


def closed_loops(kind: str, size: Size, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return throughputs and times to start, by interface and engine, after the results were compared."""
    (wanted,) = alone(kind, size, WARM_UP + size.steps)
    figures: dict[str, Any] = {"throughput": {}, "start_ms": {}}
    for interface in INTERFACES:
        for engine, found in runs.items():
            loops = [run[kind][interface]["closed"] for run in found]
            for loop in loops:
                engines.agree(f"{kind} over {interface}", {"a single request": wanted, HEADS[engine]: loop["sample"]})
            for key, by_interface in figures.items():
                by_interface.setdefault(interface, {})[engine] = statistics.median(loop[key] for loop in loops)
    return figures


def open_loops(result: dict[str, Any], runs: dict[str, list[dict[str, Any]]]) -> None:
    """Add the figures of open loops to the results, by interface, rate and engine."""
    for kind, figures in result.items():
        figures["open"] = {
            interface: {
                rate: {
                    engine: {
                        key: statistics.median(run[kind][interface][rate][key] for run in found)
                        for key in ("throughput", "p50_ms", "p99_ms", "late_p99_ms")
                    }
                    for engine, found in runs.items()
                }
                for rate in rates
            }
            for interface, rates in runs["slots"][0][kind].items()
        }


def latency(figures: dict[str, float], rate: str) -> str:
    """Return median and 99th percentile of latencies as a cell of a table."""
    if figures["throughput"] < OVERLOADED * float(rate):
        return f"overloaded: {figures['throughput']:,.0f}/s"
    return f"{figures['p50_ms']:.1f} / {figures['p99_ms']:.1f}"


def publish(options: Any, size: Size, result: dict[str, Any], counts: dict[str, dict[str, int]]) -> None:
    """Print the tables and write them to files."""
    heads = [*HEADS.values()]
    peers = {engine: name for engine, name in PEERS.items() if engine in HEADS}
    rows, starts, latencies = [], [], []
    for kind, figures in result.items():
        for interface in INTERFACES:
            rate, start = figures["throughput"][interface], figures["start_ms"][interface]
            rows.append(
                [
                    kind,
                    interface,
                    *(f"{rate[engine]:,.0f}" for engine in HEADS),
                    *(f"{rate['slots'] / rate[engine]:.1f}" for engine in peers),
                ]
            )
            starts.append([kind, interface, *(f"{start[engine] / 1e3:.2f}" for engine in HEADS)])
            latencies += [
                [kind, interface, f"{float(rate):,.0f}", *(latency(found[engine], rate) for engine in HEADS)]
                for rate, found in figures["open"][interface].items()
            ]
    parts = [
        "Latency of a step in milliseconds, median / 99th percentile, in an open loop:",
        table(["Model", "Interface", "Steps/s", *heads], latencies),
        f"Seconds until {size.sequences} sequences that start at the same time all have their first answer (the "
        f"decoder's have prompts of 1 to 32 tokens):",
        table(["Model", "Interface", *heads], starts),
    ]
    if counts:
        parts += [
            f"On a card, for one step of all {size.sequences} sequences (counted on the emulated card, the same "
            f"over both interfaces; results equal those of single requests):",
            table(
                ["Model", "launches", "graph launches", "kernels", "allocations", "to the card", "to the host"],
                [
                    [
                        kind,
                        *(str(c[key]) for key in ("launches", "graph_launches", "kernels", "allocations")),
                        f"{c['h2d_bytes'] / 1e3:,.1f} kB",
                        f"{c['d2h_bytes'] / 1e3:,.1f} kB",
                    ]
                    for kind, c in counts.items()
                ],
            ),
        ]
    packages = ", ".join(f"{name} {version(name)}" for name in ("tritonclient", "grpcio", "uvicorn", "starlette"))
    if "triton" in HEADS:
        packages += f", Triton of nvidia-pytriton {triton.wheel_version()}"
    engines.report(
        options.out,
        "serving",
        f"Steps per second of {size.sequences} sequences, served over REST and gRPC ({options.device})",
        ["Model", "Interface", *heads, *peers.values()],
        rows,
        {"device": options.device, "rounds": options.rounds, "models": result, "emulated": counts},
        f"server and clients in processes of their own on the same cores; {packages}",
        "\n\n".join(parts),
    )


def table(columns: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
