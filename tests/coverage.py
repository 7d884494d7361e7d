"""Line coverage of the kernels and of the CUDA backend by the emulated tests.

    python -m tests.coverage [--lines] [pytest arguments]

The command runs all tests on the emulated device, or those that the arguments choose, with kernels that count their
lines (gcov) in a separate cache. It prints a table, and with --lines also the lines that no test reached. It fails if a
test fails, or if less than 90 % of the kernels or of the backend is covered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "cuda_kernels"
BACKEND = ROOT / "ovgpu" / "backends" / "cuda"
MIN_PERCENT = 90.0
DEFAULT = ["tests", "-k", "EMULATED or kernels or emulator or devices", "--all-rows", "-n", "2", "--dist", "loadfile"]

Lines = dict[int, bool]  # whether a line that has code was reached


# ---- in the test processes, as a pytest plugin -----------------------------------------------------------
_DUMP = """
extern "C" void __gcov_dump(void);
extern "C" __global__ void emu_dump_coverage() { __gcov_dump(); }
"""
_libraries: list[Any] = []


def pytest_configure() -> None:
    """Make the emulator compile kernels that count their lines, under the names of their source files."""
    from tests.emulator import kernel, toolchain

    toolchain.FLAGS = (*toolchain.FLAGS, "--coverage")
    toolchain.LINK_FLAGS = (*toolchain.LINK_FLAGS, "-lgcov")
    compile_library = kernel.compile_library
    with_launchers = kernel.with_launchers

    def named(code: str, exports: Sequence[str]) -> str:
        file = next((path for path in KERNELS.glob("*.cu") if code.startswith(path.read_text())), "kernel.cu")
        return with_launchers(code, exports).replace('#line 1 "kernel.cu"', f'#line 1 "{file}"', 1) + _DUMP

    def remembered(code: str, options: Sequence[str] = ()) -> Any:
        _libraries.append(compile_library(code, options))
        return _libraries[-1]

    kernel.with_launchers, kernel.compile_library = named, remembered  # type: ignore[attr-defined]


def pytest_sessionfinish() -> None:
    for library in _libraries:
        library.emu_dump_coverage()


# ---- reached lines ---------------------------------------------------------------------------------------
def _gcov(cache: Path) -> Iterator[dict[str, Any]]:
    files = sorted(map(str, cache.glob("*.gcda")))
    for start in range(0, len(files), 100):
        command = ["gcov", "--json-format", "--stdout", *files[start : start + 100]]
        out = subprocess.run(command, cwd=cache, capture_output=True, text=True, check=True).stdout
        for line in filter(None, out.splitlines()):
            yield from json.loads(line)["files"]


def kernel_lines(cache: Path) -> dict[Path, Lines]:
    """Return the lines of files in cuda_kernels/; a line of a template counts once, whichever instance reached it."""
    found: dict[Path, Lines] = defaultdict(dict)
    for file in _gcov(cache):
        path = Path(file["file"]).resolve()
        if path.parent == KERNELS:
            for line in file["lines"]:
                number = line["line_number"]
                found[path][number] = found[path].get(number, False) or line["count"] > 0
    for path in (*KERNELS.glob("*.cu"), *KERNELS.glob("*.cuh")):
        if path not in found:  # no test compiles it
            found[path] = {number: False for number, text in enumerate(path.read_text().splitlines(), 1) if ";" in text}
    return found


def python_lines(report: Path) -> dict[Path, Lines]:
    """Return the lines of the modules in a JSON report of coverage.py."""
    found: dict[Path, Lines] = {}
    for name, file in json.loads(report.read_text())["files"].items():
        reached = {number: True for number in file["executed_lines"]}
        found[ROOT / name] = reached | {number: False for number in file["missing_lines"]}
    return found


def percent(lines: Sequence[bool]) -> float:
    """Return the percentage of reached lines, 100 if there are none."""
    return 100.0 * sum(lines) / len(lines) if lines else 100.0


def _ranges(numbers: Sequence[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def show(title: str, files: dict[Path, Lines], missing: bool) -> float:
    """Print a table; return the percentage over all files."""
    print(f"\n{title:<34}{'lines':>8}{'missed':>8}{'%':>8}")
    for path, lines in sorted(files.items()):
        missed = sorted(number for number, reached in lines.items() if not reached)
        name = path.relative_to(ROOT)
        print(f"{name!s:<34}{len(lines):>8}{len(missed):>8}{percent(list(lines.values())):>8.1f}")
        if missing and missed:
            print(f"    {_ranges(missed)}")
    every = [reached for lines in files.values() for reached in lines.values()]
    print(f"{'all':<34}{len(every):>8}{len(every) - sum(every):>8}{percent(every):>8.1f}")
    return percent(every)


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    missing = "--lines" in arguments
    tests = [argument for argument in arguments if argument != "--lines"] or DEFAULT
    with tempfile.TemporaryDirectory(prefix="ovgpu-coverage-") as folder:
        cache, report = Path(folder) / "cache", Path(folder) / "python.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.coverage", f"--cov={BACKEND}"]
        command += [f"--cov-report=json:{report}", *tests]
        environment = {**os.environ, "OVGPU_EMU_CACHE": str(cache), "COVERAGE_FILE": str(Path(folder) / "data")}
        failed = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        kernels = show("kernels", kernel_lines(cache), missing)
        backend = show("backend", python_lines(report), missing)
    return failed or int(min(kernels, backend) < MIN_PERCENT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
