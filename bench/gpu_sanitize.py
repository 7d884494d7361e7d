"""Tests of kernels on a card under NVIDIA's compute-sanitizer: races in shared memory (racecheck), barriers that
threads miss (synccheck), and stray accesses (memcheck).

    python -m bench.gpu_sanitize --out FOLDER [--budget SECONDS] [--tools racecheck memcheck] [FILE ...]

Each test file runs in a separate process, several at a time, by default those of kernels that form clusters, copy
asynchronously or begin early. For each, ``sanitize.json`` has the number of errors that the tool counted and the first
error. In some containers the tool refuses the card: a probe ends the command then.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE_SECONDS = 60  # for a file's tests
FILES = tuple(
    f"tests/kernels/test_{name}.py"
    for name in (
        "attention_parts",
        "attention_stream",
        "attention_mma",
        "product_tiles",
        "implicit_gemm",
        "pixel_normalization",
        "product_mma",
        "matmul_prologue",
        "normalization",
        "add_norm",
        "copy",
        "gather",
        "rotary",
        "kv_cache",
        "norm_codes",
        "channel_normalization",
        "recurrent",
        "recurrent_mma",
        "reduction",
        "softmax",
    )
)
PROBE_SECONDS = 20
FAULT = re.compile(r"Invalid|hazard|Misaligned|out of bounds")
ERRORS = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")


def command(tool: str, file: str, emulated: bool) -> list[str]:
    """Return the command for the tests of a file under a tool. On the emulator there is none: it has its own checks."""
    tests = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "--tb=line",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--device",
        "emulator" if emulated else "cuda",
        "-k",
        "not compile",
        file,
    ]
    if emulated:
        return tests
    # Bindings look for functions of CUDA that an older driver lacks: such errors of its API are none of ours.
    options = ["--report-api-errors", "no"] if tool == "memcheck" else []
    return ["compute-sanitizer", "--tool", tool, "--target-processes", "all", "--print-limit", "5", *options, *tests]


def probe() -> str:
    """Run a program that uses the card under the tool. Return "", or why that fails."""
    program = "import cupy; cupy.zeros(1).sum()"
    try:
        done = subprocess.run(
            ["compute-sanitizer", "--tool", "memcheck", sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"{type(e).__name__}: {e}"
    return "" if "ERROR SUMMARY" in done.stdout and not done.returncode else (done.stdout + done.stderr)[-600:]


def read(printed: str, status: int | None) -> dict[str, Any]:
    """Parse a run's output: the number of errors, and the lines of the first one."""
    counts = [int(a or b) for a, b in ERRORS.findall(printed)]
    lines = printed.splitlines()
    first = next((i for i, line in enumerate(lines) if FAULT.search(line) and "SUMMARY" not in line), None)
    tests = next((line for line in reversed(lines) if re.search(r"\d+ (passed|failed)", line)), "")
    return {
        "errors": sum(counts) if counts else None,
        "status": status,
        "tests": tests.strip("= "),
        "first": "\n".join(lines[max(first - 2, 0) : first + 12]) if first is not None else "",
        "failures": [line for line in lines if line.startswith(("E  ", "FAILED"))][:12],
    }


def run_file(tool: str, file: str, until: float, options: argparse.Namespace) -> dict[str, Any]:
    """Run a file's tests under a tool, for a minute at most."""
    seconds = min(FILE_SECONDS, until - time.perf_counter())
    if seconds <= 0:
        return {**read("", None), "tests": "not begun"}
    process = subprocess.Popen(
        command(tool, file, options.emulated),
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=seconds)
        return read(printed, process.returncode)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the tool, and the tests that it runs
        return read(process.communicate()[0], None)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run all files under all tools until the time is up; write the file after each."""
    until, found = time.perf_counter() + options.budget, dict[str, Any]()
    with ThreadPoolExecutor(options.jobs) as pool:
        tasks = {
            pool.submit(run_file, tool, file, until, options): f"{tool} {file}"
            for tool in options.tools
            for file in options.files
            if (ROOT / file).exists()
        }
        for task in as_completed(tasks):
            found[tasks[task]] = task.result()
            (options.out / "sanitize.json").write_text(json.dumps(found, indent=1))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return exit status 1 if a tool counted errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=[*FILES])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=240)
    parser.add_argument("--tools", nargs="*", default=["racecheck", "synccheck", "memcheck"])
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--emulated", action="store_true", help="a trial without a GPU and without the tool")
    parser.add_argument("--tiny", action="store_true", help="one file")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.files, options.tools = ["tests/kernels/test_range.py"], options.tools[:1]
    options.out.mkdir(parents=True, exist_ok=True)
    reason = "" if options.emulated else probe()
    if reason:
        print(f"compute-sanitizer cannot be used: {reason}")
        return 0
    found = run(options)
    wrong = {name: row for name, row in found.items() if row["errors"] or row["status"]}
    for name, row in sorted(found.items(), key=lambda item: item[0] not in wrong):
        print(f"{'WRONG' if name in wrong else 'ok   '} {name}: {row['errors']} errors; {row['tests'] or 'not done'}")
        for line in filter(None, (row["first"], *row["failures"])):
            print(line)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
