"""Versions, clocks and bandwidth of a card, and its clusters of blocks: whether those of each kernel fit, and a launch
of each size.

    python -m bench.gpu_card --out FOLDER [--clusters clusters.jsonl]

`bench.gpu_prepare` records the launches in clusters of the test suite and the benchmarks in ``clusters.jsonl``; their
machine code is in CUPY_CACHE_DIR. Results are in ``card.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from bench import gpu_measure
from ovgpu.backends.cuda import driver_launch, kernel_cache, kernels, rt
from ovgpu.backends.cuda.kernel_cache import KernelStore
from ovgpu.backends.cuda.kernels import Kernel
from tests.harness.cuda import bound

SIZES = (2, 3, 4, 5, 6, 7, 8, 16)  # of clusters, in blocks
THREADS = 64
EXCHANGE = """
#include "cluster.cuh"

// out[i] = the sum of the elements i of x, of which each block of the cluster has THREADS
extern "C" __global__ void exchange(const float* x, float* out, int blocks) {
  OVGPU_DYN_SHARED(uint4, memory);
  ExpectedStores* const stores = reinterpret_cast<ExpectedStores*>(memory);
  uint4* const received = memory + 1;
  const unsigned own = threadIdx.x, at = blockIdx.x * blockDim.x + own;
  if (own == 0) stores->expect(blocks * blockDim.x * sizeof(uint4));
  arrive_at_cluster<UNTOUCHED>();
  wait_for_cluster();
  for (int to = 0; to < blocks; to++) {
    const unsigned slot = rank_in_cluster() * blockDim.x + own;
    stores->store(received + slot, make_uint4(__float_as_uint(x[at]), 0, 0, 0), to);
  }
  stores->wait();
  float sum = 0;
  for (int from = 0; from < blocks; from++) sum += __uint_as_float(received[from * blockDim.x + own].x);
  out[at] = sum;
}
"""


def launched(size: int) -> str:
    """Launch one cluster of ``size`` blocks. Return "right", "wrong", or the error."""
    cupy, shared = rt.cupy(), 16 * (1 + size * THREADS)
    kernel = Kernel("exchange", EXCHANGE, "the exchange of a cluster", exported=True)
    try:
        if not kernel.fits_cluster((THREADS,), shared, size):
            return "does not fit"
        x, out = cupy.arange(size * THREADS, dtype=np.float32), cupy.zeros(size * THREADS, np.float32)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            cupy.cuda.runtime.deviceSynchronize()
            launch = driver_launch.DriverLaunch(False, driver_launch.Clusters(size))
            launch(kernel.function(), (size,), (THREADS,), (x, out, np.int32(size)), shared, stream)
            stream.synchronize()
        wanted = np.tile(np.arange(size * THREADS, dtype=np.float32).reshape(size, THREADS).sum(0), size)
        return "right" if np.array_equal(cupy.asnumpy(out), wanted) else "wrong"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]


def occupancy(file: Path) -> list[dict[str, Any]]:
    """Return the recorded launches in clusters, each with ``fits``: whether the device has room for one, or why that
    is not known."""
    rows, store = [json.loads(line) for line in sorted(set(file.read_text().splitlines()))], KernelStore()
    driver = rt.cupy().cuda.driver
    for row in rows:
        try:
            binary = kernel_cache.load(row["key"], store)
            if binary is None:
                row["fits"] = "no machine code"
                continue
            function = kernels._module(rt.cupy(), 0, binary.code).get_function(binary.symbol)
            driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, row["shared"])
            row["fits"] = driver_launch.fits(function, (row["threads"],), row["shared"], row["cluster"])
        except Exception as error:
            row["fits"] = f"{type(error).__name__}: {error}"[:300]
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return exit status 1 if a cluster that fits does not give the right sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--clusters", type=Path)
    parser.add_argument("--emulated", action="store_true", help="the tests' emulator for CuPy")
    parser.add_argument("--tiny", action="store_true", help="a copy of a few bytes")
    options = parser.parse_args(arguments)
    with bound("emulator") if options.emulated else nullcontext():
        cupy = rt.cupy()
        found: dict[str, Any] = {"device": gpu_measure.describe(cupy), "clocks": gpu_measure.clocks()}
        print(found["device"], found["clocks"], flush=True)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            copy = gpu_measure.copy_bandwidth(cupy, stream, 1 << 16 if options.tiny else 2 << 30, 0.3)
        found["copy_bytes_per_second"] = copy
        print(f"copy: {copy / 1e12:.3g} TB/s", flush=True)
        if options.clusters is not None and options.clusters.exists():
            found["kernels"] = occupancy(options.clusters)
        found["launches"] = {size: launched(size) for size in SIZES}
    refused = [row for row in found.get("kernels", ()) if row["fits"] is not True]
    print(f"{len(found.get('kernels', ()))} launches of kernels in clusters, of which {len(refused)} do not fit")
    for row in refused:
        print(f"    {row['cluster']} blocks, {row['shared']} bytes: {row['fits']}: {row['name']}")
    print("launches of clusters:", ", ".join(f"{size} blocks {result}" for size, result in found["launches"].items()))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "card.json").write_text(json.dumps(found, indent=1) + "\n")
    return int(any(result not in ("right", "does not fit") for result in found["launches"].values()))


if __name__ == "__main__":
    sys.exit(main())
