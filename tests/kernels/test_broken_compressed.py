"""Faults put into products with compressed weights on tensor cores: each is caught by wrong results or by the device's
checks."""

from __future__ import annotations

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.fused import _compressed_mma
from ovgpu.types import Type
from tests.kernels.broken import Fault, is_noticed
from tests.kernels.test_compressed_mma import multiply, packed

FILE = "compressed_mma.cu"


def nibbles() -> None:
    backend = CudaBackend()
    with backend.stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_compressed_mma, "SHARED_BYTES", 32 << 10)
        patch.setattr(Launcher, "multiprocessors", 1)
        multiply(backend, packed(Type.u4, 40, 1120), 12, (40, 35), (40, 35))


def whole_bytes() -> None:
    backend = CudaBackend()
    with backend.stream:
        multiply(backend, packed(Type.i8, 40, 672), 3, (40, 1), (40, 1))


def terms() -> None:
    """Multiply f32, which is split into two terms."""
    backend = CudaBackend(tf32=True)
    with backend.active():
        multiply(backend, packed(Type.u4, 37, 384), 5, (37, 3), (37, 3), np.float32)


FAULTS = [
    Fault("x is replaced before it is read", nibbles, FILE, "if (begin) __syncthreads();"),
    Fault("x is read before it is there", whole_bytes, FILE, "stage(begin);\n    __syncthreads();", "stage(begin);"),
    Fault("sums overwrite x", nibbles, FILE, "__syncthreads();  // x has been read"),
    Fault("zero point of another row", whole_bytes, FILE, "row * indices.zero.stride", "0"),
    Fault("scale of the first group", nibbles, FILE, "const int at = min(column, k - 1);", "const int at = 0;"),
    Fault("x behind its end", whole_bytes, FILE, "at < k && row < m", "row < m"),
    Fault("other pairs", nibbles, FILE, "(x.x, x.z, 0x5410)", "(x.x, x.z, 0x7632)"),
    Fault("high codes not scaled down", nibbles, FILE, "0x68006800u", "0x78007800u"),
    Fault("sums of one warp", whole_bytes, FILE, "p < parts", "p < 1"),
    Fault("second terms over first ones", terms, FILE, "(t * ROWS + row) * 4", "row * 4"),
    Fault("first terms twice", terms, FILE, "(t * ROWS + i * CHUNK) * 4", "(i * CHUNK) * 4"),
    Fault("signs", whole_bytes, FILE, "words[i / 2] ^ 0x80808080u", "words[i / 2]"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_noticed(fault: Fault) -> None:
    is_noticed(fault)
