"""Faults put into the kernels that move elements: each is caught by wrong results or by the device's checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend, sources
from ovgpu.ops.indexing import Gather
from ovgpu.ops.movement import Transpose
from ovgpu.ops.replication import Pad
from ovgpu.ops.reshape import Reshape
from ovgpu.ops.scatter import ScatterElementsUpdate12
from tests.emulator import cupy_emu
from tests.emulator.state import CUDARuntimeError
from tests.kernels.recorded import axis, draws, run_op

ORDERS: tuple[Any, ...] = ("ascending", "descending", 7)


def transpose(backend: CudaBackend) -> None:
    run_op(backend, Transpose(), [draws((40, 70), np.float32), np.array([1, 0])])


def strided(backend: CudaBackend) -> None:
    run_op(backend, Transpose(), [draws((3, 7, 5), np.float32), np.array([1, 0, 2])])


def dense(backend: CudaBackend) -> None:
    run_op(backend, Reshape(), [draws((40,), np.int8), np.array([5, 8])])


def gather(backend: CudaBackend) -> None:
    run_op(backend, Gather(), [draws((6, 5), np.float32), draws((40,), np.int64, -8, 8), axis(0)])


def scatter(backend: CudaBackend) -> None:
    reductions: tuple[Any, ...] = ("none", "sum")
    for reduction in reductions:
        run_op(backend, ScatterElementsUpdate12(reduction=reduction), [
            draws((9,), np.float32), draws((100,), np.int64, -9, 9), draws((100,), np.float32), axis(0)])


def pad(backend: CudaBackend) -> None:
    run_op(backend, Pad(pad_mode="reflect"), [draws((5, 4), np.float32), np.array([2, 1]), np.array([1, 3])])


FAULTS = [
    (transpose, "copy.cu", "  __syncthreads();\n", ""),
    (transpose, "copy.cu", "row + j < rows && column + i < columns", "row + j < rows"),
    (transpose, "copy.cu", "place % across", "place % down"),
    (strided, "copy.cu", "value[k] = x[offset(axes, at, 0)]", "value[k] = x[offset(axes, at, 1)]"),
    (dense, "copy.cu", "threadIdx.x < bytes % 16", "threadIdx.x < bytes / 16"),
    (gather, "gather.cu", "chosen < extent", "chosen <= extent"),
    (gather, "gather.cu", "if (chosen < 0) chosen += extent;", ""),
    (scatter, "scatter.cu", "turn == now", "turn <= now"),
    (scatter, "scatter.cu", "const I j = first + lane", "const I j = first + 31 - lane"),
    (pad, "pad.cu", "2 * (extent - 1) - i", "2 * extent - i"),
]


@pytest.mark.parametrize(("run", "file", "sound", "broken"), FAULTS, ids=[f"{f[1]} {i}" for i, f in enumerate(FAULTS)])
def test_faults_are_noticed(run: Any, file: str, sound: str, broken: str, backend: CudaBackend, tmp_path: Any,
                            monkeypatch: pytest.MonkeyPatch) -> None:
    run(backend)
    for source in sources.folder().glob("*.cu*"):
        text = source.read_text()
        if source.name == file:
            assert sound in text
            text = text.replace(sound, broken)
        (tmp_path / source.name).write_text(text)
    monkeypatch.setattr(sources, "folder", lambda: tmp_path)
    monkeypatch.setattr(sources, "_functions", {})
    errors = []
    for order in ORDERS:
        with cupy_emu.thread_order(order):
            try:
                run(backend)
            except (AssertionError, CUDARuntimeError) as e:
                errors.append(e)
    assert errors
