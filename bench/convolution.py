"""Convolutions on one core of the host: ovgpu's NumPy form against one matrix product with as many multiplications.

    python bench/convolution.py [--rounds N] [--out bench/results]

The layers are those of ResNet-50, U-Net and MobileNetV2. The benchmark measures the thread's own processor time, which
other processes disturb little.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one worker

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import engines
import numpy as np

from ovgpu.ops.convolution.convolution import Convolution, GroupConvolution
from ovgpu.spec import Spec
from ovgpu.types import Type

LAYERS = [  # channels, outputs, extent of the data, of the kernel, stride; one group, or one for each channel
    *((c, o, n, 1, 1, 1) for c, o, n in ((64, 256, 56), (256, 1024, 14), (2048, 512, 7), (16, 96, 112), (960, 160, 7))),
    *(
        (c, o, n, 3, 1, 1)
        for c, o, n in (
            (64, 64, 56),
            (128, 128, 28),
            (256, 256, 14),
            (512, 512, 7),
            (64, 64, 64),
            (128, 128, 32),
            (256, 256, 16),
            (256, 128, 32),
        )
    ),
    (3, 64, 224, 7, 2, 1),
    (128, 128, 56, 3, 2, 1),
    *(
        (c, c, n, 3, s, c)
        for c, n, s in ((32, 112, 1), (144, 56, 1), (384, 14, 1), (960, 7, 1), (96, 112, 2), (192, 28, 2))
    ),
]


def median_ms(run: Callable[[], Any], rounds: int) -> float:
    """Return the median processor time of the thread for one call, in milliseconds."""
    times = []
    for _ in range(rounds + 2):
        start = time.thread_time()
        run()
        times.append(time.thread_time() - start)
    return 1e3 * statistics.median(times[2:])


def form(op: Convolution, x: Any, kernel: Any) -> Callable[[], None]:
    """Return a function that makes all calls of the NumPy form."""
    specs = [Spec(Type.f32, a.shape) for a in (x, kernel)]
    (spec,) = op.infer_specs(*specs)
    workspace = [np.empty(shape, kind.storage) for kind, shape in op.workspace(specs, [spec])]
    calls: list[Callable[[], Any]] = []
    op.numpy(lambda *args: calls.append(partial(*args)), [x, kernel], [np.empty(spec.shape, x.dtype)], workspace)

    def run() -> None:
        for call in calls:
            call()

    return run


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=engines.ROOT / "bench" / "results")
    options = parser.parse_args()
    rows, layers, random = [], [], np.random.default_rng(1)
    for channels, outputs, extent, taps, stride, groups in LAYERS:
        x = random.standard_normal((1, channels, extent, extent), np.float32)
        shape = (groups, outputs // groups, channels // groups, taps, taps)
        kernel = random.standard_normal(shape if groups > 1 else shape[1:], np.float32)
        attributes = {"strides": (stride, stride), "auto_pad": "same_upper"}
        op = GroupConvolution(**attributes) if groups > 1 else Convolution(**attributes)
        pixels, depth = (-(-extent // stride)) ** 2, prod(shape[2:])
        matrices = kernel.reshape(*shape[:2], depth), random.standard_normal((groups, depth, pixels), np.float32)
        product = median_ms(partial(np.matmul, *matrices, np.empty((*shape[:2], pixels), np.float32)), options.rounds)
        own = median_ms(form(op, x, kernel), options.rounds)
        name = f"{channels} -> {outputs}, {extent} x {extent}, kernel {taps} x {taps}"
        name += f", stride {stride}" * (stride > 1) + ", depthwise" * (groups > 1)
        speed = 2e-6 * prod(matrices[0].shape) * pixels / product
        rows.append([name, f"{product:.3f}", f"{own:.3f}", f"{own / product:.2f}", f"{speed:.0f}"])
        layers.append({"layer": name, "product_ms": product, "ms": own})
    columns = ["Layer", "Bare product (ms)", "ovgpu (ms)", "Ratio", "Product (GFLOP/s)"]
    title = "Convolutions on one core, f32: ovgpu's NumPy form against the bare product"
    engines.report(
        options.out,
        "convolution-cpu",
        title,
        columns,
        rows,
        {"rounds": options.rounds, "layers": layers},
        "the thread's own time",
    )


if __name__ == "__main__":
    main()
