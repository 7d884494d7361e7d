"""Hardware counters of the kernels that take the most time, read with Nsight Compute (`ncu`):

    python -m bench.gpu_counters --profile OUT/profile.json --out OUT [--budget SECONDS] [--kernels 5]

`bench.gpu_profile` makes profile.json. The kernels of ovgpu with the largest share of a workload's device time are
chosen, each once. For each, ``counters.json`` and ``counters.md`` have the time of one launch without the other
kernels around it, and the used shares of the device's memory bandwidth and arithmetic.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bench import gpu_profile
from ovgpu.backends.cuda import rt
from tests.emulator.kernel_source import launch_bounds
from tests.emulator.nvrtc import KERNELS
from tests.harness.cuda import bound

ROOT = Path(__file__).resolve().parents[1]
LAUNCHES = 4  # launches of a kernel that are read
METRICS = {
    "gpu__time_duration.sum": "us",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory %",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "cache %",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "arithmetic %",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy %",
    "launch__registers_per_thread": "registers",
    "dram__bytes.sum": "MB",
}
SCALES = {"us": 1e-3, "MB": 1e-6}  # from nanoseconds and bytes
FUNCTION = re.compile(r"(?:void )?([A-Za-z_]\w*)")


def own_names() -> set[str]:
    """Return the kernels that files of cuda_kernels/ declare."""
    return {name for path in KERNELS.glob("*.cu") for name in launch_bounds(path.read_text())}


def choose(profile: dict[str, Any], count: int) -> list[tuple[str, str, float]]:
    """Return (function, workload, share) of the kernels with the largest share of a workload, each function once."""
    own, found = own_names(), dict[str, tuple[str, float]]()
    for workload, row in profile["workloads"].items():
        for kernel in row.get("kernels", ()):
            match = FUNCTION.match(kernel["kernel"])
            name = match[1] if match else ""
            if (name in own or name.startswith("ovgpu_")) and kernel["share"] > found.get(name, ("", 0.0))[1]:
                found[name] = workload, kernel["share"]
    rows = [(name, workload, share) for name, (workload, share) in found.items()]
    return sorted(rows, key=lambda row: -row[2])[:count]


def command(function: str, workload: str, log: Path) -> list[str]:
    """Return the command that reads a function's counters in a workload."""
    return ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--graph-profiling",
            "node", "--profile-from-start", "off", "--kernel-name", function, "--launch-count", str(LAUNCHES),
            "--metrics", ",".join(METRICS), "--log-file", str(log), "--force-overwrite",
            sys.executable, "-m", "bench.gpu_counters", "--run", workload]


def read(text: str) -> Iterator[dict[str, Any]]:
    """Parse ncu's output: one row per launch, after a row of units."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    for row in csv.DictReader(lines[begin:]):
        if row["ID"]:
            figures = {title: float(row[metric].replace(",", "")) * SCALES.get(title, 1)
                       for metric, title in METRICS.items() if row.get(metric)}
            yield {"kernel": row["Kernel Name"], **figures}


def counted(function: str, workload: str, seconds: float, folder: Path) -> dict[str, Any]:
    """Return the counters of the longest of a few launches, or the reason why there are none."""
    log = folder / "ncu.log"
    try:
        done = subprocess.run(command(function, workload, log), cwd=ROOT, timeout=seconds, capture_output=True,
                              text=True, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {seconds:.0f} s"}
    text = log.read_text() if log.exists() else ""
    log.unlink(missing_ok=True)
    rows = list(read(text))
    if not rows:
        return {"failed": "\n".join([*text.splitlines()[-4:], *done.stdout.splitlines()[-2:],
                                     *done.stderr.splitlines()[-2:]])}
    return max(rows, key=lambda row: float(row.get("us", 0)))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the counters as Markdown."""
    titles = list(METRICS.values())
    lines = ["# Counters of the kernels that take the most time", "",
             "One launch each, by Nsight Compute (`python -m bench.gpu_counters`); % of what the device can do.", "",
             f"| {' | '.join(titles)} | share | workload | kernel |",
             "|" + " ---: |" * (len(titles) + 1) + " --- | --- |"]
    for row in rows:
        figures = [f"{row[title]:.1f}" if title in row else "" for title in titles]
        what = (row.get("kernel") or f"{row['function']}: {row['failed'].splitlines()[0]}")[:110].replace("|", "/")
        lines.append(f"| {' | '.join(figures)} | {row['share']:.2f} | {row['workload']} | {what} |")
    return "\n".join(lines) + "\n"


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Read the counters of all chosen kernels until the time is up; write the files after each."""
    until = time.perf_counter() + options.budget
    found: list[dict[str, Any]] = []
    for function, workload, share in choose(json.loads(options.profile.read_text()), options.kernels):
        left = until - time.perf_counter()
        row = counted(function, workload, left, options.out) if left > 1 else {"failed": "not begun, the time is up"}
        found.append({"function": function, "workload": workload, "share": share} | row)
        print(", ".join(f"{key} {value:.1f}" if isinstance(value, float) else f"{value}"[:120]
                        for key, value in found[-1].items()), flush=True)
        (options.out / "counters.json").write_text(json.dumps(found, indent=1) + "\n")
        (options.out / "counters.md").write_text(table(found))
    return found


def launch(workload: str, emulated: bool, tiny: bool) -> None:
    """Run a workload's inferences for ncu, after its graphs are captured."""
    with bound("emulator") if emulated else nullcontext():
        found, _ = gpu_profile.engine(workload, "NVIDIA", tiny)
        found.timer.synchronize()
        profiler = rt.cupy().cuda.profiler
        profiler.start()
        for _ in range(2):
            found.launch()
        found.timer.synchronize()
        profiler.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return exit status 0 also if `ncu` is missing or may not read counters, as the output says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--budget", type=float, default=120)
    parser.add_argument("--kernels", type=int, default=5)
    parser.add_argument("--run", metavar="WORKLOAD", help="run it; the command runs itself so under `ncu`")
    parser.add_argument("--emulated", action="store_true", help="the tests' emulator for CuPy")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes")
    options = parser.parse_args(arguments)
    if options.run:
        launch(options.run, options.emulated, options.tiny)
    elif options.profile is None or not options.profile.exists():
        print("there is no profile to choose kernels from: run bench.gpu_profile first")
    elif shutil.which("ncu") is None:
        print("ncu is not installed: no counters")
    else:
        run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
