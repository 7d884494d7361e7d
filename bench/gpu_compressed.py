"""Benchmark of products with compressed weights of Llama's shapes on a GPU, by form and rows of x:

    python -m bench.gpu_compressed --out FILE.json
    python -m bench.gpu_compressed --old               without tensor cores, for comparison

Launches are replayed in a captured graph, over copies of the weights that together exceed L2. Some rows of the
result are compared with a product in f64: `error` counts roundings to f16 (half a unit in the last place each, plus
2^-20 of the sum of absolute products).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu.backends.cuda import CudaBackend, rt
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.fused import _product_mma, _product_tiles
from ovgpu.ops.fused._packed import Packed
from ovgpu.ops.fused.compressed import CompressedMatMul
from ovgpu.passes.compressed import DEVICE_TILE
from ovgpu.types import Type

SHAPES = ((2048, 2048), (3072, 2048), (2048, 8192), (16384, 2048), (128256, 2048))  # N, K
FORMS = {"int4 g128": (Type.i4, 128, False), "int4 g128 zero": (Type.u4, 128, True), "int8 zero": (Type.u8, 0, True)}
ROWS = (1, 4, 8, 16, 32, 64, 128, 256)
GRAPH_BYTES = 160 << 20  # of weights in a graph, three times an H100's L2
MAX_LAUNCHES = 64  # in a graph
CHECKED_ROWS = 48  # rows of the weights that are compared


class Weights:
    """Copies of a matrix on the device."""

    def __init__(self, cupy: Any, shape: tuple[int, int], form: str) -> None:
        (n, k), (kind, group, zero) = shape, FORMS[form]
        random, nbytes, groups = np.random.default_rng(5), n * k * kind.bitwidth // 8, k // group if group else 1
        codes = np.resize(random.integers(0, 256, 4_194_301, np.uint8), nbytes)
        self.host = [codes if group else codes.reshape(n, k), random.uniform(0.005, 0.015, (n, groups)).astype("f2"),
                     random.integers(0, 16 if group else 256, (n, groups), np.uint8) if zero else None]
        self.packed = Packed(kind, n, k, _product_mma.TABLES.get(kind, ()))
        self.copies = [[None if a is None else cupy.asarray(a) for a in self.host]
                       for _ in range(max(1, min(MAX_LAUNCHES, -(-GRAPH_BYTES // nbytes))))]
        self.nbytes = sum(a.nbytes for a in self.host if a is not None)

    def rows(self, at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return some rows in f64."""
        codes, scale, zero = self.host
        assert codes is not None and scale is not None
        values = self.packed.taken(NUMPY, codes, at).astype(np.float64)
        each = self.packed.columns // scale.shape[1]
        if zero is not None:
            values -= np.repeat(zero[at].astype(np.float64), each, 1)
        found: np.ndarray[Any, Any] = values * np.repeat(scale[at].astype(np.float64), each, 1)
        return found


def measure(backend: CudaBackend, weights: Weights, m: int, repeats: int = 3) -> dict[str, Any]:
    """Return the microseconds of a product of m rows, gigabytes per second and the error."""
    cupy, packed = rt.cupy(), weights.packed
    x = np.random.default_rng(m).standard_normal((m, packed.columns)).astype(np.float16)
    device_x, out = cupy.asarray(x), cupy.empty((m, packed.rows), np.float16)
    op = CompressedMatMul(weights=packed, transpose=True, tile=DEVICE_TILE, device=True)
    scratch = cupy.empty(op.tile_elements + 1, np.float32)
    cupy.cuda.Device().synchronize()
    launcher = Launcher(backend.stream, backend.blas)
    count = max(len(weights.copies), 3)
    for i in range(count):
        op.cuda(launcher, [device_x, *weights.copies[i % len(weights.copies)]], [out], [scratch])
    backend.stream.begin_capture()
    for call in launcher.calls:
        call()
    graph = backend.stream.end_capture()
    graph.launch(backend.stream)
    times = []
    for _ in range(repeats):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(backend.stream)
        graph.launch(backend.stream)
        end.record(backend.stream)
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end) * 1e3 / count)
    at = np.random.default_rng(1).choice(packed.rows, CHECKED_ROWS, replace=False)
    matrix = weights.rows(at).T
    wanted, size = x.astype(np.float64) @ matrix, np.abs(x.astype(np.float64)) @ np.abs(matrix)
    error = np.abs(out.get()[:, at].astype(np.float64) - wanted) / (2**-11 * np.abs(wanted) + 2**-20 * size)
    moved = weights.nbytes + 2 * m * (packed.rows + packed.columns)
    return {"us": min(times), "gigabytes_per_second": moved / min(times) / 1e3, "error": float(error.max())}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row per case; return exit status 1 if a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", action="store_true", help="the kernels without tensor cores, and cuBLAS")
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--out", type=Path, help="a JSON file")
    options = parser.parse_args(arguments)
    if options.old:
        _product_mma.MAX_ROWS = _product_tiles.MAX_ROWS = 0
    backend, rows = CudaBackend(), []
    with backend.active():
        for shape in SHAPES:
            for form in FORMS:
                weights = Weights(rt.cupy(), shape, form)
                for m in options.rows:
                    row = {"n": shape[0], "k": shape[1], "form": form, "m": m} | measure(backend, weights, m)
                    rows.append(row)
                    print("{n} x {k} {form}, {m} rows: {us:.2f} us, {gigabytes_per_second:.0f} GB/s, error {error:.3f}"
                          .format(**row), flush=True)
                del weights
                rt.cupy().get_default_memory_pool().free_all_blocks()
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["error"] > 1 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
