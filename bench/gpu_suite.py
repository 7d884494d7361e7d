"""Runner for the tests of the CUDA backend on a card: parts of test files run in separate processes.

    python -m bench.gpu_suite --expectations FILE --out FOLDER --seconds 400 [--jobs 14] [PATH ...]
    python -m bench.gpu_suite --changed-since COMMIT --out FOLDER      tests of what has changed since then
    python -m bench.gpu_suite --failed suite.json --out FOLDER         the failures of an earlier run

A fault that breaks a CUDA context, such as an illegal address, ends only one part. Processes are forked from one that
has loaded OpenVINO's answers and the modules, but has not used CUDA. ``suite.json`` is rewritten while the run goes on,
so that a run that is cut short leaves its results.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from bench.kernels import recorded
from tests.emulator.toolchain import included_text

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "tests/kernels",
    "tests/state",
    "tests/control_flow",
    "tests/models",
    "tests/runtime",
    "tests/passes",
    "tests/ops",
    "tests/api",
)
OPTIONS = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", "-o", "faulthandler_timeout=0"]
MAX_GROUPS = 20  # the most groups of failures that are printed


@dataclass
class Found:
    """Outcomes of tests: counts by outcome; test, error and trace of each failure; times of slow tests."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


class Collector:
    """Pytest plugin that lists the tests that run on a card."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.names = [item.nodeid for item in items if on_card(item)]


class Recorder:
    """Pytest plugin that runs the named tests alone, and records their outcomes."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.found, self.current = set(names), Found(), ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self.names]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.current = nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.duration > 5:
            self.found.seconds[report.nodeid] = report.duration
        if report.when == "call" or not report.passed:
            self.found.counts[report.outcome] += 1
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.found.failures.append(
                {"test": report.nodeid, "raised": crash.message if crash else "", "trace": report.longreprtext[-3000:]}
            )


def on_card(item: pytest.Item) -> bool:
    """Return whether a test uses the emulated device, which the card replaces, and is not skipped there."""
    used = "emulated" in getattr(item, "fixturenames", ()) or "EMULATED" in item.nodeid
    return used and item.get_closest_marker("skip") is None


def collect(paths: Sequence[str], device: str) -> dict[str, list[str]]:
    """Return the tests by file."""
    if not paths:  # pytest would take all
        return {}
    plugin = Collector()
    with redirect_stdout(io.StringIO()) as printed:
        pytest.main(
            [*OPTIONS, "--collect-only", "--continue-on-collection-errors", "--device", device, *paths], [plugin]
        )
    print("\n".join(line for line in printed.getvalue().splitlines() if line.startswith("ERROR ")))  # without openvino
    found: dict[str, list[str]] = defaultdict(list)
    for name in plugin.names:
        found[name.partition("::")[0]].append(name)
    return found


def parts(tests: dict[str, list[str]], most: int) -> list[tuple[str, list[str]]]:
    """Return the parts: at most so many neighbouring tests of a file, which share kernels."""
    return [
        (file, names[begin : begin + most]) for file, names in tests.items() for begin in range(0, len(names), most)
    ]


def run_part(file: str, names: Sequence[str], device: str, results: Any) -> None:
    """Run a part in this process, and send its outcomes: after each failure, and at the end."""
    recorder = Recorder(names)
    results.send(("began", recorder.found))
    usual = recorder.pytest_runtest_logreport

    def report_failures(report: pytest.TestReport) -> None:
        usual(report)
        if report.failed:
            results.send(("going on", recorder.found))

    recorder.pytest_runtest_logreport = report_failures  # type: ignore[method-assign]
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        status = pytest.main([*OPTIONS, "--device", device, file], [recorder])
    results.send((f"ended with {int(status)}", recorder.found))
    results.close()
    os._exit(0)  # skips the shutdown of the interpreter


@dataclass
class Part:
    """A running part."""

    file: str
    names: list[str]
    process: Any
    results: Any
    began: float
    state: str = "began"
    found: Found = field(default_factory=Found)

    def read(self) -> None:
        while True:
            try:
                if not self.results.poll():
                    return
                self.state, self.found = self.results.recv()
            except (EOFError, OSError):
                return


def changed_since(commit: str) -> list[str]:
    """Return the test files of the CUDA backend that have changed since a commit, or whose kernels have, by name."""
    command = ["git", "diff", "--name-only", commit]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    names = [Path(line) for line in listed.stdout.splitlines()]
    found = {str(name) for name in names if name.name.startswith("test_") and str(name).startswith(FOLDERS)}
    headers = {name.name for name in names if name.suffix == ".cuh"}
    for file in (ROOT / "cuda_kernels").glob("*.cu"):
        text = included_text(file.read_text(), [file.parent])
        includes = {name for name in headers if f'"{name}"' in text}
        if includes or Path("cuda_kernels") / file.name in names:
            tests = (ROOT / "tests" / "kernels").glob(f"test_{file.stem}*.py")
            found |= {str(test.relative_to(ROOT)) for test in tests}
    return sorted(name for name in found if (ROOT / name).exists() and "test_broken" not in name)


def paths(options: argparse.Namespace) -> list[str]:
    """Return the files and folders of the tests that are asked for."""
    if options.failed is not None:
        return sorted({failure["test"].partition("::")[0] for failure in failed_in(options.failed)})
    if options.changed_since:
        return changed_since(options.changed_since)
    return options.files.read_text().split() if options.files else list(options.paths)


def failed_in(reports: Sequence[Path]) -> list[dict[str, str]]:
    """Return the failures in suite.json of earlier runs; files that are missing have none."""
    return [row for file in reports if file.exists() for row in json.loads(file.read_text())["failures"]]


def selected(tests: dict[str, list[str]], options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the tests by file without those that ``--skip`` and ``--failed`` leave out."""
    failed = {failure["test"] for failure in failed_in(options.failed or ())}
    ran = {name for file in options.skip if file.exists() for name in json.loads(file.read_text())["ran"]}
    found = {
        file: [n for n in names if n not in ran and (options.failed is None or n in failed)]
        for file, names in tests.items()
    }
    return {file: names for file, names in found.items() if names}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run all parts, several at a time, until the time is up."""
    start = time.perf_counter()
    if options.record:
        recorded.begin(options.record)
    if options.expectations:
        from tests.harness.recall import load

        load(options.expectations)
    waiting = parts(selected(collect(paths(options), options.device), options), options.part_tests)
    total = sum(len(names) for _, names in waiting)
    print(f"{total} tests in {len(waiting)} parts, collected in {time.perf_counter() - start:.0f} s", flush=True)
    result: dict[str, Any] = {
        "tests": total,
        "counts": Counter(),
        "failures": [],
        "slow": {},
        "lost": [],
        "parts": {},
        "ran": [],
    }
    context, running = multiprocessing.get_context("fork"), list[Part]()
    until = start + options.seconds
    while running or (waiting and time.perf_counter() < until):
        while waiting and len(running) < options.jobs and time.perf_counter() < until:
            file, names = waiting.pop(0)
            receive, send = context.Pipe(duplex=False)
            process = context.Process(target=run_part, args=(file, names, options.device, send))
            process.start()
            send.close()
            running.append(Part(file, names, process, receive, time.perf_counter()))
        wait([part.process.sentinel for part in running] + [part.results for part in running], timeout=0.5)
        now = time.perf_counter()
        for part in list(running):
            part.read()
            late = now - part.began > options.part_seconds or now > until
            if part.process.is_alive() and not late:
                continue
            part.read()
            if part.process.is_alive():
                part.process.kill()
                part.state = "stopped: too late"
            part.process.join()
            if not part.state.startswith(("ended", "stopped")):
                part.state = f"died with exit status {part.process.exitcode}"
            running.remove(part)
            add(result, part, now - part.began)
            save(options.out, result)
    result["unfinished"] = sum(len(names) for _, names in waiting)
    result["seconds"] = time.perf_counter() - start
    save(options.out, result)
    return result


def add(result: dict[str, Any], part: Part, seconds: float) -> None:
    """Add the outcomes of a part to the result."""
    result["counts"].update(part.found.counts)
    result["failures"] += part.found.failures
    result["slow"] |= part.found.seconds
    if part.state.startswith("ended"):
        result["ran"] += part.names
    name = f"{part.file} from {part.names[0].partition('::')[2]}"
    result["parts"][name] = {"seconds": round(seconds, 1), "state": part.state, **part.found.counts}
    if part.state not in ("ended with 0", "ended with 1"):
        result["lost"].append(f"{name}: {part.state}")


def save(folder: Path, result: dict[str, Any]) -> None:
    """Write suite.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "suite.json").write_text(json.dumps(result, indent=0))


def groups(failures: Sequence[dict[str, str]]) -> list[tuple[str, list[dict[str, str]]]]:
    """Return the failures by kind (the message without numbers), the most frequent kind first."""
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    for failure in failures:
        line = next(iter(failure["raised"].strip().splitlines()), "")
        found[re.sub(r"0x[0-9a-f]+|\d[\d.e+-]*|'[^']*'", "#", line)[:120]].append(failure)
    return sorted(found.items(), key=lambda group: -len(group[1]))


def report(result: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the summary, the most frequent failures first."""
    yield (
        f"{dict(result['counts'])} of {result['tests']} in {result['seconds']:.0f} s, {result['unfinished']} not begun"
    )
    for group, failures in groups(result["failures"])[:MAX_GROUPS]:
        files = Counter(failure["test"].partition("::")[0].rpartition("/")[2] for failure in failures)
        yield f"{len(failures)} x {group}"
        yield f"    {dict(files.most_common(6))}; {failures[0]['test'][:150]}"
        yield f"    {failures[0]['raised'].strip()[:250]!r}"
    yield from result["lost"][:MAX_GROUPS]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return exit status 1 unless all tests ran and passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=[*FOLDERS])
    parser.add_argument("--expectations", type=Path, help="OpenVINO's answers, see tests/harness/store.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--part-seconds", type=float, default=150, help="after which a part is stopped")
    parser.add_argument("--part-tests", type=int, default=120, help="the most tests of a part")
    parser.add_argument("--files", type=Path, help="a file that names the test files")
    parser.add_argument("--changed-since", metavar="COMMIT", help="tests of the kernels that changed since then")
    parser.add_argument("--failed", type=Path, nargs="*", help="suite.json of earlier runs: their failures alone")
    parser.add_argument(
        "--skip", type=Path, nargs="*", default=[], help="suite.json of earlier runs: what ran then is left out"
    )
    parser.add_argument("--record", type=Path, help="folder for the kernels that the emulator compiles")
    parser.add_argument("--device", choices=("cuda", "emulator"), default="cuda")
    options = parser.parse_args(arguments)
    result = run(options)
    print("\n".join(report(result)))
    return int(bool(result["failures"] or result["lost"] or result["unfinished"]))


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
