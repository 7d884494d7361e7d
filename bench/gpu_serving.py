"""Inferences per second with several requests in flight, and the time to the first result in a new process.

    python -m bench.gpu_serving [--out FILE.json] [--only NAME ...] [--budget SECONDS]

`ovgpu benchmark` runs a workload of `bench.workloads` from host arrays to host arrays, in a process for each number
of requests. The first process begins with an empty cache and its start is the cold one, the others find it filled.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
IN_FLIGHT = (1, 4, 8, 2)  # the order in which they run, as far as the time goes
DEFAULT = ("resnet50_f16", "mobilenet_v2_f16", "bert_f16", "lstm_b1")
EMULATED = """
import sys
from ovgpu.cli import main
from tests.harness.cuda import bound
with bound("emulator"):
    sys.exit(main(sys.argv[1:]))
"""
STEPS = {"read": "read model time (ms)", "compile": "compile model time (ms)", "first": "first inference time (ms)"}


def benchmark(folder: Path, count: int, precision: str, options: argparse.Namespace) -> dict[str, float]:
    """Run a model with so many requests; return the inferences per second, and the seconds of each step before."""
    program = ["-c", EMULATED] if options.emulated else ["-m", "ovgpu"]
    command = [
        sys.executable,
        *program,
        "benchmark",
        str(folder / "model.xml"),
        "-d",
        options.device,
        "-hint",
        "none",
        "-infer_precision",
        precision,
        "-inference_only",
        "false",
        "-nireq",
        str(count),
        "-cdir",
        str(folder / "cache"),
        "-report_type",
        "no_counters",
        "-report_folder",
        str(folder),
        "-json_stats",
        *(["-niter", "3"] if options.tiny else ["-t", str(options.seconds)]),
    ]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    took = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout)[-1500:])
    (report,) = folder.glob("benchmark_report*.json")
    found = json.loads(report.read_text())["execution_results"]
    report.unlink()
    steps = {step: float(found[key]) / 1e3 for step, key in STEPS.items()}
    rest = took - sum(steps.values()) - float(found["total execution time (ms)"]) / 1e3
    return {"per_second": float(found["throughput"]), "import": rest, **steps}


def measured(name: str, options: argparse.Namespace, until: float) -> dict[str, Any]:
    """Return the figures of a workload, and print them. "import" is what remains of a process: its start and end, and
    the imports."""
    from bench.workloads import workload

    found = workload(name, options.tiny)
    rows, longest = dict[int, dict[str, float]](), 0.0
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        for file, data in zip(("model.xml", "model.bin"), found.ir):
            (folder / file).write_bytes(data)
        for count in IN_FLIGHT:
            start = time.perf_counter()
            if rows and start + longest > until:
                break
            rows[count] = benchmark(folder, count, found.config.get("INFERENCE_PRECISION_HINT", "f32"), options)
            longest = max(longest, time.perf_counter() - start)
    first, *others = rows.values()
    steps = ("import", *STEPS)
    starts = {"cold": {step: first[step] for step in steps}}
    if others:
        starts["cached"] = {step: sorted(row[step] for row in others)[len(others) // 2] for step in steps}
    rates = {count: row["per_second"] for count, row in sorted(rows.items())}
    text = ", ".join(
        f"{how} {sum(times.values()):.2f} ({', '.join(f'{k} {v:.2f}' for k, v in times.items())})"
        for how, times in starts.items()
    )
    print(
        f"{name}: inferences per second by requests {', '.join(f'{n}: {rate:.0f}' for n, rate in rates.items())}; "
        f"seconds to the first result: {text}",
        flush=True,
    )
    return {"title": found.title, "per_second": rates, "starts": starts}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return exit status 1 if a workload failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file, rewritten after each workload")
    parser.add_argument("--budget", type=float, default=120, help="seconds after which no workload is begun")
    parser.add_argument("--only", nargs="*", default=DEFAULT, metavar="NAME", help=f"default: {' '.join(DEFAULT)}")
    parser.add_argument("--seconds", type=int, default=1, help="per number of requests")
    parser.add_argument("--device", default="NVIDIA")
    parser.add_argument("--emulated", action="store_true", help="the tests' emulator for CuPy")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try the program")
    options = parser.parse_args(arguments)
    until, found = time.perf_counter() + options.budget, dict[str, Any]()
    for name in options.only:
        if time.perf_counter() > until:
            print(f"{name}: not begun, the time is up", flush=True)
            continue
        try:
            found[name] = measured(name, options, until)
        except Exception as failure:
            found[name] = {"failed": f"{type(failure).__name__}: {failure}"}
            print(f"{name}: FAILED {found[name]['failed'][-300:]}", flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(any("failed" in row for row in found.values()))


if __name__ == "__main__":
    sys.exit(main())
