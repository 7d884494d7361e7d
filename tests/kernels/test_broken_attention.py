"""Faults put into attention on tensor cores: each is caught by wrong results or by the device's checks."""

from __future__ import annotations

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from tests.kernels.broken import Fault, is_noticed
from tests.kernels.test_attention import attend

FILE = "attention_mma.cu"
KEYS = "__syncthreads();  // keys are there, and the values before are read"
VALUES = "__syncthreads();  // values are there, and the keys are read"


def many() -> None:
    backend = CudaBackend()
    with backend.stream:
        attend(backend, (1, 40, 16), (1, 140, 16), (1, 140, 16), kind=np.float16)


def causal() -> None:
    backend = CudaBackend()
    with backend.stream:
        attend(backend, (1, 140, 16), (1, 140, 16), (1, 140, 16), kind=np.float16, causal=True)


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
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_noticed(fault: Fault) -> None:
    is_noticed(fault)
