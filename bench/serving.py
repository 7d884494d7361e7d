"""Serving 64 sequences over REST and gRPC: slots of one batch, a request for each, and OpenVINO in the same server.

Another peer is a naive server around openvino (`bench/naive.py`), over gRPC alone. Where OVGPU_TRITON names a folder
with Triton Inference Server (`tests/harness/servers/triton.py`), it is one more: its Python backend runs the same
slots (`ovgpu triton`).

    python bench/serving.py [lstm decoder small_lstm] [--rounds 3] [--device CPU] [--out bench/results]
    python bench/serving.py --emulated       also serve on the emulated card, and count launches

The models are those of `bench/sequences.py`, and a small LSTM for processor time alone: most of it is the server's own.
The server has a process of its own, and so has the load, which is tritonclient (`tests/harness/servers/load.py`): over
REST with binary tensors, over gRPC with a call for each inference, and over one stream of gRPC for all sequences.
First the 64 sequences start all at once; then they have one frame or token in each step. Throughput and processor time
are measured in a closed loop: each sequence sends its next step when it has the last answer. Latency is measured in an
open loop, from the time at which a step was due, at half the throughput of the slowest engine and at half that of the
slots. An engine that does less than 95 % of a rate is overloaded: its queue grows as long as the load lasts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
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

SMALL = "small_lstm"  # for processor time alone
KINDS, INTERFACES = ("lstm", "decoder", SMALL), ("REST", "gRPC", "stream")
HEADS = {
    "slots": "batch slots",
    "requests": "a request each",
    "openvino": "OpenVINO",
    **({} if triton.missing() else {"triton": "slots in Triton"}),
    "naive": "naive server",
}
PEERS = {
    "requests": "slots / requests",
    "openvino": "slots / OpenVINO",
    "triton": "slots / Triton",
    "naive": "slots / naive",
}
SAMPLES = 4  # sequences whose results are compared
WARM_UP = 4  # steps before those that are measured; on a card, the last ones run captured graphs
OVERLOADED = 0.95  # of the rate
DIFFERENT = 1.2  # times a rate
MIN_STEPS = 5  # in an open loop
START_SECONDS = 120.0


@dataclass(frozen=True)
class Size:
    """Size of the models and of the load: sequences, steps of each in a closed loop, and seconds of an open loop.

    ``small`` is the hidden size of the small LSTM.
    """

    sequences: int
    steps: int
    seconds: float
    features: int
    hidden: int
    small: int
    outputs: int
    decoder: Sizes

    def ir(self, kind: str) -> tuple[bytes, bytes]:
        """Return a model as IR."""
        if kind == "decoder":
            return llama(1, self.decoder).ir
        hidden = self.small if kind == SMALL else self.hidden
        return lstm_state(1, features=self.features, hidden=hidden, outputs=self.outputs)

    def feeds(self, kind: str, engine: str = "slots") -> load.Feeds:
        """Return the inputs of a model. In Triton, ``beam_idx`` has two axes."""
        if kind == "decoder":
            return load.tokens(self.decoder.vocabulary, beams=(1, 1) if engine == "triton" else (1,))
        return load.frames({"frame": ((1, self.features), np.float32)})


SIZES = {
    "full": Size(64, 40, 2.5, sequences.FEATURES, sequences.HIDDEN, 128, sequences.OUTPUTS, sequences.DECODER),
    "tiny": Size(4, 3, 0.3, 8, 32, 16, 8, Sizes(1, 32, 4, 32, 64, 128, shared=2)),
}

Loads = dict[str, dict[str, list[str]]]
"""Names of loads by model and interface: "closed", "single" (one sequence, in a closed loop), or the inferences per
second of an open loop."""


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
    """Serve the models of a repository by a process of its own. Yield the addresses by interface that it has."""
    if engine == "triton":
        subprocess.run(
            [sys.executable, "-m", "ovgpu", "triton", folder.parent / "triton", folder, "--device", device],
            cwd=engines.ROOT,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        with triton.triton_server(folder.parent / "triton", folder.parent) as addresses:
            yield dict(zip(INTERFACES, (*addresses, addresses[1])))
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
    elif engine == "naive":
        command = [sys.executable, str(Path(__file__).with_name("naive.py")), str(folder)]
    with (
        (folder.parent / "log").open("w+") as log,
        subprocess.Popen(command, cwd=engines.ROOT, stdout=subprocess.DEVNULL, stderr=log) as process,
    ):
        try:
            found = _addresses(process, folder.parent / "log")
            yield found if engine == "naive" else found | {"stream": found["gRPC"]}
        finally:
            process.send_signal(signal.SIGTERM)


def _addresses(process: subprocess.Popen[bytes], log: Path) -> dict[str, str]:
    """Wait until a server is ready, and return its addresses, which are in its log."""
    ends = time.monotonic() + START_SECONDS
    while time.monotonic() < ends and process.poll() is None:
        found = dict(re.findall(r"(REST|gRPC) on ([\d.:]+)", log.read_text()))
        with suppress(OSError):  # also of a response with the status 503
            # The naive server has no REST, and is ready when it logs its address.
            if found and ("REST" not in found or urlopen(f"http://{found['REST']}/v2/health/ready")):
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


def worker(engine: str, name: str, device: str, loads: Loads) -> dict[str, Any]:
    """Return the summaries of the loads of an engine, by model, interface, and name. It may lack interfaces."""
    size, found = SIZES[name], dict[str, Any]()
    with TemporaryDirectory() as folder:
        write(Path(folder) / "models", size, [*loads])
        with server(Path(folder) / "models", engine, device) as addresses:
            for kind, interfaces in loads.items():
                found[kind] = {
                    interface: {
                        what: loaded(size, engine, kind, interface, addresses[interface], what) for what in names
                    }
                    for interface, names in interfaces.items()
                    if interface in addresses
                }
    return found


def loaded(size: Size, engine: str, kind: str, interface: str, address: str, what: str) -> dict[str, Any]:
    """Put a load on the server, which is the only child of this process, and return its summary.

    ``start_ms`` is the time until the last sequence has its first answer, prompts of decoders included. ``cpu_us`` is
    the processor time of the server per step. ``sample`` has values of the outputs of the last step.
    """
    count, steps, rate = size.sequences, size.steps, None
    if what == "single":
        count, steps = 1, count * steps
    elif what != "closed":
        rate = float(what)
        steps = max(round(rate * size.seconds / count), MIN_STEPS)
    last = WARM_UP + steps - 1
    measured = load.Load(
        kind,
        size.feeds(kind, engine),
        count,
        steps,
        rate,
        first=WARM_UP,
        keep=lambda sequence, step: sequence < SAMPLES and step == last,
    )

    async def run() -> tuple[list[load.Record], list[load.Record], float]:
        async with load.Client(interface, address, count) as client:
            before = await load.drive(client, replace(measured, rate=None, first=0, steps=WARM_UP, ends=False))
            began = processor_seconds(os.getpid())
            records = await load.drive(client, measured)
            return before, records, processor_seconds(os.getpid()) - began

    before, records, seconds = asyncio.run(run())
    check([*before, *records])
    kept = sorted((record for record in records if record.outputs), key=lambda record: record.sequence)
    return load.summary(records) | {
        "start_ms": 1e3 * max(record.end for record in before if record.step == 0),
        "cpu_us": 1e6 * seconds / len(records),
        "sample": [x for record in kept for x in engines.sample(next(iter((record.outputs or {}).values())))],
    }


def processor_seconds(process: int) -> float:
    """Return the processor time in seconds, user and system, that all descendants of a process have taken.

    It needs Linux, which counts it in hundredths of a second.
    """
    found = 0.0
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            times = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:15]  # also of ended children
            found += sum(map(int, times)) / os.sysconf("SC_CLK_TCK") + processor_seconds(int(child))
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


def rates_of(closed: dict[str, dict[str, float]]) -> dict[str, list[str]]:
    """Return the rates of a model's open loops by interface, from its throughputs by interface and engine: half of the
    slowest engine's, and, unless they are about the same, half of that of the slots."""
    found = {}
    for interface, throughputs in closed.items():
        low, high = (float(f"{whole / 2:.2g}") for whole in (min(throughputs.values()), throughputs["slots"]))
        found[interface] = [str(rate) for rate in ((low, high) if high > DIFFERENT * low else (low,))]
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
            engine, name, device, loads = words
            print(json.dumps(worker(engine, name, device, json.loads(loads))))
        return
    name = "tiny" if options.tiny else "full"

    def measure(loads: Loads) -> dict[str, list[dict[str, Any]]]:
        return engines.alternate(
            "serving.py",
            tuple(HEADS),
            options.rounds,
            lambda engine: ("times", engine, name, options.device, json.dumps(loads)),
        )

    closed = measure({kind: dict.fromkeys(INTERFACES, closed_loads(kind)) for kind in options.kinds})
    result = {kind: closed_loops(kind, SIZES[name], closed) for kind in options.kinds}
    kinds = [kind for kind in options.kinds if kind != SMALL]
    if kinds:
        open_loops(result, measure({kind: rates_of(result[kind]["throughput"]) for kind in kinds}))
    counts = {kind: engines.work("serving.py", "emulated", kind, name) for kind in kinds if options.emulated}
    publish(options, SIZES[name], result, counts)


def closed_loads(kind: str) -> list[str]:
    """Return the names of the closed loops of a model."""
    return ["closed"] if kind == "decoder" else ["closed", "single"]


def closed_loops(kind: str, size: Size, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the figures of closed loops by interface and engine, after the results were compared.

    Processor times are by number of sequences, interface and engine.
    """
    (wanted,) = alone(kind, size, WARM_UP + size.steps)
    for engine, found in runs.items():
        for run in found:
            for interface, loops in run[kind].items():
                samples = {"a single request": wanted, HEADS[engine]: loops["closed"]["sample"]}
                engines.agree(f"{kind} over {interface}", samples)

    def medians(what: str, key: str) -> dict[str, dict[str, float]]:
        return {
            interface: {
                engine: statistics.median(run[kind][interface][what][key] for run in found)
                for engine, found in runs.items()
                if interface in found[0][kind]
            }
            for interface in INTERFACES
        }

    counts = {"closed": size.sequences, "single": 1}
    return {
        "throughput": medians("closed", "throughput"),
        "start_ms": medians("closed", "start_ms"),
        "cpu_us": {str(counts[what]): medians(what, "cpu_us") for what in closed_loads(kind)},
    }


def open_loops(result: dict[str, Any], runs: dict[str, list[dict[str, Any]]]) -> None:
    """Add the figures of open loops to the results, by interface, rate and engine."""
    for kind, interfaces in runs["slots"][0].items():
        result[kind]["open"] = {
            interface: {
                rate: {
                    engine: {
                        key: statistics.median(run[kind][interface][rate][key] for run in found)
                        for key in ("throughput", "p50_ms", "p99_ms", "late_p99_ms")
                    }
                    for engine, found in runs.items()
                    if interface in found[0][kind]
                }
                for rate in rates
            }
            for interface, rates in interfaces.items()
        }


def latency(figures: dict[str, float], rate: str) -> str:
    """Return median and 99th percentile of latencies as a cell of a table."""
    if figures["throughput"] < OVERLOADED * float(rate):
        return f"overloaded: {figures['throughput']:,.0f}/s"
    return f"{figures['p50_ms']:.1f} / {figures['p99_ms']:.1f}"


def cells(figures: dict[str, Any], cell: Callable[[Any], str]) -> list[str]:
    """Return a row's cells of all engines. ``-`` means that an engine lacks the interface."""
    return [cell(figures[engine]) if engine in figures else "-" for engine in HEADS]


def compared(figures: dict[str, float], digits: int) -> list[str]:
    """Return a row's cells of all engines, and the ratios of the slots to the peers."""
    ratios = {engine: figures["slots"] / figure for engine, figure in figures.items() if figure}
    return [
        *cells(figures, "{:,.0f}".format),
        *(f"{ratios[engine]:.{digits}f}" if engine in ratios else "-" for engine in PEERS if engine in HEADS),
    ]


def publish(options: Any, size: Size, result: dict[str, Any], counts: dict[str, dict[str, int]]) -> None:
    """Print the tables and write them to files."""
    heads = [*HEADS.values()]
    peers = [name for engine, name in PEERS.items() if engine in HEADS]
    rows, starts, latencies, processor = [], [], [], []
    for kind, figures in result.items():
        processor += [
            [kind, count, interface, *compared(found, 2)]
            for count, interfaces in figures["cpu_us"].items()
            for interface, found in interfaces.items()
        ]
        for interface, rates in figures.get("open", {}).items():
            rows.append([kind, interface, *compared(figures["throughput"][interface], 1)])
            starts.append([kind, interface, *cells(figures["start_ms"][interface], lambda ms: f"{ms / 1e3:.2f}")])
            latencies += [
                [kind, interface, f"{float(rate):,.0f}", *cells(found, partial(latency, rate=rate))]
                for rate, found in rates.items()
            ]
    sections = [
        (
            "Microseconds of processor time of the server per step (user and system, all its processes), in the closed "
            "loop. The naive server is `bench/naive.py`; stream is ModelStreamInfer, with all sequences on one stream:",
            ["Model", "Sequences", "Interface", *heads, *peers],
            processor,
        ),
        (
            "Latency of a step in milliseconds, median / 99th percentile, in an open loop:",
            ["Model", "Interface", "Steps/s", *heads],
            latencies,
        ),
        (
            f"Seconds until {size.sequences} sequences that start at the same time all have their first answer (the "
            f"decoder's have prompts of 1 to 32 tokens):",
            ["Model", "Interface", *heads],
            starts,
        ),
        (
            f"On a card, for one step of all {size.sequences} sequences (counted on the emulated card, the same "
            f"over REST and gRPC; results equal those of single requests):",
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
        ["Model", "Interface", *heads, *peers],
        rows,
        {"device": options.device, "rounds": options.rounds, "models": result, "emulated": counts},
        f"server and clients in processes of their own on the same cores; {packages}",
        "\n\n".join(f"{text}\n\n{table(columns, found)}" for text, columns, found in sections if found),
    )


def table(columns: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
