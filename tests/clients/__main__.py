"""Run programs of other people with ovgpu, and compare what they compute with OpenVINO's own results.

    python -m tests.clients [PROGRAM ...] [--folder FOLDER] [--samples FOLDER ...] [--here] [--write]

Each program gets a virtual environment and models below FOLDER, made once. It runs once with openvino's CPU plugin in
f32, and once in each of the other modes of `modes.py`. ``--here`` uses the current environment, and ``--write`` puts
the results into the table of README.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from hashlib import sha256
from importlib import import_module
from pathlib import Path

import numpy as np

from .modes import modes_of
from .table import Row, write

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ovgpu-clients"
RTOL = 1e-4  # of the largest value, for floats; integers and strings must be equal


def programs() -> list[str]:
    """Return the names of all programs."""
    return sorted(path.stem for path in (HERE / "programs").glob("[!_]*.py"))


def environment(name: str, folder: Path) -> Path:
    """Return the Python of a virtual environment with what a program requires; make it at the first call."""
    program = import_module(f"tests.clients.programs.{name}")
    requirements = [*program.REQUIREMENTS, "openvino", "numpy", "lxml", "ml_dtypes", "rich"]
    home = folder / f"environment-{sha256(' '.join(requirements).encode()).hexdigest()[:8]}"
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *requirements], check=True)
        if unwanted := getattr(program, "UNWANTED", []):
            subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", *unwanted], check=True)
        (home / "complete").touch()
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", ROOT], check=True)
    return python


def run(python: Path | str, mode: str, name: str, folder: Path) -> str:
    """Run one program in one mode. Return "" or the last line of its error.

    An environment of the program's own has ovgpu as an installed wheel, so that the source tree must not be found.
    """
    source = folder / "source"
    source.mkdir(exist_ok=True)
    if not (source / "tests").exists():
        (source / "tests").symlink_to(ROOT / "tests")
    renamed = {"OVGPU_INSTALL_AS": "AUTO,GPU,CPU"} if mode == "renamed" else {}
    path = ROOT if python == sys.executable else source
    found = subprocess.run(
        [python, "-m", "tests.clients.modes", mode, name, folder],
        cwd=path,
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(path), **renamed},
    )
    (folder / f"{mode}.log").write_text(found.stdout + found.stderr)
    return "" if found.returncode == 0 else (found.stderr.strip().splitlines() or ["it failed"])[-1]


def differences(folder: Path, mode: str) -> str:
    """Return how the results of a mode differ from openvino's, "" if they are equal."""
    expected, found = np.load(folder / "openvino.npz"), np.load(folder / f"{mode}.npz")
    if expected.files != found.files:
        return f"results {found.files}, expected {expected.files}"
    wrong = [name for name in expected.files if not _equal(found[name], expected[name])]
    return f"differs: {', '.join(wrong)}" if wrong else ""


def _equal(found: np.ndarray, expected: np.ndarray) -> bool:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if expected.dtype.kind != "f" or not expected.size:
        return np.array_equal(found, expected)
    return bool(np.abs(found - expected).max() <= RTOL * np.abs(expected).max())


def check(name: str, python: Path | str, folder: Path) -> Row:
    """Run a program in all modes, and return its row of the table."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "prepared").exists():
        error = run(python, "prepare", name, folder)
        if error:
            raise SystemExit(f"{name} cannot be prepared: {error} (see {folder / 'prepare.log'})")
        (folder / "prepared").touch()
    error = run(python, "openvino", name, folder)
    if error:
        raise SystemExit(f"{name} fails with openvino alone: {error} (see {folder / 'openvino.log'})")
    outcomes = {
        mode: run(python, mode, name, folder) or differences(folder, mode) or "equal"
        for mode in modes_of(import_module(f"tests.clients.programs.{name}"))
        if mode != "openvino"
    }
    return Row(name, outcomes, len(np.load(folder / "openvino.npz").files))


def main() -> None:
    """Run the programs that the command line names, by default all."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__.split("\n\n")[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(programs())}")
    parser.add_argument("--folder", type=Path, default=CACHE, help=f"for environments and models (default {CACHE})")
    parser.add_argument(
        "--samples",
        type=Path,
        action="append",
        help="samples/python of OpenVINO's repository, and another time that of OpenVINO GenAI's",
    )
    parser.add_argument("--here", action="store_true", help="use this environment instead of one of the program's own")
    parser.add_argument("--write", action="store_true", help="write the results into README.md")
    options = parser.parse_args()
    unknown = set(options.programs) - set(programs())
    if unknown:
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    if options.samples:
        os.environ["OVGPU_SAMPLES"] = os.pathsep.join(str(folder.resolve()) for folder in options.samples)
    elif not options.programs:
        parser.error("samples and genai_samples need --samples, copies of samples/python of their repositories")
    rows = []
    for name in options.programs or programs():
        python = sys.executable if options.here else environment(name, options.folder)
        row = check(name, python, options.folder / "runs" / name)
        print(name, *(f"{mode}: {outcome}" for mode, outcome in row.outcomes.items()), sep="\n  ", flush=True)
        rows.append(row)
    if options.write:
        write(rows)
    if any(outcome != "equal" for row in rows for outcome in row.outcomes.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
