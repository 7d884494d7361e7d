"""Faults put into the kernels that move elements: each is caught by wrong results or by the device's checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.ops.movement.gather import Gather
from ovgpu.ops.movement.movement import Transpose
from ovgpu.ops.movement.pad import Pad
from ovgpu.ops.movement.scatter import ScatterElementsUpdate12, ScatterUpdate
from ovgpu.ops.shape.reshape import Reshape
from tests.emulator import cupy_emu
from tests.kernels.broken import Fault, is_noticed
from tests.kernels.recorded import axis, draws, run_op


def transpose() -> None:
    run_op(CudaBackend(), Transpose(), [draws((40, 70), np.float32), np.array([1, 0])])


def strided() -> None:
    run_op(CudaBackend(), Transpose(), [draws((3, 7, 5), np.float32), np.array([1, 0, 2])])


def dense() -> None:
    run_op(CudaBackend(), Reshape(), [draws((40,), np.int8), np.array([5, 8])])


def gather() -> None:
    run_op(CudaBackend(), Gather(), [draws((6, 5), np.float32), draws((40,), np.int64, -8, 8), axis(0)])


def scatter() -> None:
    reductions: tuple[Any, ...] = ("none", "sum")
    for reduction in reductions:
        run_op(
            CudaBackend(),
            ScatterElementsUpdate12(reduction=reduction),
            [draws((2, 9), np.float32), draws((2, 100), np.int64, -9, 9), draws((2, 100), np.float32), axis(1)],
        )


def last() -> None:
    with cupy_emu.thread_order("descending"):
        run_op(
            CudaBackend(),
            ScatterUpdate(),
            [draws((9,), np.float32), draws((100,), np.int64, -9, 9), draws((100,), np.float32), axis(0)],
        )


def pad() -> None:
    run_op(CudaBackend(), Pad(pad_mode="reflect"), [draws((5, 4), np.float32), np.array([2, 1]), np.array([1, 3])])


FAULTS = [
    Fault("no barrier in a tile", transpose, "copy.cu", "  __syncthreads();\n"),
    Fault("past the end of a row", transpose, "copy.cu", "row + j < rows && column + i < columns", "row + j < rows"),
    Fault("row for column", transpose, "copy.cu", "tile_index % column_tiles", "tile_index % row_tiles"),
    Fault("wrong source", strided, "copy.cu", "return x[offset(axes, at, 0)]", "return x[offset(axes, at, 1)]"),
    Fault("wrong tail", dense, "copy.cu", "threadIdx.x < bytes % 16", "threadIdx.x < bytes / 16"),
    Fault("bound off by one", gather, "strided.cuh", "0 <= i && i < extent", "0 <= i && i <= extent"),
    Fault("negative index", gather, "strided.cuh", "if (SIGNED && i < 0) i += extent;"),
    Fault("turn comes too often", scatter, "scatter.cu", "rank == round", "rank <= round"),
    Fault("any of several updates", last, "scatter.cu", "last[i] == j", "last[i] >= 0"),
    Fault("wrong lane", scatter, "scatter.cu", "const I j = first + lane", "const I j = first + 31 - lane"),
    Fault("reflection off by one", pad, "pad.cu", "2 * (extent - 1) - i", "2 * extent - i"),
]


@pytest.mark.drawn(4)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_noticed(fault: Fault) -> None:
    is_noticed(fault)
