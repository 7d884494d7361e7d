"""Shared parts of the benchmarks: engines, timing, and workers that run one at a time in separate processes.

Two runtimes in one process make both times wrong, since their thread pools compete. Every measurement is therefore a
process that prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("OVGPU_BENCH_MODELS", Path.home() / ".cache" / "ovgpu" / "bench"))
# Variables that workers do not get: they set the kernels and numbers of threads of libraries, or slow down imports.
OVERRIDES = ("OPENBLAS_", "MKL_", "OMP_", "ONEDNN_", "PYTHONDONTWRITEBYTECODE")
sys.path.insert(0, str(ROOT))  # for tests.models, whichever folder this runs in

from tests.harness.models.drive import OPENVINO_F32  # noqa: E402


def parser(description: str | None, rounds: int = 5) -> argparse.ArgumentParser:
    """Return a parser with the options of the benchmarks of whole models."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--device", default="CPU", help="ovgpu's device (OpenVINO stays on the CPU)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where the models are")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    return parser


def compile_model(engine: str, xml: Path | bytes, weights: bytes | None = None, device: str = "CPU") -> Any:
    """Compile a model. `engine` is ovgpu on `device` or openvino on the CPU in f32; `xml` a path, or text with
    `weights`."""
    if engine == "ovgpu":
        import ovgpu as ov

        config: dict[str, str] = {}
    elif engine == "openvino":
        import openvino as ov

        device, config = "CPU", OPENVINO_F32
        # Arrays are converted once here, before threads make inferences.
        ov.Tensor(np.zeros(1))
    else:
        raise ValueError(f"no such engine: {engine}")
    core = ov.Core()
    model = core.read_model(xml) if weights is None else core.read_model(model=xml, weights=weights)
    return core.compile_model(model, device, config)


def measure(run: Callable[[], object], seconds: float, least: int = 5) -> dict[str, float]:
    """Time `run`, called for about `seconds` and at least `least` times after a warm-up; return a `summary`."""
    for _ in range(2):
        run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return summary(times)


def sample(output: Any) -> list[float]:
    """Return about 256 values of an output, for comparison."""
    values = np.asarray(output).ravel()
    return values[:: max(1, values.size // 256)].astype(float).tolist()


def summary(times: list[float]) -> dict[str, float]:
    """Return the median and least of `times` (in seconds) in milliseconds, and their number."""
    return {"ms": 1e3 * statistics.median(times), "least_ms": 1e3 * min(times), "count": len(times)}


def work(script: str, *arguments: object) -> dict[str, Any]:
    """Return the result of `script --worker ARGUMENTS...`: the JSON in the last line it prints."""
    command = [sys.executable, str(ROOT / "bench" / script), "--worker", *map(str, arguments)]
    as_installed = {key: value for key, value in os.environ.items() if not key.startswith(OVERRIDES)}
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=as_installed)
    if process.returncode:
        raise RuntimeError(f"{script} {' '.join(command[3:])} failed:\n{process.stderr[-3000:]}")
    return json.loads(process.stdout.splitlines()[-1])


def alternate(
    script: str, engines: Sequence[str], rounds: int, arguments: Callable[[str], Sequence[object]]
) -> dict[str, list[dict[str, Any]]]:
    """Return each engine's results over `rounds`, the engines taking turns; `arguments(engine)` are its worker's."""
    console = Console(stderr=True)
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        console.print("[yellow]Other processes keep this machine busy: the times will not be comparable.")
    results: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=rounds * len(engines))
        for k in range(rounds):
            for engine in engines:
                words = arguments(engine)
                progress.update(task, description=f"{' '.join(map(str, words[:2]))}, round {k + 1}")
                results[engine].append(work(script, *words))
                progress.advance(task)
    return results


def medians(results: dict[str, list[dict[str, Any]]], *keys: str) -> dict[str, dict[str, Any]]:
    """Return the medians over the rounds of each engine's figures, or of those named by `keys`."""
    return {
        engine: {key: statistics.median(run[key] for run in runs) for key in keys or runs[0]}
        for engine, runs in results.items()
    }


def agree(name: str, samples: dict[str, list[float]]) -> None:
    """Raise SystemExit unless the engines computed the same: values to 1e-3 of the largest one, tokens exactly."""
    (first, expected), *others = [(engine, np.array(sample)) for engine, sample in samples.items()]
    allowed = 0 if expected.dtype.kind == "i" else 1e-3 * np.abs(expected).max()
    for engine, actual in others:
        error = np.abs(actual - expected).max() if actual.shape == expected.shape else np.inf
        if not error <= allowed:
            raise SystemExit(f"[{name}] {engine} and {first} differ by {error}: their times say nothing")


def ensure(name: str, cache: Path) -> Path:
    """Return the folder of a large model of tests/models/make.py, which is made if it is missing."""
    folder = cache / name
    if not (folder / "expected.npz").exists():
        command = [sys.executable, "-m", "tests.models.make", name, "--out", str(cache)]
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if process.returncode:
            raise SystemExit(
                f"{process.stderr[-1500:]}\ncannot make {name}: with the extra `models` installed, run\n"
                f"  python -m tests.models.make {name} --out DIR\nand give that DIR here by --cache"
            )
    return folder


def environment() -> dict[str, Any]:
    """Return date, processor and versions, which every table of results states."""
    versions = {"python": platform.python_version()}
    for package in (
        "ovgpu",
        "numpy",
        "openvino",
        "onnxruntime",
        "torch",
        "transformers",
        "cupy-cuda13x",
        "cupy-cuda12x",
    ):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            if package == "ovgpu":
                versions[package] = "source"
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "versions": versions,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(map(str.strip, line.split(":", 1)) for line in lines if ":" in line)
    known = ("avx2", "avx512f", "amx_bf16")
    features = ", ".join(flag for flag in known if flag in fields.get("flags", "").split())
    return fields.get("model name", platform.machine()) + (f" ({features})" if features else "")


def report(
    folder: Path | None,
    name: str,
    title: str,
    columns: list[str],
    rows: list[list[str]],
    result: dict[str, Any],
    how: str = "each engine in a process of its own",
    note: str = "",
) -> None:
    """Print the table and `note`; write `name`.md and, with the environment and `result`, `name`.json."""
    table = Table(columns[0], title=title)
    for column in columns[1:]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    if note:
        console.print(note)
    if folder is None:
        return
    env = environment()
    versions = ", ".join(f"{package} {number}" for package, number in env["versions"].items())
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    markdown = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    source = f"Median of {result['rounds']} rounds, {how}. "
    source += f"{env['date']}, {env['cpu']}, {env['cores']} cores; {versions}."
    text = "\n\n".join(part for part in (f"# {title}", markdown, note, source) if part)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(f"{text}\n")
    (folder / f"{name}.json").write_text(json.dumps(env | result, indent=1) + "\n")


def publish(
    options: argparse.Namespace,
    name: str,
    title: str,
    columns: list[str],
    rows: list[list[str]],
    result: dict[str, Any],
    note: str = "",
) -> None:
    """Report the results of a benchmark with the options --device, --rounds and --out, as `NAME-DEVICE`."""
    settings = {"device": options.device, "rounds": options.rounds}
    report(options.out, f"{name}-{options.device.lower()}", title, columns, rows, settings | result, note=note)
