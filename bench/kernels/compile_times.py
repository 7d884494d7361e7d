"""Time that NVRTC takes for the kernels of workloads, each in a program of its own and as `ovgpu` compiles them.

    python -m bench.kernels.compile_times [--card H100] [--threads 2] [--out FILE] [WORKLOAD ...]

It needs no card. Kernels are asked for in the order of the plan, without pauses.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from bench.kernels import runs
from bench.kernels.cards import CARDS
from ovgpu.backends.cuda import kernel_cache
from ovgpu.backends.cuda.compiler import Code, Queue, Target
from ovgpu.ops.base.tasks import cores
from tests.emulator import nvrtc

WORKLOADS = ("bert_base tf32", "bert_f16", "llama f16 128", "llama int4 128", "resnet50_f16", "gpt2_decode")
HEAD = """# Time to compile kernels

`python -m bench.kernels.compile_times`, seconds for {architecture}; NVRTC {version}, {cores} cores. Apart: a program
for each kernel, one after the other. Joined: several kernels in a program, on one thread. The last four columns are for
{threads} threads; the ratio is that of the wall clock to the time on the processors.

| | kernels | apart | programs | joined | programs | on the processors | wall clock | ratio |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


class Compiler:
    """CuPy without a device, whose compiler counts the programs."""

    def __init__(self, cupy: Any) -> None:
        self.programs, self._compile = 0, cupy.cuda.compiler.compile_using_nvrtc
        self._core = cupy._core
        self.cuda = SimpleNamespace(
            Device=lambda number: nullcontext(), compiler=SimpleNamespace(compile_using_nvrtc=self.compile_using_nvrtc)
        )

    def compile_using_nvrtc(self, *arguments: Any, **options: Any) -> Any:
        self.programs += 1
        return self._compile(*arguments, **options)


def measured(cupy: Any, codes: Sequence[Code], threads: int) -> tuple[int, float, float]:
    """Return the number of programs, and the seconds on the processors and by the clock. 0 threads: each kernel is a
    program."""
    queue, found = Queue(), Compiler(cupy)
    target = Target(found, 0, kernel_cache.KernelStore())
    with patch.object(kernel_cache, "save", lambda *_: None):
        clock, processors = time.perf_counter(), time.process_time()
        jobs = [queue.submit(code, str(number), target, threads) for number, code in enumerate(codes)]
        for job in jobs:
            job.result()
        return found.programs, time.process_time() - processors, time.perf_counter() - clock


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, metavar="WORKLOAD")
    parser.add_argument("--card", default="H100", choices=CARDS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    card = CARDS[options.card]
    name = card.architecture.name
    text = HEAD.format(
        architecture=name, version="{}.{}".format(*nvrtc.version()), cores=cores(), threads=options.threads
    )
    for workload in options.workloads:
        codes = [kernel.code for kernel in runs.kernels_of(workload, card)]
        with nvrtc.targeting(name) as cupy:
            measured(cupy, codes[:1], 0)  # the libraries are loaded
            apart, joined, side_by_side = (measured(cupy, codes, n) for n in (0, 1, options.threads))
        text += (
            f"| {workload} | {len(codes)} | {apart[1]:.2f} | {joined[0]} | {joined[1]:.2f} | {side_by_side[0]} | "
            f"{side_by_side[1]:.2f} | {side_by_side[2]:.2f} | {side_by_side[2] / side_by_side[1]:.2f} |\n"
        )
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
