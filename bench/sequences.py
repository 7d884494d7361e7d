"""Steps per second for 1 to 256 sequences with states: slots of one batch against a request for each.

    python bench/sequences.py [lstm decoder] [--rounds 3] [--device CPU] [--out bench/results]
    python bench/sequences.py --emulated       also count launches and bytes on the emulated card

The LSTM has three cells of 512 with states, and takes frames of 80 features, as models of speech do. The decoder has
four layers of 256 as Llama's, and its sequences have KV caches of different lengths: prompts of 1 to 32 tokens, and
then a token in each step. Every sequence submits its next step when it has the results of the last one. One thread
drives them all. OpenVINO runs a request for each sequence, which it starts asynchronously.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import engines
import numpy as np

from tests.harness.models.recurrent import lstm_state
from tests.harness.models.transformer import Sizes, llama

FEATURES, HIDDEN, OUTPUTS = 80, 512, 64
DECODER = Sizes(4, 256, 8, 1024, 4096, 1024, shared=2)
COUNTS = (1, 4, 16, 64, 256)
MAX_EMULATED = 16  # sequences: the emulator takes many minutes for more
STEPS = {"lstm": 100, "decoder": 40}  # that are timed
HEADS = {"slots": "ovgpu, slots of a batch", "ovgpu": "ovgpu, a request each", "openvino": "OpenVINO, a request each"}

Feeds = Callable[[int, int], dict[str, Any]]
"""Function from the number of a sequence and of a step to the inputs."""


def workload(kind: str) -> tuple[tuple[bytes, bytes], Feeds]:
    """Return a model as IR, and its inputs."""
    if kind == "lstm":
        frames = np.random.RandomState(0).standard_normal((256, 1, FEATURES)).astype(np.float32)
        return lstm_state(1, features=FEATURES, hidden=HIDDEN, outputs=OUTPUTS), lambda i, step: {"frame": frames[i]}

    def tokens(i: int, step: int) -> dict[str, Any]:
        prompt = 1 + i * 7 % 32
        past, count = (0, prompt) if step == 0 else (prompt + step - 1, 1)
        return {
            "input_ids": (np.arange(past, past + count)[None] + i) % DECODER.vocabulary,
            "attention_mask": np.ones((1, past + count), np.int64),
            "position_ids": np.arange(past, past + count)[None],
            "beam_idx": np.zeros(1, np.int32),
        }

    return llama(1, DECODER).ir, tokens


def runner(kind: str, engine: str, count: int, device: str) -> Callable[[int], list[Any]]:
    """Return a function from a step's number that runs this step of ``count`` sequences, and returns the results."""
    ir, inputs = workload(kind)
    compiled = engines.compile_model("openvino" if engine == "openvino" else "ovgpu", *ir, device=device)
    if engine == "slots":
        from ovgpu import SequenceBatcher

        batcher = SequenceBatcher(compiled, count, max_wait_ms=100)
        sequences = [batcher.open() for _ in range(count)]
        return lambda step: [f.result()[0] for f in [s.submit(inputs(i, step)) for i, s in enumerate(sequences)]]
    requests = [compiled.create_infer_request() for _ in range(count)]
    if engine == "ovgpu":
        return lambda step: [request.infer(inputs(i, step))[0] for i, request in enumerate(requests)]

    def run(step: int) -> list[Any]:
        for i, request in enumerate(requests):
            request.start_async(inputs(i, step))
        for request in requests:
            request.wait()
        return [request.get_output_tensor().data for request in requests]

    return run


def worker(kind: str, engine: str, count: int, device: str) -> dict[str, Any]:
    """Return an engine's steps per second, and results of the fourth step."""
    run, warm_up = runner(kind, engine, count, device), 4
    for step in range(warm_up):
        results = run(step)
    sample = engines.sample(np.concatenate([np.ravel(x) for x in results]))  # copied, before they are overwritten
    start = time.perf_counter()
    steps = max(STEPS[kind] // (1 + count // 64), 3)
    for step in range(warm_up, warm_up + steps):
        run(step)
    return {"steps_per_second": count * steps / (time.perf_counter() - start), "sample": sample}


def counted(kind: str, engine: str, count: int) -> dict[str, int]:
    """Return what a step of each of ``count`` sequences makes the emulated card do, after it was captured."""
    from tests.emulator import state
    from tests.harness import cuda

    with cuda.registered("emulator") as device:
        run = runner(kind, engine, count, device)
        for step in range(4):
            run(step)
        state.counters.reset()
        run(4)
        c = state.counters
        return {
            "host_launches": c.launches + c.graph_launches,
            "kernels": c.launches + c.graph_kernels,
            "allocations": c.allocs,
            "h2d_bytes": c.h2d_bytes,
            "d2h_bytes": c.d2h_bytes,
        }


def main() -> None:
    """Run the command line."""
    parser = engines.parser(__doc__, rounds=3)
    parser.add_argument("kinds", nargs="*", default=["lstm", "decoder"], metavar="MODEL")
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    options = parser.parse_args()
    if options.worker:
        what, kind, engine, count, device = options.worker
        print(
            json.dumps(
                counted(kind, engine, int(count)) if what == "counts" else worker(kind, engine, int(count), device)
            )
        )
        return
    result: dict[str, Any] = {}
    rows: list[list[Any]] = []
    for kind in options.kinds:
        for count in options.counts:
            runs = engines.alternate(
                "sequences.py",
                tuple(HEADS),
                options.rounds,
                lambda engine, kind=kind, count=count: ("times", kind, engine, count, options.device),
            )
            engines.agree(f"{kind}, {count} sequences", {engine: found[0]["sample"] for engine, found in runs.items()})
            times = {
                engine: statistics.median(run["steps_per_second"] for run in found) for engine, found in runs.items()
            }
            result.setdefault("steps_per_second", {}).setdefault(kind, {})[str(count)] = times
            rows.append(
                [
                    kind,
                    count,
                    *(f"{times[engine]:,.0f}" for engine in HEADS),
                    f"{times['slots'] / times['ovgpu']:.1f}",
                    f"{times['slots'] / times['openvino']:.1f}",
                ]
            )
    note = ""
    if options.emulated:
        result["counts"] = {
            kind: {
                str(count): {
                    engine: engines.work("sequences.py", "counts", kind, engine, count, "")
                    for engine in ("slots", "ovgpu")
                }
                for count in options.counts
                if count <= MAX_EMULATED
            }
            for kind in options.kinds
        }
        note = counts_table(result["counts"])
    engines.publish(
        options,
        "sequences",
        f"Steps per second of sequences with states ({options.device})",
        ["Model", "Sequences", *HEADS.values(), "slots / requests", "slots / OpenVINO"],
        [list(map(str, row)) for row in rows],
        result,
        note,
    )


def counts_table(counts: dict[str, dict[str, dict[str, dict[str, int]]]]) -> str:
    """Return a table of what the emulated card does for one step of each sequence."""
    lines = [
        "On a card, for one step of each sequence (counted on the emulated card): launches by the host, a graph "
        "counting as one, kernels, bytes between host and card, and weights that are read.",
        "",
        "| Model | Sequences | | launches | kernels | allocations | to the card | to the host | weights |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind, sequences in counts.items():
        weights = len(workload(kind)[0][1])
        for count, found in sequences.items():
            for engine, c in found.items():
                read = weights * (1 if engine == "slots" else int(count))
                figures = [
                    HEADS[engine].removeprefix("ovgpu, "),
                    c["host_launches"],
                    c["kernels"],
                    c["allocations"],
                    f"{c['h2d_bytes'] / 1e3:,.1f} kB",
                    f"{c['d2h_bytes'] / 1e3:,.1f} kB",
                    f"{read / 1e6:,.0f} MB",
                ]
                lines.append(f"| {kind} | {count} | {' | '.join(map(str, figures))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
