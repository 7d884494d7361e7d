"""Models with activations and weights in 8 bits, as nncf writes them, beside the same models in f32, on the CPU.

    python -m bench.quantized [--rounds N] [--out bench/results]

Both run in turns. Times are those of all threads of the process, which other processes disturb little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench import engines
from bench.workloads import workload
from ovgpu import Core
from tests.harness.models.quantize import quantize

MODELS = {"ResNet-50": "resnet50", "MobileNetV2": "mobilenet_v2", "BERT-base, 128 tokens": "bert_base"}


def processor_ms(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return 1e3 * (time.process_time() - start)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=engines.ROOT / "bench" / "results")
    options = parser.parse_args()
    rows, found = [], []
    for name, key in MODELS.items():
        inputs, model = workload(key).inputs, Core().read_model(*workload(key).ir)
        requests = [Core().compile_model(m, "CPU").create_infer_request() for m in (model, quantize(model, inputs))]
        times: list[list[float]] = [[], []]
        for _ in range(options.rounds + 2):
            for request, measured in zip(requests, times):
                measured.append(processor_ms(partial(request.infer, inputs)))
        f32, int8 = (statistics.median(measured[2:]) for measured in times)
        rows.append([name, f"{f32:.1f}", f"{int8:.1f}", f"{int8 / f32:.2f}"])
        found.append({"model": name, "f32_ms": f32, "int8_ms": int8})
    engines.report(
        options.out,
        "quantized-cpu",
        "Models in 8 bits on the CPU, beside the same in f32",
        ["Model", "f32 (ms)", "8 bits (ms)", "Ratio"],
        rows,
        {"rounds": options.rounds, "models": found},
        "processor time of all threads",
    )


if __name__ == "__main__":
    main()
