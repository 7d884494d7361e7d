"""Benchmark of ovgpu against torch on networks for images, speech and diffusion, on BERT in f16, and on LSTMs:

    python -m bench.gpu_vision --out FILE.json
    python -m bench.gpu_vision --only resnet50_f16 unet_f16 --modes graph compile+graph --budget 300
    python -m bench.gpu_vision --emulated --tiny     a trial without a GPU

Each workload is built, run, compared with torch in f32 (largest difference over largest value), then timed as in
`bench.gpu`: on the device, per call, and host to host. A workload in f16 is an IR of f32 that ovgpu compiles with
INFERENCE_PRECISION_HINT f16, and a torch module in half precision, with channels last if it convolves. f32 runs without
TF32; ovgpu is also timed with it, as "ovgpu tf32", and so is torch's mode "graph", as "graph-tf32". The mode "graph" of
convolutions in f16 is also timed without channels last, as "graph-nchw": torch's group norms prefer that.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ovgpu
from bench import gpu_measure, gpu_run, gpu_vision_torch
from bench.gpu_measure import Events, HostClock, Timer, device_seconds, host_seconds, summary
from bench.gpu_torch import MODES
from bench.gpu_vision_workloads import TINY, WORKLOADS, Configured
from bench.gpu_workloads import TF32
from ovgpu.backends.cuda import rt
from tests.harness.cuda import bound

Array = NDArray[Any]
TF32_TOLERANCE = 2e-2
FRAMES = 3  # inferences of a model with state that are compared
WARM_UP = 8  # inferences; graphs are captured at the second with the same buffers, and states alternate between two
MIN_SAMPLES = 5  # the least samples of a measurement


class Ovgpu(gpu_run.Ovgpu):
    """`gpu_run.Ovgpu` with the workload's config, whose states can be reset."""

    def __init__(self, workload: Configured, device: str) -> None:
        self.workload: Configured = workload
        core = ovgpu.Core()
        compiled = core.compile_model(core.read_model(*workload.ir), device, dict(workload.config))
        self.request = self.resident = compiled.create_infer_request()
        self.position = 0
        self.timer: Timer = HostClock()
        self.flush = None
        outputs = self.infer()
        if device == "CPU":
            return
        self.resident = compiled.create_infer_request()
        self._keep_on_device(outputs)
        backend: Any = self.resident._backend
        self.timer = Events(rt.cupy(), backend.stream)  # each request has a stream of its own
        for _ in range(WARM_UP):
            self.infer()
            self.call()

    def begin(self) -> None:
        """Reset the states."""
        if self.workload.stateful:
            self.request.reset_state()


def results(engine: Any, workload: Configured) -> list[Array]:
    """Return copies of the outputs of one inference, or of the first few from the initial state."""
    engine.begin()
    return [np.array(y) for _ in range(FRAMES if workload.stateful else 1) for y in engine.infer()]


def error(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """Return the largest difference relative to the largest value, of the worst output; NaN if shapes differ."""
    if [x.shape for x in found] != [x.shape for x in wanted]:
        return float("nan")
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(found, wanted)]
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in pairs)


def measured(engine: Any, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure device time, time of a call, and time from host to host."""
    found: dict[str, list[list[float]]] = {"device": [], "call": [], "wall": []}
    for _ in range(rounds):
        found["wall"].append(host_seconds(engine.infer, seconds, MIN_SAMPLES))
        found["call"].append(host_seconds(engine.call, seconds, MIN_SAMPLES))
        found["device"].append(device_seconds(engine.launch, engine.timer, seconds, MIN_SAMPLES))
    return {what: summary(samples) for what, samples in found.items()}


class Run:
    """Run over the workloads; ``result`` and the file are updated after each engine."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.start = time.perf_counter()
        self.result: dict[str, Any] = {"rounds": options.rounds, "seconds_each": options.seconds, "items": {}}
        self.cuda = options.torch == "cuda"

    def over(self) -> bool:
        return self.options.budget is not None and time.perf_counter() - self.start > self.options.budget

    def save(self) -> None:
        if self.options.out is not None:
            self.result["seconds"] = time.perf_counter() - self.start
            self.options.out.parent.mkdir(parents=True, exist_ok=True)
            self.options.out.write_text(json.dumps(self.result, indent=1) + "\n")

    def all(self) -> None:
        if self.options.torch != "none":
            import torch

            cudnn: Any = torch.backends.cudnn
            self.result |= {"torch": str(torch.__version__), "torch_cudnn": cudnn.version()}
        if self.options.device != "CPU":
            self.result["device"] = gpu_measure.describe(rt.cupy())
            self.result["clocks"] = gpu_measure.clocks()
            self.result["ovgpu_cudnn"] = rt.cudnn() is not None
            print(self.result["device"]["name"], "with" if self.result["ovgpu_cudnn"] else "WITHOUT", "cuDNN in ovgpu",
                  flush=True)
        compiled = self.cuda and any(_compiles(mode) for mode in self.options.modes)
        for compiling in (False, True) if compiled else (False,):  # compiling takes longest, so it comes last
            for name in self.options.only:
                if self.over():
                    print(f"{name}: {'compiling ' * compiling}not started, the budget is spent", flush=True)
                    continue
                try:
                    self.item(name, (TINY if self.options.tiny else WORKLOADS)[name], compiling)
                except Exception:
                    self.result["items"].setdefault(name, {"engines": {}})["trace"] = traceback.format_exc()[-4000:]
                    print(f"{name}: FAILED {traceback.format_exc().splitlines()[-1][:150]}", flush=True)
                self.free()
                self.save()
                print(f"{name:18} {time.perf_counter() - self.start:.0f} s so far", flush=True)

    def item(self, name: str, make: Callable[[], Configured], compiling: bool) -> None:
        """Measure one workload: torch in f32 as reference, then ovgpu and torch's modes, or the modes that compile."""
        start = time.perf_counter()
        workload = make()
        item: dict[str, Any] = self.result["items"].setdefault(name, {
            "title": workload.title, "least_bytes": workload.nbytes, "engines": {},
            "build_seconds": time.perf_counter() - start})
        if self.options.torch == "none":
            wanted = results(Ovgpu(replace(workload, config={}), "CPU"), workload)
            row = self.engine(partial(Ovgpu, workload, self.options.device), workload, wanted, workload.tolerance)
            item["engines"]["ovgpu"] = row
            print(f"{name:18} {'ovgpu':20} {_line(row)}", flush=True)
            return
        peer = partial(gpu_vision_torch.Peer, workload, device=self.options.torch, module=workload.module())
        wanted = results(peer("eager"), workload)
        makers: dict[str, Callable[[], Any]] = {}
        if not compiling:
            item["reference_seconds"] = time.perf_counter() - start - item["build_seconds"]
            makers["ovgpu"] = lambda: Ovgpu(workload, self.options.device)
            if not workload.half and self.options.device != "CPU":
                makers["ovgpu tf32"] = lambda: Ovgpu(replace(workload, config=TF32), self.options.device)
        last = workload.image and (workload.half or self.options.channels_last)
        for mode in self.modes(workload):
            plain, _, extra = mode.partition("-")
            if _compiles(mode) is not compiling:
                continue
            makers[f"torch {mode}"] = partial(peer, plain, half=workload.half, tf32=extra == "tf32",
                                              channels_last=last and extra != "nchw")
        for engine, build in makers.items():
            if not engine.startswith("ovgpu") and self.over():
                print(f"{name}: {engine} not started, the budget is spent", flush=True)
                continue
            tolerance = TF32_TOLERANCE if engine.endswith("tf32") else workload.tolerance
            item["engines"][engine] = row = self.engine(build, workload, wanted, tolerance)
            print(f"{name:18} {engine:20} {_line(row)}", flush=True)
            self.free()
            self.save()
        gpu_run.add_ratios(item["engines"])
        for engine, row in item["engines"].items():
            if "ratio" in row.get("device", {}):
                ratios = (f"{what} {row[what]['ratio']:.2f} ({row[what]['best_peer']})"
                          for what in ("device", "call", "wall"))
                print(f"{name:18} {engine:20} ratios: {', '.join(ratios)}", flush=True)

    def modes(self, workload: Configured) -> list[str]:
        """Return torch's modes that the device and the workload allow."""
        modes = [mode for mode in MODES if mode in self.options.modes and (self.cuda or mode == "eager")]
        if "graph" in modes and (workload.image or not workload.half):
            modes.insert(modes.index("graph") + 1, "graph-nchw" if workload.half else "graph-tf32")
        return modes

    def engine(self, build: Callable[[], Any], workload: Configured, wanted: list[Array],
               tolerance: float) -> dict[str, Any]:
        """Return the error and times of an engine, also if it is wrong; the engine is freed afterwards."""
        row: dict[str, Any] = {"right": False}
        try:
            start = time.perf_counter()
            engine = build()
            row["setup_seconds"] = time.perf_counter() - start
            row["error"] = error(results(engine, workload), wanted)
            row["right"] = bool(row["error"] <= tolerance)
            if isinstance(engine, Ovgpu) and self.options.device != "CPU":
                row["plan"] = engine.plan()
            if not self.options.check:
                row |= measured(engine, self.options.rounds, self.options.seconds)
        except Exception as failure:
            row |= {"failed": f"{type(failure).__name__}: {failure}"[:2000], "trace": traceback.format_exc()[-4000:]}
        return row

    def free(self) -> None:
        """Free memory."""
        gc.collect()
        if self.options.device != "CPU":
            rt.cupy().get_default_memory_pool().free_all_blocks()
        if self.cuda:
            import torch

            if any(map(_compiles, self.options.modes)):
                torch._dynamo.reset()
            torch.cuda.empty_cache()


def _compiles(mode: str) -> bool:
    return mode.startswith("compile")


def _line(row: Mapping[str, Any]) -> str:
    """Return an engine's row as a short text."""
    text = f"error {row['error']:.1e} {'ok' if row['right'] else 'WRONG'}" if "error" in row else ""
    text += "".join(f" {what} {row[what]['us']:.1f}" for what in ("device", "call", "wall") if what in row)
    text += f" us, setup {row['setup_seconds']:.1f} s" if "setup_seconds" in row else ""
    return text + (f" FAILED {row['failed'].splitlines()[0][:120]}" if "failed" in row else "")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=WORKLOADS, default=[*WORKLOADS], metavar="NAME",
                        help=f"workloads: {', '.join(WORKLOADS)}")
    parser.add_argument("--modes", nargs="*", choices=MODES, default=["eager", "graph", "compile+graph"])
    parser.add_argument("--out", type=Path, help="JSON file, rewritten after each engine")
    parser.add_argument("--device", default="NVIDIA", help="of ovgpu; CPU for NumPy")
    parser.add_argument("--torch", choices=("cuda", "cpu", "none"), help="default: cuda, cpu for a trial; without it, "
                        "results are compared with those of the CPU")
    parser.add_argument("--emulated", action="store_true", help="the tests' emulator for CuPy")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try the program")
    parser.add_argument("--check", action="store_true", help="compare results, measure nothing")
    parser.add_argument("--channels-last", action="store_true", help="for torch's convolutions in f32 too")
    parser.add_argument("--budget", type=float, help="seconds after which nothing new is started")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.2, help="per measurement")
    options = parser.parse_args(arguments)
    if options.torch is None:
        options.torch = "cpu" if options.emulated or options.device == "CPU" else "cuda"
    if options.device == "CPU":
        options.check = True
    if options.emulated:
        options.rounds, options.seconds = 1, 0.0
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 if ovgpu failed or was wrong on a workload."""
    options = parse(arguments)
    run = Run(options)
    with bound("emulator") if options.emulated else nullcontext():
        run.all()
    run.save()
    wrong = [name for name, item in run.result["items"].items() if not item["engines"].get("ovgpu", {}).get("right")]
    if wrong:
        print(f"failed or wrong: {', '.join(wrong)}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
