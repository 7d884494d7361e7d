"""Profile of the workloads on a card: device time by kernel, host time by function.

    python -m bench.gpu_profile --out FOLDER [--budget SECONDS] [--only NAME ...]

Device times are CUPTI's, through `torch.profiler`, which sees all kernels of the process, in graphs as well. They and
the functions of the host are in ``profile.json``; ``profile.md`` is the table of kernels that take more than 2 % of a
workload.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench import gpu_llama, gpu_vision
from bench.gpu_llama_model import LLAMA_1B, Caches, Variant, build
from bench.gpu_run import Ovgpu
from bench.gpu_vision_workloads import TINY as TINY_VISION
from bench.gpu_vision_workloads import WORKLOADS as VISION
from bench.gpu_workloads import EXACT, TF32, TINY, WORKLOADS
from ovgpu.backends.cuda import rt
from tests.harness.cuda import bound

LAUNCHES = 6  # launches that are profiled
WARM_UP = 8
CALLS = 60  # calls in the host's profile
MIN_SHARE = 0.02  # the least share of a workload's device time for a kernel in the table
FUNCTIONS = 30
LLAMA: dict[str, tuple[Variant, int]] = {f"llama {variant} {context}": (variant, context)
                                         for variant in ("f16", "int8", "int4") for context in (128, 8192)}
PREFILL = "llama f16 prefill "  # and a number of tokens
DEFAULT = (*LLAMA, f"{PREFILL}2048", "resnet50_f16", "resnet50", "bert_f16", "bert_b32_f16", "unet_f16", "vit_f16",
           "whisper_tiny_f16", "mobilenet_v2_f16", "bilstm", "lstm_b1", "lstm_b32", "lstm_state", "resnet50_b64_f16",
           "bert_base", "gpt2_decode", "tensor_iterator_lstm", "softmax_f32", "elementwise_f32", "softmax_row",
           "max_row", "normalize_row", "argmax_row", "topk_row")
IN_TF32 = tuple(f"{name} tf32" for name in ("bert_base", "bert_base_b32", "resnet50", "gpt2_decode", "lstm_b32",
                                            "bilstm", "llama int8 128", "llama int4 128"))


def engine(name: str, device: str, tiny: bool) -> tuple[Any, Callable[[], object]]:
    """Return a workload's engine, ready to be launched, and a function that makes an inference.

    Names that end with ``tf32`` are workloads in f32 that is rounded to TF32.
    """
    plain, config = name.removesuffix(" tf32"), TF32 if name.endswith(" tf32") else EXACT
    if plain.startswith(PREFILL):
        found: Any = gpu_llama.Run(build("f16", gpu_llama.TINY if tiny else LLAMA_1B), device)
        tokens = np.zeros((1, int(plain.removeprefix(PREFILL))), np.int64)
        call: Callable[[], object] = partial(found.again, tokens)
    elif plain in LLAMA:
        variant, context = LLAMA[plain]
        sizes = gpu_llama.TINY if tiny else LLAMA_1B
        context = min(context, sizes.positions - CALLS - 4 * WARM_UP)
        found = gpu_llama.Run(build(variant, sizes), device, "f16" if name == plain else "tf32")
        found.fill(Caches(sizes, context), context - 1)
        call = found.infer
    elif plain in VISION:
        workload = (TINY_VISION if tiny else VISION)[plain]()
        found = gpu_vision.Ovgpu(workload if name == plain else replace(workload, config=config), device)
        call = found.call
    else:
        found = Ovgpu((TINY if tiny else WORKLOADS)[plain](), device, config)
        call = found.infer if found.workload.prompt is not None else found.call
    for _ in range(WARM_UP):
        call()
    return found, call


def kernel_times(launch: Callable[[], object], wait: Callable[[], object]) -> dict[str, list[float]]:
    """Return the microseconds of all kernels and copies of some launches, by name."""
    import torch

    for _ in range(2):
        launch()
    wait()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(LAUNCHES):
            launch()
        wait()
    return grouped((event.name, event.time_range.elapsed_us()) for event in profile.events()
                   if event.device_type == torch.autograd.DeviceType.CUDA)


def grouped(events: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    """Group microseconds by name."""
    found: dict[str, list[float]] = defaultdict(list)
    for name, microseconds in events:
        found[name].append(microseconds)
    return dict(found)


def rows(times: dict[str, list[float]], launches: int) -> list[dict[str, Any]]:
    """Return a row per kernel, the longest first: microseconds of one launch in all and each, count, and share."""
    total = sum(map(sum, times.values())) or 1.0
    found = [{"kernel": name, "us": sum(each) / launches, "count": len(each) / launches,
              "each_us": float(np.mean(each)), "share": sum(each) / total} for name, each in times.items()]
    return sorted(found, key=lambda row: -float(row["us"]))


def host_times(call: Callable[[], object], count: int) -> dict[str, Any]:
    """Return the mean microseconds of ``count`` calls, and the functions that take longest under the profiler."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    plain = (time.perf_counter() - start) / count
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(count):
        call()
    profile.disable()
    statistics: Any = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    functions = [{"function": f"{Path(file).name}:{line}({function})", "calls": row[0] / count,
                  "us": 1e6 * row[2] / count} for (file, line, function), row in statistics.items()]
    return {"us": 1e6 * plain, "functions": sorted(functions, key=lambda row: -float(row["us"]))[:FUNCTIONS]}


def profiled(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the profile of a workload."""
    found, call = engine(name, options.device, options.tiny)
    row: dict[str, Any] = {}
    if options.emulated:
        row["kernels"] = []  # CUPTI sees none
    else:
        row["kernels"] = rows(kernel_times(found.launch, found.timer.synchronize), LAUNCHES)
    row["device_us"] = sum(kernel["us"] for kernel in row["kernels"])
    return row | {"host": host_times(call, 3 if options.tiny else CALLS)}


def table(result: dict[str, Any]) -> str:
    """Return the table of kernels as Markdown."""
    lines = [f"# Kernels of the workloads on {result['device']}", "",
             "Device time of one inference by kernel (`python -m bench.gpu_profile`); names are cut."]
    for name, row in result["workloads"].items():
        if "kernels" not in row:
            lines += ["", f"## {name}", "", row["failed"].splitlines()[0]]
            continue
        lines += ["", f"## {name}: {row['device_us']:.0f} us, a call {row['host']['us']:.0f} us", "",
                  "| us | count | each us | kernel |", "| ---: | ---: | ---: | --- |"]
        lines += [f"| {kernel['us']:.1f} | {kernel['count']:.0f} | {kernel['each_us']:.2f} | "
                  f"{kernel['kernel'][:110].replace('|', '/')} |"
                  for kernel in row["kernels"] if kernel["share"] >= MIN_SHARE]
    return "\n".join(lines) + "\n"


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Profile all workloads until the time is up; write the files after each."""
    until = time.perf_counter() + options.budget
    properties = rt.cupy().cuda.runtime.getDeviceProperties(0)
    name = properties["name"]
    result: dict[str, Any] = {"device": name.decode() if isinstance(name, bytes) else name, "workloads": {}}
    for workload in options.only:
        if time.perf_counter() > until:
            print(f"{workload}: not begun, the time is up", flush=True)
            continue
        try:
            result["workloads"][workload] = row = profiled(workload, options)
            first = "; ".join(f"{kernel['count']:.0f} x {kernel['each_us']:.1f} us {kernel['kernel'][:50]}"
                              for kernel in row["kernels"][:3])
            print(f"{workload}: {row['device_us']:.0f} us of kernels, a call {row['host']['us']:.0f} us: {first}",
                  flush=True)
        except Exception as failure:
            result["workloads"][workload] = {"failed": f"{type(failure).__name__}: {failure}",
                                             "trace": traceback.format_exc()[-3000:]}
            print(f"{workload}: FAILED {type(failure).__name__}: {str(failure)[:200]}", flush=True)
        (options.out / "profile.json").write_text(json.dumps(result, indent=1) + "\n")
        (options.out / "profile.md").write_text(table(result))
        rt.cupy().get_default_memory_pool().free_all_blocks()
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return exit status 1 if a workload failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=180)
    parser.add_argument("--only", nargs="*", default=[*DEFAULT, *IN_TF32], metavar="NAME",
                        choices=[*LLAMA, f"{PREFILL}2048", *VISION, *WORKLOADS, *IN_TF32])
    parser.add_argument("--device", default="NVIDIA")
    parser.add_argument("--emulated", action="store_true", help="the tests' emulator for CuPy: the host's part alone")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, of a few workloads")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.tiny and options.only == [*DEFAULT, *IN_TF32]:
        options.only = ["llama int4 128", "lstm_state", "bert_base tf32"]
    with bound("emulator") if options.emulated else nullcontext():
        result = run(options)
    return int(any("failed" in row for row in result["workloads"].values()))


if __name__ == "__main__":
    sys.exit(main())
