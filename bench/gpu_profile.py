"""Profile of the workloads on a card: device time by kernel, beside the time of a call.

    python -m bench.gpu_profile --out FOLDER [--budget SECONDS] [--only NAME ...]

Device times are CUPTI's, through `torch.profiler`, which sees all kernels of the process, in graphs as well. They are
in ``profile.json``; ``profile.md`` is the table of kernels that take more than 2 % of a workload.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu_engines import engine
from bench.gpu_measure import describe, host_seconds
from bench.workloads import IN_TF32, VARIANTS, WORKLOADS, workload
from ovgpu.backends.cuda import rt
from tests.harness.cuda import bound

LAUNCHES = 6  # launches that are profiled
CALLS = 60  # calls that are timed
MIN_SHARE = 0.02  # the least share of a workload's device time for a kernel in the table
LLAMA = (*(f"llama {variant} {context}" for variant in VARIANTS for context in (128, 8192)), "llama f16 prefill 2048")
DEFAULT = (
    *LLAMA,
    "resnet50_f16",
    "resnet50",
    "bert_f16",
    "bert_b32_f16",
    "unet_f16",
    "vit_f16",
    "whisper_tiny_f16",
    "mobilenet_v2_f16",
    "bilstm",
    "lstm_b1",
    "lstm_b32",
    "lstm_state",
    "resnet50_b64_f16",
    "bert_base",
    "gpt2_decode",
    "tensor_iterator_lstm",
    "softmax_f32",
    "elementwise_f32",
    "softmax_row",
    "max_row",
    "normalize_row",
    "argmax_row",
    "topk_row",
    *IN_TF32,
)


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
    return grouped(
        (event.name, event.time_range.elapsed_us())
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )


def grouped(events: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    """Group microseconds by name."""
    found: dict[str, list[float]] = defaultdict(list)
    for name, microseconds in events:
        found[name].append(microseconds)
    return dict(found)


def rows(times: dict[str, list[float]], launches: int) -> list[dict[str, Any]]:
    """Return a row per kernel, the longest first: microseconds of one launch in all and each, count, and share."""
    total = sum(map(sum, times.values())) or 1.0
    found = [
        {
            "kernel": name,
            "us": sum(each) / launches,
            "count": len(each) / launches,
            "each_us": float(np.mean(each)),
            "share": sum(each) / total,
        }
        for name, each in times.items()
    ]
    return sorted(found, key=lambda row: -float(row["us"]))


def profiled(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the profile of a workload."""
    found = engine(workload(name, options.tiny), options.device)
    row: dict[str, Any] = {}
    if options.emulated:
        row["kernels"] = []  # CUPTI sees none
    else:
        row["kernels"] = rows(kernel_times(found.launch, found.timer.synchronize), LAUNCHES)
    row["device_us"] = sum(kernel["us"] for kernel in row["kernels"])
    call = host_seconds(found.call or found.infer, 0.0, 3 if options.tiny else CALLS)
    return row | {"call_us": 1e6 * float(np.mean(call))}


def table(result: dict[str, Any]) -> str:
    """Return the table of kernels as Markdown."""
    lines = [
        f"# Kernels of the workloads on {result['device']}",
        "",
        "Device time of one inference by kernel (`python -m bench.gpu_profile`); names are cut.",
    ]
    for name, row in result["workloads"].items():
        if "kernels" not in row:
            lines += ["", f"## {name}", "", row["failed"].splitlines()[0]]
            continue
        lines += [
            "",
            f"## {name}: {row['device_us']:.0f} us, a call {row['call_us']:.0f} us",
            "",
            "| us | count | each us | kernel |",
            "| ---: | ---: | ---: | --- |",
        ]
        lines += [
            f"| {kernel['us']:.1f} | {kernel['count']:.0f} | {kernel['each_us']:.2f} | "
            f"{kernel['kernel'][:110].replace('|', '/')} |"
            for kernel in row["kernels"]
            if kernel["share"] >= MIN_SHARE
        ]
    return "\n".join(lines) + "\n"


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Profile all workloads until the time is up; write the files after each."""
    until = time.perf_counter() + options.budget
    result: dict[str, Any] = {"device": describe(rt.cupy())["name"], "workloads": {}}
    for name in options.only:
        if time.perf_counter() > until:
            print(f"{name}: not begun, the time is up", flush=True)
            continue
        try:
            result["workloads"][name] = row = profiled(name, options)
            first = "; ".join(
                f"{kernel['count']:.0f} x {kernel['each_us']:.1f} us {kernel['kernel'][:50]}"
                for kernel in row["kernels"][:3]
            )
            print(f"{name}: {row['device_us']:.0f} us of kernels, a call {row['call_us']:.0f} us: {first}", flush=True)
        except Exception as failure:
            result["workloads"][name] = {
                "failed": f"{type(failure).__name__}: {failure}",
                "trace": traceback.format_exc()[-3000:],
            }
            print(f"{name}: FAILED {type(failure).__name__}: {str(failure)[:200]}", flush=True)
        (options.out / "profile.json").write_text(json.dumps(result, indent=1) + "\n")
        (options.out / "profile.md").write_text(table(result))
        rt.cupy().get_default_memory_pool().free_all_blocks()
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return exit status 1 if a workload failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=180)
    parser.add_argument(
        "--only",
        nargs="*",
        default=[*DEFAULT],
        metavar="NAME",
        choices=[name for name in (*WORKLOADS, *IN_TF32) if "sequences" not in name],
    )
    parser.add_argument("--device", default="NVIDIA")
    parser.add_argument("--emulated", action="store_true", help="the tests' emulator for CuPy: the host's part alone")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, of a few workloads")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.tiny and options.only == [*DEFAULT]:
        options.only = ["llama int4 128", "lstm_state", "bert_base tf32"]
    with bound("emulator") if options.emulated else nullcontext():
        result = run(options)
    return int(any("failed" in row for row in result["workloads"].values()))


if __name__ == "__main__":
    sys.exit(main())
