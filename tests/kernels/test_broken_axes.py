"""Faults put into the kernels that work along axes: each is caught by wrong results or by the device's checks."""

from __future__ import annotations

import numpy as np
import pytest

from ovgpu.ops.activation.softmax import Softmax8
from ovgpu.ops.arithmetic.cumsum import CumSum
from ovgpu.ops.normalization.normalization import MVN6
from ovgpu.ops.reduction import ReduceMax, ReduceSum
from ovgpu.ops.sort.topk import TopK3
from ovgpu.types import Type
from tests.kernels.broken import Fault, is_noticed
from tests.kernels.forms import check, random
from tests.kernels.test_add_norm import THREE
from tests.kernels.test_fused import F16, F32
from tests.kernels.test_norm_codes import codes, draws, norm, run


def rows() -> None:
    check(ReduceSum(), random((3, 1025), np.int32), [[1]])


def columns() -> None:
    check(ReduceMax(), random((1031, 5)), [[0]])


def softmax_columns() -> None:
    check(Softmax8(axis=0), random((129, 3)))


def mvn() -> None:
    check(MVN6(eps=1e-3, eps_mode="inside_sqrt", normalize_variance=True), random((3, 1028)), [[1]])


def norm_codes() -> None:
    scale, shift, *terms = draws(F16, 64, (3, 2, 64), (2, 64), (64,))
    run(norm(THREE, True), codes(F16, True, 37, -20, 100), [scale, shift, *terms, random((64,), F32)(3)])


def cumsum() -> None:
    check(CumSum(), random((2, 2051), np.int32), [1])


def cumsum_columns() -> None:
    check(CumSum(), random((65, 3), np.int32), [0])


def topk() -> None:
    op = TopK3(axis=-1, mode="max", sort="value", index_element_type=Type.i32)
    check(op, random((2, 5000)), [9], types=[Type.f32, Type.i32])


def ascending_topk() -> None:
    """Each element beats all earlier ones."""
    op = TopK3(axis=-1, mode="max", sort="value", index_element_type=Type.i32)
    check(op, lambda draw: np.arange(draw, 9000 + draw, dtype=np.float32)[None], [9], types=[Type.f32, Type.i32])


def long_topk() -> None:
    """The least elements are in the last part, which has fewer than k."""
    op = TopK3(axis=-1, mode="min", sort="value", index_element_type=Type.i32)
    check(
        op,
        lambda draw: random((1, 16484))(draw) - np.repeat([0, 9], (16384, 100)).astype(np.float32),
        [300],
        types=[Type.f32, Type.i32],
    )


def long_softmax() -> None:
    check(Softmax8(axis=-1), random((2, 18001)))


def long_mvn() -> None:
    """Normalise rows whose parts have different means."""
    op = MVN6(eps=1e-3, eps_mode="inside_sqrt", normalize_variance=True)
    check(op, lambda draw: random((2, 18001))(draw) + np.linspace(0, 9, 18001, dtype=np.float32) ** 2, [[1]])


FAULTS = [
    Fault("no barrier before a fold is read", rows, "axes.cuh", "value;\n    __syncthreads();", "value;"),
    Fault(
        "no barrier before a fold's memory is used again",
        mvn,
        "axes.cuh",
        "    __syncthreads();  // other threads may still be reading the values of an earlier call\n    if",
        "    if",
    ),
    Fault(
        "no barrier between the halves",
        columns,
        "axes.cuh",
        "    __syncthreads();\n    if (threadIdx.y",
        "    if (threadIdx.y",
    ),
    Fault("codes without their zero point", norm_codes, "quantizer.cuh", ") + zero);", "));"),
    Fault("codes are clipped too late", norm_codes, "quantizer.cuh", "reciprocal, low)", "reciprocal, low - 1)"),
    Fault("factors of the first elements", norm_codes, "normalization.cu", "factor + i);", "factor);"),
    Fault("terms that do not repeat", norm_codes, "normalization.cu", "row < rows ? row : row % rows", "row"),
    Fault("a term is added twice", norm_codes, "normalization.cu", "AT_ONCE ? third : second", "second"),
    Fault("too few shuffles", rows, "axes.cuh", "step = width / 2", "step = width / 4"),
    Fault("head of the vectors", rows, "reduction.cu", "unsigned done = 0;", "unsigned done = 1;"),
    Fault("sum not rescaled", softmax_columns, "softmax.cu", "sum * math::exp(maximum - greatest)", "sum"),
    Fault("total of a warp", cumsum, "cumsum.cu", "sum, 31)", "sum, 30)"),
    Fault(
        "no barrier before the segments are read", cumsum_columns, "cumsum.cu", "= sum;\n    __syncthreads();", "= sum;"
    ),
    Fault("no barrier in the sort", long_topk, "topk.cu", "step /= 2) {\n      __syncthreads();", "step /= 2) {"),
    Fault("no room left", ascending_topk, "topk.cu", "count + tile <= capacity", "count <= capacity"),
    Fault("greatest first", topk, "topk.cu", "greatest ? typename Key<T>::Bits(~key) : key", "key"),
    Fault("indices within parts", long_topk, "topk.cu", "begin + i, greatest", "i, greatest"),
    Fault(
        "no entries behind a part's last one",
        long_topk,
        "topk.cu",
        "i < size ? entries[i] : last_entry<E>()",
        "entries[min(i, size - 1)]",
    ),
    Fault(
        "histogram not set to zero",
        topk,
        "topk.cu",
        "shared.histograms[(number + 1) % 3][i] = 0",
        "shared.histograms[number % 3][i] = 0",
    ),
    Fault("two histograms in turn", topk, "topk.cu", "% 3]", "% 2]"),
    Fault("rank within the row", topk, "topk.cu", "k -= bin.before;", ""),
    Fault("prefix of one digit", topk, "topk.cu", "if (prefix.begins(entry)) ", ""),
    Fault(
        "replaced before it is read",
        topk,
        "topk.cu",
        "    __syncthreads();  // all entries that may now be replaced have been read\n",
        "",
    ),
    Fault("bound of an earlier selection left out", topk, "topk.cu", "!is_before(bound, entry)", "true"),
    Fault(
        "sums of parts not rescaled",
        long_softmax,
        "softmax.cu",
        "fold_row(sum * math::exp(maximum - greatest), Add());\n  const A scale",
        "fold_row(sum, Add());\n  const A scale",
    ),
    Fault("means of parts", long_mvn, "normalization.cu", "* distance * distance", "* 0"),
    Fault(
        "last part as long as the others",
        long_mvn,
        "normalization.cu",
        "A(min(chunk, n - i * chunk)) * parts",
        "A(chunk) * parts",
    ),
]


@pytest.mark.drawn(16)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_noticed(fault: Fault) -> None:
    is_noticed(fault)
