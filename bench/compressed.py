"""Products with compressed weights, 4096 x 4096, against folded ones and OpenVINO's CPU plugin (f32).

    taskset -c 0 python bench/compressed.py [--rounds 3] [--device CPU] [--out bench/results]

One row of x is what a decoder multiplies per token. The engines take turns, each measurement in a separate process. A
figure is the median over the rounds of the least processor time of many calls, which on one core is their time on an
idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import engines
import numpy as np

from tests.harness.ir import Net

SIZE, GROUP = 4096, 128
ROWS = (1, 8, 64, 256)
FORMS = {
    "f32": "f32",
    "i8": "i8, a scale per output",
    "u8": "u8, a scale and a zero point per output",
    "i4": "i4, a scale per output",
    "i4 groups": f"i4, scales for groups of {GROUP}",
    "u4 groups": f"u4, scales and zero points for groups of {GROUP}",
    "nf4 groups": f"nf4, scales for groups of {GROUP}",
}
ENGINES = ("openvino", "ovgpu")
SECONDS = 0.5


def model(form: str) -> Net:
    """Return a MatMul whose weights are compressed as nncf does."""
    random, net = np.random.default_rng(3), Net()
    kind, *grouped = form.split()
    x = net.parameter("f32", (-1, SIZE))
    shape = (SIZE, SIZE // GROUP, GROUP) if grouped else (SIZE, SIZE)
    if kind == "f32":
        weights = net.const(random.uniform(-1, 1, shape), "f32")
    else:
        low, high = {"i8": (-127, 127), "u8": (0, 255), "i4": (-8, 7), "u4": (0, 15), "nf4": (-1, 1)}[kind]
        codes = random.uniform(low, high, shape)
        weights = convert(net, net.const(codes if kind == "nf4" else codes.round(), kind), "f16")
        terms = (*shape[:-1], 1)
        if kind[0] == "u":
            zero = net.const(random.integers(high // 3, high * 2 // 3, terms), kind)
            weights = net.layer("Subtract", "opset1", [weights, convert(net, zero, "f16")])
        weights = net.layer("Multiply", "opset1", [weights, net.const(random.uniform(0.01, 0.1, terms), "f16")])
        if grouped:
            target = net.const(np.array((SIZE, SIZE)))
            weights = net.layer("Reshape", "opset1", [weights, target], {"special_zero": False})
        weights = convert(net, weights, "f32")
    net.result(net.layer("MatMul", "opset1", [x, weights], {"transpose_b": True}))
    return net


def convert(net: Net, port: Any, kind: str) -> Any:
    """Convert a port to another element type."""
    return net.layer("Convert", "opset1", [port], {"destination_type": kind}, [kind])


def worker(engine: str, form: str, device: str) -> dict[str, Any]:
    """Return milliseconds by rows of x, and a sample of a result for comparison."""
    request = engines.compile_model(engine, *model(form).build(), device=device).create_infer_request()
    random, times = np.random.default_rng(5), dict[int, float]()
    for rows in ROWS:
        x = random.uniform(-1, 1, (rows, SIZE)).astype(np.float32)
        request.infer([x], share_inputs=True)
        least, end = float("inf"), time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            start = time.process_time()
            request.infer([x], share_inputs=True)
            least = min(least, time.process_time() - start)
        times[rows] = 1e3 * least
    return {"ms": times, "sample": engines.sample(request.get_output_tensor(0).data)}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--out", type=Path, default=engines.ROOT / "bench" / "results")
    parser.add_argument("--worker", nargs=3, metavar=("ENGINE", "FORM", "DEVICE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(worker(*options.worker)))
        return
    figures: dict[str, dict[str, list[float]]] = {}
    for form in FORMS:
        results = engines.alternate(
            "compressed.py",
            ENGINES,
            options.rounds,
            lambda engine: (engine, form, options.device),  # noqa: B023
        )
        engines.agree(form, {engine: runs[0]["sample"] for engine, runs in results.items()})
        figures[form] = {
            engine: [statistics.median(run["ms"][str(rows)] for run in runs) for rows in ROWS]
            for engine, runs in results.items()
        }
    cells = [[f"{own:.2f} / {other:.2f}" for own, other in zip(of["ovgpu"], of["openvino"])] for of in figures.values()]
    rows = [[name, *row] for name, row in zip(FORMS.values(), cells)]
    title = f"Products with weights of {SIZE} x {SIZE}: ms of a core, ovgpu on {options.device} / OpenVINO's CPU plugin"
    columns = ["Weights", *(f"{rows} row{'s' * (rows > 1)} of x" for rows in ROWS)]
    engines.publish(options, "compressed", title, columns, rows, {"rows": ROWS, "forms": figures})


if __name__ == "__main__":
    main()
