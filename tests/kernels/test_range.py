"""Range on the emulated device against its definition."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.ops.shape.shape import Range, Range4
from ovgpu.types import Type
from tests.emulator import nvrtc
from tests.kernels.recorded import run_op

KINDS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.uint8, np.int32, np.int64)
C_TYPES = ("float", "double", "__half", "__nv_bfloat16", "signed char", "unsigned char", "int", "long long")


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: np.dtype(k).name)
def test_numbers(kind: Any, backend: CudaBackend) -> None:
    assert len(run_op(backend, Range(), [np.array(v, kind) for v in (1, 100, 3)])) == 1
    assert len(run_op(backend, Range(), [np.array(v, kind) for v in (5, 5, 1)])) == 0


def test_steps_down_and_of_a_half(backend: CudaBackend) -> None:
    run_op(backend, Range(), [np.array(v, np.float32) for v in (3, -400, -0.5)])
    run_op(backend, Range(), [np.array(v, np.int64) for v in (2**40, 2**40 - 700, -2)])


def test_another_type_of_output(backend: CudaBackend) -> None:
    run_op(backend, Range4(output_type=Type.i32), [np.array(v, np.float32) for v in (1.7, 20.2, 2.9)])
    run_op(backend, Range4(output_type=Type.f32), [np.array(v, np.int64) for v in (1, 20, 3)])


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_compiles_for_devices(architecture: str) -> None:
    expressions = [
        f"range<{t}, {'long long' if 'int' in t or 'long' in t or 'char' in t else 'double'}>" for t in C_TYPES
    ]
    assert len(nvrtc.compile_file("range.cu", architecture, expressions).usage) == len(expressions)
