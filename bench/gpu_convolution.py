"""The convolutions of ResNet-50 in f16 alone, by cuDNN, on an NVIDIA card: by layout, and with the layers after them.

    python -m bench.gpu_convolution [--batches 1 64] [--out FILE.json]
    python -m bench.gpu_convolution --emulated         a trial without a GPU

"nchw" is a convolution of dense arrays, "nhwc" one of arrays whose channels are adjacent, "fused" the latter with a
bias, a Relu and, at the end of a block, the sum with the block's input. cuDNN's first plan is timed, and with
``--plans`` the fastest of its first so many. Each figure is the time of one launch in a captured graph of eight, whose
arrays are not the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.gpu_measure import Events, describe, device_seconds
from bench.gpu_questions import captured
from ovgpu.backends.cuda import rt
from tests.harness.cuda import bound

LAYOUTS = ("nchw", "nhwc", "fused")
COPIES = 8
MOST_DRAWN = 1_000_003  # numbers, which are repeated
X, KERNEL, OUT, BIAS, RESIDUAL = range(1, 6)


@dataclass(frozen=True)
class Layer:
    """A convolution of square images: extents of the input and the kernel; ``count`` of them are in the network."""

    size: int
    channels: int
    outputs: int
    taps: int
    stride: int
    count: int
    residual: bool = False

    @property
    def name(self) -> str:
        """The layer as text."""
        return (f"{self.channels} x {self.size}² to {self.outputs}, {self.taps} x {self.taps}"
                f"{f', stride {self.stride}' if self.stride > 1 else ''}{', sum' if self.residual else ''}")

    def shapes(self, batch: int) -> dict[int, tuple[int, ...]]:
        """Return the shapes of the tensors."""
        size = -(-self.size // self.stride)
        out = (batch, self.outputs, size, size)
        found = {X: (batch, self.channels, self.size, self.size),
                 KERNEL: (self.outputs, self.channels, self.taps, self.taps), OUT: out, BIAS: (1, self.outputs, 1, 1)}
        return found | ({RESIDUAL: out} if self.residual else {})


def layers() -> Iterator[Layer]:
    """Yield the layers of ResNet-50 with images of 224 x 224."""
    yield Layer(224, 3, 64, 7, 2, 1)
    channels, size = 64, 56
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width, stride = 64 << stage, 1 if stage == 0 else 2
        yield Layer(size, channels, width, 1, 1, 1)
        yield Layer(size, width, width, 3, stride, 1)
        yield Layer(size, channels, 4 * width, 1, stride, 1)
        size, channels = size // stride, 4 * width
        yield Layer(size, width, channels, 1, 1, blocks, residual=True)
        yield Layer(size, channels, width, 1, 1, blocks - 1)
        yield Layer(size, width, width, 3, 1, blocks - 1)


def strides(shape: Sequence[int], last: bool) -> tuple[int, ...]:
    """Return the strides of a dense array, or of one whose channels are adjacent."""
    _n, c, h, w = shape
    return (c * h * w, 1, w * c, c) if last else (c * h * w, h * w, w, 1)


def graph_of(layer: Layer, layout: str, batch: int, handle: Any) -> Any:
    """Return cuDNN's graph of a layer, without plans."""
    cudnn = rt.cudnn()
    half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=half, intermediate_data_type=single, compute_data_type=single, handle=handle)
    shapes = layer.shapes(batch)

    def tensor(uid: int) -> Any:
        return graph.tensor(dim=shapes[uid], stride=strides(shapes[uid], layout != "nchw"), data_type=half, uid=uid)

    pad = (layer.taps // 2,) * 2
    y = graph.conv_fprop(tensor(X), tensor(KERNEL), pre_padding=pad, post_padding=pad, stride=(layer.stride,) * 2,
                         dilation=(1, 1), compute_data_type=single)
    if layout == "fused":
        if layer.residual:
            y = graph.add(y, tensor(RESIDUAL), compute_data_type=single)
        y = graph.relu(graph.bias(y, tensor(BIAS), compute_data_type=single), compute_data_type=single)
    y.set_uid(OUT).set_output(True).set_data_type(half).set_dim(shapes[OUT]).set_stride(
        strides(shapes[OUT], layout != "nchw"))
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    return graph


def measure(layer: Layer, layout: str, batch: int, stream: Any, handle: Any, plans: int,
            seconds: float) -> dict[str, Any]:
    """Return the microseconds of cuDNN's first plan, and of the fastest of several."""
    cupy, graph = rt.cupy(), graph_of(layer, layout, batch, handle)
    uses = (X, KERNEL, OUT, BIAS, RESIDUAL) if layout == "fused" else (X, KERNEL, OUT)
    host = np.random.default_rng(1).standard_normal(MOST_DRAWN, np.float32).astype(np.float16)
    arrays = [{uid: cupy.asarray(np.resize(host[number:], prod(shape)))
               for uid, shape in layer.shapes(batch).items() if uid in uses} for number in range(COPIES)]
    cupy.cuda.Device().synchronize()
    times: list[float] = []
    for number in range(min(plans, graph.get_execution_plan_count()) if plans > 1 else 1):
        try:
            if plans > 1:
                graph.build_plan_at_index(number)
                nbytes = graph.get_workspace_size_plan_at_index(number)
            else:
                graph.build_plans()
                nbytes = graph.get_workspace_size()
            workspace = cupy.cuda.alloc(max(nbytes, 1))

            def run(some: dict[int, Any], number: int = number, workspace: Any = workspace) -> None:
                addresses = {uid: int(array.data.ptr) for uid, array in some.items()}
                if plans > 1:
                    graph.execute_plan_at_index(addresses, int(workspace.ptr), number, handle)
                else:
                    graph.execute(addresses, int(workspace.ptr), handle)

            run(arrays[0])
            stream.synchronize()
            recorded = captured(stream, *(partial(run, some) for some in arrays))
            samples = device_seconds(partial(recorded.launch, stream), Events(cupy, stream), seconds)
            times.append(1e6 / COPIES * statistics.median(samples))
        except Exception as error:  # not every plan can run
            if not times and plans <= 1:
                raise
            print(f"  plan {number}: {type(error).__name__}: {str(error)[:100]}", flush=True)
    return {"us": times[0], "best_us": min(times), "plans": len(times)}


@contextmanager
def emulated() -> Iterator[None]:
    """Bind CuPy and cuDNN to the tests' emulator within the block."""
    from tests.emulator import cudnn_emu

    with bound("emulator"), patch.object(rt, "_cudnn", cudnn_emu):
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 64])
    parser.add_argument("--plans", type=int, default=1, help="the most plans of cuDNN that are timed")
    parser.add_argument("--seconds", type=float, default=0.02, help="for each time")
    parser.add_argument("--emulated", action="store_true", help="the tests' emulator for CuPy, the first layer alone")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    failed = 0
    with emulated() if options.emulated else nullcontext():
        stream, handle = rt.cupy().cuda.Stream(non_blocking=True), rt.cudnn().create_handle()
        rt.cudnn().set_stream(handle, stream.ptr)
        chosen = [Layer(8, 8, 16, 3, 2, 1, True)] if options.emulated else list(layers())
        with stream:
            for batch in options.batches:
                totals = dict.fromkeys((*LAYOUTS, "best"), 0.0)
                for layer in chosen:
                    row: dict[str, Any] = {}
                    for layout in LAYOUTS:
                        try:
                            row[layout] = measure(layer, layout, batch, stream, handle, options.plans,
                                                  options.seconds)
                            totals[layout] += layer.count * row[layout]["us"]
                            totals["best"] += layer.count * row[layout]["best_us"] if layout == "fused" else 0
                        except Exception as error:
                            failed += 1
                            row[layout] = {"failed": f"{type(error).__name__}: {error}"[:300]}
                    found[f"batch {batch}: {layer.name}"] = {"count": layer.count, **row}
                    print(f"batch {batch}, {layer.count} x {layer.name}: " + ", ".join(
                        f"{name} {x['us']:.1f} (best of {x['plans']} {x['best_us']:.1f})" if "us" in x
                        else f"{name} {x['failed']}" for name, x in row.items()), flush=True)
                print(f"batch {batch}, all layers: {', '.join(f'{k} {us:.0f} us' for k, us in totals.items())}",
                      flush=True)
        if options.out:
            options.out.write_text(json.dumps({"device": describe(rt.cupy()), "layers": found}, indent=1) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
