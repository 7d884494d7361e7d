"""ovgpu's side of `bench.gpu`, and the comparison of all engines on one workload."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ovgpu
from bench import gpu_torch
from bench.gpu_measure import Events, Flush, HostClock, Timer, device_seconds, host_seconds, summary
from bench.gpu_workloads import EXACT, TF32, Workload
from ovgpu.backends.cuda import rt
from tests.models.drive import decoder_inputs

Array = NDArray[Any]
TF32_TOLERANCE = 1e-2
TF32_MODE = "graph"  # torch's mode that is run in TF32 as well: the fastest of those that compile nothing
STEPS = 3  # steps of a decoder whose results are compared


@dataclass(frozen=True)
class Settings:
    """``device`` of ovgpu; ``torch`` is torch's device, None if there is none; times in seconds."""

    device: str
    torch: str | None
    modes: Sequence[str]
    rounds: int
    seconds: float
    steps: int  # steps of a decoder, timed one by one
    least: int  # the least number of samples of a measurement


class Ovgpu:
    """A workload on a device of ovgpu: with inputs and outputs on the host, and on the device."""

    def __init__(self, workload: Workload, device: str, config: Mapping[str, str] = EXACT) -> None:
        self.workload = workload
        core = ovgpu.Core()
        compiled = core.compile_model(core.read_model(*workload.ir), device, dict(config))
        self.request = self.resident = compiled.create_infer_request()
        self.position = 0
        self.timer: Timer = HostClock()
        self.flush: Callable[[], object] | None = None
        if workload.prompt is None:
            outputs = self.infer()
            if device == "CPU":
                return
            self.resident = compiled.create_infer_request()
            self._keep_on_device(outputs)
            for _ in range(3):  # graphs are captured at the second inference
                self.infer()
                self.call()
        else:
            self.begin()
        if device != "CPU":  # the timer uses the stream of the request that `launch` repeats
            cupy, stream = rt.cupy(), self.resident._backend.stream
            self.timer = Events(cupy, stream)
            self.flush = Flush(cupy, stream) if workload.bandwidth else None

    def _keep_on_device(self, outputs: Sequence[Array]) -> None:
        cupy = rt.cupy()
        for number, array in enumerate(self.workload.inputs.values()):
            self.resident.set_input_tensor(number, ovgpu.Tensor(cupy.asarray(array), shared_memory=True))
        for number, array in enumerate(outputs):
            self.resident.set_output_tensor(
                number, ovgpu.Tensor(cupy.empty(array.shape, array.dtype), shared_memory=True))

    def begin(self) -> None:
        """Reset a decoder and feed its prompt."""
        if self.workload.prompt is not None:
            self.request.reset_state()
            self.position = 0
            self._step(self.workload.prompt)

    def infer(self, token: int = 0) -> list[Array]:
        """Run an inference from host arrays to host arrays."""
        if self.workload.prompt is not None:
            return self._step(np.array([[token]]))
        found = self.request.infer(self.workload.inputs, share_inputs=True, share_outputs=True)
        return [np.asarray(y) for y in found.to_tuple()]

    def _step(self, tokens: Array) -> list[Array]:
        self.position += tokens.shape[1]
        inputs = decoder_inputs(tokens, np.ones((1, self.position), np.int64))
        found = self.request.infer(inputs, share_inputs=True, share_outputs=True)
        return [np.asarray(y) for y in found.to_tuple()]

    def call(self) -> None:
        """Run an inference with inputs and outputs on the device, and wait for it."""
        self.resident.infer()

    def launch(self) -> None:
        """Repeat the work of the last such inference (of a decoder, its last step) without waiting."""
        executor = self.resident._last
        for segment, cached in zip(executor.program.segments, executor.bindings):
            binding = next(reversed(cached.values()))
            if not executor.backend.replay(binding):
                executor.run_flat(segment, binding)
            if segment.steps and segment.steps[-1].kind == "eager":
                executor._run_eager(segment.steps[-1], binding)

    def plan(self) -> dict[str, Any]:
        plan = self.request.plan()
        return {"host_launches": plan.launches, "calls": sum(step.calls or 0 for step in plan.steps),
                "eager_steps": plan.count("eager"), "arena_bytes": plan.arena}


def results(engine: Any, workload: Workload) -> list[Array]:
    """Return copies of an engine's outputs, which later inferences do not overwrite."""
    if workload.prompt is None:
        return [np.array(y) for y in engine.infer()]
    engine.begin()
    return [np.array(engine.infer(token)[0]) for token in range(STEPS)]


def error(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """Return the largest relative distance of an output, ``|found - wanted| / |wanted|``; NaN if shapes differ."""
    if [x.shape for x in found] != [x.shape for x in wanted]:
        return float("nan")
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(found, wanted)]
    return max(float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-30)) for a, b in pairs)


def compare(make: Callable[[], Workload], settings: Settings) -> dict[str, Any]:
    """Run all engines on one workload: compare results with ovgpu on the CPU, then take times in turns.

    Engines whose names end with ``tf32`` round f32 to TF32. An engine that fails, or whose results differ, is reported
    as such and not timed.
    """
    workload = make()
    wanted = results(Ovgpu(workload, "CPU"), workload)
    makers: dict[str, Callable[[], Any]] = {"ovgpu": lambda: Ovgpu(workload, settings.device)}
    if workload.tf32 and settings.device != "CPU":
        makers["ovgpu tf32"] = lambda: Ovgpu(workload, settings.device, TF32)
    if settings.torch is not None:
        device = settings.torch
        makers |= {f"torch {mode}": lambda mode=mode: gpu_torch.Peer(workload, mode, device)
                   for mode in settings.modes if device != "cpu" or "graph" not in mode}
        if workload.tf32 and device != "cpu" and TF32_MODE in settings.modes:
            makers[f"torch {TF32_MODE} tf32"] = lambda: gpu_torch.Peer(workload, TF32_MODE, device, True)
    rows: dict[str, dict[str, Any]] = {}
    engines: dict[str, Any] = {}
    for name, build in makers.items():
        try:
            engine = build()
            row: dict[str, Any] = {"error": error(results(engine, workload), wanted)}
            row["right"] = bool(row["error"] <= (TF32_TOLERANCE if name.endswith("tf32") else workload.tolerance))
            if row["right"]:
                engines[name] = engine
        except Exception as failure:
            row = {"right": False, "failed": f"{type(failure).__name__}: {failure}"[:2000],
                   "trace": traceback.format_exc()[-4000:]}
        rows[name] = row
    _time(workload, engines, rows, settings)
    return {"title": workload.title, "least_bytes": workload.nbytes, "bandwidth": workload.bandwidth, "engines": rows}


def _time(workload: Workload, engines: dict[str, Any], rows: dict[str, dict[str, Any]], settings: Settings) -> None:
    device: dict[str, list[list[float]]] = {name: [] for name in engines}
    calls: dict[str, list[list[float]]] = {name: [] for name in engines}
    host: dict[str, list[list[float]]] = {name: [] for name in engines}
    for _ in range(settings.rounds):
        for name, engine in engines.items():
            try:
                engine.begin()
                least = settings.least if workload.prompt is None else settings.steps
                seconds = settings.seconds if workload.prompt is None else 0.0
                for _ in range(2):
                    engine.infer()
                host[name].append(host_seconds(engine.infer, seconds, least))
                if workload.prompt is None:
                    calls[name].append(host_seconds(engine.call, seconds, settings.least))
                device[name].append(device_seconds(engine.launch, engine.timer, settings.seconds, settings.least,
                                                   engine.flush))
            except Exception as failure:
                rows[name] |= {"failed": f"{type(failure).__name__}: {failure}"[:2000],
                               "trace": traceback.format_exc()[-4000:]}
    for name, engine in engines.items():
        if device[name] and host[name]:
            rows[name] |= {"device": summary(device[name]), "wall": summary(host[name])}
            if calls[name]:
                rows[name]["call"] = summary(calls[name])
        if isinstance(engine, Ovgpu):
            rows[name]["plan"] = engine.plan()
    add_ratios(rows)


def add_ratios(rows: Mapping[str, dict[str, Any]]) -> None:
    """Add ovgpu's ratios to the fastest peer: of those without TF32, and for ovgpu in TF32, of all."""
    timed = {name: row for name, row in rows.items() if "device" in row}
    for name, row in timed.items():
        peers = [peer for peer in timed if not peer.startswith("ovgpu") and (
            name.endswith("tf32") or not peer.endswith("tf32"))]
        for what in ("device", "call", "wall") if name.startswith("ovgpu") and peers else ():
            if what in row:
                best = min(peers, key=lambda peer: timed[peer][what]["us"])
                row[what] |= {"best_peer": best, "ratio": row[what]["us"] / timed[best][what]["us"]}
