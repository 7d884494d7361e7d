"""Time to the first result, and peak memory: ovgpu against OpenVINO's CPU plugin (f32).

    python bench/startup.py [--models NAME ...] [--rounds N] [--device CPU] [--cache DIR] [--out bench/results]

The engines take turns, each in a separate process that has imported NumPy, and imports the engine, reads a model,
compiles it and infers once; figures are medians over the rounds. Memory is the peak resident size of the process until
then, including pages of mapped files. The models are those of `bench/models.py`.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engines
import models as whole

from tests.harness.models.drive import OPENVINO_F32, Expected

MODELS = {name: text.removesuffix(", per token") for name, text in whole.MODELS.items() if "/" not in name}
ENGINES = ("openvino", "ovgpu")
STAGES = {"import": "Import", "read": "Read", "compile": "Compile", "first": "First inference"}


def worker(engine: str, name: str, cache: Path, device: str) -> dict[str, Any]:
    """Return milliseconds of each stage by the clock and of the processor, peak memory, and a sample of the result."""
    folder = engines.ensure(name, cache)
    inputs = Expected.load(folder / "expected.npz").calls[0].inputs
    figures: dict[str, Any] = {}

    def stage(what: str, run: Callable[[], Any]) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        result = run()
        figures[what] = 1e3 * (time.perf_counter() - wall)
        figures[f"{what}_cpu"] = 1e3 * (time.process_time() - cpu)
        return result

    ov = stage("import", lambda: __import__(engine))
    device, config = (device, {}) if engine == "ovgpu" else ("CPU", OPENVINO_F32)
    core = ov.Core()
    model = stage("read", lambda: core.read_model(folder / "model.xml"))
    compiled = stage("compile", lambda: core.compile_model(model, device, config))
    result = stage("first", lambda: compiled.create_infer_request().infer(inputs))
    figures["peak_mb"] = peak() / 2**20
    return figures | {"sample": engines.sample(result[compiled.output(0)])}


def peak() -> int:
    """Return the peak resident memory of this process in bytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))
    except (OSError, StopIteration):
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return one model's figures: the medians over the rounds per engine."""
    engines.ensure(name, options.cache)
    results = engines.alternate(
        "startup.py", ENGINES, options.rounds, lambda engine: (engine, name, options.cache, options.device)
    )
    engines.agree(name, {engine: runs[0].pop("sample") for engine, runs in results.items()})
    found = engines.medians(results)
    return {engine: {key: round(figure, 2) for key, figure in figures.items()} for engine, figures in found.items()}


def main() -> None:
    """Run the command line."""
    parser = engines.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS], metavar="NAME")
    options = parser.parse_args()
    if options.worker:
        engine, name, cache, device = options.worker
        print(json.dumps(worker(engine, name, Path(cache), device)))
        return
    models = {name: compare(name, options) for name in options.models}
    keys = [*STAGES, "peak_mb"]
    rows = [
        [MODELS[name], *(f"{row['ovgpu'][k]:.0f} / {row['openvino'][k]:.0f}" for k in keys)]
        for name, row in models.items()
    ]
    title = f"Start and memory: ovgpu on {options.device} / OpenVINO's CPU plugin in f32"
    columns = ["Model", *(f"{head} (ms)" for head in STAGES.values()), "Peak memory (MB)"]
    engines.publish(options, "startup", title, columns, rows, {"models": models})


if __name__ == "__main__":
    main()
