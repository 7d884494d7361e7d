"""The table of all kernel instances that the tests run: each has to compile for real devices as well.

    python -m tests.kernels.gate [pytest arguments]

runs the tests that the arguments choose (all by default) and adds the instances that the table lacks (without
arguments, it also drops instances that no test runs). It records the resource usage that NVRTC reports for each
instance, and a digest of the sources. test_gate.py compiles the instances of files whose digest has changed, and with
`pytest --long` the whole table, which takes minutes. As a pytest plugin, which tests/conftest.py loads, this module
compiles missing instances at the end of a run, and compares the launched blocks with each architecture's limits."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import Any

import pytest

from ovgpu.backends.cuda import kernels
from tests.emulator import kernel, nvrtc
from tests.emulator.limits import Block, Usage

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("instances.json")
SOURCES = Path(__file__).with_name("compiled.json")  # per file, the digest of the sources that the table was made from
HINT = "kernel instances that tests/kernels/instances.json lacks: `python -m tests.register` adds them"
# Files with instructions that older GPUs lack: the ops check the compute capability before they launch them.
NEEDS = dict.fromkeys(
    (
        "attention_mma.cu",
        "attention_stream.cu",
        "implicit_gemm.cu",
        "product_mma.cu",
        "product_tiles.cu",
        "recurrent_mma.cu",
    ),
    nvrtc.AMPERE,
)

COMMENT = re.compile(r"\s*//.*")
INCLUDE = re.compile(r'#include "([^"]+)"')
UNBOUND = 256  # threads of a block that may launch with any register count (at most 255 per thread)
Instance = tuple[str, str]  # a file of cuda_kernels/, and a name expression
# Bytes that instances may spill: fewer spills would cost occupancy.
SPILLS: dict[Instance, dict[str, int]] = {
    ("recurrent.cu", "recurrent<float, float, int, GRU_LINEAR, 0, 1>"): {"sm_120": 8},
    # cards of this capability have too little shared memory for it
    ("product_tiles.cu", "product_tiles<Nibbles<true>, __half, None, __half, 4, 64, 2, 2, true>"): {"sm_120": 16},
}
ToCompile = Callable[[str, Sequence[str]], list[str]]  # the fixture `to_compile`
Table = dict[str, dict[str, dict[str, Usage]]]  # per file and expression, per architecture


def architectures(file: str) -> Sequence[str]:
    """Return the architectures that a file is compiled for."""
    return NEEDS.get(file, nvrtc.ARCHITECTURES)


def table() -> Table:
    """Return the contents of instances.json."""
    return _parsed(TABLE.read_text()) if TABLE.exists() else {}


@lru_cache(1)
def _parsed(text: str) -> Table:
    found = json.loads(text)
    return {
        file: {name: {architecture: Usage(*needs) for architecture, needs in row.items()} for name, row in rows.items()}
        for file, rows in found.items()
    }


def digest(file: str) -> str:
    """Return a digest of a file and its headers, without comments and white space, and of its compiler flags and
    instances."""
    found = hashlib.sha256(json.dumps([kernels.flags(file), sorted(table().get(file, {}))]).encode())
    names = [file]
    for name in names:  # grows by the headers that a file includes
        text = COMMENT.sub("", (nvrtc.KERNELS / name).read_text())
        found.update("".join(text.replace("\\\n", "").split()).encode())
        names += [header for header in dict.fromkeys(INCLUDE.findall(text)) if header not in names]
    return found.hexdigest()


def is_compiled(file: str) -> bool:
    """Return whether NVRTC has compiled the instances of a file, as it is now, for the table."""
    known: dict[str, str] = json.loads(SOURCES.read_text()) if SOURCES.exists() else {}
    return known.get(file) == digest(file)


def usage(file: str, expressions: Sequence[str], architecture: str) -> dict[str, Usage]:
    """Return the resources that instances of one file need. Raises NvrtcError if they do not compile."""
    cubin = nvrtc.compile_file(file, architecture, expressions)
    needs = {name: cubin.usage[cubin.lowered[name]] for name in expressions}
    return {name: Usage(use.registers, use.spill_stores, use.shared) for name, use in needs.items()}


def faults(instances: Iterable[Instance], only: Sequence[str] = nvrtc.ARCHITECTURES) -> list[str]:
    """Return the faults of these instances on real devices: compile errors, register spills, and launched blocks that
    exceed the limits."""
    found = []
    for file, expressions in by_file(instances).items():
        for architecture in (name for name in architectures(file) if name in only):
            try:
                needs = usage(file, expressions, architecture)
            except nvrtc.NvrtcError as error:
                found.append(str(error))
                continue
            found += [
                f"{file}: {name} spills {use.spilled} bytes for {architecture}"
                for name, use in needs.items()
                if use.spilled > SPILLS.get((file, name), {}).get(architecture, 0)
            ]
            found += [fault for name, use in needs.items() for fault in _excess((file, name), use, architecture)]
    return found


def by_file(instances: Iterable[Instance]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file, name in sorted(instances):
        found.setdefault(file, []).append(name)
    return found


# ---- the plugin ------------------------------------------------------------------------------------------
_seen: set[Instance] = set()
# Kernels behind generated source have no entry of their own: their name is "".
_functions: dict[int, tuple[kernel.Function, Instance]] = {}  # by the entry
_blocks: dict[Instance, Block] = {}
_faults: list[str] = []


def _unlisted() -> list[Instance]:
    known = table()
    return sorted((file, name) for file, name in _seen if name not in known.get(file, {}))


def _excess(instance: Instance, use: Usage, architecture: str) -> Iterator[str]:
    block = _blocks.get(instance)
    for what in [] if block is None else block.excess(use, architecture):
        yield f"{': '.join(instance)} was launched with {what}: too much for {architecture}"


def launch_faults() -> list[str]:
    """Return the launches of the table's instances whose blocks need more than an architecture has.

    Kernels behind generated source are assumed to use as much shared memory as the file's largest instance."""
    found = []
    for file, rows in table().items():
        shared = Usage(0, 0, max(use.shared for row in rows.values() for use in row.values()))
        known = {**rows, "": dict.fromkeys(architectures(file), shared)}
        found += [
            fault
            for name, row in known.items()
            for architecture, use in row.items()
            for fault in _excess((file, name), use, architecture)
        ]
    return found


def _record_launch(function: kernel.Function, threads: int, shared: int) -> None:
    known = _functions.get(id(function.entry))
    if known is None:
        return
    instance, used = known[1], Block(threads, shared)
    _blocks[instance] = _blocks.get(instance, used) | used
    if not instance[1] and threads > UNBOUND and function.max_threads == kernel.MAX_THREADS:
        _faults.append(f"{instance[0]}: {function.name} was launched with {threads} threads, and has no launch bounds")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--instances", help="write the kernel instances that the tests run to this file")


@cache
def _texts() -> dict[str, str]:
    return {path.name: path.read_text() for path in nvrtc.KERNELS.glob("*.cu")}


def pytest_configure(config: pytest.Config) -> None:
    """Patch the emulator to record the kernels that are looked up, and their launches."""
    find, launch = kernel.RawModule._function, kernel.launch

    def found(self: kernel.RawModule, name: str) -> Any:
        new = name not in self._functions
        function = find(self, name)
        if new:
            for file, text in _texts().items():
                if text in self.code:
                    whole = self.code.startswith(text)
                    _functions[id(function.entry)] = function, (file, name if whole else "")
                    _seen.update([(file, name)] if whole else [])
        return function

    def launched(
        function: kernel.Function,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        shared: int = 0,
        *more: Any,
        **named: Any,
    ) -> None:
        launch(function, grid, block, args, shared, *more, **named)
        _record_launch(function, prod(block), shared)

    kernel.RawModule._function = found  # type: ignore[method-assign]
    kernel.launch = launched


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Merge the records of a pytest-xdist worker process."""
    output = getattr(node, "workeroutput", {})
    _seen.update(map(tuple, output.get("kernel_instances", ())))
    for file, name, *block in output.get("kernel_blocks", ()):
        _blocks[file, name] = _blocks.get((file, name), Block(*block)) | Block(*block)
    _faults.extend(output.get("kernel_faults", ()))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["kernel_instances"] = sorted(_seen)
        session.config.workeroutput["kernel_blocks"] = [(*key, *astuple(block)) for key, block in _blocks.items()]
        session.config.workeroutput["kernel_faults"] = _faults
        return
    wanted = session.config.getoption("--instances")
    if wanted:
        Path(wanted).write_text(json.dumps(sorted(_seen)))
        return
    _faults.extend(launch_faults())
    if nvrtc.is_available():
        _faults.extend(faults(_unlisted()))
    if _faults and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    unlisted = [] if config.getoption("--instances") else _unlisted()
    if unlisted or _faults:
        terminalreporter.section(f"{len(unlisted)} {HINT}")
    for file, name in unlisted:
        terminalreporter.line(f"{file}: {name}")
    for fault in _faults:
        terminalreporter.line(fault, red=True)


# ---- the command -----------------------------------------------------------------------------------------
def record(instances: Iterable[Instance], rest: Table) -> None:
    """Compile these instances and write the table, with the rows of `rest` for other files."""
    names = by_file(instances)
    found: Table = {file: {name: {} for name in expressions} for file, expressions in names.items()}
    found = dict(sorted({**rest, **found}.items()))
    jobs = [
        (file, expressions, architecture) for file, expressions in names.items() for architecture in architectures(file)
    ]
    with ProcessPoolExecutor() as pool:
        for (file, _, architecture), needs in zip(jobs, pool.map(usage, *zip(*jobs))):
            for name, use in needs.items():
                found[file][name][architecture] = use
    rows = [
        f" {json.dumps(file)}: {{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(row, default=astuple)}" for name, row in expressions.items())
        + "\n }"
        for file, expressions in found.items()
    ]
    TABLE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    digests = {file: digest(file) for file in found if file in names or is_compiled(file)}
    SOURCES.write_text(json.dumps(digests, indent=1) + "\n")


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder) / "instances.json"
        command = [sys.executable, "-m", "pytest", "-q", "--all-rows", f"--instances={seen}", *arguments]
        failed = subprocess.run(command, cwd=ROOT, check=False).returncode
        met: set[Instance] = {(file, name) for file, name in json.loads(seen.read_text())}
    rest = table() if arguments or failed else {}
    known = {(file, name) for file, expressions in rest.items() if is_compiled(file) for name in expressions}
    files = {file for file, name in met if (file, name) not in known}
    met |= {(file, name) for file, expressions in rest.items() for name in expressions}
    record(
        [(file, name) for file, name in met if file in files],
        {file: expressions for file, expressions in rest.items() if file not in files},
    )
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
