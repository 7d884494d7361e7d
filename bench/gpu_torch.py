"""Torch as a peer: a workload's module in each of torch's ways to run it. Only functions import torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.gpu_measure import HostClock, Timer
from bench.workloads import Workload

Array = NDArray[Any]
# Modes with "graph" are captured in a CUDA graph; "compile+graph" is torch.compile by max-autotune before that.
MODES = ("eager", "graph", "compile", "compile+graph")


def device_of() -> str | None:
    """Return torch's device, None if it has no GPU or is not installed."""
    try:
        import torch
    except ImportError:
        return None
    return "cuda" if torch.cuda.is_available() else None


class Events:
    """`gpu_measure.Timer` with torch's events on its current stream."""

    def mark(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / 1e3

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()


class Peer:
    """A module run in one of `MODES` on fixed inputs on its device."""

    def __init__(self, module: Any, inputs: Sequence[Array], mode: str, device: str) -> None:
        import torch

        if mode not in MODES or (mode == "graph" and device == "cpu"):
            raise ValueError(f"torch has no mode {mode!r} on {device}")
        self.given, self.graph, self.outputs = [*inputs], None, ()
        self.inputs = [torch.from_numpy(x).to(device) for x in inputs]
        self.timer: Timer = HostClock() if device == "cpu" else Events()
        self.flush: Callable[[], object] | None = None
        self.module = self.run = module
        if mode.startswith("compile"):
            options: dict[str, Any] = {"mode": "max-autotune-no-cudagraphs"} if mode.endswith("graph") else {}
            torch._dynamo.reset()
            self.run = torch.compile(module, dynamic=False, **options)
        for _ in range(3):
            self.launch()
        if mode.endswith("graph") and device != "cpu":
            self._capture()

    def launch(self) -> None:
        """Start an inference without waiting for it."""
        import torch

        with torch.inference_mode():
            if self.graph is not None:
                self.graph.replay()
            else:
                found = self.run(*self.inputs)
                self.outputs = found if isinstance(found, tuple) else (found,)

    def _capture(self) -> None:
        import torch

        cuda: Any = torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            self.launch()
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            self.launch()
        self.graph = graph

    def begin(self) -> None:
        """Start from the initial state."""
        import torch

        reset: Callable[[], None] | None = getattr(self.module, "reset", None)
        if reset is not None:
            with torch.inference_mode():
                reset()

    def keep_outputs(self) -> None:
        """Do nothing: outputs stay on the device."""

    def call(self) -> None:
        """Run an inference with inputs and outputs on the device, and wait for it."""
        self.launch()
        self.timer.synchronize()

    def infer(self) -> list[Array]:
        """Run an inference from host arrays to host arrays."""
        import torch

        with torch.inference_mode():
            for target, value in zip(self.inputs, self.given):
                target.copy_(torch.from_numpy(value))
            self.launch()
            return [(y.float() if y.is_floating_point() else y).cpu().numpy() for y in self.outputs]


def peer(
    workload: Workload,
    module: Any,
    mode: str,
    device: str,
    *,
    half: bool = False,
    tf32: bool = False,
    channels_last: bool = False,
) -> Peer:
    """Return a workload in torch; on request in 16 bits, with f32 rounded to TF32, or with channels last.

    ``module`` is changed in place, so that several peers in turn can share it.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    module = (module.half() if half else module).eval().requires_grad_(False).to(device)
    module = module.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    made = Peer(module, [_arranged(x, half, channels_last) for x in workload.inputs.values()], mode, device)
    if workload.bandwidth and device != "cpu":
        size = 2 * torch.cuda.get_device_properties(0).L2_cache_size
        made.flush = partial(torch.empty(size, dtype=torch.uint8, device=device).fill_, 1)
    return made


def _arranged(x: Array, half: bool, channels_last: bool) -> Array:
    """Return the array in the peer's type and memory order."""
    x = x.astype(np.float16) if half and x.dtype == np.float32 else x
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) if channels_last and x.ndim == 4 else x
