"""Benchmark of serving: inferences per second with several requests in flight, and the time to the first result of a
new process.

    python -m bench.gpu_serving --out FILE.json [--budget SECONDS] [--only NAME ...]
    python -m bench.gpu_serving --emulated --tiny     a trial without a GPU

Requests are those of an `AsyncInferQueue`, host arrays in to host arrays out. A process begins with `import ovgpu`,
reads a model from a file, compiles it with CACHE_DIR and infers once: "cold" with an empty folder, so that all kernels
are compiled, "cached" with the kernels that the cold process stored there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
IN_FLIGHT = (1, 2, 4, 8)
DEFAULT = ("resnet50_f16", "mobilenet_v2_f16", "bert_f16", "lstm_b1")
TINY = ("lstm_b1",)
STARTS = 3  # processes with a filled cache, of whose times the median is reported
WARM = 4  # inferences of each request


def throughput(compiled: Any, inputs: dict[str, Any], count: int, seconds: float) -> float:
    """Return the inferences per second with so many requests in flight."""
    import ovgpu

    queue = ovgpu.AsyncInferQueue(compiled, count)
    for _ in range(WARM * count):
        queue.start_async(inputs, share_inputs=True)
    queue.wait_all()
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        queue.start_async(inputs, share_inputs=True)
        done += 1
    queue.wait_all()
    return done / (time.perf_counter() - start)


def first_result(folder: Path, device: str, emulated: bool) -> dict[str, float]:
    """Return the seconds of each step to the first result in this process, which must be new."""
    found: dict[str, float] = {}

    def timed(what: str, step: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = step()
        found[what] = time.perf_counter() - start
        return result

    ov = timed("import", lambda: import_module("ovgpu"))
    config, inputs = json.loads((folder / "config.json").read_text()), dict(np.load(folder / "inputs.npz"))
    with _emulator() if emulated else nullcontext():
        core = ov.Core()
        model = timed("read", lambda: core.read_model(folder / "model.xml"))
        compiled = timed("compile", lambda: core.compile_model(model, device, config))
        timed("first", lambda: np.asarray(compiled(inputs)[0]))
    return found | {"all": sum(found.values())}


def _emulator() -> Any:
    from tests.harness.cuda import bound  # not before the import of ovgpu is timed

    return bound("emulator")


def starts(workload: Any, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure the seconds until the first result in separate processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        xml, weights = workload.ir
        (folder / "model.xml").write_bytes(xml)
        (folder / "model.bin").write_bytes(weights)
        (folder / "config.json").write_text(json.dumps({**workload.config, "CACHE_DIR": str(folder / "cache")}))
        np.savez(folder / "inputs.npz", **workload.inputs)
        command = [sys.executable, "-m", "bench.gpu_serving", "--first", str(folder), "--device", options.device,
                   *(["--emulated"] if options.emulated else [])]
        runs = []
        for _ in range(1 + STARTS):
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr[-1500:])
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    return {"cold": runs[0], "cached": {key: float(np.median([run[key] for run in runs[1:]])) for key in runs[0]}}


def measured(make: Callable[[], Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a workload."""
    import ovgpu

    workload = make()
    core = ovgpu.Core()
    compiled = core.compile_model(core.read_model(*workload.ir), options.device, dict(workload.config))
    found: dict[str, Any] = {"title": workload.title, "per_second": {
        count: throughput(compiled, workload.inputs, count, options.seconds) for count in IN_FLIGHT}}
    del compiled
    return found | {"starts": starts(workload, options)}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all workloads until the time is up; write the file after each."""
    from bench import gpu_vision_workloads

    until, found = time.perf_counter() + options.budget, dict[str, Any]()
    known = gpu_vision_workloads.TINY if options.tiny else gpu_vision_workloads.WORKLOADS
    for name in options.only:
        if time.perf_counter() > until:
            print(f"{name}: not begun, the time is up", flush=True)
            continue
        try:
            found[name] = row = measured(known[name], options)
            rates = ", ".join(f"{count}: {rate:.0f}" for count, rate in row["per_second"].items())
            begins = ", ".join(f"{how} {times['all']:.2f} s (import {times['import']:.2f}, read {times['read']:.2f}, "
                               f"compile {times['compile']:.2f}, first inference {times['first']:.2f})"
                               for how, times in row["starts"].items())
            print(f"{name}: inferences per second by requests {rates}; first result {begins}", flush=True)
        except Exception as failure:
            found[name] = {"failed": f"{type(failure).__name__}: {failure}"}
            print(f"{name}: FAILED {found[name]['failed'][-300:]}", flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return exit status 1 if a workload failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file, rewritten after each workload")
    parser.add_argument("--budget", type=float, default=120, help="seconds after which no workload is begun")
    parser.add_argument("--only", nargs="*", metavar="NAME", help=f"default: {' '.join(DEFAULT)}")
    parser.add_argument("--seconds", type=float, default=1.0, help="per number of requests")
    parser.add_argument("--device", default="NVIDIA")
    parser.add_argument("--emulated", action="store_true", help="the tests' emulator for CuPy")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try the program")
    parser.add_argument("--first", type=Path, metavar="FOLDER", help="time the first result of the model in it")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.seconds = 0.05
    if options.only is None:
        options.only = [*(TINY if options.tiny else DEFAULT)]
    if options.first:
        print(json.dumps(first_result(options.first, options.device, options.emulated)))
        return 0
    with _emulator() if options.emulated else nullcontext():
        found = run(options)
    return int(any("failed" in row for row in found.values()))


if __name__ == "__main__":
    sys.exit(main())
