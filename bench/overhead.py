"""Time per layer: a thousand Add, Multiply and Relu layers in a chain, on 16 floats each.

    python bench/overhead.py [--layers 1000] [--rounds 5] [--device CPU] [--out bench/results]

The arithmetic is negligible, so the time is the cost of running a layer. For comparison, OpenVINO's CPU plugin and a
loop over the same NumPy functions with `out=` are timed. The loop is the least that Python can do layer by layer.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import engines
import numpy as np

from tests.harness.ir import Net

SIZE = 16
ENGINES = ("numpy", "ovgpu", "openvino")


def factors(layers: int) -> np.ndarray:
    """Return one operand row per layer, for Add and Multiply (unused by Relu)."""
    return np.random.RandomState(1).uniform(0.5, 1.5, (layers, SIZE)).astype(np.float32)


def chain(layers: int) -> tuple[bytes, bytes]:
    """Return the chain as IR: layer k is Add, Multiply or Relu in turn."""
    net = Net("chain")
    x = net.parameter("f32", (SIZE,), "x")
    for k, row in enumerate(factors(layers)):
        kind = ("Add", "Multiply", "Relu")[k % 3]
        x = net.layer(kind, "opset1", [x] if kind == "Relu" else [x, net.const(row)])
    net.result(x)
    return net.build()


def worker(engine: str, layers: int, device: str) -> dict[str, Any]:
    """Return an engine's time per layer, and the sum of its outputs."""
    x = np.linspace(-1, 1, SIZE, dtype=np.float32)
    if engine == "numpy":
        rows, buffers = factors(layers), np.empty((2, SIZE), np.float32)
        zero = np.zeros(SIZE, np.float32)
        operands = [
            ((np.add, np.multiply, np.maximum)[k % 3], row if k % 3 < 2 else zero) for k, row in enumerate(rows)
        ]

        def run() -> np.ndarray:
            value = x
            for k, (function, operand) in enumerate(operands):
                value = function(value, operand, out=buffers[k & 1])
            return value
    else:
        request = engines.compile_model(engine, *chain(layers), device=device).create_infer_request()

        def run() -> np.ndarray:
            request.infer([x], share_inputs=True, share_outputs=True)
            return request.get_output_tensor(0).data

    times = engines.measure(run, seconds=1)
    return times | {
        "us_per_layer": 1e3 * times["ms"] / layers,
        "output": float(np.sum(run(), dtype=np.float64)),
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--out", type=Path, default=engines.ROOT / "bench" / "results")
    parser.add_argument("--worker", nargs=3, metavar=("ENGINE", "LAYERS", "DEVICE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        engine, layers, device = options.worker
        print(json.dumps(worker(engine, int(layers), device)))
        return
    results = engines.alternate(
        "overhead.py", ENGINES, options.rounds, lambda engine: (engine, options.layers, options.device)
    )
    engines.agree("chain", {engine: runs[0]["output"] for engine, runs in results.items()})
    figures = {engine: statistics.median(run["us_per_layer"] for run in runs) for engine, runs in results.items()}
    heads = {"numpy": "NumPy calls in a loop", "ovgpu": f"ovgpu {options.device}", "openvino": "OpenVINO f32"}
    rows = [[heads[engine], f"{figure:.3f}"] for engine, figure in figures.items()]
    title = f"{options.layers} Add, Multiply and Relu layers on {SIZE} floats"
    result = {"layers": options.layers, "us_per_layer": figures}
    engines.publish(options, "overhead", title, ["Engine", "µs per layer"], rows, result)


if __name__ == "__main__":
    main()
