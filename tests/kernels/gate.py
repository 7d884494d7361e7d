"""The table of all kernel instances that the tests run: each has to compile for real devices as well.

    python -m tests.kernels.gate [pytest arguments]

runs the tests that the arguments choose (all by default), adds the instances that the table lacks (without arguments,
also drops those that no test runs), and records what NVRTC says of each, and of which sources it says so. test_gate.py
compiles those of other sources, and with `pytest --long` all of the table, which takes minutes. As a pytest plugin,
which tests/conftest.py loads, this module compiles at the end of a run what the table lacks."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.emulator import kernel, nvrtc

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("instances.json")
SOURCES = Path(__file__).with_name("compiled.json")  # per file, the digest of what the table was made from
HINT = "kernel instances that tests/kernels/instances.json lacks: `python -m tests.kernels.gate` adds them"

COMMENT = re.compile(r"\s*//.*")
Instance = tuple[str, str]  # a file of cuda_kernels/, and a name expression
SPILLS: dict[Instance, str] = {}  # instances that spill registers, and why they may
# Per file and expression, per architecture: registers, and bytes of spill stores.
Table = dict[str, dict[str, dict[str, list[int]]]]


def table() -> Table:
    found: Table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    return found


def digest(file: str) -> str:
    """Digest of a file, of all headers, both without comments, and of the file's instances."""
    found = hashlib.sha256(json.dumps(sorted(table().get(file, {}))).encode())
    for path in (nvrtc.KERNELS / file, *sorted(nvrtc.KERNELS.glob("*.cuh"))):
        found.update(COMMENT.sub("", path.read_text()).encode())
    return found.hexdigest()


def is_compiled(file: str) -> bool:
    """Whether NVRTC has compiled the instances of a file, as it is now, for the table."""
    known: dict[str, str] = json.loads(SOURCES.read_text()) if SOURCES.exists() else {}
    return known.get(file) == digest(file)


def usage(file: str, expressions: Sequence[str], architecture: str) -> dict[str, list[int]]:
    """Registers and spills of instances of one file; NvrtcError when they do not compile."""
    cubin = nvrtc.compile_file(file, architecture, expressions)
    needs = {name: cubin.usage[cubin.lowered[name]] for name in expressions}
    return {name: [use.registers, use.spill_stores] for name, use in needs.items()}


def faults(instances: Iterable[Instance]) -> list[str]:
    """What is wrong with each of these for real devices: it does not compile, or spills registers."""
    found = []
    for file, expressions in by_file(instances).items():
        for architecture in nvrtc.ARCHITECTURES:
            try:
                needs = usage(file, expressions, architecture)
            except nvrtc.NvrtcError as error:
                found.append(str(error))
            else:
                found += [f"{file}: {name} spills {spilled} bytes for {architecture}"
                          for name, (_, spilled) in needs.items() if spilled and (file, name) not in SPILLS]
    return found


def by_file(instances: Iterable[Instance]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file, name in sorted(instances):
        found.setdefault(file, []).append(name)
    return found


# ---- the plugin ------------------------------------------------------------------------------------------
_met: set[Instance] = set()
_faults: list[str] = []


def _unlisted() -> list[Instance]:
    known = table()
    return sorted((file, name) for file, name in _met if name not in known.get(file, {}))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--instances", help="write the kernel instances that the tests run to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Watches which kernels the emulator is asked for."""
    find = kernel.RawModule._function

    def watched(self: kernel.RawModule, name: str) -> Any:
        if name not in self._functions:
            files = [path.name for path in nvrtc.KERNELS.glob("*.cu") if self.code.startswith(path.read_text())]
            find(self, name)
            _met.update((file, name) for file in files)
        return find(self, name)

    kernel.RawModule._function = watched  # type: ignore[method-assign]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """From a worker process of pytest-xdist, which has run some of the tests."""
    _met.update(map(tuple, getattr(node, "workeroutput", {}).get("kernel_instances", ())))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["kernel_instances"] = sorted(_met)
        return
    wanted = session.config.getoption("--instances")
    if wanted:
        Path(wanted).write_text(json.dumps(sorted(_met)))
    elif nvrtc.is_available():
        _faults.extend(faults(_unlisted()))
        if _faults and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _unlisted() and not config.getoption("--instances"):
        terminalreporter.section(f"{len(_unlisted())} {HINT}")
        for file, name in _unlisted():
            terminalreporter.line(f"{file}: {name}")
        for fault in _faults:
            terminalreporter.line(fault, red=True)


# ---- the command -----------------------------------------------------------------------------------------
def record(instances: Iterable[Instance], rest: Table) -> None:
    """Writes the table of these instances, and of what `rest` has for other files."""
    names = by_file(instances)
    found: Table = {file: {name: {} for name in expressions} for file, expressions in names.items()}
    found = dict(sorted({**rest, **found}.items()))
    for file, expressions in names.items():
        for architecture in nvrtc.ARCHITECTURES:
            for name, needs in usage(file, expressions, architecture).items():
                found[file][name][architecture] = needs
    rows = [f" {json.dumps(file)}: {{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(needs)}"
            for name, needs in expressions.items()) + "\n }" for file, expressions in found.items()]
    TABLE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    digests = {file: digest(file) for file in found if file in names or is_compiled(file)}
    SOURCES.write_text(json.dumps(digests, indent=1) + "\n")


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder) / "instances.json"
        command = [sys.executable, "-m", "pytest", "-q", f"--instances={seen}", *arguments]
        failed = subprocess.run(command, cwd=ROOT, check=False).returncode
        met: set[Instance] = {(file, name) for file, name in json.loads(seen.read_text())}
    files = {file for file, _ in met}
    rest = table() if arguments or failed else {}
    met |= {(file, name) for file, expressions in rest.items() if file in files for name in expressions}
    record(met, {file: expressions for file, expressions in rest.items() if file not in files})
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
