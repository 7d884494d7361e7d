"""Run OpenVINO's own Python tests with ovgpu: as a device inside openvino, and in openvino's place.

    python -m tests.openvino_suite FOLDER [--mode MODE] [--write]

FOLDER is a copy of ``src/bindings/python/tests`` of the OpenVINO repository. The tests run once with openvino alone,
and those that pass count. In mode "plug-in", ovgpu compiles every model that a test compiles for the CPU or for no
device in particular; in mode "replaced", the tests import ovgpu by openvino's name. ``--write`` lists the tests that
count, and those that fail, in clients/openvino_suite.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import ovgpu  # noqa: F401  # before its folder leaves the path
from tests.clients.modes import MODES, Alias, compiled

ROOT = Path(__file__).parents[1]
LISTING = Path(__file__).parent / "clients" / "openvino_suite.txt"


# ---- inside pytest

outcomes: dict[str, str] = {}
"""The outcome of each test: "passed", "skipped", or the last line of its error."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Set the mode up before the tests import openvino."""
    MODES[os.environ["SUITE_MODE"]]()
    if os.environ["SUITE_MODE"] == "plug-in":
        _use_for_cpu()
    sys.meta_path.insert(0, Alias("openvino.runtime", "openvino"))  # which older copies of the tests import
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != ROOT]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # the suite is a package of that name too


def _use_for_cpu() -> None:
    """Let ovgpu compile what a test compiles for the CPU, or for no device in particular."""
    import openvino

    for name in ("compile_model", "query_model", "import_model"):
        setattr(openvino.Core, name, _for_nvidia(getattr(openvino.Core, name)))


def _for_nvidia(method: Any) -> Any:
    def called(self: Any, model: Any, device_name: Any = None, config: Any = None, **kwargs: Any) -> Any:
        if isinstance(device_name, dict):
            device_name, config = None, device_name
        if device_name in (None, "CPU", "AUTO") and not sys._getframe(1).f_globals["__name__"].startswith("ovgpu"):
            device_name = "NVIDIA"
        return method(self, model, device_name, config, **kwargs)

    return called


def pytest_runtest_logreport(report: Any) -> None:
    """Record the outcome of a test, which fails if its setup does."""
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        outcomes[report.nodeid] = (crash.message if crash else str(report.longrepr)).strip().splitlines()[0]
    elif report.skipped or report.when == "call":
        outcomes.setdefault(report.nodeid, report.outcome)


def pytest_collectreport(report: Any) -> None:
    """Record a file that cannot be imported."""
    if report.failed:
        outcomes[report.nodeid] = str(report.longrepr).strip().splitlines()[-1]


def pytest_sessionfinish() -> None:
    """Write the outcomes, and the number of models that ovgpu compiled."""
    Path(os.environ["SUITE_RESULT"]).write_text(json.dumps({"outcomes": outcomes, "compiled": len(compiled)}))


# ---- outside

def run(folder: Path, mode: str) -> dict[str, str]:
    """Run all tests in one mode. Return their outcomes."""
    with tempfile.TemporaryDirectory() as scratch:
        result, link = Path(scratch, "result.json"), Path(scratch, "tests")
        link.symlink_to(folder.resolve(), target_is_directory=True)
        environment = {**os.environ, "SUITE_MODE": mode, "SUITE_RESULT": str(result), "TEST_DEVICE": "CPU",
                       "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-P", "-m", "pytest", "-q", "--tb=short", "-p", "tests.openvino_suite",
                   "-p", "no:cacheprovider", "--rootdir", scratch, "--continue-on-collection-errors", link]
        done = subprocess.run(command, cwd=scratch, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if not result.exists():
            sys.exit(f"{mode}: pytest ended with {done.returncode}:\n{done.stdout}")
        found = json.loads(result.read_text())
    print(f"{mode}: {list(found['outcomes'].values()).count('passed')} of {len(found['outcomes'])} pass, "
          f"ovgpu compiled {found['compiled']} models", flush=True)
    return found["outcomes"]  # type: ignore[no-any-return]


def main() -> None:
    """Run the suite, and print the tests that pass with openvino alone and fail with ovgpu."""
    parser = argparse.ArgumentParser(prog="python -m tests.openvino_suite", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mode", action="append", choices=[name for name in MODES if name != "openvino"])
    parser.add_argument("--write", action="store_true", help=f"write the names of the tests into {LISTING.name}")
    options = parser.parse_args()
    alone = run(options.folder, "openvino")
    expected = [name for name, outcome in alone.items() if outcome == "passed"]
    for name in sorted(alone.keys() - {*expected}):
        print(f"  not counted: {name}: {alone[name]}")
    failures: dict[str, dict[str, str]] = {}
    for mode in options.mode or [name for name in MODES if name != "openvino"]:
        found = run(options.folder, mode)
        failures[mode] = {name: found.get(name, "not collected") for name in expected
                          if found.get(name) != "passed"}
        print(f"{mode}: {len(expected) - len(failures[mode])} of {len(expected)} that pass with openvino")
        for name, outcome in failures[mode].items():
            print(f"  {name}: {outcome}")
    if options.write:
        write(expected, failures)


def write(expected: list[str], failures: dict[str, dict[str, str]]) -> None:
    """Write the tests that count, each with the modes in which it fails."""
    lines = []
    for name in expected:
        failed = ", ".join(mode for mode, tests in failures.items() if name in tests)
        lines.append(f"{name}  # fails: {failed}\n" if failed else f"{name}\n")
    LISTING.write_text("".join(lines))


if __name__ == "__main__":
    main()
