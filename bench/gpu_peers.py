"""Benchmark of ovgpu on a card against torch: eager, compiled, and CUDA graphs of both; and the cost of library calls.

    python -m bench.gpu_peers                        everything; results go to bench/results
    python -m bench.gpu_peers --only bert_base gpt2_decode --no-questions
    python -m bench.gpu_peers --emulated --tiny      a trial without a GPU, in less than a minute

The command measures the bandwidth of a copy, then asks `gpu_questions`, then times each workload in all engines, whose
results must agree. There are three times per engine: on the device, between events around many launches of one
inference's work (in a graph, one launch each; the cache is emptied before each where bandwidth is measured); of a call,
inputs and outputs on the device, with its wait; and wall-clock, host arrays in to host arrays out. Ratios are to the
fastest other engine: below 1, ovgpu is faster.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import engines, gpu_measure, gpu_questions, gpu_run
from bench.gpu_torch import MODES
from bench.gpu_workloads import TINY, WORKLOADS
from ovgpu.backends.cuda import rt
from tests.harness.cuda import bound

COPY, COPY_TINY = 2 << 30, 1 << 16  # bytes that a copy moves, each way
UNFINISHED = "gpu-unfinished.json"
TIMES = {"device": "Device", "call": "Call", "wall": "Host to host"}
COLUMNS = ["Workload", "Engine", *(f"{title} (us)" for title in TIMES.values()), "Ratios", "GB/s", "% of copy"]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything; return the results, which include the failures of single parts."""
    with bound("emulator") if options.emulated else nullcontext():
        return _measure(options, "NVIDIA")


def _measure(options: argparse.Namespace, device: str) -> dict[str, Any]:
    cupy = rt.cupy()
    result: dict[str, Any] = {"device": gpu_measure.describe(cupy), "rounds": options.rounds,
                              "clocks_before": gpu_measure.clocks(), "torch": _torch_version(options.torch)}
    stream = cupy.cuda.Stream(non_blocking=True)
    size = COPY_TINY if options.tiny else COPY
    result["copy_bytes_per_second"] = gpu_measure.copy_bandwidth(cupy, stream, size, options.seconds)
    if options.questions:
        result["questions"] = gpu_questions.answer(device, options.tiny, result["copy_bytes_per_second"])
        _progress(options, result, "calls")
    settings = gpu_run.Settings(device, options.torch, options.modes, options.rounds, options.seconds, options.steps,
                                1 if options.tiny else 5)
    result["workloads"] = {}
    until = time.perf_counter() + options.budget
    for name in options.only:
        if time.perf_counter() > until:
            _progress(options, result, f"{name}: not begun, the time is up")
            continue
        found = gpu_run.compare((TINY if options.tiny else WORKLOADS)[name], settings)
        result["workloads"][name] = found
        times = {engine: round(row["device"]["us"], 2) if "device" in row else None
                 for engine, row in found["engines"].items()}
        _progress(options, result, f"{name}: {times}")
        _free(cupy)
    result["clocks_after"] = gpu_measure.clocks()
    return result


def _progress(options: argparse.Namespace, result: dict[str, Any], text: str) -> None:
    """Print the progress, and save the results in case the rest is cut short."""
    Console(stderr=True).print(text, markup=False, highlight=False)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / UNFINISHED).write_text(json.dumps(result, indent=1) + "\n")


def rows(result: dict[str, Any]) -> list[list[str]]:
    """Return the table's rows, one per workload and engine."""
    found = []
    for workload in result["workloads"].values():
        for name, row in workload["engines"].items():
            cells = [workload["title"], name]
            if "device" not in row:
                message = row.get("failed") or f"wrong: error {row['error']:.1e}"
                found.append([*cells, message.splitlines()[0][:60], "", "", "", "", ""])
                continue
            rate = workload["least_bytes"] / row["device"]["us"] * 1e6
            times = [f"{row[what]['us']:.2f}" if what in row else "" for what in TIMES]
            ratios = [f"{row[what]['ratio']:.2f}" for what in TIMES if "ratio" in row.get(what, {})]
            found.append([*cells, *times, " / ".join(ratios), f"{rate / 1e9:.1f}",
                          f"{100 * rate / result['copy_bytes_per_second']:.1f}"])
    return found


def _free(cupy: Any) -> None:
    """Free memory between workloads."""
    import gc

    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()


def _torch_version(device: str | None) -> str | None:
    if device is None:
        return None
    import torch

    return str(torch.__version__)


def _torch_device() -> str | None:
    try:
        import torch
    except ImportError:
        return None
    return "cuda" if torch.cuda.is_available() else None


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=WORKLOADS, default=[*WORKLOADS], metavar="NAME",
                        help=f"workloads: {', '.join(WORKLOADS)}")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no workload is begun")
    parser.add_argument("--no-questions", dest="questions", action="store_false")
    parser.add_argument("--torch", choices=("cuda", "cpu", "none"), help="torch's device; default: cuda if usable")
    parser.add_argument("--modes", nargs="*", choices=MODES, default=MODES, help="torch's ways to run; compiling takes "
                        "up to a minute for each workload")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="per measurement")
    parser.add_argument("--steps", type=int, help="tokens of a decoder that are timed in a round")
    parser.add_argument("--emulated", action="store_true", help="the tests' emulator for CuPy")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try the program")
    parser.add_argument("--out", type=Path, help="folder; default: bench/results, nowhere for a trial")
    options = parser.parse_args(arguments)
    options.torch = {None: _torch_device(), "none": None}.get(options.torch, options.torch)
    if options.out is None and not options.emulated and not options.tiny:
        options.out = engines.ROOT / "bench" / "results"
    for name, usual, tiny in (("rounds", 5, 1), ("seconds", 0.5, 0.01), ("steps", 64, 3)):
        if getattr(options, name) is None:
            setattr(options, name, tiny if options.tiny else usual)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return exit status 1 if ovgpu failed or was wrong on a workload."""
    options = parse(arguments)
    result = run(options)
    device = result["device"]["name"]
    title = f"ovgpu on {device}: copies at {result['copy_bytes_per_second'] / 1e12:.3g} TB/s"
    slug = "gpu-" + re.sub(r"\W+", "-", device.lower()).strip("-")
    answers = result.pop("questions", None)
    if answers is not None:
        table = gpu_questions.rows(answers)
        engines.report(options.out, f"{slug}-calls", f"Calls on {device}", ["Question", "Case", "Answer"], table,
                       {"rounds": options.rounds, "answers": answers}, how="one question after the other")
    if result["workloads"]:
        engines.report(options.out, slug, title, COLUMNS, rows(result), result, how="the engines taking turns")
    if options.out is not None:
        (options.out / UNFINISHED).unlink(missing_ok=True)
    wrong = [name for name, w in result["workloads"].items() if "device" not in w["engines"]["ovgpu"]]
    if wrong:
        print(f"failed or wrong: {', '.join(wrong)}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
