"""Attention alone on an NVIDIA card, each shape beside torch's, with the error against f32.

    python -m bench.gpu_attention [--cases decode bert] [--out FILE.json]

Each figure is the time of one layer in a captured graph of many layers. Every layer has its own keys and values, as in
a model, so that long caches are read from device memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu_measure import Events, describe, device_seconds
from bench.gpu_questions import captured
from ovgpu.backends.cuda import rt
from ovgpu.backends.cuda.blas import Blas
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.attention import _attention
from tests.harness.cuda import bound

Array = Any
BACKENDS = {"torch": "usual", "flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
LOWEST = -65504.0  # exported decoders add it to hidden scores


@dataclass(frozen=True)
class Case:
    """Queries [batch, heads, shared, queries, head] of keys [batch, heads, 1, capacity, head], ``keys`` of them valid;
    ``mask`` is "none", "added" (causal, the last query sees all keys), "causal" or "boolean" (of keys). The arrays are
    f16 or f32; the ``precision`` "tf32" rounds f32 to TF32."""

    name: str
    batch: int
    heads: int
    shared: int
    queries: int
    keys: int
    mask: str = "none"
    capacity: int = 0
    head: int = 64
    layers: int = 16
    precision: str = "f16"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the arrays."""
        return np.dtype(np.float16 if self.precision == "f16" else np.float32)

    @property
    def tf32(self) -> bool:
        return self.precision == "tf32"


CASES = [
    Case("decode 128", 1, 8, 4, 1, 128, "added", 8192),
    Case("decode 2048", 1, 8, 4, 1, 2048, "added", 8192),
    Case("decode 8192", 1, 8, 4, 1, 8192, "added", 8192),
    Case("decode 32768", 1, 8, 4, 1, 32768, "added", 32768, layers=4),
    Case("decode 8192 of 8 B", 1, 8, 4, 1, 8192, "added", 8192, 128, 8),
    Case("4 queries 8192", 1, 8, 4, 4, 8192, "added", 8192),
    Case("16 queries 8192", 1, 8, 4, 16, 8192, "added", 8192),
    Case("64 queries 8192", 1, 8, 4, 64, 8192, "added", 8192),
    Case("16 queries of 32 sequences", 32, 8, 4, 16, 2048, "added", 2048, layers=4),
    Case("prefill 2048", 1, 8, 4, 2048, 2048, "added", layers=4),
    Case("prefill 2048 causal", 1, 8, 4, 2048, 2048, "causal", layers=4),
    Case("prefill 2048 of 8 B", 1, 8, 4, 2048, 2048, "added", head=128, layers=4),
    Case("bert", 1, 12, 1, 128, 128, "boolean"),
    Case("bert batch 32", 32, 12, 1, 128, 128, "boolean"),
    Case("vit", 1, 12, 1, 197, 197),
    Case("whisper", 1, 6, 1, 1500, 1500),
    *(Case(f"{name} in {precision}", *sizes, mask, layers=layers, precision=precision) for precision in ("f32", "tf32")
      for name, sizes, mask, layers in (("bert", (1, 12, 1, 128, 128), "boolean", 16),
                                        ("bert batch 32", (32, 12, 1, 128, 128), "boolean", 16),
                                        ("prefill 2048", (1, 8, 4, 2048, 2048), "added", 4))),
]


TINY = [Case("decode 40", 1, 2, 2, 1, 40, "added", 64, layers=1), Case("prefill 20", 1, 2, 2, 20, 20, layers=1)]


class Layers:
    """Random queries, keys and values of each layer of a case, and one mask."""

    def __init__(self, case: Case) -> None:
        self.case, cupy = case, rt.cupy()
        rows = case.capacity or case.keys
        random = (np if case in TINY else cupy).random.default_rng(1)

        def draw(*shape: int) -> Array:
            return cupy.asarray(random.standard_normal(shape, np.float32).astype(case.dtype))

        q, kv = (case.shared, case.queries), (1, rows)
        self.q = [draw(case.batch, case.heads, *q, case.head) for _ in range(case.layers)]
        self.k, self.v = ([draw(case.batch, case.heads, *kv, case.head) for _ in range(case.layers)] for _ in range(2))
        self.out = [cupy.empty_like(q) for q in self.q]
        hidden = np.arange(rows) > np.arange(case.queries)[:, None] + case.keys - case.queries
        added = np.where(hidden, LOWEST, 0).astype(case.dtype)[None, None, None]
        flags = np.arange(rows)[None, None, None, None] < np.array([case.keys - 7])
        self.mask = {"added": cupy.asarray(added), "boolean": cupy.asarray(flags)}.get(case.mask)
        self.length = cupy.asarray(np.array([case.keys], np.int64)) if case.capacity else None

    def calls(self, stream: Any) -> list[Callable[[], Any]]:
        launcher = Launcher(stream, Blas(stream, self.case.tf32))
        for q, k, v, out in zip(self.q, self.k, self.v, self.out):
            assert _attention.attend(launcher, (q, k, v, self.mask, None, None), out, self.case.mask == "causal",
                                     self.length) is None
        return launcher.calls

    def error(self) -> float:
        """Return the largest error of the first layer's result."""
        cupy, case = rt.cupy(), self.case
        q, k, v = (x[0].astype(np.float32) for x in (self.q, self.k, self.v))
        k, v = k[..., : case.keys, :], v[..., : case.keys, :]
        scores = cupy.matmul(q, k.swapaxes(-1, -2)) * np.float32(case.head**-0.5)
        if case.mask == "causal":
            scores = cupy.where(cupy.arange(case.keys) > cupy.arange(case.queries)[:, None], -np.inf, scores)
        elif self.mask is not None:
            mask = self.mask[..., : case.keys]
            scores = cupy.where(mask, scores, -np.inf) if case.mask == "boolean" else scores + mask
        weights = cupy.exp(scores - scores.max(axis=-1, keepdims=True))
        wanted = cupy.matmul(weights, v) / weights.sum(axis=-1, keepdims=True)
        return float(abs(wanted - self.out[0]).max())


def ours(case: Case, seconds: float) -> dict[str, Any]:
    """Return the microseconds of a layer, and the largest error."""
    cupy = rt.cupy()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        layers = Layers(case)
        calls = layers.calls(stream)
        for call in calls:  # compiles
            call()
        stream.synchronize()
        graph = captured(stream, *calls)
        times = device_seconds(lambda: graph.launch(stream), Events(cupy, stream), seconds)
        return {"us": statistics.median(times) / case.layers * 1e6, "error": layers.error()}


def peers(case: Case, seconds: float, backend: str) -> float:
    """Return the microseconds of a layer of torch's scaled_dot_product_attention in a captured graph, by a backend of
    `BACKENDS`."""
    import torch
    from torch.nn import functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.backends.cuda.matmul.allow_tf32 = case.tf32
    kind = torch.float16 if case.precision == "f16" else torch.float32

    def draw(heads: int, rows: int) -> Any:
        return torch.randn(case.batch, heads, rows, case.head, dtype=kind, device="cuda")

    q = [draw(case.heads * case.shared, case.queries) for _ in range(case.layers)]
    k, v = ([draw(case.heads, case.keys) for _ in range(case.layers)] for _ in range(2))
    causal = case.queries == case.keys and case.mask in ("added", "causal")

    usual = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]

    def run() -> None:
        with sdpa_kernel(usual if backend == "usual" else getattr(SDPBackend, backend)):
            for layer in range(case.layers):
                F.scaled_dot_product_attention(q[layer], k[layer], v[layer], is_causal=causal,
                                               enable_gqa=case.shared > 1)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    cupy = rt.cupy()
    with torch.cuda.stream(stream):
        times = device_seconds(graph.replay, Events(cupy, cupy.cuda.ExternalStream(stream.cuda_stream)), seconds)
    return statistics.median(times) / case.layers * 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return exit status 1 if a result is far off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=[], help="prefixes of the names of cases")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each time")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget", type=float, default=600, help="seconds after which no case is begun")
    parser.add_argument("--emulated", action="store_true", help="the tests' emulator for CuPy")
    parser.add_argument("--tiny", action="store_true", help="tiny cases, without torch")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    until = time.perf_counter() + options.budget
    with bound("emulator") if options.emulated else nullcontext():
        for case in TINY if options.tiny else CASES:
            if options.cases and not case.name.startswith(tuple(options.cases)):
                continue
            if time.perf_counter() > until:
                print(f"{case.name}: not begun, the time is up", flush=True)
                continue
            row = found[case.name] = ours(case, options.seconds)
            for name, backend in BACKENDS.items() if not options.tiny else ():
                try:
                    row[f"{name}_us"] = peers(case, options.seconds, backend)
                except Exception as error:  # no torch, none for the card, or a backend that does not take the case
                    row[name] = f"{type(error).__name__}: {error}"[:200]
            times = "".join(f", {name} {row[f'{name}_us']:.2f}" for name in BACKENDS if f"{name}_us" in row)
            print(f"{case.name:22} {row['us']:8.2f} us{times}, error {row['error']:.1e}", flush=True)
            if options.out:
                options.out.write_text(json.dumps({"device": describe(rt.cupy()), "cases": found}, indent=1) + "\n")
    return int(any(not row["error"] < 0.05 for row in found.values()))


if __name__ == "__main__":
    sys.exit(main())
