"""Single layers on an NVIDIA card: attention beside torch's, and products with compressed weights.

    python -m bench.gpu_layers [--cases decode bert "2048 x 8192"] [--out FILE.json]
    python -m bench.gpu_layers --emulated --tiny        a trial without a GPU

Each figure is the time of one layer in a captured graph of many layers, which have arrays of their own as in a model,
so that caches and weights are read from device memory. Errors of attention are against f32, those of products in
roundings: multiples of the rounding of a result to f16 and 2^-20 of the sum of absolute products.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu_measure import Events, captured, describe, device_seconds
from ovgpu.backends.cuda import rt
from ovgpu.backends.cuda.blas import Blas
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.attention import _attention
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.fused import _product_mma
from ovgpu.ops.fused._packed import Packed
from ovgpu.ops.fused.compressed import CompressedMatMul
from ovgpu.passes.keep_weights_compressed import DEVICE_TILE
from ovgpu.types import Type
from tests.harness.cuda import bound

Array = Any
BACKENDS = {"torch": "usual", "flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
LOWEST = -65504.0  # exported decoders add it to hidden scores
GRAPH_BYTES = 160 << 20  # of weights in a graph, three times an H100's L2
MAX_LAUNCHES = 64  # in a graph
CHECKED_ROWS = 48  # rows of the weights that are compared
MOST_DRAWN = 4_194_301  # codes, which are repeated


@dataclass(frozen=True)
class Attention:
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
    limit = 0.05

    @property
    def tf32(self) -> bool:
        return self.precision == "tf32"

    def shapes(self) -> dict[str, tuple[tuple[int, ...], Type]]:
        """Return shapes and types of the arrays."""
        kind, rows = Type.f16 if self.precision == "f16" else Type.f32, self.capacity or self.keys
        kv = (self.batch, self.heads, 1, rows, self.head)
        found = {
            "q": ((self.batch, self.heads, self.shared, self.queries, self.head), kind),
            "k": (kv, kind),
            "v": (kv, kind),
        }
        found |= {"mask": ((1, 1, 1, self.queries, rows), kind)} if self.mask == "added" else {}
        found |= {"mask": ((1, 1, 1, 1, rows), Type.boolean)} if self.mask == "boolean" else {}
        return found | ({"length": ((1,), Type.i64)} if self.capacity else {})

    def draw(self, layer: int) -> dict[str, Array]:
        """Return random queries, keys and values, and the mask, on the device."""
        cupy = rt.cupy()
        random = (np if rt.replaced() else cupy).random.default_rng(layer)
        found = {}
        for name, (shape, kind) in self.shapes().items():
            if name == "length":
                found[name] = cupy.asarray(np.array([self.keys], np.int64))
            elif name == "mask":
                row, rows = np.arange(self.queries)[:, None], np.arange(shape[-1])
                mask = (
                    np.where(rows > row + self.keys - self.queries, LOWEST, 0)
                    if self.mask == "added"
                    else (rows < self.keys - 7)
                )
                found[name] = cupy.asarray(mask.astype(kind.storage).reshape(shape))
            else:
                found[name] = cupy.asarray(random.standard_normal(shape, np.float32).astype(kind.storage))
        return found

    def record(self, launcher: Launcher, arrays: Mapping[str, Array]) -> Array:
        """Record the launches; return the array of the result."""
        out = rt.cupy().empty_like(arrays["q"])
        operands = (*(arrays[name] for name in "qkv"), arrays.get("mask"), None, None)
        unbound = _attention.attend(launcher, operands, out, self.mask == "causal", arrays.get("length"))
        assert unbound is None
        return out

    def error(self, arrays: Mapping[str, Array], out: Array) -> float:
        """Return the largest error."""
        cupy = rt.cupy()
        q, k, v = (arrays[name].astype(np.float32) for name in "qkv")
        k, v = k[..., : self.keys, :], v[..., : self.keys, :]
        scores = cupy.matmul(q, k.swapaxes(-1, -2)) * np.float32(self.head**-0.5)
        if self.mask == "causal":
            scores = cupy.where(cupy.arange(self.keys) > cupy.arange(self.queries)[:, None], -np.inf, scores)
        elif "mask" in arrays:
            mask = arrays["mask"][..., : self.keys]
            scores = cupy.where(mask, scores, -np.inf) if self.mask == "boolean" else scores + mask
        weights = cupy.exp(scores - scores.max(axis=-1, keepdims=True))
        return float(abs(cupy.matmul(weights, v) / weights.sum(axis=-1, keepdims=True) - out).max())


FORMS = {"int4 g128": (Type.i4, 128, False), "int4 g128 zero": (Type.u4, 128, True), "int8 zero": (Type.u8, 0, True)}


@dataclass(frozen=True)
class Product:
    """A product of ``rows`` rows in f16 with a matrix [n, k] in one of `FORMS`: codes, a scale for each output or each
    group of inputs, and zero points."""

    n: int
    k: int
    form: str
    rows: int
    tf32 = False
    limit = 1.0

    @property
    def name(self) -> str:
        return f"{self.n} x {self.k} {self.form}, {self.rows} rows"

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(
            int(np.prod(shape)) * kind.storage.itemsize for name, (shape, kind) in self.shapes().items() if name != "x"
        )

    @property
    def layers(self) -> int:
        return max(3, min(MAX_LAUNCHES, -(-GRAPH_BYTES // self.nbytes)))

    @property
    def packed(self) -> Packed:
        kind = FORMS[self.form][0]
        return Packed(kind, self.n, self.k, _product_mma.TABLES.get(kind, ()))

    def shapes(self) -> dict[str, tuple[tuple[int, ...], Type]]:
        """Return shapes and types of the arrays; two codes of 4 bits are a byte."""
        _, group, zero = FORMS[self.form]
        terms = (self.n, self.k // group if group else 1)
        found = {
            "x": ((self.rows, self.k), Type.f16),
            "codes": ((self.n * self.k // 2,) if group else (self.n, self.k), Type.u8),
            "scale": (terms, Type.f16),
        }
        return found | ({"zero": (terms, Type.u8)} if zero else {})

    def draw(self, layer: int) -> dict[str, Array]:
        """Return a random matrix, the same for all layers, and random rows."""
        cupy, random = rt.cupy(), np.random.default_rng(5)
        most = {"codes": 256, "zero": 16 if FORMS[self.form][1] else 256}
        found = {}
        for name, (shape, kind) in self.shapes().items():
            size = min(int(np.prod(shape)), MOST_DRAWN)
            values = (
                random.integers(0, most[name], size, np.uint8)
                if name in most
                else random.uniform(0.005, 0.015, size)
                if name == "scale"
                else random.standard_normal(size)
            )
            found[name] = cupy.asarray(np.resize(values.astype(kind.storage), shape))
        return found

    def record(self, launcher: Launcher, arrays: Mapping[str, Array]) -> Array:
        """Record the launches; return the array of the result."""
        cupy = rt.cupy()
        op = CompressedMatMul(weights=self.packed, transpose=True, tile=DEVICE_TILE, device=True)
        out, scratch = cupy.empty((self.rows, self.n), np.float16), cupy.empty(op.tile_elements + 1, np.float32)
        op.cuda(launcher, [arrays.get(name) for name in ("x", "codes", "scale", "zero")], [out], [scratch])
        return out

    def error(self, arrays: Mapping[str, Array], out: Array) -> float:
        """Return the largest error in roundings, of some of the outputs."""
        at = np.random.default_rng(1).choice(self.n, min(CHECKED_ROWS, self.n), replace=False)
        host = {name: array.get() for name, array in arrays.items()}
        matrix = self.packed.taken(NUMPY, host["codes"], at).astype(np.float64)
        each = self.k // host["scale"].shape[1]
        if "zero" in host:
            matrix -= np.repeat(host["zero"][at].astype(np.float64), each, 1)
        matrix = (matrix * np.repeat(host["scale"][at].astype(np.float64), each, 1)).T
        x = host["x"].astype(np.float64)
        rounding = 2**-11 * abs(x @ matrix) + 2**-20 * (abs(x) @ abs(matrix))
        return float((abs(out.get()[:, at].astype(np.float64) - x @ matrix) / rounding).max())


Case = Attention | Product  # `layers` of them are in a graph; an error above `limit` is a fault
ATTENTIONS = [
    Attention("decode 128", 1, 8, 4, 1, 128, "added", 8192),
    Attention("decode 2048", 1, 8, 4, 1, 2048, "added", 8192),
    Attention("decode 8192", 1, 8, 4, 1, 8192, "added", 8192),
    Attention("decode 32768", 1, 8, 4, 1, 32768, "added", 32768, layers=4),
    Attention("decode 8192 of 8 B", 1, 8, 4, 1, 8192, "added", 8192, 128, 8),
    Attention("4 queries 8192", 1, 8, 4, 4, 8192, "added", 8192),
    Attention("16 queries 8192", 1, 8, 4, 16, 8192, "added", 8192),
    Attention("64 queries 8192", 1, 8, 4, 64, 8192, "added", 8192),
    Attention("16 queries of 32 sequences", 32, 8, 4, 16, 2048, "added", 2048, layers=4),
    Attention("prefill 2048", 1, 8, 4, 2048, 2048, "added", layers=4),
    Attention("prefill 2048 causal", 1, 8, 4, 2048, 2048, "causal", layers=4),
    Attention("prefill 2048 of 8 B", 1, 8, 4, 2048, 2048, "added", head=128, layers=4),
    Attention("bert", 1, 12, 1, 128, 128, "boolean"),
    Attention("bert batch 32", 32, 12, 1, 128, 128, "boolean"),
    Attention("vit", 1, 12, 1, 197, 197),
    Attention("whisper", 1, 6, 1, 1500, 1500),
    *(
        Attention(f"{name} in {precision}", *sizes, mask, layers=layers, precision=precision)
        for precision in ("f32", "tf32")
        for name, sizes, mask, layers in (
            ("bert", (1, 12, 1, 128, 128), "boolean", 16),
            ("bert batch 32", (32, 12, 1, 128, 128), "boolean", 16),
            ("prefill 2048", (1, 8, 4, 2048, 2048), "added", 4),
        )
    ),
]
SHAPES = ((2048, 2048), (3072, 2048), (2048, 8192), (16384, 2048), (128256, 2048))  # n, k
PRODUCTS = [Product(n, k, form, rows) for n, k in SHAPES for form in FORMS for rows in (1, 4, 8, 16, 32, 64, 128, 256)]
TINY: list[Case] = [
    Attention("decode 40", 1, 2, 2, 1, 40, "added", 64, layers=1),
    Attention("prefill 20", 1, 2, 2, 20, 20, layers=1),
    Product(128, 256, "int4 g128 zero", 4),
]


def ours(case: Case, seconds: float) -> dict[str, Any]:
    """Return the microseconds of a layer, and the error of the first one."""
    cupy = rt.cupy()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        launcher = Launcher(stream, Blas(stream, case.tf32))
        arrays = [case.draw(layer) for layer in range(case.layers)]
        outputs = [case.record(launcher, each) for each in arrays]
        cupy.cuda.runtime.deviceSynchronize()
        for call in launcher.calls:  # compiles
            call()
        stream.synchronize()
        graph = captured(stream, *launcher.calls)
        times = device_seconds(partial(graph.launch, stream), Events(cupy, stream), seconds)
        found = {"us": statistics.median(times) / case.layers * 1e6, "error": case.error(arrays[0], outputs[0])}
        if isinstance(case, Product):
            moved = case.nbytes + 2 * case.rows * (case.n + case.k)
            found["gigabytes_per_second"] = moved / found["us"] / 1e3
        return found


def peer(case: Attention, seconds: float, backend: str) -> float:
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
                F.scaled_dot_product_attention(
                    q[layer], k[layer], v[layer], is_causal=causal, enable_gqa=case.shared > 1
                )

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=[], help="prefixes of the names of cases")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each time")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget", type=float, default=600, help="seconds after which no case is begun")
    parser.add_argument("--emulated", action="store_true", help="the tests' emulator for CuPy")
    parser.add_argument("--tiny", action="store_true", help="tiny cases, without torch")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    wrong, until = 0, time.perf_counter() + options.budget
    with bound("emulator") if options.emulated else nullcontext():
        for case in TINY if options.tiny else [*ATTENTIONS, *PRODUCTS]:
            if options.cases and not case.name.startswith(tuple(options.cases)):
                continue
            if time.perf_counter() > until:
                print(f"{case.name}: not begun, the time is up", flush=True)
                continue
            try:
                row = ours(case, options.seconds)
            except Exception as error:  # go on with the other cases
                row = {"failed": f"{type(error).__name__}: {error}"[:2000]}
            found[case.name] = row
            wrong += not row.get("error", math.inf) <= case.limit
            for name, backend in BACKENDS.items() if isinstance(case, Attention) and not options.tiny else ():
                try:
                    row[f"{name}_us"] = peer(case, options.seconds, backend)
                except Exception as error:  # no torch, none for the card, or a backend that does not take the case
                    row[name] = f"{type(error).__name__}: {error}"[:200]
            times = "".join(f", {name} {row[f'{name}_us']:.2f}" for name in BACKENDS if f"{name}_us" in row)
            text = "{us:8.2f} us, error {error:.1e}" if "us" in row else "FAILED {failed:.150}"
            print(f"{case.name:22} {text.format(**row)}{times}", flush=True)
            rt.cupy().get_default_memory_pool().free_all_blocks()
            if options.out:
                options.out.write_text(json.dumps({"device": describe(rt.cupy()), "cases": found}, indent=1) + "\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
