"""Preparation of a folder for a machine with a GPU and without a network; run it where there is a network and no GPU.

    python -m bench.gpu_prepare FOLDER [--python 3.12] [--wheels REQUIREMENT ...] [--only TESTS ...]

wheels/            Python packages, nvmath-python and cuDNN's frontend by default
expectations.xz    OpenVINO's answers for the test suite
kernels.tar.xz     machine code for sm_90 of the kernels of the suite and the benchmarks, for CUPY_CACHE_DIR
run.sh             the whole procedure: `bash run.sh STAGE [OUT [--budget SECONDS]]`, from the root of the project

It takes about 15 minutes on two cores. Existing wheels and answers are not fetched again. kernels/ has the kernels that
have been compiled before, and need not be copied to the other machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import gpu_recorded

ROOT = Path(__file__).resolve().parents[1]
WHEELS = ("nvmath-python>=1.0", "nvidia-cudnn-frontend>=1.22,<1.29")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
PROCEDURE = """#!/usr/bin/env bash
# bash {folder}/run.sh STAGE [OUT [--budget SECONDS]]: a stage of bench.gpu, from the project's root
set -u
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
work=${{TMPDIR:-/tmp}}/ovgpu-card
python3 -m pip install -q --no-index --no-deps --target "$work"/site --upgrade "$here"/wheels/*.whl
mkdir -p "$work"/kernels && tar xf "$here"/kernels.tar.xz -C "$work"/kernels --skip-old-files
export PYTHONPATH=$work/site CUPY_CACHE_DIR=$work/kernels OPENBLAS_NUM_THREADS=1
before=$(ls "$work"/kernels/ovgpu | wc -l)
python3 -m bench.gpu --stage "$1" --out "${{2:-$work/results}}" --expectations "$here"/expectations.xz "${{@:3}}"
echo "$(($(ls "$work"/kernels/ovgpu | wc -l) - before)) kernels were compiled, $before were there"
"""


def wheels(folder: Path, options: argparse.Namespace) -> None:
    """Download the wheels."""
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    _call([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version",
           options.python, "--implementation", "cp", *platforms, "-d", str(folder), *options.wheels])


def kernels(folder: Path, options: argparse.Namespace) -> None:
    """Record the kernels of the suite and of the workloads, and compile them."""
    tests = options.only or []
    with tempfile.TemporaryDirectory() as results:
        _call([sys.executable, "-m", "bench.gpu_suite", "--device", "emulator", "--record", str(folder), "--seconds",
               "3000", "--out", results, "--jobs", str(os.cpu_count() or 1), *tests], check=False)
    if not options.only:
        _call([sys.executable, "-m", "bench.gpu_prepare", str(folder), "--record"], check=False)
    count, wrong = gpu_recorded.compile_all(folder)
    print(f"{count} kernels, {len(wrong)} of which do not compile", *wrong[:10], sep="\n", flush=True)
    with tarfile.open(folder.parent / "kernels.tar.xz", "w:xz") as archive:
        archive.add(folder / "ovgpu", "ovgpu")


@contextlib.contextmanager
def idle() -> Iterator[None]:
    """Make emulated kernels and products do nothing within the block, so that kernels are recorded at full size."""
    from tests.emulator import array_ops, blas_emu, blaslt_emu, cudnn_emu, kernel

    saved: list[tuple[Any, Callable[..., Any]]] = []
    for module in (array_ops, blas_emu, blaslt_emu, cudnn_emu, kernel):
        for name, node in vars(module).items():
            if name.endswith("Node") and isinstance(node, type) and "run" in vars(node) and name != "CopyNode":
                saved.append((node, node.run))
                node.run = lambda self: None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for node, run in saved:
            node.run = run


def record(folder: Path) -> None:
    """Record the kernels of the benchmarks' workloads."""
    from bench import gpu_profile
    from tests.harness.cuda import bound

    gpu_recorded.begin(folder)
    with bound("emulator"), idle():
        for name in (*gpu_profile.DEFAULT, *gpu_profile.IN_TF32):
            start = time.perf_counter()
            try:
                gpu_profile.engine(name, "NVIDIA", False)
            except Exception as e:  # go on with the other workloads
                print(f"{name}: {type(e).__name__}: {e}", flush=True)
            print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


def _call(command: Sequence[str], check: bool = True) -> None:
    subprocess.run(command, cwd=ROOT, check=check)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
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
    (folder / "run.sh").write_text(PROCEDURE.format(folder=options.folder))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".cubin")
    print(f"{folder}: {size / 1e6:.1f} MB", flush=True)
    return 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
