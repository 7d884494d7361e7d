"""Counts of the reads of device memory."""

from __future__ import annotations

import numpy as np

from . import cupy_emu as cp
from .state import count_reads, landing
from .test_kernels import kernel

CODE = r"""
#include "ptx.cuh"

extern "C" __global__ void add(float* y, const float* x, const uint4* chunk, const unsigned char* bytes, int n) {
  const int i = threadIdx.x;
  if (i >= n) return;
  const uint4 all = *chunk;
  y[i] += x[2 * i] + all.x + all.y + all.z + all.w + bytes[i];
}

extern "C" __global__ void stage(float* y, const float* x, int n) {
  OVGPU_SHARED(float, to, [4 * 8]);
  const int i = threadIdx.x;
  copy_async(to + 4 * i, x + 4 * i, i < n);
  wait_copies();
  y[i] = to[4 * i];
}
"""


def test_reads_of_each_byte() -> None:
    """Also of a kernel that ran before, in a graph; not of other arrays, and not of writes."""
    y, x = cp.zeros(8, np.float32), cp.zeros(16, np.float32)
    chunk, letters = cp.zeros((1, 4), np.uint32), cp.zeros(8, np.uint8)
    add, stream = kernel(CODE, "add"), cp.cuda.Stream(non_blocking=True)
    add((1,), (8,), (y, x, chunk, letters, np.int32(3)))
    cp.cuda.runtime.deviceSynchronize()
    with stream:
        stream.begin_capture()
        add((1,), (8,), (y, x, chunk, letters, np.int32(5)))
        graph = stream.end_capture()
        with count_reads(y, x, chunk) as (of_y, of_x, of_chunk):
            graph.launch(stream)
            stream.synchronize()
        graph.launch(stream)
        stream.synchronize()
    assert of_y.counts.tolist() == [[1] * 4] * 5 + [[0] * 4] * 3
    assert of_x.counts[::2].tolist() == of_y.counts.tolist() and not of_x.counts[1::2].any()
    assert of_chunk.counts.tolist() == [[[5] * 4] * 4] and of_chunk.kernels == {"add"}


def test_asynchronous_copies() -> None:
    """A copy reads its source once, wherever it lands; zeros have no source."""
    y, x = cp.zeros(8, np.float32), cp.asarray(np.arange(32, dtype=np.float32))
    for when in ("early", "late", 5):
        with landing(when), count_reads(x) as (reads,):
            kernel(CODE, "stage")((1,), (8,), (y, x, np.int32(6)))
            cp.cuda.runtime.deviceSynchronize()
        assert reads.counts[: 6 * 4].min() == reads.counts.max() == 1 and not reads.counts[6 * 4 :].any()
    assert y.get().tolist() == [0, 4, 8, 12, 16, 20, 0, 0]
