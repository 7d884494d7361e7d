"""Faults put into recurrent layers on tensor cores: each is caught by wrong results or by the device's checks."""

from __future__ import annotations

from typing import Any

import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.ops.sequence.recurrent import GRUSequence, LSTMSequence
from tests.kernels.broken import Fault, is_noticed
from tests.kernels.test_recurrent_mma import F16, F32, run

FILE = "recurrent_mma.cu"


def check(op: Any, kind: Any, hidden: int) -> None:
    """Run two directions and two groups of sequences."""
    backend = CudaBackend(tf32=True)
    with backend.stream:
        run(backend, op, kind, 9, hidden, steps=3)


def lstm() -> None:
    check(LSTMSequence(direction="bidirectional"), F32, 136)


def gru() -> None:
    check(GRUSequence(direction="bidirectional", linear_before_reset=True), F16, 24)


FAULTS = [
    Fault("no waiting for other blocks", gru, FILE, "if (threadIdx.x == 0) wait_for", "if (false) wait_for"),
    Fault("threads do not wait for the first one", gru, FILE,
          "(step + 1) * gridDim.x);\n    __syncthreads();", "(step + 1) * gridDim.x);"),
    Fault("sums are read before they are there", gru, FILE, "__syncthreads();\n    const int t", "const int t"),
    Fault("directions share a counter", lstm, FILE, "arrived + barrier * COUNTER_PITCH", "arrived"),
    Fault("the counter is not reset", lstm, FILE, "atomicExch(counter, 0u)", ""),
    Fault("one state for all steps", lstm, FILE, "step % 2 * STATE", "0 * STATE"),
    Fault("rows behind the last unit", gru, FILE, "unit < hidden && i < hidden", "i < hidden"),
    Fault("elements behind a row", lstm, FILE, "unit < hidden && i < hidden", "unit < hidden"),
    Fault("x of this step again", lstm, FILE, "load_projections(step + 1)", "load_projections(step)"),
]  # fmt: skip


@pytest.mark.drawn(6)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_noticed(fault: Fault) -> None:
    is_noticed(fault)
