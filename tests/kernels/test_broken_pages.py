"""Faults put into kernels of KV caches in pages: each is caught by wrong results or by the device's checks."""

from __future__ import annotations

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.ops.fused.kv_cache import CacheWrite
from ovgpu.ops.fused.rotary import RotaryCacheWrite
from tests.kernels import test_pages
from tests.kernels.broken import Fault, is_noticed
from tests.kernels.test_pages import LENGTHS, Sequences, attention, check

PAGES = "pages.cuh"
ATTENTION = "attention.cuh"


def writing() -> None:
    random, sequences, backend = np.random.default_rng(1), Sequences(LENGTHS, 3), CudaBackend()
    with backend.stream:
        new = random.standard_normal((5, 3, 3, 8)).astype(np.float32)
        pool = sequences.pool((1, 3, -1, 8), 2, random, new.dtype)
        check(CacheWrite(axis=2), backend, sequences, [pool, new], [0], lambda inputs, step: (), 0)


def rotating() -> None:
    backend = CudaBackend()
    with backend.stream:
        test_pages.test_rotary_writes(RotaryCacheWrite(size=16), 1, "f16", backend)


def attending() -> None:
    backend = CudaBackend()
    with backend.stream:
        attention(backend, "f16", depth=64)


def attending_in_f32() -> None:
    backend = CudaBackend()
    with backend.stream:
        attention(backend, "f32", queries=9, depth=16)


def appending() -> None:
    backend = CudaBackend()
    with backend.stream:
        test_pages.test_rotary_attention({}, 1, "f16", backend)


FAULTS = [
    Fault("places of another page", writing, PAGES, "(token) % PAGE_TOKENS", "(token + 1) % PAGE_TOKENS"),
    Fault(
        "pages in order",
        writing,
        PAGES,
        "row[FIRST_PAGE + static_cast<unsigned>(token) / PAGE_TOKENS]",
        "token / PAGE_TOKENS",
    ),
    Fault("tokens of rows without a sequence", writing, PAGES, "if (token >= row[1]) return nullptr;"),
    Fault("tokens behind the others", rotating, PAGES, "static_cast<I>(row[0]) +", "static_cast<I>(row[1]) +"),
    Fault("rows of one sequence", rotating, PAGES, "offset(axes, at, own + 2)", "0"),
    Fault("the table of the first sequence", attending, ATTENTION, "::offset(batch, at, N - 1)", "0"),
    Fault("tokens before the step", appending, ATTENTION, "static_cast<I>(table[1])", "static_cast<I>(table[0])"),
    Fault("pages that are none", attending, ATTENTION, "valid ? page_offset", "true ? page_offset"),
    Fault(
        "values where keys are",
        attending_in_f32,
        "attention.cu",
        "true, stride.v, stride.value_page",
        "true, stride.v, stride.v",
    ),
    Fault("appended for rows without a sequence", appending, ATTENTION, "return table[0] < table[1];", "return true;"),
    Fault("new keys of the first page", appending, "attention_stream.cu", "offset(known, true", "offset(I(0), true"),
]


@pytest.mark.drawn(5)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_noticed(fault: Fault) -> None:
    is_noticed(fault)
