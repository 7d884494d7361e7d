"""Faults put into products with compressed weights on tensor cores: each is caught by wrong results or by the device's
checks."""

from __future__ import annotations

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.fused import _product_form
from ovgpu.ops.normalization.normalization import ScaledMVN
from ovgpu.types import Type
from tests.kernels.broken import Fault, is_noticed
from tests.kernels.test_matmul_prologue import GATED, SWAPPED, add_norm, run
from tests.kernels.test_product_mma import multiply, packed

FILE, CODES, INPUT = "product_mma.cu", "codes.cuh", "product_input.cuh"


def nibbles() -> None:
    backend = CudaBackend()
    with backend.stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_product_form, "SHARED_BYTES", 32 << 10)
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


def normalized() -> None:
    """Multiply normalised sums."""
    backend = CudaBackend()
    with backend.stream:
        run(backend, add_norm(ScaledMVN), 3, 320, Type.f16)


def groups() -> None:
    """Multiply in blocks that take several groups of rows."""
    backend = CudaBackend()
    with backend.stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launcher, "multiprocessors", 1)
        multiply(backend, packed(Type.u4, 600, 640), 1, (600, 5), (600, 5))
        multiply(backend, packed(Type.u8, 600, 640), 3, (600, 1), (600, 1))


def gate() -> None:
    backend = CudaBackend()
    with backend.stream:
        run(backend, None, 3, 320, gate=SWAPPED)


def gated() -> None:
    backend = CudaBackend()
    with backend.stream:
        run(backend, GATED, 3, 320)


FAULTS = [
    Fault("x is replaced before it is read", nibbles, FILE, "if (begin || group != first_group) __syncthreads();"),
    Fault(
        "x is read before it is there", whole_bytes, FILE, "stage(begin);\n        __syncthreads();", "stage(begin);"
    ),
    Fault("sums overwrite x", nibbles, FILE, "sums + warps * m_here * PITCH", "sums"),
    Fault("sums overwrite codes", groups, FILE, "warps * (AHEAD * 2 * 32 * V)", "0"),
    Fault("sums are replaced before they are read", groups, FILE, "if (group != first_group) __syncthreads();"),
    Fault("codes are read before they are there", whole_bytes, FILE, "wait_copies_but<AHEAD - 1>();"),
    Fault("codes are read one step early", groups, FILE, "wait_copies_but<AHEAD - 1>", "wait_copies_but<AHEAD>"),
    Fault("codes of the first group", groups, FILE, "group_ahead += group_stride;"),
    Fault(
        "zero points of the first group",
        groups,
        FILE,
        "if (!GROUPED && step_ahead) return;",
        "if (!GROUPED && group_ahead != first_group) return;",
    ),
    Fault("scale of the first step", nibbles, FILE, "of_lane(scales[h], slot)", "of_lane(scales[h], 0)"),
    Fault("rows of the first half", gate, FILE, "+ second * width,", ","),
    Fault("sums of the first half", gate, FILE, "(p * tiles + row / TILE)", "(row / TILE)"),
    Fault(
        "halves exchanged",
        gate,
        FILE,
        "Gate::of(results[0], [](int) { return 0; }, results + 1)",
        "Gate::of(results[1], [](int) { return 0; }, results)",
    ),
    Fault("zero point of another row", whole_bytes, CODES, "row * index.stride", "0"),
    Fault("scale of the first group", nibbles, FILE, "(step_ahead + lane % AHEAD) * parts + part", "part"),
    Fault("x behind its end", whole_bytes, FILE, "at < k && row < m_here", "row < m_here"),
    Fault("other pairs", nibbles, INPUT, "(x.x, x.z, LOWER_HALVES)", "(x.x, x.z, UPPER_HALVES)"),
    Fault("high codes not scaled down", nibbles, CODES, "half_bits(20 - 9)", "half_bits(24 - 9)"),
    Fault("sums of one warp", whole_bytes, FILE, "j < parts", "j < 1"),
    Fault("second terms over first ones", terms, INPUT, "to[t * ROWS * 4]", "to[0]"),
    Fault("first terms twice", terms, FILE, "(t * ROWS + i * CHUNK) * 4", "(i * CHUNK) * 4"),
    Fault("signs", whole_bytes, CODES, "words[i / 2] ^ CODE_SIGNS_8", "words[i / 2]"),
    Fault(
        "rows are normalised before all parts are there",
        normalized,
        INPUT,
        "leave_part(sum, squares[row], thread);\n    }\n    __syncthreads();",
        "leave_part(sum, squares[row], thread);\n    }",
    ),
    Fault(
        "rows are read before they are normalised",
        normalized,
        FILE,
        "thread, warps);\n    __syncthreads();",
        "thread, warps);",
    ),
    Fault(
        "factor of the first row",
        normalized,
        INPUT,
        "sum_of(squares[row], thread, warps)",
        "sum_of(squares[0], thread, warps)",
    ),
    Fault("no scale", normalized, INPUT, "if (scale) value *=", "if (false) value *="),
    Fault(
        "sum of one term",
        normalized,
        INPUT,
        "if (ARRAYS > 1 && total) store_elements(x,",
        "if (ARRAYS > 1 && total) store_elements(reinterpret_cast<const X(&)[CHUNK]>(*sources.x),",
    ),
    Fault("rows of another distance", gated, INPUT, "row * stride.y", "row * stride.x / 2"),
    Fault("second array twice", gated, INPUT, "load_elements(y + row", "load_elements(x + row"),
]


@pytest.mark.drawn(16)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_noticed(fault: Fault) -> None:
    is_noticed(fault)
