"""Stages of tests and measurements on a card, the most valuable first; bench/README.md says when to run which.

    python -m bench.gpu --stage 0 --out FOLDER [--budget SECONDS] [--expectations FILE]
    python -m bench.gpu --emulated --tiny --out FOLDER      a trial of all stages without a GPU

0  smoke: whole models, against recorded answers
1  the test suite on the card, in parallel processes
2  workloads against torch: transformers, recurrent networks, vision, a Llama decoder
3  kernels: device time of the workloads by kernel, the host's time by function, hardware counters of the worst
4  compute-sanitizer over tests of kernels
5  what the calls of libraries cost; requests in flight; the time until a first result

Each part is a separate process: one that fails or dies does not end the others. A part gets its share of the rest of
the budget, writes its files as it goes on, and is stopped in time. The ends of the parts' outputs are printed last,
failed parts first.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = (90, 330, 400, 260, 240, 150)  # seconds, by stage
SUMMARY = 10_000  # characters of output that are printed in the end
GRACE_SECONDS = 5  # between the end of a part's own budget and its stop


@dataclass
class Part:
    """A command of a stage: a module of `bench` and its arguments, and its share of the stage's time."""

    module: str
    arguments: list[str]
    share: float = 1.0
    output: str = ""
    status: int | str = field(default="not begun")


def parts(stage: int, options: argparse.Namespace) -> list[Part]:
    """Return the parts of a stage; `{budget}` in arguments stands for the seconds that a part has."""
    out, trial = options.out, ["--emulated", "--tiny"] if options.emulated else []
    judged = ["--expectations", str(options.expectations)] if options.expectations else []
    emulated: bool = options.emulated
    if stage == 0:
        some = ["--emulated", "--models", "lstm_state"] if emulated else []
        return [Part("gpu_smoke", ["--out", str(out), "--seconds", "{budget}", *some])]
    if stage == 1:
        some = ["--device", "emulator", "tests/kernels/test_range.py"] if emulated else []
        return [Part("gpu_suite", ["--out", str(out), "--seconds", "{budget}", *judged, *some])]
    if stage == 2:
        alone = ["--torch", "none"] if emulated else []
        return [
            Part("gpu_llama", ["--out", str(out / "llama.json"), "--budget", "{budget}", *trial, *(
                ["--variant", "int4", "--contexts", "16", "--prefill", "0"] if emulated else [])], 0.4),
            Part("gpu_vision", ["--out", str(out / "vision.json"), "--budget", "{budget}", *trial, *alone, *(
                ["--only", "lstm_state", "resnet50"] if emulated else ["--modes", "graph", "compile+graph"])], 0.35),
            Part("gpu_peers", ["--out", str(out), "--budget", "{budget}", "--no-questions", *trial, *alone,
                               "--rounds", *(("1", "--seconds", "0.01") if emulated else ("3", "--seconds", "0.15")),
                               "--modes", "graph"], 0.25),
        ]
    if stage == 3:
        return [Part("gpu_profile", ["--out", str(out), "--budget", "{budget}", *trial], 0.65),
                Part("gpu_counters", ["--out", str(out), "--profile", str(out / "profile.json"), "--budget", "{budget}",
                                      *trial], 0.35)]
    if stage == 4:
        return [Part("gpu_sanitize", ["--out", str(out), "--budget", "{budget}", *trial])]
    return [Part("gpu_peers", ["--out", str(out / "calls"), "--only", *trial, "--torch", "none"], 0.4),
            Part("gpu_serving", ["--out", str(out / "serving.json"), "--budget", "{budget}", *trial], 0.6)]


def run(part: Part, seconds: float, log: Path) -> None:
    """Run a part for at most so many seconds; append its output to a file, and set it in the part."""
    arguments = [a.replace("{budget}", f"{max(seconds - GRACE_SECONDS, 1):.0f}") for a in part.arguments]
    with log.open("a") as file:
        file.write(f"== {part.module} {' '.join(arguments)}\n")
        file.flush()
        began = file.tell()
        command = [sys.executable, "-u", "-m", f"bench.{part.module}", *arguments]
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                                   env={**os.environ, "COLUMNS": "160"})
        try:
            part.status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            part.status = "stopped: out of time"
            _stop(process)
    with log.open(errors="replace") as file:
        file.seek(began)
        part.output = file.read()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all processes that it has started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_stage(stage: int, options: argparse.Namespace, budget: float) -> list[Part]:
    """Run all parts of a stage within the budget."""
    found, until = parts(stage, options), time.perf_counter() + budget
    for number, part in enumerate(found):
        left = until - time.perf_counter()
        share = part.share / sum(later.share for later in found[number:])
        if left > 2:
            run(part, left * share, options.out / "stages.log")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return exit status 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=int, choices=range(len(BUDGETS)), help="default: all")
    parser.add_argument("--budget", type=float, help="seconds for all stages that run")
    parser.add_argument("--out", type=Path, required=True, help="folder for results: at most four files a stage, "
                        "and the output of all parts in stages.log")
    parser.add_argument("--expectations", type=Path, help="OpenVINO's answers, see tests/harness/store.py")
    parser.add_argument("--emulated", action="store_true", help="the tests' emulator for CuPy")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes; only with --emulated")
    options = parser.parse_args(arguments)
    if options.emulated != options.tiny:
        parser.error("--emulated and --tiny go together")
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    done: list[Part] = []
    stages = range(len(BUDGETS)) if options.stage is None else [options.stage]
    for stage in stages:
        budget = BUDGETS[stage] if options.budget is None else options.budget / len(stages)
        done += run_stage(stage, options, budget)
    done.sort(key=lambda part: part.status == 0)
    for part in done:
        print(f"==== {part.module}: {'done' if part.status == 0 else part.status}")
        print(part.output[-SUMMARY // len(done) :])
    return int(any(part.status != 0 for part in done))


if __name__ == "__main__":
    sys.exit(main())
