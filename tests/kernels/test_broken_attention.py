"""Faults put into attention on tensor cores: each is caught by wrong results or by the device's checks."""

from __future__ import annotations

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.ops import _attention
from tests.kernels.broken import Fault, is_noticed
from tests.kernels.test_attention import attend

FILE = "attention_mma.cu"
STREAM = "attention_stream.cu"
KEYS = "__syncthreads();  // keys are there, and the values before are read"
VALUES = "__syncthreads();  // values are there, and the keys are read"


def many(causal: bool = False) -> None:
    backend = CudaBackend()
    with backend.stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_attention, "STREAMED_WIDTH", 0)
        attend(backend, (1, 140 if causal else 40, 16), (1, 140, 16), (1, 140, 16), kind=np.float16, causal=causal)


def causal() -> None:
    many(True)


def few() -> None:
    """Keys in splits, whose last block merges them."""
    backend = CudaBackend()
    with backend.stream:
        attend(backend, (1, 2, 4, 1, 40), (1, 2, 1, 600, 40), (1, 2, 1, 600, 40), (1, 1, 1, 1, 600), kind=np.float16)


FAULTS = [
    Fault("keys not waited for", many, FILE, f"wait_copies();\n    {KEYS}", KEYS),
    Fault("values not waited for", many, FILE, f"wait_copies();\n    {VALUES}", VALUES),
    Fault("no barrier before values arrive", many, FILE, KEYS),
    Fault("no barrier before keys arrive", many, FILE, VALUES),
    Fault("keys behind the end", many, FILE, "row + r < rows && column + c < columns", "column + c < columns"),
    Fault("sum not rescaled", many, FILE, "[2 * h + n % 2] *= shrink", "[2 * h + n % 2] *= 1.f"),
    Fault("weights of other keys", many, FILE, "weight[m][n + i / 2] + i % 2 * 2",
          "weight[m][n + i % 2] + i / 2 * 2"),
    Fault("keys beyond the diagonal", causal, FILE, "begin + KEYS <= top + 1", "begin + KEYS <= top + 16"),
    Fault("keys up to the diagonal", causal, FILE, "begin < top + TILES * 16", "begin < top"),
    Fault("splits merged early", few, "attention.cuh", "arrived, splits - 1) == splits - 1",
          "arrived, splits - 1) == 0"),
    Fault("splits of one maximum", few, "attention.cuh", "peak[i] = exponential(peak[i] - shift)", "peak[i] = 1"),
    Fault("weights not waited for", few, "attention.cuh", "__syncthreads();\n  const int count", "const int count"),
    Fault("warps of one maximum", few, STREAM, "maximum[m][h] - subtrahend(highest)", "0.f"),
    Fault("maxima of warps not waited for", few, STREAM, "__syncthreads();\n#pragma unroll", "#pragma unroll"),
    Fault("sums of warps not waited for", few, STREAM, "__syncthreads();\n  const int rows", "const int rows"),
    Fault("values of other keys", few, STREAM, "value[4 * i + 2][c], value[4 * i + 3][c]",
          "value[4 * i + 3][c], value[4 * i + 2][c]"),
    Fault("keys of other tiles", few, STREAM, "group / 2 * OWN + 2 * n + group % 2", "n * 8 + group"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_noticed(fault: Fault) -> None:
    is_noticed(fault)
