"""Preparation of a folder for a machine with a GPU and without a network; run it where there is a network and no GPU.

    python -m bench.gpu_prepare FOLDER --since COMMIT [--python 3.12] [--wheels REQUIREMENT ...] [--only TESTS ...]

wheels/            Python packages, nvmath-python and cuDNN's frontend by default
expectations.xz    OpenVINO's answers for the test suite
kernels.tar.xz     machine code for sm_90 of the kernels of the suite and the benchmarks, for CUPY_CACHE_DIR
clusters.jsonl     the launches in clusters among them
changed.txt        the tests of what has changed since COMMIT, the last one that ran on a card
run.sh             both commands: `bash run.sh correctness`, `bash run.sh table`, from the root of the project

It takes about half an hour on two cores. Existing wheels and answers are not fetched again. kernels/ has the kernels
that have been compiled before, and is not copied to the other machine. The command prints the size of the folder and of
the tree, and fails if they have more than 60 MiB together: 64 travel to the card.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import gpu_suite
from bench.kernels import recorded

ROOT = Path(__file__).resolve().parents[1]
WHEELS = ("nvmath-python>=1.0", "nvidia-cudnn-frontend>=1.22,<1.29")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
MAX_BYTES = 60 << 20
PROCEDURE = """#!/usr/bin/env bash
# bash {folder}/run.sh correctness|table [OUT [--budget SECONDS]]: a command of bench.gpu, from the project's root
set -u
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
work=${{TMPDIR:-/tmp}}/ovgpu-card
python3 -m pip install -q --no-index --no-deps --target "$work"/site --upgrade "$here"/wheels/*.whl
mkdir -p "$work"/kernels && tar xf "$here"/kernels.tar.xz -C "$work"/kernels --skip-old-files
export PYTHONPATH=$work/site CUPY_CACHE_DIR=$work/kernels OPENBLAS_NUM_THREADS=1
before=$(ls "$work"/kernels/ovgpu | wc -l)
python3 -m bench.gpu "$1" --out "${{2:-${{OUT:-$work/results}}}}" --work "$work/raw" --prepared "$here" "${{@:3}}"
echo "$(($(ls "$work"/kernels/ovgpu | wc -l) - before)) kernels were compiled, $before were there"
"""


def wheels(folder: Path, options: argparse.Namespace) -> None:
    """Download the wheels."""
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    _call(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
            "--python-version",
            options.python,
            "--implementation",
            "cp",
            *platforms,
            "-d",
            str(folder),
            *options.wheels,
        ]
    )


def kernels(folder: Path, options: argparse.Namespace) -> None:
    """Record the kernels of the suite and of the workloads, and compile them."""
    tests = options.only or []
    with tempfile.TemporaryDirectory() as results:
        _call(
            [
                sys.executable,
                "-m",
                "bench.gpu_suite",
                "--device",
                "emulator",
                "--record",
                str(folder),
                "--seconds",
                "3000",
                "--out",
                results,
                "--jobs",
                str(os.cpu_count() or 1),
                *tests,
            ],
            check=False,
        )
    if not options.only:
        _call([sys.executable, "-m", "bench.gpu_prepare", str(folder), "--record"], check=False)
    count, wrong = recorded.compile_all(folder)
    print(f"{count} kernels, {len(wrong)} of which do not compile", *wrong[:10], sep="\n", flush=True)
    clusters = folder / recorded.CLUSTERS
    if clusters.exists():
        (folder.parent / clusters.name).write_text("\n".join(sorted(set(clusters.read_text().splitlines()))) + "\n")
    with tarfile.open(folder.parent / "kernels.tar.xz", "w:xz") as archive:
        archive.add(folder / "ovgpu", "ovgpu")


def record(folder: Path) -> None:
    """Record the kernels of the benchmarks' workloads."""
    from bench.gpu_engines import engine
    from bench.kernels.dry_device import idle
    from bench.workloads import IN_TF32, WORKLOADS, workload
    from tests.harness.cuda import bound

    recorded.begin(folder)
    with bound("emulator"), idle():
        for name in (*WORKLOADS, *IN_TF32):
            start = time.perf_counter()
            try:
                engine(workload(name), "NVIDIA")
            except Exception as e:  # go on with the other workloads
                print(f"{name}: {type(e).__name__}: {e}", flush=True)
            print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


def _call(command: Sequence[str], check: bool = True) -> None:
    subprocess.run(command, cwd=ROOT, check=check)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--since", metavar="COMMIT", help="the last commit that ran on a card")
    parser.add_argument("--python", default="3.12", help="the Python version of the other machine")
    parser.add_argument("--wheels", nargs="*", default=[*WHEELS])
    parser.add_argument("--only", nargs="*", help="tests whose kernels are recorded, without those of the benchmarks")
    parser.add_argument("--record", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    folder: Path = options.folder.resolve()
    if options.record:
        record(folder)
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    if options.wheels and not (folder / "wheels").exists():
        wheels(folder / "wheels", options)
    if not options.only and not (folder / "expectations.xz").exists():
        _call([sys.executable, "-m", "tests.harness.store", str(folder / "expectations.xz")], check=False)
    kernels(folder / "kernels", options)
    if options.since:
        (folder / "changed.txt").write_text("\n".join(gpu_suite.changed_since(options.since)) + "\n")
    (folder / "run.sh").write_text(PROCEDURE.format(folder=options.folder))
    travels = [path for path in folder.rglob("*") if path.is_file() and folder / "kernels" not in path.parents]
    size = sum(path.stat().st_size for path in travels)
    tree = sum((ROOT / name).stat().st_size for name in listed() if folder not in (ROOT / name).parents)
    print(f"{folder}: {size / 2**20:.1f} MiB, the tree {tree / 2**20:.1f} MiB", flush=True)
    if size + tree > MAX_BYTES:
        print(f"together more than {MAX_BYTES >> 20} MiB: leave something out", flush=True)
    return int(size + tree > MAX_BYTES)


def listed() -> list[str]:
    """Return the files of the tree: those that git tracks, and those that it does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name in dict.fromkeys(names) if (ROOT / name).is_file()]


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
