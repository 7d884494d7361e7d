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
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ovgpu  # noqa: F401  # before its folder leaves the path
from tests.clients.modes import MODES, compiled

ROOT = Path(__file__).parents[1]
LISTING = Path(__file__).parent / "clients" / "openvino_suite.txt"

COLUMNS = ["plug-in", "replaced"]

REASONS = [
    (
        r"test_custom|custom_op|_op_extension|Op.__init__|add_extension|gqa_extension_add",
        "defines an operation by openvino's Op, whose computation is in C++ or calls openvino's nodes; see ovgpu.Op",
    ),
    (r"query_model", "expects the name CPU, which the suite replaces"),
    (
        r"_docs: |__entries|_from_node|_infer_request|test_init_with_node|keeps_memory|test_const_output_docs"
        r"|device_properties|device_priorities|compiled_blob",
        "looks at internals of openvino's bindings",
    ),
    (
        r"lower_value|value_symbol|test_input_get_tensor|symbol_predicate",
        "reads bounds and symbols of openvino's shape inference",
    ),
    (r"assert .* in ['\"]|get_default_context_cpu|numpy_fail", "expects the text of openvino's error"),
    (r"'Multiply' in", "expects a Multiply where ovgpu's preprocessing has a Divide"),
    (r"test_partial_shape_equals", "expects TypeError when a dynamic shape is compared with a tuple"),
    (r"user_config", "expects a folder made by read_model, whose cache ovgpu does not have"),
]
"""Patterns of "function: message" of tests that fail, and why."""


# ---- inside pytest

outcomes: dict[str, str] = {}
"""The outcome of each test: "passed", "skipped", or a line of its error."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Set the mode up before the tests import openvino."""
    MODES[os.environ["SUITE_MODE"]]()
    if os.environ["SUITE_MODE"] == "plug-in":
        _use_for_cpu()
    sys.meta_path.insert(0, Runtime())
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != ROOT]
    for name in [name for name in list(sys.modules) if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # the suite is a package of that name too


class Runtime:
    """Finder and loader of ``openvino.runtime``, which older copies of the tests import, as openvino."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if f"{name}.".startswith("openvino.runtime.") else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create a module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(module.__name__.replace("openvino.runtime", "openvino", 1))


def _use_for_cpu() -> None:
    """Let ovgpu compile what a test compiles for the CPU, or for no device in particular."""
    import openvino

    for name in ("compile_model", "query_model", "import_model"):
        setattr(openvino.Core, name, _for_nvidia(getattr(openvino.Core, name)))
    set_property = openvino.Core.set_property

    def set_for_both(self: Any, *args: Any) -> None:
        set_property(self, *args)
        if args[0] == "CPU":
            with suppress(RuntimeError):  # ovgpu need not have all properties of openvino's CPU
                set_property(self, "NVIDIA", *args[1:])

    openvino.Core.set_property = set_for_both


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
        environment = {
            **os.environ,
            "SUITE_MODE": mode,
            "SUITE_RESULT": str(result),
            "TEST_DEVICE": "CPU",
            "PYTHONPATH": str(ROOT),
        }
        command = [
            sys.executable,
            "-P",
            "-m",
            "pytest",
            "-q",
            "--tb=short",
            "-p",
            "tests.openvino_suite",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            scratch,
            "--continue-on-collection-errors",
            link,
        ]
        done = subprocess.run(command, cwd=scratch, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if not result.exists():
            sys.exit(f"{mode}: pytest ended with {done.returncode}:\n{done.stdout}")
        found = json.loads(result.read_text())
    print(
        f"{mode}: {list(found['outcomes'].values()).count('passed')} of {len(found['outcomes'])} pass, "
        f"ovgpu compiled {found['compiled']} models",
        flush=True,
    )
    return found["outcomes"]  # type: ignore[no-any-return]


def by_function(outcomes: dict[str, str]) -> Counter[str]:
    """Return the number of cases that pass, by test function."""
    return Counter(name.partition("[")[0] for name, outcome in outcomes.items() if outcome == "passed")


def reason(name: str, message: str) -> str:
    """Return why a test fails, by the patterns of `REASONS`; its message if none matches."""
    return next((why for pattern, why in REASONS if re.search(pattern, f"{name}: {message}")), f"? {message}")


def failures(counted: Counter[str], outcomes: dict[str, str]) -> dict[str, list[str]]:
    """Return the reasons of the cases that fail in a mode, by test function."""
    passed, found = by_function(outcomes), dict[str, list[str]]()
    for function, cases in counted.items():
        missing = cases - passed[function]
        messages = [
            message for name, message in outcomes.items() if name.partition("[")[0] == function and message != "passed"
        ]
        if missing > 0:
            found[function] = [reason(function, message) for message in messages[:missing]] + ["not collected"] * (
                missing - len(messages)
            )
    return found


def main() -> None:
    """Run the suite, and print the tests that pass with openvino alone and fail with ovgpu."""
    parser = argparse.ArgumentParser(prog="python -m tests.openvino_suite", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mode", action="append", choices=COLUMNS)
    parser.add_argument("--write", action="store_true", help=f"write the tests and the reasons into {LISTING.name}")
    options = parser.parse_args()
    if options.write and options.mode:
        parser.error("--write needs both modes")
    counted = by_function(run(options.folder, "openvino"))
    results = {mode: failures(counted, run(options.folder, mode)) for mode in options.mode or COLUMNS}
    for mode, failed in results.items():
        print(f"\n{mode}: {summary(counted, failed)}")
        for why, number in reasons(failed):
            print(f"{number:6} {why}")
            print(*(f"           {name}" for name, whys in failed.items() if why in whys), sep="\n")
    if options.write:
        write(counted, results)


def summary(counted: Mapping[str, int], failed: dict[str, list[str]]) -> str:
    """Return how many cases pass in a mode, in words."""
    total = sum(counted.values())
    return f"{total - sum(map(len, failed.values()))} of the {total} cases that pass with openvino"


def reasons(failed: dict[str, list[str]]) -> list[tuple[str, int]]:
    """Return the reasons of failures and how many cases each has, the most frequent first."""
    return Counter(why for whys in failed.values() for why in whys).most_common()


def write(counted: Mapping[str, int], results: dict[str, dict[str, list[str]]]) -> None:
    """Write the counts of each function, and the reasons of failures, in place of the rows of these functions."""
    cases: dict[str, int] = {}
    failed: dict[str, dict[str, list[str]]] = {mode: {} for mode in results}
    for row, _, why in (line.partition("  # ") for line in _rows()):
        name, number, *passed = row.split()
        cases[name] = int(number)
        for mode, count in zip(COLUMNS, map(int, passed), strict=True):
            if count < cases[name]:
                failed[mode][name] = [why] * (cases[name] - count)
    cases.update(counted)
    for mode, found in results.items():
        failed[mode] = {name: whys for name, whys in failed[mode].items() if name not in counted} | found
    lines = [f"# {mode}: {summary(cases, failed[mode])}" for mode in COLUMNS]
    for mode in COLUMNS:
        lines += ["#", f"# Failures of {mode}, by reason:"]
        lines += [f"# {number:5}  {why}" for why, number in reasons(failed[mode])]
    lines += ["#", f"# Cases that pass with openvino, {', '.join(COLUMNS)}, and reasons; by function"]
    for name, number in cases.items():
        whys = [failed[mode].get(name, []) for mode in COLUMNS]
        why = "; ".join(sorted({why for some in whys for why in some}))
        lines.append(f"{name} {number} {' '.join(str(number - len(some)) for some in whys)}" + f"  # {why}" * bool(why))
    LISTING.write_text("\n".join(lines) + "\n")


def _rows() -> list[str]:
    lines = LISTING.read_text().splitlines() if LISTING.exists() else []
    return [line for line in lines if line[0] != "#"]


if __name__ == "__main__":
    main()
