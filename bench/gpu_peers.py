"""Benchmark of ovgpu on a card beside torch: eager, in a CUDA graph, and compiled by max-autotune in a CUDA graph.

    python -m bench.gpu_peers --out FILE.json
    python -m bench.gpu_peers --only resnet50_f16 "llama f16 128" --modes graph compile+graph --budget 300
    python -m bench.gpu_peers --emulated --tiny     a trial without a GPU

Each workload of `bench.workloads` is run and compared with torch (in f32; language models with f16 and the same
weights), or with NumPy where torch has no peer; Llama in full size is then not compared. Engines that are right are
timed: on the device, between events around many launches of one inference's work (the cache is emptied before each
where bandwidth is measured); in a call, inputs and outputs on the device, with its wait; and from host arrays to host
arrays. Ratios are to torch's fastest engine: below 1, ovgpu is faster.

Workloads in f32 also run in TF32, as "ovgpu tf32" and "torch graph tf32". In f16, torch's convolutions have channels
last, and the mode "graph" is timed without as well ("nchw"), which group norms prefer. Torch runs language models in
f16, and those of int4 also with its own kernels for int4. With ``--ahead``, its modules are compiled in that many
processes before anything is timed, into Inductor's cache on disk; those that are not done in time are left out. As they
share the card while they choose among kernels, their choices may be worse than those of one process at a time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bench import gpu_llama, gpu_measure, gpu_torch
from bench.gpu_engines import Engine, compiled, engine, error, results
from bench.gpu_measure import device_seconds, host_seconds, summary
from bench.gpu_translate import translated
from bench.workloads import TF32, WORKLOADS, Workload, workload
from ovgpu.backends.cuda import rt
from tests.harness.cuda import bound

ROOT = Path(__file__).resolve().parents[1]
TF32_TOLERANCE = 2e-2
MIN_SAMPLES = 5  # the least samples of a measurement
TIMES = ("device", "call", "wall")
FIGURES = {
    "error": ".1e",
    "percent_of_copy": ".1f",
    "tflops": ".1f",
    "tokens_per_second": ".0f",
    "appended": "",
    "setup_seconds": ".1f",
}  # that are printed
Makers = dict[str, Callable[[], Any]]


def text_peers(found: Workload, options: argparse.Namespace) -> Makers:
    """Return torch's engines for a part of a language model; "reference" is compared and not timed."""
    text, device = found.text, options.torch
    if text is None or text.llama is None or text.sequences:
        return {}
    peer = partial(gpu_llama.peer, text, device=device, kind="float32" if device == "cpu" else "float16")
    makers: Makers = {"reference": partial(peer, "eager")}
    if text.llama.variant == "f16":
        makers |= {f"torch {mode}": partial(peer, mode) for mode in options.modes}
    elif text.llama.variant == "int4" and text.context:
        mode = "eager" if device == "cpu" else "graph"
        makers[f"torch {mode} int4"] = partial(peer, mode, int4=True)
    return makers


def peers(found: Workload, options: argparse.Namespace) -> Makers:
    """Return torch's engines for a workload."""
    if found.text is not None:
        return text_peers(found, options)
    module = found.peer() if found.peer else translated(found.peer_ir or found.ir)
    peer = partial(gpu_torch.peer, found, module, device=options.torch)
    makers: Makers = {"reference": partial(peer, "eager")}
    for mode in options.modes:
        makers[f"torch {mode}"] = partial(peer, mode, half=found.half, channels_last=found.half and found.image)
    if "graph" in options.modes and found.half and found.image:
        makers["torch graph nchw"] = partial(peer, "graph", half=True)
    if "graph" in options.modes and found.tf32:
        makers["torch graph tf32"] = partial(peer, "graph", tf32=True)
    return makers


def measured(made: Any, found: Workload, options: argparse.Namespace) -> dict[str, Any]:
    """Measure device time, time of a call, and time from host to host, as far as the engine has them."""
    times: dict[str, list[list[float]]] = {"wall": [], "call": [], "device": []}
    for _ in range(options.rounds):
        made.begin()
        decodes = found.text is not None and not found.text.prompt
        seconds, least = (0.0, options.steps) if decodes else (options.seconds, MIN_SAMPLES)
        times["wall"].append(host_seconds(made.infer, seconds, least))
        if made.call is not None:
            times["call"].append(host_seconds(made.call, options.seconds, MIN_SAMPLES))
    if made.launch is not None:
        made.keep_outputs()
        for _ in range(options.rounds):
            times["device"].append(device_seconds(made.launch, made.timer, options.seconds, MIN_SAMPLES, made.flush))
    return {what: summary(samples) for what, samples in times.items() if samples}


def rates(row: Mapping[str, Any], found: Workload, copy: float) -> dict[str, float]:
    """Return the share of a copy's bandwidth, a prompt's operations per second, or a batch's tokens per second."""
    text = found.text
    if text is not None and text.sequences:
        return {"tokens_per_second": text.sequences / row["wall"]["us"] * 1e6}
    if text is not None and text.prompt and text.llama:
        return {"tflops": text.llama.flops(text.prompt) / row["device"]["us"] / 1e6}
    return {"percent_of_copy": 100 * found.nbytes / row["device"]["us"] * 1e6 / copy}


def add_ratios(rows: Mapping[str, dict[str, Any]]) -> None:
    """Add ovgpu's ratios to the fastest peer: of those without TF32, and for ovgpu in TF32, of all."""
    for name, row in rows.items():
        for what in TIMES if name.startswith("ovgpu") else ():
            times = {
                peer: other[what]["us"]
                for peer, other in rows.items()
                if what in other and peer.startswith("torch") and (name.endswith("tf32") or not peer.endswith("tf32"))
            }
            if what in row and times:
                best = min(times, key=lambda peer: times[peer])
                row[what] |= {"best_peer": best, "ratio": row[what]["us"] / times[best]}


def compiled_ahead(options: argparse.Namespace) -> set[str]:
    """Compile torch's modules in several processes at a time; return the workloads that were done in time. Those in 8
    bits run the same modules as those in f16."""
    names = {
        name: name.replace("int8", "f16") if name.replace("int8", "f16") in options.only else name
        for name in options.only
    }
    until = time.perf_counter() + min(options.ahead_seconds, 0.4 * options.budget)
    modes = [mode for mode in options.modes if "compile" in mode]

    def run(name: str) -> bool:
        left = until - time.perf_counter()
        if not modes or left <= 0:
            return not modes
        process = subprocess.Popen(
            command(name, modes, options),
            cwd=ROOT,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return process.wait(left) == 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and Inductor's own processes
            process.wait()
            return False

    with ThreadPoolExecutor(options.ahead) as pool:
        waiting = {name: pool.submit(run, name) for name in dict.fromkeys(names.values())}
        done = {name for name, module in names.items() if waiting[module].result()}
    print(f"compiled ahead: {', '.join(sorted(done)) or 'none'}", flush=True)
    return done


def command(name: str, modes: Sequence[str], options: argparse.Namespace) -> list[str]:
    """Return the command that compiles a workload's module."""
    return [
        sys.executable,
        "-m",
        "bench.gpu_peers",
        "--compile",
        "--only",
        name,
        "--modes",
        *modes,
        "--torch",
        options.torch,
        *(["--tiny"] if options.tiny else []),
    ]


class Run:
    """Run over the workloads; ``result`` and the file are updated after each engine."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.start = time.perf_counter()
        self.llama: Any = None
        self.compiled: Any = None
        self.result: dict[str, Any] = {"rounds": options.rounds, "seconds_each": options.seconds, "items": {}}

    def over(self) -> bool:
        return time.perf_counter() - self.start > self.options.budget

    def save(self) -> None:
        if self.options.out is not None:
            self.result["seconds"] = time.perf_counter() - self.start
            self.options.out.parent.mkdir(parents=True, exist_ok=True)
            self.options.out.write_text(json.dumps(self.result, indent=1) + "\n")

    def all(self) -> None:
        options, cupy = self.options, rt.cupy()
        self.result |= {
            "device": gpu_measure.describe(cupy),
            "clocks": gpu_measure.clocks(),
            "ovgpu_cudnn": rt.cudnn() is not None,
        }
        if options.torch is not None:
            import torch

            self.result |= {"torch": str(torch.__version__), "torch_cudnn": torch.backends.cudnn.version()}
        with cupy.cuda.Stream(non_blocking=True) as stream:
            size = 1 << 16 if options.tiny else 2 << 30
            self.copy = gpu_measure.copy_bandwidth(cupy, stream, size, options.seconds)
        self.result["copy_bytes_per_second"] = self.copy
        print(
            f"{self.result['device']['name']}, copies at {self.copy / 1e12:.4g} TB/s, cuDNN for ovgpu: "
            f"{self.result['ovgpu_cudnn']}",
            flush=True,
        )
        ahead = compiled_ahead(options) if options.torch and options.ahead else set(options.only)
        for name in options.only:
            if self.over():
                print(f"{name}: not begun, the time is up", flush=True)
            else:
                self.item(name, name in ahead)
        self.save()

    def ours(self, found: Workload) -> Makers:
        """Return ovgpu's engines for a workload. Those of one Llama model share the compiled model."""
        llama = found.text.llama if found.text is not None else None
        if llama is not None and llama is not self.llama:
            self.llama, self.compiled = llama, compiled(found, self.options.device)
        makers: Makers = {"ovgpu": partial(engine, found, self.options.device, self.compiled if llama else None)}
        if found.tf32:
            makers["ovgpu tf32"] = partial(engine, replace(found, config=TF32), self.options.device)
        return makers

    def item(self, name: str, with_compiled: bool) -> None:
        """Measure a workload in all engines, or in those that torch need not compile."""
        item = self.result["items"].setdefault(name, {"engines": {}})
        try:
            found = workload(name, self.options.tiny)
            item |= {"title": found.title, "least_bytes": found.nbytes}
            makers = peers(found, self.options) if self.options.torch else {}
            reference = makers.pop("reference", None)
            if reference is None and (found.text is None or found.text.llama is None or self.options.tiny):
                reference = partial(engine, replace(found, config={}), "CPU")
            makers = self.ours(found) | {
                title: make for title, make in makers.items() if with_compiled or "compile" not in title
            }
            wanted = results(reference(), found) if reference is not None else None
            for title, make in makers.items():
                if title.startswith("torch") and self.over():
                    print(f"{name}: {title} not begun, the time is up", flush=True)
                    continue
                item["engines"][title] = row = self.engine(title, make, found, wanted)
                print(f"{name:18} {title:20} {line(row)}", flush=True)
                self.free()
                self.save()
        except Exception:
            item["trace"] = traceback.format_exc()[-4000:]
            print(f"{name}: FAILED {item['trace'].splitlines()[-1][:150]}", flush=True)
        add_ratios(item["engines"])
        self.save()
        for title, row in item["engines"].items():
            if "ratio" in row.get("device", {}):
                ratios = (
                    f"{what} {row[what]['ratio']:.2f} ({row[what]['best_peer']})"
                    for what in TIMES
                    if "ratio" in row.get(what, {})
                )
                print(f"{name:18} {title:20} ratios: {', '.join(ratios)}", flush=True)

    def engine(self, title: str, make: Callable[[], Any], found: Workload, wanted: Any) -> dict[str, Any]:
        """Return the error and the times of an engine, which is freed afterwards."""
        row: dict[str, Any] = {}
        try:
            start = time.perf_counter()
            made = make()
            row["setup_seconds"] = time.perf_counter() - start
            outputs = results(made, found)
            row["right"] = all(bool(np.isfinite(y).all()) for y in outputs)
            if wanted is not None and not title.endswith("int4"):  # torch's kernels for int4 have weights of their own
                row["error"] = error(outputs, wanted)
                row["right"] = row["error"] <= (TF32_TOLERANCE if title.endswith("tf32") else found.tolerance)
            if row["right"] and not self.options.check:
                row |= measured(made, found, self.options)
                if isinstance(made, Engine):
                    row |= rates(row, found, self.copy) | made.figures()
        except Exception as failure:
            row |= {
                "right": False,
                "failed": f"{type(failure).__name__}: {failure}"[:2000],
                "trace": traceback.format_exc()[-4000:],
            }
        return row

    def free(self) -> None:
        """Free memory."""
        gc.collect()
        rt.cupy().get_default_memory_pool().free_all_blocks()
        if self.options.torch == "cuda":
            import torch

            torch.cuda.empty_cache()


def line(row: Mapping[str, Any]) -> str:
    """Return an engine's row as a short text."""
    words = ["WRONG" if not row["right"] else "ok" if "error" in row else "finite, not compared"]
    words += [f"{name} {row[name]:{form}}" for name, form in FIGURES.items() if name in row]
    words += [f"{what} {row[what]['us']:.1f} us" for what in TIMES if what in row]
    return ", ".join(words) + (f", FAILED {row['failed'].splitlines()[0][:120]}" if "failed" in row else "")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        nargs="*",
        choices=[*WORKLOADS],
        default=[*WORKLOADS],
        metavar="NAME",
        help=f"workloads: {', '.join(WORKLOADS)}",
    )
    parser.add_argument("--modes", nargs="*", choices=gpu_torch.MODES, default=["eager", "graph", "compile+graph"])
    parser.add_argument("--out", type=Path, help="JSON file, rewritten after each engine")
    parser.add_argument("--device", default="NVIDIA", help="of ovgpu")
    parser.add_argument("--torch", choices=("cuda", "cpu", "none"), help="torch's device; default: cuda if usable")
    parser.add_argument("--ahead", type=int, default=0, metavar="N", help="compile in N processes before")
    parser.add_argument("--ahead-seconds", type=float, default=45, help="for that")
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help="compare results, measure nothing")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which nothing new is begun")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.2, help="per measurement")
    parser.add_argument("--steps", type=int, help="tokens of a decoder that are timed in a round")
    parser.add_argument("--emulated", action="store_true", help="the tests' emulator for CuPy")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try the program")
    options = parser.parse_args(arguments)
    options.torch = gpu_torch.device_of() if options.torch is None else options.torch.replace("none", "") or None
    if options.torch == "cpu":
        options.modes = [mode for mode in options.modes if "graph" not in mode]
    options.steps = options.steps or (3 if options.tiny else 64)
    if options.tiny:
        options.rounds, options.seconds = 1, 0.0
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return exit status 1 if ovgpu failed or was wrong on a workload that was begun."""
    options = parse(arguments)
    if options.compile:
        for name, mode in product(options.only, options.modes):
            peers(workload(name, options.tiny), options)[f"torch {mode}"]()
        return 0
    run = Run(options)
    with bound("emulator") if options.emulated else nullcontext():
        run.all()
    wrong = [name for name, item in run.result["items"].items() if not item["engines"].get("ovgpu", {}).get("right")]
    if wrong:
        print(f"failed or wrong: {', '.join(wrong)}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
