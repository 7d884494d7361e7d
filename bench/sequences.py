"""Steps per second of a streaming LSTM for 1 to 256 sequences: slots of one batch against a request for each.

    python bench/sequences.py [--rounds 3] [--device CPU] [--out bench/results]
    python bench/sequences.py --emulated       also count launches and bytes on the emulated card

The model has three LSTM cells of 512 with states, and takes frames of 80 features, as models of speech do. Every
sequence submits its next frame when it has the results of the last one. One thread drives them all. OpenVINO runs a
request for each sequence, which it starts asynchronously.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import engines
import numpy as np

from tests.models.recurrent import lstm_state

FEATURES, HIDDEN, OUTPUTS = 80, 512, 64
COUNTS = (1, 4, 16, 64, 256)
SECONDS = 1.0
HEADS = {"slots": "ovgpu, slots of a batch", "ovgpu": "ovgpu, a request each", "openvino": "OpenVINO, a request each"}


def model() -> tuple[bytes, bytes]:
    """Return the model as IR."""
    return lstm_state(1, features=FEATURES, hidden=HIDDEN, outputs=OUTPUTS)


def frames(count: int) -> list[np.ndarray]:
    return list(np.random.RandomState(0).standard_normal((count, 1, FEATURES)).astype(np.float32))


def runner(engine: str, count: int, device: str) -> Callable[[], list[Any]]:
    """Return a function that runs a step of each of ``count`` sequences, and returns the results."""
    inputs = frames(count)
    compiled = engines.compile_model("openvino" if engine == "openvino" else "ovgpu", *model(), device=device)
    if engine == "slots":
        from ovgpu import SequenceBatcher

        batcher = SequenceBatcher(compiled, count, max_wait_ms=1000)
        sequences = [batcher.open() for _ in range(count)]
        return lambda: [f.result()[0] for f in [s.submit(x) for s, x in zip(sequences, inputs)]]
    requests = [compiled.create_infer_request() for _ in range(count)]
    if engine == "ovgpu":
        return lambda: [request.infer(x)[0] for request, x in zip(requests, inputs)]

    def run() -> list[Any]:
        for request, x in zip(requests, inputs):
            request.start_async(x)
        for request in requests:
            request.wait()
        return [request.get_output_tensor().data for request in requests]

    return run


def worker(engine: str, count: int, device: str) -> dict[str, Any]:
    """Return an engine's steps per second, and results of the fourth step."""
    run = runner(engine, count, device)
    for _ in range(3):
        run()
    sample = engines.sample(np.concatenate(run()))
    steps, start = 0, time.perf_counter()
    while time.perf_counter() < start + SECONDS:
        run()
        steps += count
    return {"steps_per_second": steps / (time.perf_counter() - start), "sample": sample}


def counted(engine: str, count: int) -> dict[str, int]:
    """Return what a step of each of ``count`` sequences makes the emulated card do, after it was captured."""
    from tests.emulator import state
    from tests.harness import cuda

    with cuda.registered("emulator") as device:
        run = runner(engine, count, device)
        for _ in range(4):
            run()
        state.counters.reset()
        run()
        c = state.counters
        return {"host_launches": c.launches + c.graph_launches, "kernels": c.launches + c.graph_kernels,
                "allocations": c.allocs, "h2d_bytes": c.h2d_bytes, "d2h_bytes": c.d2h_bytes}


def main() -> None:
    """Run the command line."""
    parser = engines.parser(__doc__, rounds=3)
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    options = parser.parse_args()
    if options.worker:
        kind, engine, count, device = options.worker
        print(json.dumps(counted(engine, int(count)) if kind == "counts" else worker(engine, int(count), device)))
        return
    figures: dict[str, dict[str, float]] = {}
    for count in options.counts:
        results = engines.alternate("sequences.py", tuple(HEADS), options.rounds,
                                    lambda engine, count=count: ("times", engine, count, options.device))
        engines.agree(f"{count} sequences", {engine: runs[0]["sample"] for engine, runs in results.items()})
        figures[str(count)] = {engine: statistics.median(run["steps_per_second"] for run in runs)
                               for engine, runs in results.items()}
    rows = [[count, *(f"{found[engine]:,.0f}" for engine in HEADS), f"{found['slots'] / found['ovgpu']:.1f}",
             f"{found['slots'] / found['openvino']:.1f}"] for count, found in figures.items()]
    result: dict[str, Any] = {"steps_per_second": figures}
    note = ""
    if options.emulated:
        result["counts"] = {str(count): {engine: engines.work("sequences.py", "counts", engine, count, "")
                                         for engine in ("slots", "ovgpu")} for count in options.counts}
        note = counts_table(result["counts"])
    engines.publish(options, "sequences", f"Steps per second of a streaming LSTM ({options.device})",
                    ["Sequences", *HEADS.values(), "slots / requests", "slots / OpenVINO"], rows, result, note)


def counts_table(counts: dict[str, dict[str, dict[str, int]]]) -> str:
    """Return a table of what the emulated card does for one step of each sequence."""
    weights = 4 * sum(4 * HIDDEN * (size + HIDDEN + 1) for size in (FEATURES, HIDDEN, HIDDEN)) + 4 * HIDDEN * OUTPUTS
    lines = ["On a card, for one step of each sequence (counted on the emulated card): launches by the host, a graph "
             "counting as one, kernels, bytes between host and card, and weights that are read.", "",
             "| Sequences | | launches | kernels | allocations | to the card | to the host | weights |",
             "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for count, found in counts.items():
        for engine, c in found.items():
            read = weights * (1 if engine == "slots" else int(count))
            figures = [HEADS[engine].removeprefix("ovgpu, "), c["host_launches"], c["kernels"], c["allocations"],
                       f"{c['h2d_bytes'] / 1e3:,.1f} kB", f"{c['d2h_bytes'] / 1e3:,.1f} kB", f"{read / 1e6:,.0f} MB"]
            lines.append(f"| {count} | {' | '.join(map(str, figures))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
